"""Errors of the Keras callbacks; `tests/distribute` and their examples show how they work."""

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKDL_CONTEXT", json.dumps({"folder": str(tmp_path)}))


def model(built: bool = True) -> Any:
    import keras

    first = [keras.layers.Input((1,))] if built else []
    made = keras.Sequential([*first, keras.layers.Dense(1)], name="small")
    made.compile("sgd", "mse")
    return made


def fit(made: Any, *callbacks: Any, data: Any = None) -> Any:
    import numpy as np

    given = [np.zeros((4, 1), "float32")] * 2 if data is None else [data]
    return made.fit(*given, shuffle=data is None, verbose=0, callbacks=list(callbacks))


def test_checkpoint_refuses_a_model_without_weights_at_the_first_start() -> None:
    from sparkdl.keras import Checkpoint

    with pytest.raises(ValueError, match="restore 'small' after a restart: it has no weights"):
        fit(model(built=False), Checkpoint())
    fit(model(), Checkpoint())


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # Of Keras and NumPy.
def test_metrics_with_several_values_are_left_out_of_reports(tmp_path: Path) -> None:
    import keras
    import numpy as np

    from sparkdl.keras import Checkpoint, Report

    x, y = np.zeros((4, 1), "float32"), np.eye(3, dtype="float32")[[0, 1, 2, 0]]
    made = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(3, "softmax")])
    scores = {"each": None, "macro": "macro"}
    metrics = [keras.metrics.F1Score(average=of, name=name) for name, of in scores.items()]
    made.compile("sgd", "categorical_crossentropy", metrics=metrics)
    with pytest.warns(UserWarning, match=r"each: the metric has 3 values, and is not reported"):
        done = made.fit(x, y, verbose=0, callbacks=[Report(), Checkpoint()])
    assert done.history["each"][0].shape == (3,)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    for line in lines:
        assert json.loads(line)["metrics"].keys() == {"loss", "macro"}
    assert len(lines) == 2


def test_checkpoint_rejects_invalid_use(tmp_path: Path) -> None:
    from sparkdl import context
    from sparkdl.keras import Checkpoint

    with pytest.raises(ValueError, match="every_epochs=0"):
        Checkpoint(every_epochs=0)
    other = tmp_path / "other"
    other.mkdir()
    (other / "weights").write_text("mine")
    context.report({}, step=0, checkpoint=other)
    with pytest.raises(FileNotFoundError, match=r"no epoch\.json in"):
        fit(model(), Checkpoint())
    (other / "epoch.json").write_text('{"epochs_done": 1}')
    context.report({}, step=1, checkpoint=other)


