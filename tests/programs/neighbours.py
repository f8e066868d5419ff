"""Programs for ranks whose neighbours leave or hang, see `test_hanging_ranks`."""

import os
import signal
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
