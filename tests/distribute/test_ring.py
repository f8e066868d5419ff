"""The ring in one process: a thread for each rank, real sockets, every size and operation."""

import contextlib
import os
import resource
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl import distribute
from sparkdl.distribute import shared_memory
from sparkdl.distribute.handshake import join
from sparkdl.distribute.invitation import Invitation
from sparkdl.distribute.links import Link, Links
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.shared_memory import BLOCK_BYTES, agreed_slots, receive_slots, send_slots
from sparkdl.errors import PeerLostError
from tests.helpers.gang import invitations
from tests.helpers.rings import connected, on_all, patiently

OPERATIONS: dict[str, Callable[..., Any]] = {
    "sum": np.sum,
    "mean": np.mean,
    "min": np.min,
    "max": np.max,
    "product": np.prod,
}


_sockets: list[socket.socket] = []
_joined: list[Any] = []


def invited(count: int, nodes: str, **options: Any) -> list[Any]:
    """The invitations of a ring, as its ranks have received them, with their listeners."""
    channels = invitations(count, nodes, **options)
    _sockets.extend(channels)
    received = [Invitation.receive(channel) for channel in channels]
    _sockets.extend(listener for _, listener in received)
    return received


def joined(invitation: Invitation, listener: socket.socket) -> Ring:
    """Join a ring; its sockets are closed after the test."""
    ring = join(invitation, listener)
    _joined.append(ring)
    return ring


@pytest.fixture(autouse=True)
def close_sockets() -> Iterator[None]:
    """Close the sockets of the rings that a test has made."""
    yield
    for ring in _joined:
        ring.close()
    _joined.clear()
    while _sockets:
        _sockets.pop().close()


def ring_of(order: list[int], timeout_s: float = 20.0) -> list[Ring]:
    """Return the rings of all ranks, by rank; their sockets are closed after the test."""
    return connected(order, _sockets, timeout_s)


BLOCK = BLOCK_BYTES // 4
orders = st.integers(1, 5).flatmap(lambda n: st.permutations(range(n)))
sizes = st.one_of(st.integers(0, 9), st.sampled_from([BLOCK - 1, BLOCK + 1, 3 * BLOCK + 7]))


@settings(max_examples=60, deadline=None)
@given(order=orders, size=sizes, op=st.sampled_from(sorted(OPERATIONS)))
def test_allreduce_equals_numpy_and_keeps_its_input(order: list[int], size: int, op: str) -> None:
    arrays = [np.random.default_rng(r).normal(size=size).astype("f4") for r in range(len(order))]
    copies = [array.copy() for array in arrays]
    results = on_all(ring_of(order), lambda ring, rank: ring.allreduce(arrays[rank], op))
    assert all(result.tobytes() == results[0].tobytes() for result in results)
    if size:
        expected = OPERATIONS[op](np.stack(arrays).astype("f8"), axis=0)
        np.testing.assert_allclose(results[0], expected, rtol=1e-5, atol=1e-6)
    for array, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


@settings(max_examples=40, deadline=None)
@given(order=orders, rows=st.integers(0, 7), data=st.data())
def test_broadcast_reduce_scatter_and_allgather_equal_numpy(
    order: list[int], rows: int, data: st.DataObject
) -> None:
    root = data.draw(st.sampled_from(order))
    rings, ranks = ring_of(order), range(len(order))
    arrays = [np.arange(rows * 3, dtype="i8").reshape(rows, 3) * (rank + 1) for rank in ranks]
    for got in on_all(rings, lambda ring, rank: ring.broadcast(arrays[rank], root)):
        np.testing.assert_array_equal(got, arrays[root])
    parts = on_all(rings, lambda ring, rank: ring.reduce_scatter(arrays[rank], "sum"))
    np.testing.assert_array_equal(np.concatenate(parts), sum(arrays))
    assert [len(p) for p in parts] == [len(p) for p in np.array_split(arrays[0], len(order))]
    ragged = [np.full((rank, 2), rank, "f8") for rank in ranks]
    for gathered in on_all(rings, lambda ring, rank: ring.allgather(ragged[rank])):
        for got, expected in zip(gathered, ragged, strict=True):
            np.testing.assert_array_equal(got, expected)


