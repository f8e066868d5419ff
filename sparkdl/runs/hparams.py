"""Runs on the driver. Shows the trials in TensorBoard's HParams tab, without TensorFlow.

An event file beside those of the training function holds what the tab reads: the parameters, the
last values, and how it ended. Source of the format: tensorboard's `plugins/hparams/summary.py`.
"""

import io
import math
from typing import Any

from sparkdl import storage
from sparkdl.runs.figures import Shown
from sparkdl.runs.layout import TrialPaths
from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial

__all__ = ["write_hparams"]

# Of a trial whose metric has no name, that many of its numbers are shown.
MOST_METRICS = 8

_SUCCESSES = (TrialState.COMPLETE, TrialState.PRUNED)


def write_hparams(run: Shown, trial: Trial) -> None:
    """Write the event file of a trial that has ended; a second call writes the same again.

    Its last values stand there as `final/<metric>`, so that they disturb no curve that the
    training function wrote itself. Repeats of a configuration make one line of the tab.

    Args:
        run: the trial's run.
        trial: what is shown.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.hparams import metadata
    from tensorboard.summary.writer.record_writer import RecordWriter

    start, end = _span(trial)
    told = {
        metadata.SESSION_START_INFO_TAG: _session_start(run, trial, start),
        metadata.SESSION_END_INFO_TAG: _session_end(trial, end),
    }
    data = io.BytesIO()
    writer = RecordWriter(data)
    writer.write(Event(wall_time=start, file_version="brain.Event:2").SerializeToString())
    for tag, content in told.items():
        event = Event(wall_time=end)
        known = metadata.create_summary_metadata(content)
        event.summary.value.add(tag=tag, metadata=known, tensor=metadata.NULL_TENSOR)
        writer.write(event.SerializeToString())
    for name, value in _metrics(run, trial).items():
        event = Event(wall_time=end)
        event.summary.value.add(tag=f"final/{name}", simple_value=value)
        writer.write(event.SerializeToString())
    # TensorBoard reads a folder's files in the order of their names, and ours was written last.
    name = f"events.out.tfevents.{int(end):010d}.sparkdl.hparams"
    storage.write(storage.join(TrialPaths(trial.path).tensorboard, name), data.getvalue())


def _span(trial: Trial) -> tuple[float, float]:
    start, end = trial.spans[-1] if trial.spans else (0.0, None)
    return start, start if end is None else end


def _session_start(run: Shown, trial: Trial, start: float) -> Any:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    content = HParamsPluginData()
    session = content.session_start_info
    session.group_name = f"{run.id}/{trial.configuration}"
    session.start_time_secs = start
    for name, value in trial.params.items():
        if isinstance(value, bool):
            session.hparams[name].bool_value = value
        elif isinstance(value, int | float) and math.isfinite(value):
            session.hparams[name].number_value = value
        else:
            session.hparams[name].string_value = str(value)
    return content


def _session_end(trial: Trial, end: float) -> Any:
    from tensorboard.plugins.hparams import api_pb2
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    content = HParamsPluginData()
    good = trial.state in _SUCCESSES
    content.session_end_info.status = api_pb2.STATUS_SUCCESS if good else api_pb2.STATUS_FAILURE
    content.session_end_info.end_time_secs = end
    return content


def _metrics(run: Shown, trial: Trial) -> dict[str, float]:
    """The numbers that count, or where none was named the first few that there are."""
    wanted = list(run.objectives) or ([run.metric] if run.metric else [])
    numbers = dict(trial.metrics)
    if run.metric and trial.value is not None:
        numbers[run.metric] = trial.value
    names = wanted or list(numbers)[:MOST_METRICS]
    return {name: numbers[name] for name in names if name in numbers}
