"""The inbox of a node with feed tasks, without Spark."""

import contextlib
import logging
import pickle
import socket
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdl.cluster.process.server_folder import dial
from sparkdl.files.layout import TrialPaths
from sparkdl.tfos.cluster.node_supervisor import listening
from sparkdl.tfos.feed import protocol, task
from sparkdl.tfos.feed.inbox import Inbox
from sparkdl.tfos.feed.received import Received, hash_of
from sparkdl.tfos.node.runtime import NodeManager
from sparkdl.tfos.TFNode import DataFeed

Connect = Callable[..., socket.socket]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[NodeManager, Connect]]:
    """The manager of a node, and a function that connects as the task of a partition."""
    with listening(tmp_path) as listener:
        inbox = Inbox(listener, lambda: None)

        def connect(partition: int, is_inference: bool = False, call: int = 0) -> socket.socket:
            task = dial(tmp_path, socket.SOCK_STREAM)
            task.settimeout(120)
            hello = {"call_number": call, "partition": partition, "qname": "input"}
            hello |= {"is_inference": is_inference, "first_running_call": call}
            send(task, protocol.HELLO, pickle.dumps(hello))
            return task

        yield NodeManager(inbox), connect


def send(task: socket.socket, kind: bytes, body: bytes = b"") -> None:
    task.sendall(protocol.header(kind, body) + body)


def feed(task: socket.socket, rows: list[Any]) -> None:
    send(task, protocol.ROWS, pickle.dumps(rows))


def receive(task: socket.socket) -> tuple[bytes, Any]:
    frame = protocol.read_frame(task)
    assert frame
    kind, body = frame
    return kind, pickle.loads(body) if kind == protocol.RESULTS else bytes(body)


def test_a_task_hears_when_its_rows_are_used(node: tuple[NodeManager, Connect]) -> None:
    manager, connect = node
    rows = DataFeed(manager)
    with connect(0) as task:
        assert receive(task) == (protocol.WELCOME, b"0")
        feed(task, [1, 2, 3])
        feed(task, [4])
        send(task, protocol.END)
        assert rows.next_batch(2) == [1, 2]
        task.settimeout(0.2)
        with pytest.raises(TimeoutError):
            task.recv(1)
        assert rows.next_batch(2) == [3, 4]
        assert receive(task)[0] == protocol.DONE
    assert not rows.should_stop()


def test_inference_is_cut_at_the_end_of_a_partition(node: tuple[NodeManager, Connect]) -> None:
    manager, connect = node
    rows = DataFeed(manager, train_mode=False)
    with connect(0, True) as one, connect(1, True) as two:
        for task, numbers in ((one, [1, 2, 3]), (two, [4, 5])):
            assert receive(task)[0] == protocol.WELCOME
            feed(task, numbers)
            send(task, protocol.END)
        first, second = rows.next_batch(10), rows.next_batch(10)
        assert sorted([first, second]) == [[1, 2, 3], [4, 5]]
        rows.batch_results([-row for row in first + second])
        assert receive(one) == (protocol.RESULTS, [-1, -2, -3])
        assert receive(two) == (protocol.RESULTS, [-4, -5])
        with pytest.raises(ValueError, match="1 results, but 0 rows were waiting for one"):
            rows.batch_results([6])


def test_another_attempt_goes_on_where_one_has_ended(node: tuple[NodeManager, Connect]) -> None:
    manager, connect = node
    rows = DataFeed(manager)
    with connect(7) as task:
        receive(task)
        feed(task, [1, 2])
        assert rows.next_batch(1) == [1]
    with connect(7) as again:
        assert receive(again) == (protocol.WELCOME, b"2")
        feed(again, [1, 2])
        feed(again, [3])
        send(again, protocol.END)
        assert sorted(rows.next_batch(2)) == [2, 3]
        assert receive(again) == (protocol.DONE, b"0")


def test_an_attempt_in_another_order_loses_no_row(node: tuple[NodeManager, Connect]) -> None:
    manager, connect = node
    rows = DataFeed(manager)
    with connect(7) as task:
        receive(task)
        feed(task, [1, 2])
        feed(task, [3, 4])
        assert rows.next_batch(4) == [1, 2, 3, 4]
    with connect(7) as again:
        assert receive(again) == (protocol.WELCOME, b"4")
        for chunk in ([5, 6], [3, 4], [2, 1]):
            feed(again, chunk)
        send(again, protocol.END)
        assert rows.next_batch(4) == [5, 6, 2, 1]
        assert receive(again) == (protocol.DONE, b"2")


@pytest.mark.parametrize("seed", range(200))
def test_rows_that_are_used_twice_are_counted_exactly(seed: int) -> None:
    """Attempts feed a part of the chunks of all rows, the last one all, in orders of their own."""
    random, received = Random(seed), Received()
    rows = [random.randrange(8) for _ in range(random.randrange(1, 30))]
    used: Counter[int] = Counter()
    num_attempts, is_ordered = random.randrange(1, 5), random.random() < 0.3
    for attempt in range(num_attempts):
        arrived = rows if is_ordered else random.sample(rows, len(rows))
        chunks = [arrived[begin : begin + 2] for begin in range(0, len(rows), 2)]
        is_last = attempt == num_attempts - 1
        repeat = received.repeat()
        for chunk in chunks if is_last else chunks[: random.randrange(len(chunks) + 1)]:
            chunk_hash = hash_of(pickle.dumps(chunk))
            if not repeat.take_once(chunk_hash):
                received.add(chunk_hash, len(chunk))
                used.update(chunk)
    assert not Counter(rows) - used
    assert (used - Counter(rows)).total() == repeat.num_missing
    assert used.total() == received.num_rows
    assert not is_ordered or used == Counter(rows)


