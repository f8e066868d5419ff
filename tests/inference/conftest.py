"""Checks of every test of predictions."""

import glob
import os
import tempfile
from collections.abc import Iterator

import pytest

from tests.helpers.processes import eventually


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Check that downloaded and unpacked copies of models are removed."""
    pattern = os.path.join(tempfile.gettempdir(), "sparkdl-model-*")
    before = set(glob.glob(pattern))
    yield
    # After one task has failed, other tasks may still be loading the model.
    assert eventually(lambda: set(glob.glob(pattern)) <= before)
