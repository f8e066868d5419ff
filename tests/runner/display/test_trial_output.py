"""The live output of trials has what the user's code prints, without start-up noise."""

from pathlib import Path

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
