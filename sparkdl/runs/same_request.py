"""Runs on the driver. Validate that the run that a user resumes is the run that it was."""

from collections.abc import Mapping
from typing import Any

from sparkdl.errors import RunExistsError
from sparkdl.runs.commands import enqueued_params
from sparkdl.runs.description import RunDescription
from sparkdl.runs.journal import JournalContent
from sparkdl.runs.run import Run


def check_same(
    content: Mapping[str, Any], journal: JournalContent, before: Run, description: RunDescription
) -> None:
    """Validate that a run has what the user asks for.

    Args:
        content: the content of `run.json`.
        journal: the journal of the run.
        before: the run.
        description: the description of the run that the user asks for.

    Raises:
        RunExistsError: if the kind, the metric or the parameters differ.
    """
    now: Any = description.facts.get("space")
    then: Any = content.get("space")
    if description.params is not None:
        now = [trial.params for trial in description.trials()]
        enqueued = enqueued_params(journal.events)
        then = [trial.params for trial in before.trials if trial.number not in enqueued]
    for name, old, new in (
        ("kind", before.kind, description.kind),
        ("metric", before.metric, description.metric),
        ("direction", before.direction, description.direction),
        ("objectives", before.objectives, dict(description.facts.get("objectives", {}))),
        ("args" if description.params is not None else "space", then, now),
        ("repeats", content.get("repeats", 1), description.facts.get("repeats", 1)),
    ):
        if old != new:
            old, new = difference(old, new), difference(new, old)
            raise RunExistsError(
                f"run {description.id} cannot be resumed: {name} was {old!r} and is now {new!r}. "
                "Pass the earlier value, or if_exists='new'. Nothing was changed."
            )


def difference(value: Any, other: Any) -> Any:
    """Return the part of a value that differs from another value, for an error message.

    Args:
        value: a dict, a list of parameter combinations, or any other value.
        other: the value to compare with.
    """
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return {name: item for name, item in value.items() if other.get(name) != item}
    if not isinstance(value, list):
        return value
    return [params for params in value if params not in other] or [f"{len(value)} combinations"]
