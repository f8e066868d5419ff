"""Runs on the driver. Show that a run waits for executors of Spark."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sparkdl.cluster.base import Cluster
from sparkdl.runner.harmless import tolerated

# Seconds until the first line, and between two lines.
FIRST_S = 10.0
LATER_S = 60.0


@contextmanager
def waiting_for_executors(cluster: Cluster, say: Callable[[str], None]) -> Iterator[None]:
    """Say, while the block lasts, that executors of Spark are missing.

    Args:
        cluster: the cluster.
        say: shows the user a line.
    """
    is_over = threading.Event()

    def watch() -> None:
        begun_s = time.monotonic()
        pause_s = FIRST_S
        while not is_over.wait(pause_s):
            pause_s = LATER_S
            with tolerated("count the executors of Spark"):
                registered, num_expected = cluster.executors()
                if registered < num_expected and not is_over.is_set():
                    seconds = time.monotonic() - begun_s
                    say(
                        f"Waiting for Spark: {registered} of {num_expected} executors "
                        f"({seconds:.0f} s)"
                    )

    thread = threading.Thread(target=watch, name="sparkdl-waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
