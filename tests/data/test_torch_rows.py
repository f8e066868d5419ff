"""The rows of a reader as tensors of PyTorch; `scripts/torch.sh` runs these tests."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl import data
from sparkdl.errors import ConfigError
from tests.data.test_rows import WITHOUT_TENSORFLOW, Read, read, write_all

__all__ = ["read"]  # A fixture, used by its name.

torch: Any = pytest.importorskip("torch")


@pytest.mark.slow
def test_tensors_come_without_tensorflow(tmp_path: Path) -> None:
    write_all(tmp_path)
    command = [sys.executable, "-c", WITHOUT_TENSORFLOW, str(tmp_path), "torch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "read\n", done.stderr


def test_a_network_trains_on_the_batches(read: Read) -> None:
    rows = read(feature_cols=["x"], label_cols="x", shuffle=True).as_torch(pin_memory=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    losses = []
    for epoch in range(20):
        rows.set_epoch(epoch)
        for x, y in rows:
            assert (
                x.dtype == torch.float32
                and x.is_contiguous()
                and x.is_pinned() <= (torch.cuda.is_available())
            )
            x += 0  # The tensor's memory may be written.
            loss = ((model(x)[:, 0] - y) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert len(rows) == 3 and losses[-1] < losses[0] / 4


def test_a_function_computes_tensors(read: Read) -> None:
    buffers = {number: np.zeros((number, 2)) for number in (2, 4, 10)}

    def in_buffers(rows: dict[str, Any]) -> dict[str, Any]:
        buffer = buffers[len(rows["id"])]
        buffer[:] = rows["id"][:, None]
        words = np.char.upper(rows["word"].astype(str))
        return {"pair": buffer, "n": rows["tokens"], "word": words}

    function = data.Map(in_buffers, num_threads=1)
    names = ("pair", "n", "word")
    rows = read(map=function, feature_cols=names, label_cols="id", ragged=["tokens"])
    mapped = rows.as_torch(dtype=None)
    for _ in range(2):
        kept = list(mapped)
        for (pair, lengths, words), ids in kept:
            assert pair.dtype == torch.float64 and (pair[:, 1] == ids).all()
            assert [row.tolist() for row in lengths] == [list(range(i % 3)) for i in ids.tolist()]
            assert words == [f"W{i}" for i in ids.tolist()]
            pair *= 2
        assert [i for _, ids in kept for i in ids.tolist()] == list(range(10))


def test_ragged_arrays_are_jagged_and_strings_are_lists(read: Read) -> None:
    rows = read(feature_cols=("tokens", "word"), ragged=["tokens"])
    found = list(rows.as_torch())
    rows_of = [row.tolist() for ((tokens, _),) in [(batch,) for batch in found] for row in tokens]
    assert rows_of == [list(range(i % 3)) for i in range(10)]
    assert found[0][1] == ["w0", "w1", "w2", "w3"]
    assert np.ravel(found[0][0].offsets()).tolist() == [0, 0, 1, 3, 3]


def test_ragged_strings_are_refused(tmp_path: Path, read: Read) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"words": [["a"], []]}), tmp_path / "rows.parquet")
    with pytest.raises(ConfigError, match="for which PyTorch has no tensor"):
        list(read(ragged=["words"]).as_torch())


def written(folder: Path, count: int = 20) -> Any:
    """A reader of rows in batches of four, as dicts."""
    table = pa.table({"x": [[float(i), 1.0] for i in range(count)], "labels": list(range(count))})
    pq.write_table(table, folder / "rows.parquet")
    columns = {"x": "x", "labels": "labels"}
    path = str(folder / "rows.parquet")
    return lambda: data.parquet(path, batch_size_per_worker=4, shuffle=True, feature_cols=columns)


def labels_of(batches: Any) -> list[int]:
    return [label for batch in batches for label in batch["labels"].tolist()]


def test_a_data_loader_of_pytorch_takes_the_batches(tmp_path: Path) -> None:
    from torch.utils.data import DataLoader, IterableDataset

    read = written(tmp_path)
    assert isinstance(read().as_torch(), IterableDataset)
    expected = labels_of(read().as_numpy())
    for made in (DataLoader(read().as_torch(), batch_size=None), read().as_torch().dataloader()):
        assert len(made) == 5
        assert labels_of(made) == expected
    with pytest.raises(ConfigError, match="num_workers=0: threads read ahead already"):
        next(iter(DataLoader(read().as_torch(), batch_size=None, num_workers=1)))


class Recorder(torch.nn.Module):  # type: ignore[misc,name-defined]
    """A model that notes the rows that it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.rows: list[int] = []

    def forward(self, x: Any, labels: Any) -> dict[str, Any]:
        self.rows += labels.tolist()
        return {"loss": self.layer(x.float()).pow(2).mean()}


