"""Rings in one process: a thread for each rank."""

import threading
from collections.abc import Callable
from typing import Any


def on_all(rings: list[Any], call: Callable[[Any, int], Any]) -> list[Any]:
    """Return the result or the exception of `call(ring, rank)` on each rank."""
    results: list[Any] = [None] * len(rings)

    def run(rank: int) -> None:
        try:
            results[rank] = call(rings[rank], rank)
        except Exception as exc:
            results[rank] = exc

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(rings))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "it hangs"
    return results
