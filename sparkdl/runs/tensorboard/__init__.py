"""Runs on the driver. TensorBoard of a run: its trials by name, while the run goes on and later."""

from sparkdl.runs.tensorboard.start import start_tensorboard
from sparkdl.runs.tensorboard.viewer import TensorBoard

__all__ = ["TensorBoard", "start_tensorboard"]
