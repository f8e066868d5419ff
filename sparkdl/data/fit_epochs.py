"""Runs in the training process. Let Keras's `fit` go on in the middle of an epoch of rows.

The passes over the rows get the numbers of Keras's epochs. A checkpoint has a file `epoch.json`
with the number of epochs done, and with the state of the rows if the rows are known.
"""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkdl import context
from sparkdl.data.rows import Rows
from sparkdl.errors import ConfigError, named_type

FILE = "epoch.json"


def write_progress(directory: str, progress: Mapping[str, Any]) -> None:
    """Write how far a training has come into the directory of a checkpoint.

    Args:
        directory: the directory.
        progress: the number of whole epochs as `epochs_done`; the state of the rows as `data`, if
            the rows are known; and what else a restart needs.
    """
    Path(directory, FILE).write_text(json.dumps(progress))


def progress_in(directory: str) -> dict[str, Any]:
    """Return how far the training of a checkpoint has come.

    Args:
        directory: the directory of the checkpoint.

    Raises:
        FileNotFoundError: if the checkpoint was not created by the callback.
    """
    file = Path(directory, FILE)
    if not file.exists():
        raise FileNotFoundError(
            f"sparkdl.keras.Checkpoint found no {FILE} in {directory}; expected a "
            "checkpoint created by this callback. Either commit checkpoints only with this "
            "callback, or remove the callback and restore with context.get_checkpoint()."
        )
    progress: dict[str, Any] = json.loads(file.read_text())
    return progress


class FitEpochs:
    """The rows that a `fit` reads, epoch by epoch.

    Args:
        rows: the result of a reader.

    Attributes:
        num_steps: number of steps of the current epoch that this process makes.

    Raises:
        ConfigError: if there is no reader, or its rows have no state.
    """

    def __init__(self, rows: Any) -> None:
        if type(rows) is not Rows:
            raise ConfigError(
                f"Checkpoint(data=...) was given {named_type(rows)}; expected the result of a "
                "reader, such as data.parquet, before map and other methods."
            )
        self._rows = rows
        self._passes = rows.known_passes()
        self._state: dict[str, Any] | None = None
        self._first = 0
        self.num_steps = 0
        if (directory := context.get_checkpoint()) is not None:
            # The dataset must allow for a short epoch before `fit` looks at it.
            self.go_on(progress_in(directory))

    def check_steps(self, steps: int | None) -> None:
        """Refuse a `fit` whose epochs are not those of the rows.

        Args:
            steps: the steps per epoch that Keras expects.

        Raises:
            ConfigError: if there are others.
        """
        if steps != self._rows.plan.steps_per_pass:
            raise ConfigError(
                f"fit has {steps} steps per epoch, and the data of Checkpoint has "
                f"{self._rows.plan.steps_per_pass}; expected the same. Pass the data to fit as it "
                "is, or after map, and leave out steps_per_epoch."
            )

    def go_on(self, progress: dict[str, Any]) -> int:
        """Let the rows go on after a checkpoint, and return the number of the epoch.

        Args:
            progress: the result of `progress_in`.
        """
        self._state = progress.get("data") or self.state(progress["epochs_done"], 0)
        self._rows.load_state_dict(self._state)
        # It is the next one if too few rows are left for a step of all ranks.
        self._first = self._passes.numbers.upcoming
        text = "Your input ran out of data"  # Up to Keras 3.6 the warning names contextlib.
        warnings.filterwarnings("ignore", text, UserWarning, "keras|contextlib")
        return self._first

    def begin(self, epoch: int) -> int:
        """Begin an epoch, and return the number of its steps that were made before.

        Keras may have looked at a batch already.

        Args:
            epoch: number of the epoch.
        """
        if self._state and epoch == self._first:
            self._rows.load_state_dict(self._state)
        else:
            self._passes.begin_at(epoch)
        self.num_steps = self._passes.num_steps()
        return self._passes.steps_made(epoch)

    def state(self, epoch: int, steps: int) -> dict[str, Any]:
        """Return the state after some steps of an epoch.

        Args:
            epoch: number of the epoch.
            steps: number of steps of this process.
        """
        return self._rows.state_dict(epoch, steps)
