"""A real gang with a slow rank: it is named everywhere, and moves only to another host."""

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.cli.main import main
from sparkdl.cluster.gang import rank_mover, slow_ranks
from sparkdl.cluster.gang.elastic_policy import SAME_HOST
from sparkdl.errors import ConfigError
from sparkdl.files.layout import RunPaths
from sparkdl.runs import Run
from sparkdl.runs.events import RankMoved, RankSlow
from sparkdl.runs.journal import read_journal
from tests.helpers.processes import eventually, processes_of
from tests.helpers.runs import quiet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def train() -> None:
    """Train until there is a file `go`; rank 1 has a slow computer."""
    import keras
    import tensorflow as tf

    from sparkdl import context, distribute
    from sparkdl.distribute import step_times

    step_times.KEPT_S, step_times.POST_S = 0.05, 0.2

    class Slow(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            time.sleep(0.4 if context.rank == 1 else 0.01)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if any(distribute.allgather_object(Path(context.folder, "go").exists())):
                self.model.stop_training = True

    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile(distribute.optimizer("sgd"), "mse")
    rows = tf.data.Dataset.from_tensor_slices((tf.ones((16, 4)), tf.ones((16, 1)))).batch(2)
    model.fit(rows, epochs=10_000, verbose=0, callbacks=[Slow()])


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_ranks, "LOOK_S", 0.2)
    monkeypatch.setattr(rank_mover, "LOOK_S", 0.2)


def let_end(run: Run) -> Run:
    Path(run.trials[0].path, "go").touch()
    return run.wait()


def test_slow_rank_is_named_in_display_journal_table_and_report(
    root: str, three_executors: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**quiet(root), "progress": True, "logs": "none"}
    run = experiment.allreduce(train, num_workers=3, wait=False, **options)
    assert eventually(lambda: bool(run.slow_ranks), 120)
    sentence = let_end(run).slow_ranks[0]  # A busy host may slow another rank down later.
    assert sentence.startswith("worker 1 (rank 1) on host ")
    assert "is slow: the other ranks wait " in sentence
    assert sentence in capsys.readouterr().out
    event = next(e for e in read_journal(RunPaths(run.path).journal) if isinstance(e, RankSlow))
    assert (event.rank, event.name, event.waits_for_rows) == (1, "worker 1", None)
    assert 0 < event.wait_s < event.step_s
    assert experiment.load(run.path).slow_ranks == run.slow_ranks
    assert sentence[1:] in str(run)
    assert main(["show", run.path]) == 0
    assert sentence[1:] in capsys.readouterr().out
    assert sentence in Path(run.report()).read_text()


def test_slow_rank_stays_if_the_spare_slot_is_on_its_host(
    root: str, three_executors: SparkSession
) -> None:
    options = {"elastic": True, "move_slow_ranks": True, "wait": False, **quiet(root)}
    run = experiment.allreduce(train, num_workers=2, **options)
    stays = "worker 1 (rank 1) stays on host "
    assert eventually(lambda: any(each.startswith(stays) for each in run.slow_ranks), 120)
    let_end(run)
    (sentence,) = [each for each in run.slow_ranks if each.startswith(stays)]
    assert sentence.endswith(SAME_HOST)
    events = [e for e in read_journal(RunPaths(run.path).journal) if isinstance(e, RankMoved)]
    assert (1, None) in [(event.rank, event.target) for event in events]
    assert all(event.target is None for event in events)
    assert (run.state, run.trials[0].attempts) == ("COMPLETE", 1)
    assert eventually(lambda: not processes_of(run.id))
    assert not Path(run.trials[0].path, "ranks").exists()


def test_only_elastic_gangs_move_ranks(root: str) -> None:
    with pytest.raises(ConfigError, match="move_slow_ranks=True needs elastic=True"):
        experiment.allreduce(train, num_workers=2, move_slow_ranks=True, **quiet(root))
    with pytest.raises(ConfigError, match="move_slow_ranks is 1; expected True or False"):
        experiment.horovod(train, num_workers=2, move_slow_ranks=1, **quiet(root))  # type: ignore[arg-type]
    assert list(Path(root).iterdir()) == []
