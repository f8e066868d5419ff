"""A model without TensorFlow that answers with the number in its folder, twice for each row."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["load"]


def load(folder: Path) -> Callable[[Any], Any]:
    """Return the function of the model in a folder."""
    number = float((folder / "number.txt").read_text())
    return lambda x: np.full((len(x), 2), number)
