"""Classes and functions of the user that travel with a model."""

import importlib
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from sparkdl.inference.custom_objects import pickle_objects


class Slow:
    """An object that is pickled while another thread begins to pickle."""

    def __init__(self, other: threading.Thread) -> None:
        self.other = other

    def __reduce__(self) -> Any:
        self.other.start()
        self.other.join(0.3)
        return str, ("slow",)


def test_threads_pickle_the_classes_of_one_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first would find its module unregistered by the second."""
    (tmp_path / "slow_layers.py").write_text("class Own:\n    size = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("slow_layers").Own
    pickled: list[bytes] = []
    other = threading.Thread(target=lambda: pickled.append(pickle_objects({"Own": own})))
    slow = Slow(other)
    slow.__module__ = "slow_layers"
    pickled.append(pickle_objects({"slow": slow, "Own": own}))
    other.join()
    del sys.modules["slow_layers"]
    (tmp_path / "slow_layers.py").unlink()
    assert [pickle.loads(data)["Own"].size for data in pickled] == [3, 3]
