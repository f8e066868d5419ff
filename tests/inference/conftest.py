"""What every test of predictions checks."""

import glob
import os
import tempfile
from collections.abc import Iterator

import pytest

from tests.helpers.processes import eventually


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """A model that was downloaded or unpacked is gone when it is loaded."""
    pattern = os.path.join(tempfile.gettempdir(), "sparkdl-model-*")
    before = set(glob.glob(pattern))
    yield
    # After a task that fails, others may still be loading it.
    assert eventually(lambda: set(glob.glob(pattern)) <= before)
