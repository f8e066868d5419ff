"""The live output of trials has what the user's code prints, without start-up noise."""

import subprocess
import sys
from pathlib import Path

import pytest

from sparkdl.cluster.plan import Plan, Role
from sparkdl.runner.display.trial_output import TrialOutput
from sparkdl.runs import Run, Trial

# As TensorFlow 2.16 to 2.21 print them, with and without GPUs.
NOISE = """\
2026-11-20 10:15:02.123456: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1732097702.480301   12345 cuda_executor.cc:1015] successful NUMA node read from SysFS
E0000 00:00:1732097702.4 77 cuda_dnn.cc:8310] Unable to register cuDNN factory: Attempting to
E0000 00:00:1732097702.4 77 cuda_blas.cc:1418] Unable to register cuBLAS factory: Attempting to
W0000 00:00:1732097702.5 77 computation_placer.cc:177] computation placer already registered.
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the
2026-11-20 10:15:03.1: W tensorflow/compiler/py_utils.cc:38] TF-TRT Warning: Could not find TensorRT
2026-11-20 10:15:03.123456: E external/local_xla/cuda_platform.cc:51] failed call to cuInit: UNKNOWN
AttributeError: 'MessageFactory' object has no attribute 'GetPrototype'
I0000 00:00:1732097703.480301   12345 service.cc:146] XLA service 0x7f initialized for platform Host
"""
OWN = """\
epoch 1
I0 is a name of the user's
2026-11-20 10:15:04.1: W tensorflow/core/framework/op_kernel.cc:1857] INVALID_ARGUMENT: shapes
WARNING: the learning rate is large
ERROR: all is lost
"""


def test_start_up_messages_of_tensorflow_stay_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(NOISE + OWN)
    shown: list[str] = []
    run = Run("r", str(tmp_path), "r", "launch", trials=[Trial(0, {}, str(tmp_path))])
    output = TrialOutput(
        run,
        Plan(kind="launch", roles=(Role(name="worker", count=1),)),
        "all",
        shown.append,
        has_styles=False,
    )
    output.show_new(run.trials[0], last=True)
    lines = [line.removeprefix("[trial 0] ") for line in "\n".join(shown).splitlines()]
    assert lines == OWN.splitlines()


FIT = """
import keras, numpy, sys
model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
for _ in range(2):
    print("a line of every rank")
    x = numpy.zeros((4, 1))
    model.fit(x, x, epochs=2, verbose=int(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("verbose", ["1", pytest.param("2", marks=pytest.mark.thorough)])
def test_epochs_that_all_ranks_print_are_shown_once(tmp_path: Path, verbose: str) -> None:
    """With the log of Keras itself, whose lines differ in their times."""
    printed = subprocess.run(
        [sys.executable, "-c", FIT, verbose], capture_output=True, text=True, check=True
    ).stdout
    plan = Plan(kind="allreduce", roles=(Role(name="worker", count=2),), is_gang=True)
    slower = printed.replace("ms/step", "7ms/step").replace(" 0s ", " 3s ").replace("- 0s", "- 3s")
    for file, text in zip(plan.logs.values(), (printed, slower), strict=True):
        (tmp_path / file).write_text(text)
    run = Run("r", str(tmp_path), "r", "allreduce", trials=[Trial(0, {}, str(tmp_path))])
    shown: list[str] = []
    TrialOutput(run, plan, "all", shown.append, has_styles=False).show_new(run.trials[0], last=True)
    lines = "\n".join(shown).splitlines()
    assert sum(line.endswith("Epoch 1/2") for line in lines) == 2  # Of the two calls of fit.
    printed_lines = [line for line in printed.split("\n") if line]
    assert len(lines) == len(printed_lines) + 2
    assert sum(line.endswith("a line of every rank") for line in lines) == 4
