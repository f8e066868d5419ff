"""Checkpoints as values: each is committed as a whole, or is not there (runs anywhere).

```
<trial>/checkpoints/000007/checkpoint.json  the marker, written last and removed first
                          /...              the files of the directory that was committed
                          /.held-<by>       somebody else needs it, so it is not removed
```

A directory without its marker does not exist. A local one is made under a hidden name and renamed;
object stores cannot rename, so there the marker alone decides. One process commits for a trial.

What is called `trial` here is the path or URL of a trial's folder.
"""

from sparkdl.checkpoints.reader import (
    FOLDER,
    Checkpoint,
    committed,
    fetch,
    hold,
    newest,
    release,
    step_of,
)
from sparkdl.checkpoints.writer import commit, kept, prune

__all__ = [
    "FOLDER",
    "Checkpoint",
    "commit",
    "committed",
    "fetch",
    "hold",
    "kept",
    "newest",
    "prune",
    "release",
    "step_of",
]
