"""Programs of ranks of which the second takes longer; each returns the sums of its steps."""

import json
import time
from pathlib import Path
from typing import Any

STEPS = 60


def _slow_down() -> None:
    from sparkdl import context

    time.sleep(0.1 if context.rank == 1 else 0.004)


def _sums() -> Any:
    from sparkdl import context
    from sparkdl.distribute.step_times import step_times

    return json.loads(step_times().message("h", f"{context.rank}").to_json())


def _keep_each_step() -> None:
    from sparkdl.distribute import step_times

    step_times.KEPT_S = 0.0


def fits(folder: Path) -> Any:
    """Train with Keras."""
    import keras
    import numpy as np

    from sparkdl import distribute

    class Slow(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            _slow_down()

    _keep_each_step()
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile(distribute.optimizer("sgd"), "mse")
    x = np.ones((2 * STEPS, 4), "float32")
    model.fit(x, x[:, :1], batch_size=2, verbose=0, callbacks=[Slow()])
    return _sums()


def takes_rows(folder: Path) -> Any:
    """Train in a loop of collectives over rows that come late on the second rank."""
    from sparkdl import data, distribute
    from sparkdl.data.blocks import ArrowBlocks

    arrays = ArrowBlocks.arrays

    def late(self: Any) -> Any:
        for rows in arrays(self):
            for begin in range(0, len(rows), 1):
                _slow_down()
                yield rows[begin : begin + 1]

    ArrowBlocks.arrays = late  # type: ignore[method-assign]
    _keep_each_step()
    rows = data.parquet(str(folder / "rows.parquet"), batch_size_per_worker=1)
    for x in rows.as_numpy():
        distribute.allreduce(x)
    return _sums()


def trains_with_torch(folder: Path) -> Any:
    """Train with PyTorch and Horovod's optimizer, whose collectives are in another thread."""
    import torch

    import sparkdl.horovod.torch as hvd

    hvd.init()
    _keep_each_step()
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).sum()
        _slow_down()
        loss.backward()
        optimizer.step()
        hvd.allreduce(loss.detach())
    return _sums()
