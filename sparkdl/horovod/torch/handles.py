"""Runs in the training process. Collectives that wait, and the errors of Horovod.

Ranks may start collectives in different orders: they find each other by name, see `name_order`.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from sparkdl.distribute.ring import Ring
from sparkdl.distribute.step_times import step_times
from sparkdl.errors import CollectiveError, PeerLostError
from sparkdl.horovod.agreement import Disagreement, agree
from sparkdl.horovod.arrays import Reduction
from sparkdl.horovod.merging import Mergeable
from sparkdl.horovod.name_order import order_of
from sparkdl.horovod.process_sets import ProcessSet
from sparkdl.horovod.torch.tensors import as_array, as_tensor, write


class HorovodInternalError(CollectiveError, RuntimeError):
    """A collective has failed: the ranks have called different ones, or a rank is lost."""


class _InvalidArgumentError(HorovodInternalError, ValueError):
    """A rank has called a collective with a wrong argument."""


class _RankLostError(HorovodInternalError, PeerLostError):
    """Another rank is lost."""


class Handle:
    """A collective that has started, for `hvd.poll` and `hvd.synchronize`.

    Args:
        future: the future list of its results.
        is_one: the collective has one result.
    """

    def __init__(self, future: "Future[Any]", is_one: bool) -> None:
        self._future = future
        self._is_one = is_one

    def is_done(self) -> bool:
        """Return True if the collective has ended."""
        return self._future.done()

    def result(self) -> Any:
        """Wait for the end of the collective; return its result, or the tuple of its results.

        Raises:
            HorovodInternalError: if it has failed.
        """
        results = _result(self._future)
        return results[0] if self._is_one else tuple(results)


def start(
    function: Callable[..., Sequence[Any]],
    process_set: ProcessSet,
    tensors: Sequence[Any],
    name: str | None = None,
    outputs: Sequence[Any] | None = None,
    is_one: bool = False,
) -> Handle:
    """Start a collective of arrays.

    Args:
        function: takes a ring and an array for each tensor, and returns a list of arrays.
        process_set: the ranks that take part.
        tensors: the tensors, which must not change before the end of the collective.
        name: name by which the ranks find each other; by default the number of the collective.
        outputs: the tensors that get the results; by default new ones.
        is_one: the collective has one result.

    Raises:
        ValueError: if a collective of this name has started already.
        HorovodInternalError: if this rank is not in the process set.
    """
    tensors, error = list(tensors), ""
    outputs = tensors if outputs is not None else None
    try:
        values = [as_array(tensor) for tensor in tensors]
    except ValueError as exc:
        error = str(exc)

    def attempt(ring: Ring) -> list[Any]:
        if error:  # The other ranks wait for this one.
            agree(ring, {"error": error})
        return finish(function(ring, *values))

    def finish(results: Sequence[Any]) -> list[Any]:
        if outputs is None:
            device = tensors[0].device if tensors else "cpu"
            return [as_tensor(result).to(device) for result in results]
        for output, result in zip(outputs, results, strict=True):
            write(output, result)
        return list(outputs)

    merged = None
    if isinstance(function, Reduction) and not error:
        merged = Mergeable(function, values, finish)
    return Handle(_submit(attempt, process_set, name, merged), is_one)


def call(function: Callable[[Ring], Any], process_set: ProcessSet, name: str | None = None) -> Any:
    """Return the result of a collective without tensors.

    Args:
        function: takes a ring.
        process_set, name: see `start`.
    """
    return _result(_submit(function, process_set, name))


def poll(handle: Handle) -> bool:
    """Return True if a collective has ended, so that `synchronize` will not wait.

    Args:
        handle: what the start of the collective has returned.

    Example:
        >>> import torch, sparkdl.horovod.torch as hvd
        >>> handle = hvd.allreduce_async(torch.ones(2))
        >>> hvd.synchronize(handle), hvd.poll(handle)
        (tensor([1., 1.]), True)
    """
    return handle.is_done()


def synchronize(handle: Handle) -> Any:
    """Wait for the end of a collective, and return its result.

    Args:
        handle: what the start of the collective has returned.

    Returns:
        A tensor, or a tuple of tensors of collectives that have several.

    Raises:
        HorovodInternalError: if the collective has failed.
    """
    return handle.result()


@contextlib.contextmanager
def horovod_errors() -> Iterator[None]:
    """Raise `HorovodInternalError` where the block fails."""
    try:
        yield
    except HorovodInternalError:
        raise
    except PeerLostError as exc:
        raise _RankLostError(str(exc)) from exc
    except Disagreement as exc:
        raise HorovodInternalError(str(exc)) from exc
    except ValueError as exc:
        raise _InvalidArgumentError(str(exc)) from exc
    except RuntimeError as exc:
        raise HorovodInternalError(str(exc)) from exc


def _submit(
    function: Callable[[Ring], Any],
    process_set: ProcessSet,
    name: str | None,
    mergeable: Mergeable | None = None,
) -> "Future[Any]":
    with horovod_errors():
        order = order_of(process_set)
    return order.submit(function, name, mergeable)


def _result(future: "Future[Any]") -> Any:
    try:
        with horovod_errors(), step_times().waiting():
            return future.result()
    finally:
        del future  # It has the error, whose traceback has this frame.
