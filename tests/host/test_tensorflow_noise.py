"""The first lines of TensorFlow are left out; other lines are not."""

import os
import signal
import subprocess
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


def test_other_lines_are_shown(capfd: pytest.CaptureFixture[str], no_tensorflow: None) -> None:
    with pytest.raises(ImportError), without_noise():
        os.write(2, (NOISE + FAULT).encode())
        raise ImportError
    assert capfd.readouterr().err == FAULT
    os.write(2, NOISE.encode())
    assert capfd.readouterr().err == NOISE


def test_the_last_line_of_a_process_that_dies_is_shown() -> None:
    program = """
import os
from sparkdl.host.tensorflow_noise import without_noise
with without_noise():
    os.write(2, b"cuInit\\nF0000 check failed: a == b\\n")
    os.abort()
"""
    # The end of the standard error comes when all processes that may write to it have ended.
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGABRT, "F0000 check failed: a == b\n")


def test_a_process_that_has_tensorflow_shows_everything(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", ModuleType("tensorflow"))
    with without_noise():
        os.write(2, NOISE.encode())
    assert capfd.readouterr().err == NOISE
