"""Programs with `hvd.elastic`, without a framework, see `test_elastic`."""

import time
from pathlib import Path
from typing import Any

DOOMED, FATAL_STEP, NUM_STEPS = 2, 34, 300


def counts_steps(folder: Path) -> Any:
    """The doomed rank hangs once, after what was committed in step 30, and comes back late."""
    import numpy as np

    from sparkdl import context
    from sparkdl.distribute.world import ring
    from sparkdl.horovod import elastic

    rank, hangs, back = context.rank, Path(folder, "hangs"), Path(folder, "back")
    resets = list[int]()
    state = elastic.State(step=0, total=np.zeros(2), steps=[], by_name={"losses": []})
    state.register_reset_callbacks([lambda: resets.append(ring().size)])

    @elastic.run
    def train(state: Any) -> None:
        if rank == DOOMED and hangs.exists():
            back.touch()
        while state.step < NUM_STEPS or not ring().allreduce(int(back.exists()), "max"):
            state.total += ring().allreduce(np.ones(2))
            state.steps.append(state.step)
            state.by_name["losses"].append(state.step)
            if rank == DOOMED and state.step == FATAL_STEP and not hangs.exists():
                hangs.touch()
                time.sleep(60)
            state.step += 1
            if state.step % 10 == 0:
                state.commit()

    train(state)
    return [state.step, state.total.tolist(), state.steps, state.by_name["losses"], resets]
