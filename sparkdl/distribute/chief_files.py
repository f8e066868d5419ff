"""Runs in the training process. Let the chief alone write a file that all ranks would write."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from sparkdl.distribute.elastic_ring import ElasticRing
from sparkdl.distribute.ring import Ring


@contextlib.contextmanager
def written_by_chief(checkpoints: Sequence[Any], world: Ring) -> Iterator[None]:
    """Let rank 0 write the files of callbacks that have the same path on all ranks.

    Several ranks would write into one file at the same time. The other ranks write into a temporary
    folder inside the block: some variables can only be read by all ranks.

    Args:
        checkpoints: the callbacks of Keras's class `ModelCheckpoint`, in the order of all ranks.
        world: the ring of all ranks; an elastic one, whose chief may change, is left alone.
    """
    if isinstance(world, ElasticRing) or world.size == 1:
        yield
        return
    own_paths = [str(callback.filepath) for callback in checkpoints]
    of_chief = world.allgather_object(own_paths)[0]
    same = [
        (callback, path)
        for callback, path, other in zip(checkpoints, own_paths, of_chief, strict=False)
        if world.rank and path == other
    ]
    with tempfile.TemporaryDirectory() as folder:
        for number, (callback, path) in enumerate(same):
            callback.filepath = os.path.join(folder, str(number), os.path.basename(path))
        try:
            yield
        finally:
            for callback, path in same:
                callback.filepath = path
