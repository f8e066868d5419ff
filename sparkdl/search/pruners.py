"""Runs on the driver. Pruners by name, which count the reports of a trial instead of its steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdl.errors import ConfigError
from sparkdl.options import check_count, suggest_synonym

if TYPE_CHECKING:
    from optuna.pruners import BasePruner

# The arguments of each pruner: the default, and the smallest value.
_ARGUMENTS: dict[str, dict[str, tuple[int | None, int]]] = {
    "median": {"grace": (1, 1), "startup": (5, 0)},
    "asha": {"grace": (1, 1), "reduction": (4, 2)},
    "hyperband": {"grace": (1, 1), "reduction": (3, 2), "max_reports": (None, 2)},
}
# The arguments of the pruners that promote trials, with which `promote` is True.
_PROMOTING: dict[str, dict[str, tuple[int | None, int]]] = {
    "asha": {**_ARGUMENTS["asha"], "max_reports": (None, 2)},
    "hyperband": {**_ARGUMENTS["hyperband"], "brackets": (None, 1)},
}
PROMOTE = "promote"
PRUNERS = tuple(_ARGUMENTS)

# Names of the arguments in other libraries.
_SYNONYMS = {
    **dict.fromkeys(("grace_period", "min_resource", "n_warmup_steps", "min_t"), "grace"),
    **dict.fromkeys(("reduction_factor", "eta", "factor"), "reduction"),
    **dict.fromkeys(("n_startup_trials", "min_samples_required"), "startup"),
    **dict.fromkeys(("max_t", "max_resource", "max_iter", "max_epochs"), "max_reports"),
}

# Up to this number a pruner hears each report, and beyond it as many between n and 2 n: a trial may
# report after every batch, and the study is slow.
_HEARD = 32


@dataclass(frozen=True)
class NamedPruner:
    """A pruner by its name, with arguments.

    Attributes:
        name: `median`, `asha` or `hyperband`.
        arguments: every argument of the pruner but `promote`, see `experiment.search`.
        promotes: trials pause at a rung, and the best go on later.

    Example:
        >>> NamedPruner.of({"asha": {"grace": 3}}).arguments
        {'grace': 3, 'reduction': 4}
    """

    name: str
    arguments: Mapping[str, int | None]
    promotes: bool = False

    @classmethod
    def of(cls, pruner: str | Mapping[str, Any]) -> "NamedPruner":
        """Create a pruner from its name, or from a dict from its name to its arguments.

        Raises:
            ConfigError: if an argument is unknown or invalid. A name is validated elsewhere.
        """
        pruners = {pruner: {}} if isinstance(pruner, str) else pruner
        name, options = next(iter(pruners.items()), ("", {}))
        if len(pruners) != 1 or name not in _ARGUMENTS or not isinstance(options, Mapping):
            raise ConfigError(
                f"pruner is {pruner!r}; expected one of {', '.join(PRUNERS)}, a dict such as "
                "{'asha': {'grace': 3, 'reduction': 4}}, or an Optuna pruner."
            )
        promotes = _promotes(name, options)
        valid_options = _PROMOTING[name] if promotes else _ARGUMENTS[name]
        for argument in options:
            if argument not in valid_options and argument != PROMOTE:
                raise _unknown(name, str(argument), promotes)
        arguments = {argument: default for argument, (default, _) in valid_options.items()}
        for argument in options.keys() - {PROMOTE}:
            what = f"{argument!r} of pruner {name!r}"
            least = valid_options[argument][1]
            arguments[argument] = check_count(what, options[argument], least)
        if promotes:
            _check_most(name, arguments)
        return cls(name, arguments, promotes)

    def build(self) -> "BasePruner":
        """Return Optuna's pruner, for which the first report of a trial has step 0."""
        from optuna import pruners

        if self.promotes:  # Trials are paused by `Promotion`.
            return pruners.NopPruner()
        grace, reduction = self.arguments["grace"] or 1, self.arguments.get("reduction") or 0
        if self.name == "median":
            startup = self.arguments["startup"] or 0
            return pruners.MedianPruner(n_startup_trials=startup, n_warmup_steps=grace)
        if self.name == "asha":
            # By default Optuna derives min_resource from the first complete trial, so that all
            # trials that start together would run to their end.
            return pruners.SuccessiveHalvingPruner(min_resource=grace, reduction_factor=reduction)
        return pruners.HyperbandPruner(
            min_resource=grace,
            max_resource=self.arguments["max_reports"] or "auto",
            reduction_factor=reduction,
        )

    def hears(self, number: int) -> bool:
        """Return True if the pruner hears the report of this number, from 0.

        The numbers are the same for all trials, as a pruner compares trials at equal numbers.

        Example:
            >>> pruner = NamedPruner.of({"asha": {"grace": 3, "reduction": 3}})
            >>> [number for number in range(60, 90) if pruner.hears(number)]
            [60, 61, 62, 63, 64, 66, 68, 70, 72, 74, 76, 78, 80, 81, 82, 84, 86, 88]
        """
        return number % max(1, (1 << number.bit_length()) // (2 * _HEARD)) == 0 or self._judges(
            number
        )

    def _judges(self, number: int) -> bool:
        """Return True if this number is a rung: `grace`, `grace * reduction`, and so on."""
        rung, reduction = self.arguments["grace"] or 1, self.arguments.get("reduction")
        while reduction and rung < number:
            rung *= reduction
        return rung == number


