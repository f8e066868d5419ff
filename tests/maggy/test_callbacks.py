"""maggy's Keras callbacks in a `fit`, and the reporter outside a run."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from sparkdl.maggy.core import exceptions
from sparkdl.maggy.core.reporter import Reporter

FIT = """
import json
import numpy
from tensorflow import keras
from sparkdl.maggy.callbacks import KerasBatchEnd, KerasEpochEnd

class Reporter:
    def __init__(self):
        self.reports = []
    def broadcast(self, metric, step=None):
        self.reports.append([type(metric).__name__, step])

model = keras.Sequential([keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse", metrics=["accuracy"])
x, y = numpy.ones((8, 3)), numpy.ones((8, 1))
found = []
for callback in (KerasBatchEnd, KerasEpochEnd):
    for name in ([], ["acc"], ["accuracy"], ["recall"]):
        reporter = Reporter()
        try:
            model.fit(x, y, batch_size=4, epochs=2, verbose=0, validation_data=(x, y),
                      callbacks=[callback(reporter, *name)])
        except KeyError as exc:
            reporter.reports = exc.args[0].split(":")[0]
        found.append(reporter.reports)
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("legacy", ["0", pytest.param("1", marks=pytest.mark.thorough)])
def test_callbacks_report_after_batches_and_epochs(legacy: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIT],
        env={**os.environ, "TF_USE_LEGACY_KERAS": legacy, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    batches, epochs = [["float", None]] * 4, [["float", 0], ["float", 1]]
    assert json.loads(done.stdout.splitlines()[-1]) == [
        *(batches, batches, batches, "KerasBatchEnd(metric='recall')"),
        *(epochs, epochs, epochs, "KerasEpochEnd(metric='recall')"),
    ]


def test_a_reporter_takes_numbers_and_steps_that_do_not_decrease(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reporter = Reporter("acc")
    reporter.broadcast(np.float32(0.5))
    reporter.broadcast(metric=1, step=np.int64(3))
    reporter.broadcast(2.0, 3)
    reporter.broadcast(3.0)
    assert capsys.readouterr().out.split("\n")[:4] == [
        *("step 0: acc=0.5", "step 3: acc=1", "step 3: acc=2", "step 4: acc=3"),
    ]
    assert reporter.get_data() == (3.0, 4, "")
    with pytest.raises(exceptions.BroadcastStepValueError, match="step=1 after step 4"):
        reporter.broadcast(1.0, 1)
    with pytest.raises(exceptions.BroadcastStepTypeError, match="got step='5', a str"):
        reporter.broadcast(1.0, "5")
    with pytest.raises(exceptions.BroadcastMetricTypeError, match="metric='high', a str"):
        reporter.broadcast("high")
