"""Collectives of a part of the ranks."""

from pathlib import Path
from typing import Any

import numpy as np

from sparkdl import context, distribute


def parts(folder: Path) -> Any:
    """Three ranks: one group of two, which has collectives beside those of all ranks."""
    rank = context.current().rank
    ends = distribute.group([2, 0])
    rows = np.arange(4.0)[:, None] + 10 * rank
    told: dict[str, Any] = {"all": distribute.allreduce(np.float64(rank), "sum").tolist()}
    if rank in ends.ranks:
        told["sum"] = distribute.allreduce(rows, "sum", group=ends).ravel().tolist()
        told["root"] = distribute.broadcast(rows, 2, group=ends)[0].tolist()
        received = distribute.alltoall(rows, [1, 3], group=ends)
        told["rows"] = [part.ravel().tolist() for part in received]
        told["half"] = distribute.reduce_scatter(rows, "sum", group=ends).ravel().tolist()
        told["gathered"] = distribute.allgather(rows[:rank], group=ends).ravel().tolist()
    else:
        try:
            distribute.allreduce(rows, group=ends)
        except ValueError as exc:
            told["outside"] = str(exc)
    told["after"] = distribute.allgather(np.array([rank])).ravel().tolist()
    return told