def _promotes(name: str, options: Mapping[str, Any]) -> bool:
    promotes = options.get(PROMOTE, False)
    if not isinstance(promotes, bool):
        raise ConfigError(
            f"{PROMOTE!r} of pruner {name!r} is {promotes!r}; expected True or False."
        )
    if promotes and name not in _PROMOTING:
        raise ConfigError(
            f"pruner {name!r} cannot promote trials; {' and '.join(_PROMOTING)} can. Remove "
            f"{PROMOTE!r}."
        )
    return promotes


def _unknown(name: str, argument: str, promotes: bool) -> ConfigError:
    names = [*(_PROMOTING[name] if promotes else _ARGUMENTS[name])]
    if argument in _PROMOTING.get(name, ()):
        return ConfigError(
            f"{argument!r} of pruner {name!r} needs {{{PROMOTE!r}: True}}. Add it, or remove "
            f"{argument!r}."
        )
    names += [PROMOTE] if name in _PROMOTING else []
    return ConfigError(
        f"pruner {name!r} has no argument {argument!r}."
        f"{suggest_synonym(argument, names, _SYNONYMS)} Its arguments are {', '.join(names)}."
    )


def _check_most(name: str, arguments: Mapping[str, int | None]) -> None:
    """Validate the number of reports of a whole trial, for a pruner that promotes trials."""
    most, grace = arguments["max_reports"], arguments["grace"] or 1
    if most is None and name == "hyperband":
        raise ConfigError(
            "pruner 'hyperband' with 'promote' needs 'max_reports', the number of reports of a "
            "whole trial, from which its brackets follow. Add it."
        )
    least = grace * (arguments["reduction"] or 2) if name == "hyperband" else grace + 1
    if most is not None and most < least:
        raise ConfigError(
            f"'max_reports' of pruner {name!r} is {most}, and its 'grace' is {grace}: no trial "
            f"would pause. Set max_reports to at least {least}."
        )


def check_pruner_of_several(pruner: Any, metrics: Sequence[str]) -> None:
    """Validate the pruner of a search with several metrics.

    Args:
        pruner: a name, a dict, an Optuna pruner, or None.
        metrics: the names of the metrics.

    Raises:
        ConfigError: if the pruner compares one metric only, or needs an argument.
    """
    if pruner is None:
        return
    if not isinstance(pruner, str | Mapping):
        raise ConfigError(
            f"pruner is {type(pruner).__name__}, but the search has the metrics "
            f"{', '.join(metrics)}; the pruners of Optuna compare one metric only. Pass "
            f"pruner='asha', 'median' or 'hyperband', or name one metric."
        )
    named = NamedPruner.of(pruner)
    if named.name == "hyperband" and named.arguments["max_reports"] is None:
        raise ConfigError(
            "pruner 'hyperband' needs 'max_reports' in a search with several metrics: the number "
            "of reports of a whole trial, from which its brackets follow. Add it, as in "
            "pruner={'hyperband': {'max_reports': 27}}."
        )


class ReportNumbers:
    """The number of the last report of each configuration, from 0, and its step.

    A step that an earlier attempt has reported before does not count again.

    Example:
        >>> numbers = ReportNumbers()
        >>> [numbers.next(0, step) for step in (100, 200, 200, 300)]
        [0, 1, None, 2]
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int]] = {}

    def next(self, configuration: int, step: int) -> int | None:
        """Return the number of a report; None for a step that was reported before."""
        last_step, number = self._last.get(configuration, (None, -1))
        if last_step is not None and step <= last_step:
            return None
        self._last[configuration] = step, number + 1
        return number + 1

    def restore(self, configuration: int, step: int, number: int) -> None:
        """Continue after a report that an earlier driver has heard."""
        self._last[configuration] = step, number

    def forget(self, configuration: int) -> None:
        """Count from 0 again, as the configuration has ended or starts from the beginning."""
        self._last.pop(configuration, None)


def pruner_of(pruner: Any) -> "BasePruner":
    """Return the pruner of this name or dict; an Optuna pruner is returned unchanged.

    Raises:
        ConfigError: if the name or an argument is invalid.
    """
    from optuna import pruners

    if pruner is None:
        return pruners.NopPruner()
    if isinstance(pruner, str | Mapping):
        return NamedPruner.of(pruner).build()
    if not isinstance(pruner, pruners.BasePruner):
        raise ConfigError(f"pruner is {pruner!r}; expected a name, a dict or an Optuna pruner.")
    return pruner
