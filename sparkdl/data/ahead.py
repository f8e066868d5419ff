"""Runs anywhere. Begin what waits for a store before its result is needed."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from threading import Lock
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Result = TypeVar("_Result")


class Ahead(Generic[_Key, _Result]):
    """Calls that run in threads before their results are needed.

    Args:
        function: called with each key.
        keys: the keys, about in the order in which they will be taken.
        num_ahead: number of calls that run, or are done, before their results are taken.
        discard: called with each result that was not taken.

    Example:
        >>> with closing(Ahead(str.upper, "abc", num_ahead=2)) as letters:
        ...     letters.take("b"), letters.take("a")
        ('B', 'A')
    """

    def __init__(
        self,
        function: Callable[[_Key], _Result],
        keys: Iterable[_Key],
        num_ahead: int,
        discard: Callable[[_Result], object] = lambda _: None,
    ) -> None:
        self._function = function
        self._keys = iter(keys)
        self._discard = discard
        self._futures: dict[_Key, Future[_Result]] = {}
        self._taken_keys: set[_Key] = set()
        self._num_ahead = num_ahead
        self._lock = Lock()  # The lanes of a shuffled pass are read by several threads.
        self._pool = ThreadPoolExecutor(num_ahead, "sparkdl-ahead")
        self._begin()

    def _begin(self) -> None:
        while len(self._futures) < self._num_ahead:
            key = next(self._keys, None)
            if key is None:
                return
            if key not in self._taken_keys and key not in self._futures:
                self._futures[key] = self._pool.submit(self._function, key)

    def take(self, key: _Key) -> _Result:
        """Return the result for a key; wait for the call, or make it if it has not begun."""
        with self._lock:
            self._taken_keys.add(key)
            future = self._futures.pop(key, None)
            self._begin()
        return self._function(key) if future is None else future.result()

    def close(self) -> None:
        """Leave out the calls that have not begun, and wait for the others."""
        self._pool.shutdown(cancel_futures=True)
        for future in self._futures.values():
            if not future.cancelled() and not future.exception():
                self._discard(future.result())
        self._futures.clear()


def map_ahead(
    function: Callable[[_Key], _Result], keys: Sequence[_Key], num_ahead: int
) -> Iterator[_Result]:
    """Yield the results of calls with different keys, in the order of the keys.

    Example:
        >>> list(map_ahead(str.upper, "abc", num_ahead=2))
        ['A', 'B', 'C']
    """
    with closing(Ahead(function, keys, num_ahead)) as ahead:
        for key in keys:
            yield ahead.take(key)
