"""Runs anywhere (pure). The versions of a model that take requests at one moment."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkdl.serving.choice import pick
from sparkdl.serving.request_error import RequestError, invalid, not_found


def servable_not_found(name: str, version: int | None) -> RequestError:
    """Return the error of a request for a version that is not loaded."""
    text = f"Latest({name})" if version is None else f"Specific({name}, {version})"
    return not_found(f"Servable not found for request: {text}")


@dataclass(frozen=True)
class VersionView:
    """Everything that a request needs to know of a model, which is replaced as a whole.

    Attributes:
        name: the name of the model.
        loaded: the versions that take requests, by number.
        main: the version that takes all requests that name no version and have no share.
        shares: percent of these requests for other versions.
        labels: the version of each alias.
    """

    name: str
    loaded: Mapping[int, Any] = field(default_factory=dict)
    main: int | None = None
    shares: Mapping[int, float] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """The size of the files of the loaded versions, in bytes."""
        return sum(version.num_bytes for version in self.loaded.values())

    def find(self, version: int | None = None, label: str | None = None) -> Any:
        """Return the version that a request asks for; it stays loaded while it is referred to.

        Raises:
            RequestError: if it is not loaded.
        """
        if label is not None:
            if label not in self.labels:
                raise invalid(f"Unrecognized servable version label: {label}")
            version = self.labels[label]
        if version is None and self.main is not None:
            chance = random.uniform(0, 100) if self.shares else 0.0
            version = pick(self.main, self.shares, [*self.loaded], chance)
        if version is None or version not in self.loaded:
            raise servable_not_found(self.name, version)
        return self.loaded[version]

    def status(
        self,
        states: Mapping[int, tuple[str, str]],
        version: int | None = None,
        label: str | None = None,
    ) -> list[dict[str, Any]]:
        """Return the state of each version, newest first.

        Args:
            states: the state and the message of each version.
            version: the number of the only version that is asked for.
            label: the alias that is asked for.

        Raises:
            RequestError: if there is no such version.
        """
        if label is not None:
            version = self.find(label=label).version
        states = dict(states)
        if version is not None:
            if version not in states:
                raise not_found(f"Could not find version {version} of model {self.name}")
            states = {version: states[version]}
        return [
            {
                "version": str(number),
                "state": state,
                "status": {"error_code": "UNKNOWN" if message else "OK", "error_message": message},
            }
            for number, (state, message) in sorted(states.items(), reverse=True)
        ]