def test_an_attempt_without_rows_does_not_keep_the_feed_open(
    node: tuple[NodeManager, Connect], tmp_path: Path
) -> None:
    """Another attempt connects before the end of the first connection has been noticed."""
    manager, connect = node
    rows = DataFeed(manager)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(connect(7))
        assert receive(first)[0] == protocol.WELCOME
        again = stack.enter_context(connect(7))  # Not before: two threads greet in any order.
        assert receive(again) == (protocol.WELCOME, b"0")
        feed(again, [1])
        send(again, protocol.END)
        assert rows.next_batch(1) == [1]
        assert receive(again)[0] == protocol.DONE
    with dial(tmp_path, socket.SOCK_STREAM) as supervisor:
        send(supervisor, protocol.FEED_OVER)
    last = threading.Thread(target=rows.next_batch, args=(1,), daemon=True)
    last.start()
    last.join(120)
    assert rows.should_stop()


def test_calls_that_have_returned_are_forgotten(node: tuple[NodeManager, Connect]) -> None:
    """A stream of small feeds for days keeps no memory of each."""
    manager, connect = node
    rows = DataFeed(manager)
    for call in range(20):
        for partition in range(3):
            with connect(partition, call=call) as task:
                receive(task)
                feed(task, [1])
                send(task, protocol.END)
                assert rows.next_batch(1) == [1]
    assert set(manager.inbox._received_by_key) == {(19, 0), (19, 1), (19, 2)}


def test_rows_of_an_inference_that_was_cut_off_are_dropped(
    node: tuple[NodeManager, Connect],
) -> None:
    manager, connect = node
    rows = DataFeed(manager, train_mode=False)
    with connect(0, True) as task:
        receive(task)
        feed(task, [1, 2])
        assert rows.next_batch(1) == [1]
    with connect(0, True) as again:
        assert receive(again) == (protocol.WELCOME, b"0")
        feed(again, [1, 2])
        send(again, protocol.END)
        taken = rows.next_batch(5)
        assert taken[-2:] == [1, 2]
        rows.batch_results([10, *([20] if len(taken) == 3 else []), 10, 20])
        assert receive(again) == (protocol.RESULTS, [10, 20])


def test_terminate_lets_tasks_go(node: tuple[NodeManager, Connect]) -> None:
    manager, connect = node
    rows = DataFeed(manager)
    with connect(0) as task:
        receive(task)
        feed(task, [1])
        assert rows.next_batch(1) == [1]
        rows.terminate()
        assert receive(task)[0] == protocol.TERMINATING
    with connect(1) as late:
        assert receive(late)[0] == protocol.TERMINATING
    assert str(manager.get("state")) == "'terminating'"  # As TensorFlowOnSpark's proxies say it.


def test_the_feed_ends(node: tuple[NodeManager, Connect], tmp_path: Path) -> None:
    manager, connect = node
    rows = DataFeed(manager, input_mapping={"b": "second", "a": "first"})
    with connect(0) as task:
        receive(task)
        feed(task, [(1, 2, 3)])
        send(task, protocol.END)
        with dial(tmp_path, socket.SOCK_STREAM) as supervisor:
            send(supervisor, protocol.FEED_OVER)
        assert rows.next_batch(5) == {"first": [1], "second": [2]}
    assert rows.should_stop()
    assert rows.next_batch(5) == {"first": [], "second": []}


def test_a_row_that_cannot_be_read_is_an_error_of_the_node(
    node: tuple[NodeManager, Connect],
) -> None:
    manager, connect = node
    with connect(0) as task:
        receive(task)
        send(task, protocol.ROWS, pickle.dumps(Unreadable()))
        with pytest.raises(ValueError, match="mine"):
            DataFeed(manager).next_batch(1)
        assert not task.recv(1)  # The task is let go.


class Unreadable:
    def __reduce__(self) -> Any:
        return int, ("mine",)


def test_a_node_that_is_not_fed_says_so() -> None:
    feed = DataFeed(NodeManager())
    with pytest.raises(RuntimeError, match="input_mode"):
        feed.next_batch(1)
    with pytest.raises(ValueError, match="no queue 'inputs'; expected one of input, output, error"):
        DataFeed(NodeManager(), qname_in="inputs")


@pytest.mark.parametrize("attempt", [0, 1])
@pytest.mark.parametrize(("fed_here", "has_changed"), [(True, False), (True, True), (False, False)])
def test_rows_that_may_be_fed_twice_are_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    attempt: int,
    fed_here: bool,
    has_changed: bool,
) -> None:
    """A failed task may have fed a node of another host, of which this host knows nothing."""

    def fed(self: Any, *arguments: Any) -> Generator[Any, None, tuple[bool, bool]]:
        yield from ()
        return False, has_changed

    folders = [tmp_path] if fed_here else []
    monkeypatch.setattr(task.FeedTask, "_feed", fed)
    monkeypatch.setattr(task.FeedTask, "_nodes_with_rows_of", lambda self, partition: folders)
    context = SimpleNamespace(attemptNumber=lambda: attempt)
    monkeypatch.setattr(task.TaskContext, "get", lambda: context)
    fields = {"call_number": 0, "first_running_call": 0, "qname": "input", "is_inference": False}
    trial = TrialPaths(str(tmp_path))
    results = list(task.FeedTask(run_path=str(tmp_path), trial=trial, **fields)(3, []))
    assert results == [(False, has_changed or (attempt == 1 and not fed_here), None)]
    monkeypatch.setattr(logging.getLogger("sparkdl"), "propagate", True)
    with caplog.at_level(logging.WARNING, "sparkdl.tfos"):
        assert task._summarize([*results, (True, False, None)])
    assert ("partitions: 1)" in caplog.text) is results[0][1]
