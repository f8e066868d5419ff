"""Reductions that wait together, between threads that play the ranks."""

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from sparkdl.distribute.handshake import join
from sparkdl.distribute.invitation import Invitation
from sparkdl.horovod.agreement import Disagreement, together
from sparkdl.horovod.arrays import Reduction
from sparkdl.horovod.merging import Mergeable
from sparkdl.horovod.name_order import NameOrder
from tests.helpers.gang import invitations
from tests.helpers.rings import on_all

COUNT = 30
SIZES = [3 + i for i in range(COUNT)] + [400_000]


@pytest.fixture
def orders() -> Iterator[list[NameOrder]]:
    channels = invitations(2, "aa")
    received = [Invitation.receive(channel) for channel in channels]
    rings = on_all(received, lambda one, rank: join(*one))
    made = [NameOrder(ring, range(2), 20.0) for ring in rings]
    yield made
    for closing in (*made, *channels):
        closing.close()


def submit(
    order: NameOrder, name: str, array: Any, op: str = "sum", error: str = ""
) -> Future[Any]:
    """Let a reduction wait, whose end fails with an error if one is given."""
    reduction = Reduction(op)

    def finish(results: Any) -> Any:
        if error:
            raise RuntimeError(error)
        return results[0]

    return order.submit(
        lambda ring: finish(reduction(ring, array)), name, Mergeable(reduction, [array], finish)
    )


def test_reductions_that_wait_at_once_take_few_trips(orders: list[NameOrder]) -> None:
    """The ranks submit them in different orders; only one op of them is another."""

    def call(order: NameOrder, rank: int) -> Any:
        places = range(len(SIZES))[:: 1 if rank else -1]
        with together(order.ring):  # All wait before the first is called.
            waiting = {
                i: submit(
                    order, f"{i}", np.full(SIZES[i], rank + i, "f4"), "max" if i == 1 else "sum"
                )
                for i in places
            }
        return {i: waiting[i].result(20) for i in places}

    for results in on_all(orders, call):
        for i, size in enumerate(SIZES):
            assert results[i].shape == (size,)
            assert set(results[i].tolist()) == {i + 1 if i == 1 else 2 * i + 1}
            assert results[i].base is None or results[i].base.size < 8 * 400_000
    # One by one, they would take twice as many as there are.
    assert all(order.ring._num_calls < COUNT for order in orders)


def test_one_that_fails_does_not_fail_the_others(orders: list[NameOrder]) -> None:
    """The ranks give one another shape, and one rank cannot use a result."""

    def call(order: NameOrder, rank: int) -> Any:
        with together(order.ring):
            waiting = [
                submit(order, f"{i}", np.ones(4 + (rank if i == 2 else 0))) for i in range(4)
            ]
            waiting.append(submit(order, "4", np.ones(4), error="of rank 0" * (not rank)))
        ended = [each.exception(20) or each.result(20).tolist() for each in waiting]
        return [*ended, submit(order, "later", np.ones(1)).result(20).tolist()]

    for rank, ended in enumerate(on_all(orders, call)):
        assert [ended[i] for i in (0, 1, 3, 5)] == [[2.0] * 4] * 3 + [[2.0]]
        assert isinstance(ended[2], Disagreement)
        assert ended[4] == [2.0] * 4 if rank else str(ended[4]) == "of rank 0"
