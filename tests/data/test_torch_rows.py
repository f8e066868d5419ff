"""The rows of a reader as tensors of PyTorch; `scripts/torch.sh` runs these tests."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
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
    mapped = read(map=function, feature_cols=names, label_cols="id", ragged=["tokens"]).as_torch()
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
