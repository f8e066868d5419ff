"""Threads that take requests, and those that wait for them."""

import threading
from concurrent.futures import wait

from sparkdl.serving.request_threads import RequestThreads


def test_calls_beyond_the_threads_wait_for_the_first_that_is_free() -> None:
    gate = threading.Barrier(3)  # Two threads and this test.
    names: list[str] = []

    def call() -> int:
        names.append(threading.current_thread().name)
        return gate.wait(60)

    with RequestThreads(2, "test") as threads:
        first = [threads.submit(call) for _ in range(4)]
        gate.wait(60)
        gate.wait(60)
        assert len(wait(first, 60).done) == 4
    assert {*names} == {"test-0", "test-1"}
