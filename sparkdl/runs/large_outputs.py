"""Runs on the driver. Outputs that are too large for the journal stay in the trial's folder.

The journal holds `{"$file": "outputs.json"}` in the place of a large output. The file has the
outputs of the newest attempt; the task of the trial has written it.
"""

import dataclasses
import logging
from typing import Any

from sparkdl.files import storage
from sparkdl.files.jsonl import from_json, to_json
from sparkdl.files.layout import OUTPUTS, TrialPaths
from sparkdl.runs.events import TrialChanged

# The outputs of a trial may take so many bytes in the journal.
LARGE_BYTES = 1 << 16

_STUB = {"$file": OUTPUTS}

_logger = logging.getLogger("sparkdl.runs")


def without_large_outputs(event: TrialChanged, trial: TrialPaths) -> TrialChanged:
    """Return the event for the journal, with a stub for each output that is too large.

    The event is returned unchanged if the outputs cannot be stored in the folder of the trial.
    """
    sizes = {name: len(to_json(value)) for name, value in (event.outputs or {}).items()}
    total = sum(sizes.values())
    if event.outputs is None or total <= LARGE_BYTES:
        return event
    try:
        if not storage.exists(trial.outputs):
            storage.write(trial.outputs, to_json(event.outputs))
    except OSError as exc:
        _logger.warning("the outputs of a trial cannot be written to %s: %s", trial.outputs, exc)
        return event
    outputs = dict(event.outputs)
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        if total > LARGE_BYTES:
            outputs[name] = _STUB
            total -= sizes[name]
    return dataclasses.replace(event, outputs=outputs)


def with_outputs(event: TrialChanged, trial: TrialPaths) -> TrialChanged:
    """Return an event of the journal with its large outputs, if the file of the trial has them."""
    missing = [name for name, value in (event.outputs or {}).items() if value == _STUB]
    if not missing:
        return event
    try:
        outputs_in_file: dict[str, Any] = from_json(storage.read(trial.outputs))
    except (OSError, ValueError) as exc:
        _logger.warning("the outputs %s of a trial cannot be read: %s", missing, exc)
        return event
    outputs = {
        **(event.outputs or {}),
        **{n: outputs_in_file[n] for n in missing if n in outputs_in_file},
    }
    return dataclasses.replace(event, outputs=outputs)