@settings(max_examples=40, deadline=None)
@given(order=orders, data=st.data())
def test_alltoall_gives_each_rank_the_rows_for_it(order: list[int], data: st.DataObject) -> None:
    size = len(order)
    counts = st.sampled_from([0, 1, 2, BLOCK // 2 + 1])
    splits = data.draw(
        st.lists(st.lists(counts, min_size=size, max_size=size), min_size=size, max_size=size)
    )
    rows = [
        np.concatenate([np.full((count, 2), 10 * rank + to, "f4") for to, count in enumerate(own)])
        for rank, own in enumerate(splits)
    ]
    received = on_all(ring_of(order), lambda ring, rank: ring.alltoall(rows[rank], splits[rank]))
    for rank, parts in enumerate(received):
        assert [len(part) for part in parts] == [own[rank] for own in splits]
        for origin, part in enumerate(parts):
            assert (part.shape[1], set(part.ravel())) in [(2, {10.0 * origin + rank}), (2, set())]


@settings(max_examples=20, deadline=None)
@given(order=orders, votes=st.lists(st.integers(0, 2), min_size=5, max_size=5))
def test_a_vote_reduces_on_its_way_if_all_vote_the_same(order: list[int], votes: list[int]) -> None:
    """Ranks that vote less than 2 send no array."""
    arrays = [np.arange(3.0) * rank for rank in range(len(order))]
    rings, outs = ring_of(order), [np.zeros(3) for _ in order]

    def call(ring: Ring, rank: int) -> Any:
        if votes[rank] < 2:
            return ring.vote(votes[rank]), ring.vote(1)
        return ring.vote(2, arrays[rank], "sum", outs[rank]), ring.vote(1)

    chosen = votes[: len(order)]
    assert on_all(rings, call) == [(min(chosen), 1)] * len(order)
    expected = sum(arrays) if min(chosen) == 2 else np.zeros(3)
    for out in outs:
        np.testing.assert_array_equal(out, expected)


def test_votes_with_different_arrays_and_other_collectives_are_refused() -> None:
    def differ(ring: Ring, rank: int) -> Any:
        return ring.vote(2, np.zeros(3 + rank), "sum", np.zeros(3 + rank))

    def call(ring: Ring, rank: int) -> Any:
        return ring.vote(0) if rank else ring.allreduce(np.zeros(3))

    def lack(ring: Ring, rank: int) -> Any:
        return ring.vote(2, np.zeros(3), "sum", np.zeros(3)) if rank else ring.vote(2)

    for collective in (differ, call, lack):
        errors = on_all(ring_of([0, 1]), collective)
        assert any("do not call the same collectives" in str(error) for error in errors)
        assert all(isinstance(error, Exception) for error in errors)


@settings(max_examples=20, deadline=None)
@given(order=orders)
def test_records_of_all_ranks_come_by_rank(order: list[int]) -> None:
    records = [bytes([rank, 7]) for rank in range(len(order))]
    rings = ring_of(order)
    assert on_all(rings, lambda ring, rank: ring.allgather_record(records[rank])) == [
        records
    ] * len(order)


@pytest.mark.parametrize(
    ("array", "splits"),
    [(np.zeros(2), [1]), (np.zeros(2), [3, -1]), (np.zeros(2), [1, 1, 0]), (np.float64(1), [1, 0])],
)
def test_alltoall_rejects_splits_that_do_not_fit(array: Any, splits: list[int]) -> None:
    for error in on_all(ring_of([0, 1]), lambda ring, rank: ring.alltoall(array, splits)):
        assert "expected 2 numbers of rows, one for each rank" in str(error)


def test_allreduce_of_a_scalar_keeps_its_shape() -> None:
    for result in on_all(ring_of([0, 1]), lambda ring, rank: ring.allreduce(np.float64(rank))):
        assert (result.shape, float(result)) == ((), 0.5)


@pytest.mark.parametrize(
    ("array", "op", "says"),
    [
        (np.array(["a"]), "sum", "expected numbers.*broadcast_object"),
        (np.array([None]), "sum", "expected numbers"),
        (np.array([True]), "mean", "no boolean value"),
        (np.ma.array([1.0, 9.0], mask=[False, True]), "sum", "the values that the mask hides"),
        (np.zeros(1), "median", "op is 'median'; expected one of sum, mean, min, max"),
    ],
)
def test_allreduce_rejects_unsupported_arrays_and_operations(
    array: Any, op: str, says: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        Ring().allreduce(array, op)


def test_rows_of_a_number_are_refused_with_one_rank_too() -> None:
    with pytest.raises(ValueError, match="reduce_scatter got a number; expected at least one dim"):
        Ring().reduce_scatter(np.float32(1))


def test_no_collective_takes_a_masked_array() -> None:
    hidden = np.ma.array([1.0, 9.0], mask=[False, True])
    for call in (distribute.allreduce, distribute.allgather, distribute.alltoall):
        with pytest.raises(TypeError, match="masked array"):
            call(hidden)


def test_broadcast_rejects_a_root_that_is_not_a_rank() -> None:
    with pytest.raises(ValueError, match="root is 1; expected a rank, from 0 to 0"):
        Ring().broadcast(np.zeros(1), root=1)


@pytest.mark.parametrize("num_rows", [0, 2])
def test_rows_of_different_widths_are_rejected(num_rows: int) -> None:
    """Also the shape of an array without rows counts."""

    def gather(ring: Ring, rank: int) -> Any:
        return ring.allgather(np.zeros((2 * rank or num_rows, 2 + rank)))

    def exchange(ring: Ring, rank: int) -> Any:
        num = 2 * rank or num_rows
        return ring.alltoall(np.zeros((num, 2 + rank)), [num, 0])

    for call in (gather, exchange):
        for error in on_all(ring_of([0, 1]), call):
            assert isinstance(error, ValueError)
            assert "differ in their first dimension only" in str(error)


@pytest.mark.parametrize("other", ["shape", "dtype", "call", "number", "operation", "root"])
def test_ranks_with_different_calls_get_an_error(other: str) -> None:
    def call(ring: Ring, rank: int) -> Any:
        if other == "root":
            return ring.broadcast(np.zeros(3), root=rank)
        if rank == 0:
            return ring.allreduce(np.zeros(3))
        if other == "operation":
            return ring.allreduce(np.zeros(3), "sum")
        if other == "call":
            return ring.broadcast(np.zeros(3))
        if other == "number":
            ring._num_calls += 1  # Pretend an additional call on this rank.
        return ring.allreduce(
            np.zeros(4 if other == "shape" else 3, "i8" if other == "dtype" else "f8")
        )

    for error in on_all(ring_of([0, 1, 2]), call):
        assert isinstance(error, RuntimeError | PeerLostError)
    rings = ring_of([0, 1])
    errors = on_all(rings, call)
    assert any("do not call the same collectives" in str(error) for error in errors)
    assert all(isinstance(ring.broken, Exception) for ring in rings)


def test_a_rank_that_leaves_is_noticed_by_all() -> None:
    rings = ring_of([0, 1, 2, 3])

    def call(ring: Ring, rank: int) -> Any:
        return ring.close() if rank == 2 else ring.allreduce(np.zeros(1 << 20))

    errors = on_all(rings, call)
    for rank in (0, 1, 3):
        assert isinstance(errors[rank], PeerLostError), errors[rank]
    assert any("lost connection to rank 2: " in str(error) for error in errors)


def test_a_rank_that_hangs_is_noticed_after_the_timeout() -> None:
    rings = ring_of([0, 1], timeout_s=0.3)
    errors = on_all(rings, lambda ring, rank: None if rank else ring.allreduce(np.zeros(3)))
    assert isinstance(errors[0], PeerLostError)
    assert "timed out after 0.3 s waiting for rank 1 in a collective" in str(errors[0])


@pytest.mark.parametrize("nodes", ["aaaa", "abcd", "abab"], ids=["unix", "tcp", "both"])
def test_join_connects_ranks_of_one_and_of_several_nodes(nodes: str) -> None:
    received = invited(4, nodes)
    rings = on_all(received, lambda one, rank: joined(*one))
    for result in on_all(rings, lambda ring, rank: ring.allreduce(np.full(300_000, rank), "sum")):
        assert set(result.tolist()) == {6}
    for _, listener in received:
        assert listener.fileno() == -1


@pytest.mark.parametrize("memory", ["named nowhere", "refused"])
def test_ranks_of_a_host_meet_whatever_memory_they_can_share(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python for an old C library lacks `memfd_create`, and /dev/shm may be too small."""
    monkeypatch.delattr(os, "memfd_create")
    before = os.listdir("/dev/shm")
    if memory == "refused":
        monkeypatch.setattr(shared_memory, "NUM_SLOTS", 1 << 40)
    rings = on_all(invited(3, "aaa"), lambda one, rank: joined(*one))
    assert all((ring._links._outgoing._slots is None) == (memory == "refused") for ring in rings)
    for result in on_all(rings, lambda ring, rank: ring.allreduce(np.full(300_000, rank), "sum")):
        assert set(result.tolist()) == {3}
    assert os.listdir("/dev/shm") == before


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    """Let this process open no file in the block."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_neighbours_use_the_socket_if_the_memory_does_not_arrive() -> None:
    """The kernel drops a descriptor for a process that may open no more files."""
    pairs = [socket.socketpair() for _ in range(2)]
    _sockets.extend(end for pair in pairs for end in pair)
    offered = [send_slots(pair[0]) for pair in pairs]
    with no_more_files():
        received = [receive_slots(pairs[0][1], *patiently())]
    received.append(receive_slots(pairs[1][1], *patiently()))
    sent = [
        agreed_slots(slots, pair[0], *patiently())
        for slots, pair in zip(offered, pairs, strict=True)
    ]
    assert [slots is None for slots in (*received, *sent)] == [True, False, True, False]
    rings = [
        Ring(
            [0, 1],
            rank,
            Links(
                Link(1 - rank, pairs[1 - rank][1], slots=received[1 - rank]),
                Link(1 - rank, pairs[rank][0], slots=sent[rank]),
                20,
            ),
        )
        for rank in (0, 1)
    ]
    for result in on_all(rings, lambda ring, rank: ring.allreduce(np.full(300_000, rank), "sum")):
        assert set(result.tolist()) == {1}


def test_arrays_are_released_after_a_collective() -> None:
    """The next collective may be long in coming."""
    rings, owners = ring_of([0, 1]), []

    def call(ring: Ring, rank: int) -> None:
        array, out = np.full(300_000, rank), np.empty(300_000, int)
        owners.extend(weakref.ref(one) for one in (array, out))
        ring.allreduce(array, "sum", out)

    assert on_all(rings, call) == [None, None]
    assert [owner() for owner in owners] == [None] * 4


def answer_to_stranger(address: tuple[str, int], data: bytes) -> bytes:
    """Return the bytes that a listener sends to a peer that sends `data`."""
    with socket.create_connection(address, timeout=120) as link:
        link.sendall(data)
        link.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := link.recv(1024):
            answer += chunk
    return answer


def test_join_refuses_unauthenticated_connections(caplog: pytest.LogCaptureFixture) -> None:
    """Send nothing, noise, too few and too many bytes, and a greeting without the secret."""
    received = invited(2, "ab")
    invitation, listener = received[0]
    address = listener.getsockname()
    hello = b"sparkdl ring 2\0\0" + (0).to_bytes(4, "big") + (1).to_bytes(4, "big") + bytes(4)
    first: list[Any] = []
    waiting = threading.Thread(target=lambda: first.append(joined(invitation, listener)))
    waiting.start()
    for data in (b"", b"GET / HTTP/1.1\r\n\r\n", b"x" * (1 << 20), hello):
        try:
            assert answer_to_stranger(address, data) == b""
        except OSError:
            pass  # Refused before all bytes were sent.
    # The answer to a valid greeting is a random number and a proof.
    answer = answer_to_stranger(address, hello + bytes(32) + b"wrong".ljust(32))
    assert len(answer) == 64
    second = joined(*received[1])
    waiting.join(120)
    rings = [first[0], second]
    assert [r.tolist() for r in on_all(rings, lambda ring, rank: ring.allreduce(np.ones(2)))] == [
        [1.0, 1.0],
        [1.0, 1.0],
    ]
    refusals = [m for m in caplog.messages if "refused a connection from 127.0.0.1:" in m]
    assert len(refusals) == 5
    assert invitation.secret.hex() not in caplog.text
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=120)


def test_join_refuses_a_rank_with_another_secret(caplog: pytest.LogCaptureFixture) -> None:
    mine = invited(2, "ab", join_s=1.0)
    other = Invitation(1, mine[0][0].endpoints, b"another secret", join_s=1.0)
    errors = on_all([mine[0], (other, mine[1][1])], lambda one, rank: joined(*one))
    assert all(isinstance(error, PeerLostError) for error in errors)
    assert "timed out after 1 s waiting for rank 1 to join the ring" in str(
        errors[0]
    ) or "cannot connect to rank 1 at" in str(errors[0])
    assert "does not know the secret of this run" in caplog.text + str(errors[1])


def test_repr_of_an_invitation_hides_the_secret() -> None:
    invitation = Invitation(0, [], b"0123456789abcdef")
    assert "0123456789abcdef" not in repr(invitation)
    assert invitation.secret.hex() not in repr(invitation)


def test_an_invitation_can_be_received_once() -> None:
    end = invitations(1, "a")[0]
    _sockets.append(end)
    Invitation.receive(end)[1].close()
    with pytest.raises(EOFError):
        Invitation.receive(end)
