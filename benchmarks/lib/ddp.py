"""The training of `torch_ddp.py`: PyTorch's DistributedDataParallel on two ranks with gloo.

The module runs in the environments of sparkdl and of its peers, so it imports neither.
"""

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

RANKS = 2
FEATURES, CLASSES, HIDDEN = 64, 10, 256
BATCH = 256  # Rows of a step of one rank.
EPOCHS = 2  # The first one warms up.

Batches = Iterable[tuple[Any, Any]]


def write_rows(folder: Path, rows: int, files: int = 8) -> None:
    """Write Parquet files with `x`, a list of 64 float32, and `y`, a class."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(7)
    for number in range(files):
        count = rows // files
        values = random.standard_normal(count * FEATURES, dtype="f4")
        x = pa.FixedSizeListArray.from_arrays(pa.array(values), FEATURES)
        y = pa.array(random.integers(0, CLASSES, count))
        pq.write_table(
            pa.table({"x": x, "y": y}), folder / f"{number}.parquet", row_group_size=8192
        )


def rows_in_memory(data: str, rank: int) -> Callable[[int], Batches]:
    """Return the passes of a rank over rows that it holds in memory, as PyTorch's tutorials do."""
    import pyarrow.parquet as pq
    import torch
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    table = pq.read_table(data).combine_chunks()
    values = table["x"].chunk(0).flatten().to_numpy().reshape(-1, FEATURES)
    x, y = torch.from_numpy(values.copy()), torch.from_numpy(table["y"].to_numpy().copy())
    rows = TensorDataset(x, y)
    sampler = DistributedSampler(rows, RANKS, rank, drop_last=True)
    loader = DataLoader(rows, BATCH, sampler=sampler, drop_last=True)

    def batches(epoch: int) -> Batches:
        sampler.set_epoch(epoch)
        return loader

    return batches


def train(out: str, rank: int, batches: Callable[[int], Batches]) -> None:
    """Train, and write the times of a rank.

    Args:
        out: the folder of the results.
        rank: the rank; the process group exists.
        batches: returns the batches of an epoch.
    """
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    first_line_s = time.time()
    torch.set_num_threads(1)
    network = nn.Sequential(
        nn.Linear(FEATURES, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, CLASSES),
    )
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    steps: list[float] = []
    for epoch in range(EPOCHS):
        steps.clear()
        num_rows, began_s = 0, time.perf_counter()
        for x, y in batches(epoch):
            ready_s = time.perf_counter()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            steps.append(time.perf_counter() - ready_s)
            num_rows += len(y)
        seconds = time.perf_counter() - began_s
    times = {
        "first_line_s": first_line_s,
        "step_s": median(steps),
        "rows_per_s": num_rows / seconds,
    }
    Path(out, f"{rank}.json").write_text(json.dumps({**times, "rows": num_rows}))


def result(out: str, called_s: float) -> dict[str, float]:
    """Return the times of all ranks together."""
    ranks = [json.loads(Path(out, f"{rank}.json").read_text()) for rank in range(RANKS)]
    return {
        "first_line_s": max(each["first_line_s"] for each in ranks) - called_s,
        "step_ms": 1000 * max(each["step_s"] for each in ranks),
        "rows_per_s": sum(each["rows_per_s"] for each in ranks),
        "rows": sum(each["rows"] for each in ranks),
    }
