"""Runs on the driver. The arguments that the functions of hops-util-py have in common."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sparkdl.errors import ConfigError
from sparkdl.hops.open_experiment import state
from sparkdl.hops.resources import local_resources
from sparkdl.training.metric_names import direction_of_name

__all__ = ["NO_NAME", "Direction", "options_of", "verb"]

NO_NAME = "no-name"

Verb = TypeVar("Verb", bound=Callable[..., Any])


class Direction:
    """The values of `direction=`."""

    MAX = "MAX"
    MIN = "MIN"


def verb(**new_names: str) -> Callable[[Verb], Verb]:
    """Decorate a verb: accept names of arguments of older versions, refuse to run after `begin`.

    Args:
        **new_names: the name that an argument has now, by its older name.
    """

    def decorate(function: Verb) -> Verb:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if state.experiment:
                raise RuntimeError(
                    f"experiment.{function.__name__} was called between experiment.begin and "
                    "experiment.end. Call experiment.end first."
                )
            return function(*args, **{new_names.get(name, name): kwargs[name] for name in kwargs})

        return call  # type: ignore[return-value]

    return decorate


def options_of(
    name: str,
    versioned_resources: Sequence[str] | None,
    description: str | None,
    metric: str | None,
    direction: str | None = None,
) -> dict[str, Any]:
    """Return the options of `sparkdl.experiment` for arguments of hops-util-py.

    Args:
        name: the name of the run; `no-name` for that of its function.
        versioned_resources: files of the project, and local files.
        description: a sentence about the run.
        metric: the name of the metric; None for the only number.
        direction: `MAX` or `MIN`; None follows the name of the metric.

    Raises:
        ConfigError: if the direction is another word, or the description is no text.
        FileNotFoundError: if a file does not exist.
    """
    if description is not None and not isinstance(description, str):
        raise ConfigError(
            f"description is {description!r}; expected a text. The order of arguments is that of "
            "hops-util-py 2.5; for a program of version 1.0 pass versioned_resources= and "
            "description= by name."
        )
    if direction is None:
        direction = (metric and direction_of_name(metric)) or "max"
    elif str(direction).upper() not in (Direction.MAX, Direction.MIN):
        raise ConfigError(f"direction is {direction!r}; expected Direction.MAX or Direction.MIN.")
    return {
        "name": None if name == NO_NAME else name,
        "description": description,
        "versioned_resources": [str(path) for path in local_resources(versioned_resources)],
        "metric": metric or None,
        "direction": str(direction).lower(),
    }
