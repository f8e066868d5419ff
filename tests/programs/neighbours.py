"""Programs for ranks whose neighbours leave or hang, see `test_hanging_ranks`."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any


def one_leaves_one_hangs(folder: Path) -> Any:
    """Rank 0 sends and leaves, rank 1 is stopped; the others wait for what rank 1 passes on."""
    import numpy as np

    from sparkdl import context
    from sparkdl.distribute.world import ring
    from sparkdl.errors import PeerLostError

    world = ring()
    world.barrier()
    if context.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    begun, cpu = time.monotonic(), time.process_time()
    try:
        world.broadcast(np.zeros(3), root=0)
    except PeerLostError as exc:
        used = [time.monotonic() - begun, time.process_time() - cpu]
        return {"error": str(exc), "after_s": used[0], "cpu_s": used[1]}
    return {"left": True}


def one_is_stopped_between_rounds(folder: Path) -> Any:
    """Rank 1 is stopped; the others wait for it on other connections than those of the ring."""
    from sparkdl.distribute import ring_calls
    from sparkdl.distribute.world import ring
    from sparkdl.errors import PeerLostError

    ring_calls.NUM_CALLS_BEFORE_STRIDES = 1
    world = ring()
    for _ in range(3):
        world.barrier()
    assert world._strides
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        world.barrier()
    except PeerLostError as exc:
        return str(exc)
    return None


def one_leaves_a_child(folder: Path) -> Any:
    """Rank 1 is killed, while a process that it has forked lives on."""
    import numpy as np

    from sparkdl.distribute.world import ring
    from sparkdl.errors import PeerLostError

    world = ring()
    world.barrier()
    if world.rank == 1:
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
        Path(folder, "child").write_text(str(child))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        world.allreduce(np.zeros(3))
    except PeerLostError as exc:
        return str(exc)
    return None


def forked_ranks_compute(folder: Path) -> Any:
    """Each rank forks processes during its reductions, which try to take part."""
    import numpy as np

    from sparkdl import distribute
    from sparkdl.distribute.world import ring

    world = ring()
    everyone = distribute.group(range(world.size))
    sums = list[float]()

    def reduce() -> None:
        for number in range(20):
            sums.append(float(world.allreduce(np.full(200_000, 1.0 + number), "sum").max()))

    thread = threading.Thread(target=reduce)
    thread.start()
    codes = []
    for group in (None, everyone):
        child = os.fork()
        if child == 0:
            try:
                distribute.allreduce(1.0, group=group)
            except RuntimeError as exc:
                os._exit(7 if "cannot call collectives" in str(exc) else 1)
            os._exit(2)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    thread.join()
    return [sums, codes, float(distribute.allreduce(1.0, "sum", group=everyone))]


def two_threads_meet(folder: Path) -> Any:
    """Two threads of rank 0 are the first to call a collective, while rank 1 is not there yet."""
    from sparkdl import context, distribute
    from sparkdl.distribute.world import ring

    if context.rank == 1:
        while not Path(folder, "both").exists():
            time.sleep(0.01)
        return distribute.allreduce(1.0, "sum").tolist()
    sizes = list[int]()
    threads = [threading.Thread(target=lambda: sizes.append(ring().size)) for _ in range(2)]
    for thread in threads:
        thread.start()
    threads[1].join(0.2)  # The second has had time to begin.
    Path(folder, "both").touch()
    for thread in threads:
        thread.join()
    return [sizes, distribute.allreduce(1.0, "sum").tolist()]
