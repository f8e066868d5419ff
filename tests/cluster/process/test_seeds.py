"""Random numbers are the same in each process with the same seed, whenever a module is imported."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sparkdl.cluster.process.seeds import seed_everything

# Stands in for a framework: a module that draws from its own generator once it was seeded.
TORCH = """
from importlib.resources import files
draws = None
def manual_seed(seed):
    global draws
    draws = seed
has_loader = __spec__.loader.get_source("torch") is not None
"""
KERAS = """
import random
class utils:
    @staticmethod
    def set_random_seed(seed):
        random.seed(seed)
        utils.seed = seed
"""


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ("torch", "keras", "tensorflow", "tf_keras")
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    state, numpy_state = random.getstate(), np.random.get_state()
    yield tmp_path
    random.setstate(state)
    np.random.set_state(numpy_state)
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(before)


def test_a_framework_that_is_imported_late_is_seeded(importable: Path) -> None:
    (importable / "torch.py").write_text(TORCH)
    seed_everything(7)
    import torch

    assert torch.draws == 7
    assert torch.has_loader


def test_a_late_keras_does_not_repeat_numbers_that_were_drawn(importable: Path) -> None:
    (importable / "keras.py").write_text(KERAS)
    seed_everything(7)
    first = random.random()
    import keras

    assert keras.utils.seed == 7
    assert random.random() != first


def test_an_import_that_fails_fails_as_usual(importable: Path) -> None:
    (importable / "torch.py").write_text("raise ValueError('broken')")
    seed_everything(7)
    with pytest.raises(ValueError, match="broken"):
        import torch  # noqa: F401
