"""Programs written for Horovod, run in real processes."""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.gang import launch

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return launch("horovod.eager", tmp_path_factory.mktemp("alone"), "worker")[0]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return launch("horovod.eager", tmp_path_factory.mktemp("ranks"), "worker", "worker")


@pytest.mark.parametrize("program", ["with_keras", "with_a_tape"])
def test_programs_equal_one_process_with_the_global_batch(
    program: str, ranks: Any, alone: Any
) -> None:
    """Ranks start from different seeds: Horovod 0.28 silently averages nothing under Keras 3."""
    first, second = (answers[program] for answers in ranks)
    assert first == second
    assert first["weights"] == pytest.approx(alone[program]["weights"], rel=1e-6, abs=1e-6)


def test_a_tensorflow_1_session_equals_one_process(tmp_path: Path) -> None:
    first, second = launch("horovod.with_a_session", tmp_path, "worker", "worker")
    assert first == second
    assert (first["steps"], first["fell"]) == (20, True)
    (tmp_path / "alone").mkdir()
    alone = launch("horovod.with_a_session", tmp_path / "alone", "worker")[0]
    assert first["kernel"] == pytest.approx(alone["kernel"], rel=1e-5)


def test_tf_keras_ranks_end_with_the_same_bits(tmp_path: Path) -> None:
    env = {"TF_USE_LEGACY_KERAS": "1"}
    first, second = launch("horovod.with_keras", tmp_path, "worker", "worker", env=env)
    assert first == second


@pytest.mark.parametrize("count", [2, 3])
def test_collectives_are_equal_eagerly_in_functions_and_in_sessions(
    count: int, tmp_path: Path
) -> None:
    """The session has one thread, and the ranks ask for their results in different orders."""
    assert launch("horovod.everywhere", tmp_path, *["worker"] * count) == [[]] * count


def test_ranks_that_disagree_get_the_errors_of_horovod_and_go_on(ranks: Any) -> None:
    wrong, different = "InvalidArgumentError", "FailedPreconditionError"
    kinds = {
        **{name: [wrong, wrong] for name in ("splits", "number", "adasum")},
        **{n: [different] * 2 for n in ("shape", "dtype", "root", "operation", "call")},
        **{name: ["ValueError"] for name in ("object", "objects")},
        **{
            name: ["Disagreement"]
            for name in ("object root", "process set", "process set and barrier")
        },
    }
    for answers in ranks:
        assert answers["disagreements"] == {name: [*kind, 2.0] for name, kind in kinds.items()}


def test_process_sets_have_collectives_of_their_own(tmp_path: Path) -> None:
    first, middle, last = launch("horovod.process_sets", tmp_path, *["worker"] * 3)
    for told, sums, ranks in [(first, 4.0, [0, 2]), (middle, 2.0, [1]), (last, 4.0, [0, 2])]:
        assert (told["sum"], told["objects"], told["weights"]) == ([sums], ranks, [ranks[-1]])
        assert (told["removed"], told["all"]) == ([True, False], [6.0])
        assert told["numbers"] == [1, 2, 1]  # The number of a removed set is given again.
        assert "two process sets of the ranks [0]" in told["twice"]
    assert [told["gradient"] for told in (first, middle, last)] == [[5.0], [4.0], [5.0]]
    assert (first["place"], middle["place"], last["place"]) == ([0, 2], [0, 1], [1, 2])
    assert "rank 0 called a collective of the group of ranks [1], and is not" in first["outside"]


def test_a_rank_that_dies_is_noticed_by_every_collective(tmp_path: Path) -> None:
    first, died, last = launch("horovod.dies", tmp_path, *["worker"] * 3, codes=(0, 7))
    assert died is None
    assert (len(first["errors"]), len(last["errors"])) == (6, 5)
    assert max(first["after_s"], last["after_s"]) < 120  # Long before a collective gives up.


def test_local_layers_keep_the_gradients_of_each_rank(ranks: Any) -> None:
    """Both updates use the sum of two batches; the own weights w differ, the shared one is s."""
    own, shared = [1.0, 2.0], 1.0
    for _ in range(2):
        gradients, average = [2 * shared] * 2, sum(own)
        own = [w - 0.5 * gradient for w, gradient in zip(own, gradients, strict=True)]
        shared -= 0.5 * average
    for rank, answers in enumerate(ranks):
        assert answers["partly"] == pytest.approx([own[rank], shared])