@pytest.mark.slow
def test_lightning_goes_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = Recorder()

        def training_step(self, batch: Any, index: int) -> Any:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-6)

    class Save(lightning.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 7:
                trainer.save_checkpoint(tmp_path / "7.ckpt")

    def fit(path: Any = None, **options: Any) -> list[int]:
        module = Module()
        quiet = dict.fromkeys(
            ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
        )
        trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", **quiet, **options)
        trainer.fit(module, read().as_torch(), ckpt_path=path)
        return module.model.rows

    read = written(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning advises num_workers.
        undisturbed = fit(callbacks=[Save()])
        assert sorted(undisturbed[:20]) == sorted(undisturbed[20:]) == [*range(20)]
        assert fit(tmp_path / "7.ckpt") == undisturbed[28:]


@pytest.mark.slow
def test_the_trainer_of_transformers_goes_on_in_the_middle_of_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    from sparkdl.huggingface import Checkpoint

    monkeypatch.chdir(tmp_path)

    def train(checkpoint: str | None = None) -> list[int]:
        model = Recorder()
        options = {"save_strategy": "steps", "save_steps": 7, "disable_tqdm": True}
        arguments = transformers.TrainingArguments(
            "out", num_train_epochs=2, report_to=[], use_cpu=True, **options
        )
        trainer = transformers.Trainer(model, arguments, callbacks=[Checkpoint()])
        trainer.get_train_dataloader = read().as_torch().dataloader
        trainer.train(resume_from_checkpoint=checkpoint)
        return model.rows

    read = written(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        undisturbed = train()
        assert sorted(undisturbed[:20]) == sorted(undisturbed[20:]) == [*range(20)]
        assert train("out/checkpoint-7") == undisturbed[28:]


def test_floats_are_those_of_new_modules(tmp_path: Path) -> None:
    """Floats come as float32, as `Linear` takes only floats of the dtype of its weights."""
    table = {"a": [0.1, 2.0], "b": [16_777_217, 1], "c": pa.array([1.0, 3.0], pa.float32())}
    pq.write_table(pa.table({**table, "y": [0.0, 1.0]}), tmp_path / "a.parquet")
    options = {"batch_size_per_worker": 2, "label_cols": "y"}

    def read(**columns: Any) -> Any:
        return data.parquet(tmp_path / "a.parquet", **options, **columns)

    (x, y), *_ = read(feature_cols=["a", "c"]).as_torch()
    torch.nn.functional.mse_loss(torch.nn.Linear(2, 1)(x)[:, 0], y).backward()
    assert torch.equal(x, torch.tensor([[0.1, 1.0], [2.0, 3.0]]))
    (x, y), *_ = read(feature_cols={"a": "a", "b": "b", "c": "c"}).as_torch(dtype=None)
    kinds = [x["a"].dtype, x["b"].dtype, x["c"].dtype, y.dtype]
    assert kinds == [torch.float64, torch.int64, torch.float32, torch.float64]
    for dtype in (torch.float64, "float16", "bfloat16"):
        (x, y), *_ = read(feature_cols={"b": "b", "c": "c"}).as_torch(dtype=dtype)
        assert {x["c"].dtype, y.dtype} == {getattr(torch, str(dtype).removeprefix("torch."))}
        assert x["b"].tolist() == table["b"]
    with pytest.raises(ConfigError, match="dtype is 'int32'; expected one of 'float32'"):
        read().as_torch(dtype="int32")
    pq.write_table(pa.table({"a": [1e300], "y": [0.0]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a column has 1e\+300, which float32, the dtype of as_t"):
        list(read().as_torch())
    assert next(iter(read().as_torch(dtype="float64")))[0].item() == 1e300
