"""The first lines of TensorFlow do not reach a notebook; other lines do."""

import os
import sys
from types import ModuleType

import pytest

from sparkdl.host.tensorflow_noise import without_noise

NOISE = """WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795379784.708691    2284 port.cc:153] oneDNN custom operations are on.
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with
E0000 00:00:1795379803.597512    2284 cuda_platform.cc:52] failed call to cuInit: INTERNAL
"""
FAULT = "E0000 00:00:1795379803.597512    2284 loader.cc:7] the library is damaged\n"


@pytest.fixture
def no_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)


def test_a_notebook_shows_the_other_lines_only(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], no_tensorflow: None
) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    with pytest.raises(ImportError), without_noise():
        os.write(2, (NOISE + FAULT).encode())
        raise ImportError
    assert capfd.readouterr().err == FAULT
    monkeypatch.delitem(sys.modules, "ipykernel")
    monkeypatch.setenv("JPY_PARENT_PID", "1")  # A process that the kernel has started.
    with without_noise():
        os.write(2, NOISE.encode())
    assert not capfd.readouterr().err
    os.write(2, NOISE.encode())
    assert capfd.readouterr().err == NOISE


def test_a_program_shows_everything(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], no_tensorflow: None
) -> None:
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    with without_noise():
        os.write(2, NOISE.encode())
    assert capfd.readouterr().err == NOISE