@pytest.mark.parametrize("env", [{}, {"TF_USE_LEGACY_KERAS": "1"}], ids=["keras", "tf_keras"])
def test_models_that_get_their_variables_late_end_with_the_same_bits(
    env: dict[str, str], tmp_path: Path
) -> None:
    first, second = launch("horovod.late_variables", tmp_path, "worker", "worker", env=env)
    assert first == second


def test_joined_ranks_contribute_zeros(tmp_path: Path) -> None:
    """The gradient is 3 in steps 1 and 2; two ranks are active in step 3, one in step 4."""
    got = launch("horovod.joins", tmp_path, *["worker"] * 3)
    assert got == [{"last": 2, "variable": [-9.0, -9.0]}] * 3


def test_operations_return_the_values_of_horovod(ranks: Any) -> None:
    first, second = (answers["operations"] for answers in ranks)
    assert first == second
    assert first["who"][0] == 2
    assert (first["who"][2:], first["is"]) == ([0, 1], [True, True])
    assert first["default"] == [1.5, 3.0]
    assert first["min"] == [1.0, 2.0]
    assert first["old"] == first["scaled"] == [3.0, 6.0]
    assert first["half"] == ["float32"]
    assert first["gradient"] == [3.0, 3.0]
    assert first["grouped"] == [[3.0, 6.0], [6.0, 12.0]]
    assert first["sparse"] == [[0.0, 0.0], [1.0, 1.0]]
    assert (first["gathered"], first["broadcast"]) == ([0, 1, 1], [2.0, 4.0])
    assert (first["objects"], first["object"]) == ([{"rank": 0}, {"rank": 1}], [1])
    # Two updates by the sum of two batches' gradients, each averaged over both ranks.
    assert first["embedding"] == [-2.0, -2.0] + [0.0] * 8


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda hvd: hvd.init(comm=[0, 1]), "comm is"),
        (lambda hvd: hvd.allreduce(1.0, op="Median"), "expected hvd.Average, Sum, Adasum, Min"),
        (lambda hvd: hvd.allreduce(1.0, average=True, op=hvd.Sum), "op and average were given"),
        (lambda hvd: hvd.barrier(process_set=hvd.ProcessSet([0])), "was not added"),
        (lambda hvd: hvd.ProcessSet("01"), "expected a list of ranks"),
        (lambda hvd: hvd.init(process_sets=[[1]]), "the group has the ranks \\[1\\]"),
        (
            lambda hvd: hvd.DistributedOptimizer("sgd", op=hvd.Max),
            "expected hvd.Average or hvd.Sum",
        ),
    ],
)
def test_unsupported_arguments_are_rejected(call: Any, says: str) -> None:
    import sparkdl.horovod as hvd

    with pytest.raises(ValueError, match=says):
        call(hvd)


def test_learning_rate_callbacks_set_the_rate_of_each_batch() -> None:
    import keras
    import numpy as np

    import sparkdl.horovod.keras as hvd

    rates: list[float] = []

    class Look(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            rates.append(round(float(self.model.optimizer.learning_rate), 4))

    def fit(*callbacks: Any) -> list[float]:
        rates.clear()
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.8), "mse")
        x = np.zeros((4, 1))
        history = model.fit(x, x, batch_size=2, epochs=3, verbose=0, callbacks=[*callbacks, Look()])
        assert history.history["lr"][-1] == pytest.approx(rates[-1], abs=1e-4)
        return rates

    schedule = hvd.callbacks.LearningRateScheduleCallback
    assert fit(schedule(0.8, 0.5, start_epoch=1)) == [0.8, 0.8, 0.8, 0.8, 0.4, 0.4]
    assert fit(schedule(0.8, lambda epoch: 1 / (1 + epoch), end_epoch=2)) == [
        *(0.8, 0.8),
        *(0.4, 0.4, 0.4, 0.4),
    ]
    assert fit(schedule(0.8, lambda epoch: epoch, staircase=False)) == [
        0.0,
        0.4,
        0.8,
        1.2,
        1.6,
        2.0,
    ]
    # With one rank the scaled rate is the initial rate.
    assert fit(hvd.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=2)) == [0.8] * 6
