"""Runs on the driver. The request of a user, as far as the run directory stores it."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkdl.files.layout import FORMAT
from sparkdl.runs.events import NewTrial
from sparkdl.runs.ids_and_seeds import trial_seed
from sparkdl.runs.retry_choice import Retry
from sparkdl.secrets.masks import mask_params, mask_text


@dataclass(frozen=True, kw_only=True)
class RunDescription:
    """The request of a user, as far as the run directory stores it.

    Attributes:
        id: the id of the run, which is the name of its folder.
        name: see `Run`.
        kind: see `Run`.
        description: a text of the user.
        metric: see `Run`.
        direction: see `Run`.
        params: the parameters of each trial; None if a search chooses them.
        seed: the seed of the run.
        secrets: values that must not be stored.
        facts: further fields of `run.json`, such as `space` and `repeats` of a search.
        count: largest number of configurations, for a search.
        retry: ended trials that an existing run runs again.
        changed: the arguments that differ from those of an existing run, see `RunStarted`.
        permissions: the permissions of the run directory, where folders have permissions.
    """

    id: str
    name: str
    kind: str
    description: str | None
    metric: str | None
    direction: str
    params: list[dict[str, Any]] | None
    seed: int
    secrets: tuple[str, ...]
    facts: Mapping[str, Any]
    count: int | None = None
    retry: Retry = frozenset()
    changed: Mapping[str, Any] | None = None
    permissions: int = 0o700

    def content(self) -> dict[str, Any]:
        """Return the content of `run.json`."""
        return {
            "format": FORMAT,
            "id": self.id,
            "name": self.name,
            "kind": self.kind,
            "description": mask_text(self.description or "", self.secrets) or None,
            "metric": self.metric,
            "direction": self.direction,
            "seed": self.seed,
            "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            **self.facts,
        }

    def trials(self) -> list[NewTrial]:
        """Return the trials in the form in which they are read back from the journal."""
        return [
            NewTrial(
                number=number,
                params=json.loads(json.dumps(mask_params(params, self.secrets))),
                seed=trial_seed(self.seed, number),
            )
            for number, params in enumerate(self.params or ())
        ]
