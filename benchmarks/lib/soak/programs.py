"""Functions that the soak trains: each notes its begin and end, and its result is known.

They take seconds and hardly any processor time, so that most faults hit them while they run.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

__all__ = [
    "INTERVAL",
    "ROWS",
    "elastic",
    "expected",
    "fed",
    "gang",
    "lasting",
    "loss_of",
    "node",
    "objective",
    "square",
]

ROWS = 600  # Of the DataFrame that feeds a gang.
STEPS = 30
INTERVAL = 8  # Steps of an interval of a population, and of a trial that may pause.
STEP_S = 0.1


def _note(notes: str, what: str, **more: Any) -> None:
    """Append a line to the file that all processes of the soak share."""
    from sparkdl import context

    who = {"run": context.run, "trial": context.trial, "attempt": context.attempt}
    line = {"what": what, "t": time.time(), "pid": os.getpid(), "rank": context.rank, **who, **more}
    with open(notes, "a") as file:  # A write of one short line is whole.
        file.write(json.dumps(line) + "\n")


def square(x: int, notes: str) -> dict[str, Any]:
    """Report for some seconds; return the square of x and a file that contains it."""
    from sparkdl import context

    _note(notes, "begin")
    for step in range(STEPS):
        time.sleep(STEP_S)
        context.report({"value": float(step)}, step=step)
    Path("square.txt").write_text(str(x * x))
    _note(notes, "end")
    return {"value": x * x, "file": "square.txt"}


def objective(x: float, notes: str) -> float:
    """Approach a parabola's value, as an objective of a search does."""
    from sparkdl import context

    _note(notes, "begin")
    for step in range(STEPS):
        time.sleep(STEP_S)
        context.report((x - 0.3) ** 2 + 1.0 / (1 + step), step=step)
    _note(notes, "end")
    return (x - 0.3) ** 2


def loss_of(x: float, steps: int) -> float:
    """Return the loss after a number of steps."""
    return (x - 0.3) ** 2 + 1.0 / (1 + steps)


def lasting(x: float, notes: str) -> dict[str, float]:
    """Make the steps of an interval, from the last checkpoint on, which may be another trial's."""
    from sparkdl import context

    _note(notes, "begin")
    before = context.get_checkpoint()
    trial, steps, goal = json.loads(Path(before, "state").read_text()) if before else (-1, 0, 0)
    if trial != context.trial:
        goal = steps + INTERVAL
    folder = Path("state")
    folder.mkdir(exist_ok=True)
    while steps < goal:
        time.sleep(STEP_S)
        steps += 1
        (folder / "state").write_text(json.dumps([context.trial, steps, goal]))
        context.report({"loss": loss_of(x, steps)}, step=steps, checkpoint=folder)
    _note(notes, "end")
    return {"loss": loss_of(x, steps), "steps": steps}


def gang(notes: str) -> int:
    """Add up over all ranks and steps, from the last checkpoint on."""
    import numpy as np

    from sparkdl import context, distribute

    _note(notes, "begin")
    before = context.get_checkpoint()
    first, total = json.loads(Path(before, "state").read_text()) if before else (0, 0)
    for step in range(first, STEPS):
        time.sleep(STEP_S)
        total += int(distribute.allreduce(np.array([step + context.rank]), "sum")[0])
        if step % 10 == 9:
            folder = Path("state")
            folder.mkdir(exist_ok=True)
            (folder / "state").write_text(json.dumps([step + 1, total]))
            context.report(float(step), step=step, checkpoint=folder)
    _note(notes, "end")
    return total


def fed(notes: str) -> list[int]:
    """Add up the rows of two epochs over all ranks."""
    import numpy as np

    from sparkdl import data, distribute

    _note(notes, "begin")
    totals = []
    rows = data.dataset(batch_size_per_worker=10, feature_cols="id", last_batch="drop")
    for _ in range(2):
        mine = 0
        for batch in rows.as_numpy_iterator():
            time.sleep(STEP_S / 2)
            mine += int(batch.sum())
        totals.append(int(distribute.allreduce(np.array([mine]), "sum")[0]))
    _note(notes, "end")
    return totals


def elastic(notes: str) -> int:
    """Count steps that the ranks make together, also when their number changes."""
    import numpy as np

    import sparkdl.horovod as hvd

    hvd.init()
    _note(notes, "begin")

    @hvd.elastic.run
    def count(state: Any) -> int:
        while state.steps < STEPS:
            time.sleep(STEP_S)
            mean = hvd.allreduce(np.array([float(state.steps)]))
            if mean[0] != state.steps:
                raise ValueError(f"rank {hvd.rank()} is at step {state.steps}, the mean is {mean}")
            state.steps += 1
            if state.steps % 5 == 0:
                state.commit()
        return int(state.steps)

    steps = count(hvd.elastic.ObjectState(steps=0))
    _note(notes, "end")
    return steps


def node(args: Any, ctx: Any) -> None:
    """Return the square of each row, as a node of a TensorFlowOnSpark cluster."""
    _note(args["notes"], "begin")
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        rows = feed.next_batch(10)
        time.sleep(STEP_S)
        feed.batch_results([row * row for row in rows])
    _note(args["notes"], "end")


def expected(kind: str, num_workers: int) -> Any:
    """Return what a program of a kind returns however often it was disturbed."""
    ranks = num_workers * (num_workers - 1) // 2
    return {
        "gang": sum(step * num_workers + ranks for step in range(STEPS)),
        "fed": [ROWS * (ROWS - 1) // 2] * 2,
        "elastic": STEPS,
        "cluster": [row * row for row in range(200)],
    }[kind]
