"""Where it runs: T. The local folder that a training process writes into; what it says there."""

import contextlib
import json
import tempfile
import threading
from pathlib import Path

from sparkdl import storage
from sparkdl.runs.layout import TrialPaths

__all__ = ["last_reported", "local_folder"]

MIRROR_S = 5.0

# Checkpoints are published as a whole by whoever commits them; ranks tell each other directly.
_NOT_MIRRORED = ("checkpoints", "ranks")


def last_reported(metrics: str) -> dict[str, float]:
    """The last number of each name in a metrics file; none where there is no such file."""
    last: dict[str, float] = {}
    try:
        lines = storage.read(metrics).split(b"\n")[:-1]
    except FileNotFoundError:
        return last
    for line in lines:
        last |= json.loads(line)["metrics"]
    return last


class local_folder:
    """The folder that a training process writes into: the trial's own, or one mirrored to it."""

    def __init__(self, trial: TrialPaths) -> None:
        self._mirror: storage.Mirror | None = None
        if storage.is_local(trial.folder):
            self.folder = storage.local_path(trial.folder)
            return
        self.folder = Path(tempfile.mkdtemp(prefix="sparkdl-"))
        self._mirror = storage.Mirror(self.folder, trial.folder, _NOT_MIRRORED)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_in_step, daemon=True)

    def _keep_in_step(self) -> None:
        while not self._stop.wait(MIRROR_S):
            with contextlib.suppress(OSError):  # The store fails for a moment: the next time.
                if self._mirror:
                    self._mirror.sync()

    def __enter__(self) -> Path:
        if self._mirror:
            self._thread.start()
        return self.folder

    def __exit__(self, *_: object) -> None:
        if self._mirror:
            self._stop.set()
            self._thread.join()
            self._mirror.close()
