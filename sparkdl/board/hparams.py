"""Runs on the driver. Show the trials in TensorBoard's HParams tab, without TensorFlow.

The tab reads the parameters, the last values and the status of a trial from an event file, which
is written beside the event files of the training function. The format is that of tensorboard's
`plugins/hparams/summary.py`.
"""

import math
from typing import Any

from sparkdl.board.event_files import first_event, records, scalar
from sparkdl.files import storage
from sparkdl.files.layout import TrialPaths
from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial
from sparkdl.runs.views.figures import RunView

# The end of the name of the event file that is written here.
SUFFIX = ".sparkdl.hparams"

# Number of values that are shown of a trial whose metric has no name.
MAX_METRICS = 8

_SUCCESSES = (TrialState.COMPLETE, TrialState.PRUNED)


def write_hparams(run: RunView, trial: Trial) -> None:
    """Write the event file of a trial that has ended. A second call writes the same file again.

    Args:
        run: the run of the trial.
        trial: the trial.
    """
    # TensorBoard reads the files of a folder in the order of their names; the time in the name
    # puts this file after the files of the training function.
    name = f"events.out.tfevents.{int(_span(trial)[1]):010d}{SUFFIX}"
    # A TensorBoard may show several runs.
    start = start_of_session(trial, f"{run.id}/{trial.configuration}")
    data = start + end_of_session(run, trial)
    storage.write(storage.join(TrialPaths(trial.path).tensorboard, name), data)


def start_of_session(trial: Trial, group: str) -> bytes:
    """Return the beginning of an event file: the parameters of a trial that has started.

    Args:
        trial: the trial.
        group: the name of the row in the tab, which the repeats of a configuration share.
    """
    from tensorboard.plugins.hparams import metadata

    start, _ = _span(trial)
    content = _session_start(trial, group, start)
    session = _plugin_event(metadata.SESSION_START_INFO_TAG, content, start)
    return records(first_event(start), session)


def end_of_session(run: RunView, trial: Trial) -> bytes:
    """Return the end of an event file: the status and the last values of a trial that has ended.

    The last values are named `Result/<metric>`, so that they do not change a curve that the
    training function wrote. TensorBoard sorts by name, capital letters first, and hides all but
    the first columns of the tab. The step is the number of the trial, so that the values of all
    trials are a chart.
    """
    from tensorboard.plugins.hparams import metadata

    _, end = _span(trial)
    session = _plugin_event(metadata.SESSION_END_INFO_TAG, _session_end(trial, end), end)
    values = _metrics(run, trial).items()
    results = (scalar(f"Result/{name}", value, end, trial.number) for name, value in values)
    return records(session, *results)


def _plugin_event(tag: str, content: Any, time: float) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.hparams import metadata

    event = Event(wall_time=time)
    event.summary.value.add(
        tag=tag,
        metadata=metadata.create_summary_metadata(content),
        tensor=metadata.NULL_TENSOR,
    )
    return event


def _span(trial: Trial) -> tuple[float, float]:
    start, end = trial.spans[-1] if trial.spans else (0.0, None)
    return start, start if end is None else end


def _session_start(trial: Trial, group: str, start: float) -> Any:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    content = HParamsPluginData()
    session = content.session_start_info
    session.group_name = group
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
    is_success = trial.state in _SUCCESSES
    status = api_pb2.STATUS_SUCCESS if is_success else api_pb2.STATUS_FAILURE
    content.session_end_info.status = status
    content.session_end_info.end_time_secs = end
    return content


def _metrics(run: RunView, trial: Trial) -> dict[str, float]:
    """Return the values of the run's metrics, or the first few values if no metric was named."""
    metrics = list(run.objectives) or ([run.metric] if run.metric else [])
    numbers = dict(trial.metrics)
    if run.metric and trial.value is not None:
        numbers[run.metric] = trial.value
    names = metrics or list(numbers)[:MAX_METRICS]
    return {name: numbers[name] for name in names if name in numbers}