def test_checkpoint_commits_at_the_next_batch_after_a_notice(tmp_path: Path) -> None:
    import keras
    import numpy as np

    from sparkdl import context
    from sparkdl.keras import Checkpoint

    made = model()
    found: list[tuple[int, int, bool]] = []

    class Watch(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if len(found) == 2:
                (tmp_path / "orders.jsonl").write_text('{"notice": "decommissioning"}\n')

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            directory = context.get_checkpoint()
            file = Path(directory, "epoch.json") if directory else None
            done = json.loads(file.read_text())["epochs_done"] if file else -1
            found.append((batch, done, context.should_stop()))

    data = [np.zeros((16, 1), "float32")] * 2
    made.fit(*data, batch_size=4, epochs=3, verbose=0, callbacks=[Checkpoint(9), Watch()])
    # Nothing is committed before the notice; the next batch is, after all callbacks, and then the
    # end of each epoch.
    assert found[:2] == [(0, -1, False), (1, -1, False)]
    assert [done for _, done, _ in found[2:]] == [-1, 0, *[1] * 4, *[2] * 4]
    assert all(stops for _, _, stops in found[2:])


@pytest.mark.parametrize("place", ["disk", "s3"])
def test_checkpoint_goes_on_in_the_middle_of_an_epoch(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    import keras
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from sparkdl import context, data
    from sparkdl.errors import ConfigError
    from sparkdl.files import storage
    from sparkdl.keras import Checkpoint

    pq.write_table(pa.table({"x": pa.array(range(22), pa.float32()), "y": [0.0] * 22}), "rows.pq")
    source, hosts = "rows.pq", iter(range(9))
    if place == "s3":
        trial = f"{request.getfixturevalue('s3')}/{tmp_path.name}"
        source = f"{trial}-rows.pq"
        storage.copy(tmp_path / "rows.pq", source)
    options = {"batch_size_per_worker": 4, "label_cols": "y", "shuffle": True}

    class Watch(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self, ends_after: int = 0) -> None:
            super().__init__()
            self.left = ends_after

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.left -= 1
            if not self.left:
                raise KeyError("the process ends")

    def train(ends_after: int = 0) -> list[list[int]]:
        if place == "s3":  # On a host that has nothing yet.
            (folder := tmp_path / f"host-{next(hosts)}").mkdir()
            context.activate(context.Context(run="r", folder=str(folder), url=trial))
        rows = data.parquet(source, **options)
        checkpoint = Checkpoint(every_steps=2, data=rows)
        ids: list[list[int]] = []

        def seen(x: Any) -> Any:
            ids.append([int(i) for i in x])
            return x

        def kept(x: Any, y: Any) -> Any:
            import tensorflow as tf

            return tf.ensure_shape(tf.numpy_function(seen, [x], tf.float32), [None]), y

        made = model()
        mapped, both = rows.map(kept), [checkpoint, Watch(ends_after)]
        try:
            made.fit(mapped, epochs=3, shuffle=False, verbose=0, callbacks=both)
        except KeyError:
            pass
        return ids

    whole = [i for batch in _epochs(source, options, 3) for i in batch]
    # Of the batches that were read, those of committed steps count: all but the last.
    parts = [(train(5), 4), (train(3), 2), (train(5), 4), (train(), 8)]
    found = [i for batches, steps in parts for batch in batches[:steps] for i in batch]
    assert found == whole
    rows = data.parquet(source, **options)
    with pytest.raises(ConfigError, match=r"fit has 5 steps per epoch, and the data .* has 6"):
        made = model()
        fit(made, Checkpoint(data=rows), data=rows.take(5))
    with pytest.raises(ConfigError, match=r"Checkpoint\(every_steps=2\) was given no data"):
        Checkpoint(every_steps=2)
    with pytest.raises(ConfigError, match="given a ndarray; expected the result of a reader"):
        Checkpoint(data=np.zeros(3))
    with pytest.raises(ValueError, match="every_steps=0"):
        Checkpoint(every_steps=0, data=rows)


def _epochs(source: str, options: dict[str, Any], number: int) -> list[list[int]]:
    from sparkdl import data

    rows = data.parquet(source, **options).as_numpy()
    return [[int(i) for i in x] for _ in range(number) for x, _ in rows]


def test_save_rejects_other_endings_and_leaves_no_file_behind(tmp_path: Path) -> None:
    from sparkdl.keras import save

    with pytest.raises(ValueError, match=r"'model\.pb'.*\.keras or \.h5"):
        save(model(), "model.pb")

    class Broken:
        def save(self, path: str) -> None:
            Path(path).write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        save(Broken(), tmp_path / "new" / "model.keras")
    assert not list((tmp_path / "new").iterdir())


def test_warmup_requires_the_number_of_steps_per_epoch() -> None:
    import tensorflow as tf

    from sparkdl.keras import LearningRateWarmup

    row = tf.zeros([1, 1])
    data = tf.data.Dataset.from_tensors((row, row)).filter(lambda x, y: True)
    with pytest.raises(ValueError, match="steps_per_epoch="):
        fit(model(), LearningRateWarmup(0.1), data=data)


def test_tensorboard_rejects_log_dir() -> None:
    from sparkdl.keras import TensorBoard

    with pytest.raises(TypeError, match="log_dir"):
        TensorBoard(log_dir="elsewhere")
