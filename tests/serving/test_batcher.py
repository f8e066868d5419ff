"""Rows of several requests that are computed at once."""

import contextlib
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparkdl.errors import ConfigError
from sparkdl.serving.batcher import Batcher, BatchFailed
from sparkdl.serving.batching import Batching, batching_of
from sparkdl.serving.calls import Result
from sparkdl.serving.request_error import RequestError
from tests.serving.fakes import client, half_plus_three


class Gate:
    """A function whose first batch waits until the gate is opened."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.sizes: list[int] = []
        self.entered, self.opened = threading.Event(), threading.Event()

    def __call__(self, arrays: Any) -> Any:
        self.sizes.append(len(arrays[0]))
        self.entered.set()
        assert self.opened.wait(120)
        return self.function(arrays)


def waiting_behind(gate: Gate, batcher: Batcher, rows: list[Any]) -> list[Any]:
    """Let requests wait behind a first one, open the gate, and return what they got."""
    with ThreadPoolExecutor(len(rows) + 1) as pool:
        first = pool.submit(batcher, [np.array([0.0])])
        assert gate.entered.wait(120)
        others = [pool.submit(batcher, [np.array(row)]) for row in rows]
        while batcher._num_rows < sum(map(len, rows)):
            pass
        gate.opened.set()
        assert first.result()[0][0].tolist() == [0.0]
        return [f.exception() or f.result() for f in others]


def test_requests_that_wait_are_computed_at_once() -> None:
    gate = Gate(lambda arrays: [arrays[0] * 2, -arrays[0]])
    batcher = Batcher(gate, Batching(max_batch_size=8, timeout_ms=0))
    results = waiting_behind(gate, batcher, [[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]])
    assert [[array.tolist() for array in outputs] for outputs, _ in results] == [
        [[2.0, 4.0], [-1.0, -2.0]],
        [[6.0], [-3.0]],
        [[8.0, 10.0, 12.0], [-4.0, -5.0, -6.0]],
    ]
    assert {batch for _, batch in results} == {6} and gate.sizes == [1, 6]
    batcher.close()


def test_a_request_with_more_rows_than_a_batch_is_split() -> None:
    gate = Gate(lambda arrays: [arrays[0] + 1])
    gate.opened.set()
    batcher = Batcher(gate, Batching(max_batch_size=4, timeout_ms=0))
    outputs, batch = batcher([np.arange(10)])
    assert outputs[0].tolist() == list(range(1, 11))
    assert batch == 4 and gate.sizes == [4, 4, 2]
    batcher.close()


def test_a_bad_row_sends_each_request_of_its_batch_to_be_computed_alone() -> None:
    def function(arrays: Any) -> Any:
        if (arrays[0] < 0).any():
            raise ValueError("negative")
        return [arrays[0]]

    gate = Gate(function)
    batcher = Batcher(gate, Batching(max_batch_size=8, timeout_ms=0))
    results = waiting_behind(gate, batcher, [[1.0], [-1.0]])
    assert [type(result) for result in results] == [BatchFailed, BatchFailed]
    assert batcher([np.array([7.0])])[0][0].tolist() == [7.0]
    batcher.close()


def test_a_function_that_mixes_rows_up_is_not_batched() -> None:
    batcher = Batcher(lambda arrays: [arrays[0].sum(keepdims=True)], Batching(timeout_ms=0))
    with pytest.raises(BatchFailed):
        batcher([np.arange(3)])
    batcher.close()


def test_rows_of_different_shapes_are_in_different_batches() -> None:
    gate = Gate(lambda arrays: [arrays[0]])
    batcher = Batcher(gate, Batching(max_batch_size=8, timeout_ms=0))
    rows = [[[1.0]], [[1.0, 2.0]], [[3.0, 4.0]]]
    results = waiting_behind(gate, batcher, rows)
    assert [outputs[0].tolist() for outputs, _ in results] == rows
    batcher.close()


def test_a_full_queue_refuses_requests_with_status_503() -> None:
    gate = Gate(lambda arrays: [arrays[0]])
    batcher = Batcher(gate, Batching(max_batch_size=2, timeout_ms=0, max_enqueued_batches=1))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(batcher, [np.array([1])])
        assert gate.entered.wait(120)
        second = pool.submit(batcher, [np.array([2, 3])])
        while batcher._num_rows < 2:
            pass
        with pytest.raises(RequestError, match="2 rows wait") as caught:
            batcher([np.array([4])])
        assert caught.value.status == 503
        gate.opened.set()
        assert first.result()[0][0].tolist() == [1]
        assert second.result()[0][0].tolist() == [2, 3]
    batcher.close()


def test_a_batch_is_padded_to_an_allowed_size() -> None:
    gate = Gate(lambda arrays: [arrays[0] * 2])
    gate.opened.set()
    batcher = Batcher(gate, Batching(max_batch_size=8, timeout_ms=0, allowed_batch_sizes=(4, 8)))
    outputs, batch = batcher([np.array([1, 2, 3])])
    assert outputs[0].tolist() == [2, 4, 6]
    assert batch == 3 and gate.sizes == [4]
    batcher.close()


def test_rows_wait_for_others_until_the_batch_is_full() -> None:
    gate = Gate(lambda arrays: [arrays[0]])
    gate.opened.set()
    batcher = Batcher(gate, Batching(max_batch_size=3, timeout_ms=30_000))
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda i: batcher([np.array([i])]), range(3)))
    assert [outputs[0].tolist() for outputs, _ in results] == [[0], [1], [2]]
    assert gate.sizes == [3]
    batcher.close()


def test_rows_do_not_wait_for_others_when_every_client_waits() -> None:
    gate = Gate(lambda arrays: [arrays[0]])
    gate.opened.set()
    batcher = Batcher(gate, Batching(timeout_ms=30_000), num_clients=lambda: 3)
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda i: batcher([np.array([i])]), range(3)))
    assert [outputs[0].tolist() for outputs, _ in results] == [[0], [1], [2]]
    assert gate.sizes == [3]
    batcher.close()


def test_threads_end_with_the_batcher() -> None:
    before = {*threading.enumerate()}
    batcher = Batcher(lambda arrays: [arrays[0]], Batching(num_threads=3))
    threads = [t for t in threading.enumerate() if t not in before]
    assert [t.name for t in threads] == ["sparkdl-serving-batch"] * 3
    batcher.close()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    with pytest.raises(BatchFailed):
        batcher([np.arange(3)])


def test_an_answer_that_is_no_array_does_not_end_the_thread_of_the_batcher() -> None:
    answers = [[[1.0], [2.0, 3.0]], [object()], [np.array([3.0])]]
    batcher = Batcher(lambda arrays: answers.pop(0), Batching(timeout_ms=0))
    for _ in range(2):
        with pytest.raises(BatchFailed):
            batcher([np.array([1.0])])
    assert batcher([np.array([1.0])])[0][0].tolist() == [3.0]
    batcher.close()


def test_a_full_queue_is_status_503_over_http_and_requests_that_wait_are_answered() -> None:
    model = half_plus_three()
    gate = Gate(lambda arrays: [arrays[0] / 2 + 3])
    batcher = Batcher(gate, Batching(max_batch_size=1, timeout_ms=0, max_enqueued_batches=2))
    model.run = lambda _, arrays: Result({"y": batcher([arrays["x"]])[0][0]})
    pages = client(model)

    def ask(x: float) -> Any:
        body, headers = {"instances": [x]}, {"Host": "localhost"}
        return pages.post("/v1/models/half_plus_three:predict", json=body, headers=headers)

    with ThreadPoolExecutor(3) as pool:
        taken = [pool.submit(ask, 1.0)]
        assert gate.entered.wait(120)
        taken += [pool.submit(ask, x) for x in (2.0, 5.0)]
        while batcher._num_rows < 2:
            pass
        refused = ask(7.0)
        gate.opened.set()
        assert (refused.status_code, [*refused.json]) == (503, ["error"])
        assert "2 rows wait for the model already" in refused.json["error"]
        assert [f.result().json["predictions"] for f in taken] == [[3.5], [4.0], [5.5]]
    assert ask(7.0).status_code == 200
    batcher.close()


@pytest.mark.slow
def test_the_batcher_of_tensorflow_does_not_suit_versions_that_change() -> None:
    """The reason for a batcher of our own; a TensorFlow without it would be welcome."""
    import tensorflow as tf

    def batched(term: float, timeout_us: int, scope: str = "") -> Any:
        @tf.nondifferentiable_batch_function(1, 8, timeout_us)
        def inner(x: Any) -> Any:
            return x + term

        @tf.function(input_signature=[tf.TensorSpec([None])])
        def function(x: Any) -> Any:
            with tf.name_scope(scope) if scope else contextlib.nullcontext():
                return inner(x)

        return function

    first, second = batched(0.0, 100_000_000), batched(100.0, 100_000_000)
    with ThreadPoolExecutor(8) as pool:
        # Eight rows are a full batch, which does not wait for the timeout.
        functions = [first, second] * 4
        answers = list(pool.map(lambda f: float(f(tf.constant([1.0]))[0]), functions))
    assert len({*answers}) == 1, "each of the two versions has computed its own rows"

    before = _threads_of_tensorflow()
    for number in range(5):
        batched(0.0, 0, f"version_{number}")(tf.constant([1.0]))
    gc.collect()
    assert _threads_of_tensorflow() >= before + 5


def _threads_of_tensorflow() -> int:
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return sum(name.startswith("batch_threads") for name in names)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "expected True, or a dict"),
        ({"size": 3}, "expected some of max_batch_size"),
        ({"max_batch_size": 0}, "at least 1"),
        ({"max_batch_size": True}, "at least 1"),
        ({"max_enqueued_batches": 0}, "at least 1"),
        ({"num_threads": 1.0}, "at least 1"),
        ({"timeout_ms": -1}, "expected milliseconds"),
        ({"timeout_ms": "1"}, "expected milliseconds"),
        ({"timeout_ms": 60_001}, "expected milliseconds"),
        ({"timeout_ms": float("inf")}, "expected milliseconds, at most 60000"),
        ({"allowed_batch_sizes": (4, 8)}, "the last of them max_batch_size, which is 32"),
        ({"allowed_batch_sizes": ()}, "expected ascending numbers"),
        ({"allowed_batch_sizes": (8, 4, 32)}, "expected ascending numbers"),
        ({"allowed_batch_sizes": (8, 8, 32)}, "expected ascending numbers"),
    ],
)
def test_wrong_options_are_refused(value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        batching_of(value)
    assert batching_of(False) is None and batching_of(True) == Batching()


@pytest.mark.parametrize(
    "options",
    [
        {"max_batch_size": 1, "max_enqueued_batches": 1, "num_threads": 1},
        {"timeout_ms": 0},
        {"timeout_ms": 60_000},
        {"max_batch_size": 8, "allowed_batch_sizes": (2, 4, 8)},
        {"allowed_batch_sizes": (32,)},
    ],
)
def test_options_within_their_limits_are_taken(options: dict[str, Any]) -> None:
    assert batching_of(options) == batching_of(Batching(**options)) == Batching(**options)
