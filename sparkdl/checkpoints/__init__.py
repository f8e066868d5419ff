"""Runs anywhere. Checkpoints: each is committed as a whole, or does not exist.

```
<trial>/checkpoints/000007/checkpoint.json  the marker, written last and removed first
                          /...              the files of the committed directory
                          /.held-<holder>   another run needs the checkpoint; it is not removed
```

A directory without a marker is no checkpoint, and the marker is written only if all files are
there. A local checkpoint is written under a hidden name and then renamed. Object stores cannot
rename, so the marker alone decides there. One process commits the checkpoints of a trial, unless
the ranks of a gang commit one together, see `parts`. A process of an attempt that a later one has
superseded is refused, see `sparkdl.files.attempts`.

Arguments called `trial` are the path or URL of the folder of a trial.
"""

from sparkdl.checkpoints.reader import (
    Checkpoint,
    committed,
    fetch,
    hold,
    newest,
    release,
    step_of,
)
from sparkdl.checkpoints.writer import best, commit, prune, retained, sweep

__all__ = [
    "Checkpoint",
    "best",
    "commit",
    "committed",
    "fetch",
    "hold",
    "newest",
    "prune",
    "release",
    "retained",
    "step_of",
    "sweep",
]
