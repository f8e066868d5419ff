"""Runs on the driver. The figure of the importance of the parameters."""

import importlib.util
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial
from sparkdl.runs.views.figures.base import (
    COLORS,
    GREY,
    RunView,
    figure,
    is_wide,
    plain,
    thinned,
    varying,
)
from sparkdl.runs.views.figures.params import MAX_AXES, is_drawn, is_number, values_of

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from plotly.graph_objects import Figure

# Fewer trials do not tell which parameter matters: with 20, fANOVA is wrong by 0.1 to 0.4 about
# functions of five parameters whose shares are known.
MIN_TRIALS = 20
# fANOVA's time grows with the square of the number of trials.
MAX_TRIALS = 100
NUM_TREES = 16


@dataclass(frozen=True)
class _Share:
    """The share of a parameter, among the trials that have it."""

    name: str
    share: float
    num_trials: int


def importance(run: RunView) -> "Figure | None":
    """Return a figure of the share of each parameter in the variation of the value.

    The shares are computed by fANOVA (Hutter, Hoos and Leyton-Brown, "An Efficient Approach for
    Assessing Hyperparameter Importance", 2014), as Optuna has it. PRUNED trials count with their
    last value: without them, the bad values of a parameter would be missing. A parameter that only
    some trials have is compared among these.

    Returns:
        The figure; None without scikit-learn, if fewer than `MIN_TRIALS` trials have a value, if
        fewer than two parameters vary, or if the value does not vary.
    """
    from plotly.graph_objects import Bar

    trials, names = _evaluated(run)
    if _reason(trials, names):
        return None
    shares, unknown = _shares(run, trials, names)
    if len(shares) < 2:
        return None
    shares = shares[-2 * MAX_AXES :]
    is_partial = [share.num_trials < len(trials) for share in shares]
    bars = Bar(
        x=[share.share for share in shares],
        y=list(range(len(shares))),
        orientation="h",
        marker={"color": [GREY if few else COLORS[TrialState.COMPLETE] for few in is_partial]},
        text=[f"{share.share:.0%}" for share in shares],
        textposition="outside",
        cliponaxis=False,
        hoverinfo="skip",
    )
    labels = [
        f"{plain(share.name, 24)}{f' ({share.num_trials} trials)' if few else ''}"
        for share, few in zip(shares, is_partial, strict=True)
    ]
    ticks = {"tickvals": list(range(len(shares))), "ticktext": labels}
    return figure(
        "Importance of the parameters",
        _remark(trials, any(is_partial), unknown),
        [bars],
        xaxis={
            "tickformat": ".0%",
            "range": [0, 1.15 * max(s.share for s in shares) or 1],
            "zeroline": False,
        },
        yaxis={"automargin": True, "showgrid": False, "zeroline": False, **ticks},
        height=150 + 28 * len(shares),
    )


def _remark(trials: Sequence[Trial], has_partial: bool, unknown: Sequence[str]) -> str:
    pruned = sum(trial.state == TrialState.PRUNED for trial in trials)
    last = f", {pruned} of them stopped early, by their last values" if pruned else ""
    notes = [f"by fANOVA, from {len(trials)} trials{last}"]
    notes += ["the shares of the same trials add up to 1"]
    notes += ["grey: among the trials that have the parameter"] if has_partial else []
    notes += [f"too few trials to tell: {', '.join(unknown)}"] if unknown else []
    return "; ".join(notes)


def why_no_importance(run: RunView) -> str:
    """Return the reason for which a run with several parameters has no such figure, or ""."""
    trials, names = _evaluated(run)
    return "" if len(names) < 2 else _reason(trials, names)


def _reason(trials: Sequence[Trial], names: Sequence[str]) -> str:
    if len(trials) < MIN_TRIALS:
        return f"too few trials to tell: {len(trials)} have a value, and {MIN_TRIALS} are needed"
    if len({trial.last_value for trial in trials}) < 2:
        return "the values of all trials are equal"
    if len(names) < 2:
        return "fewer than two parameters vary"
    return "" if importlib.util.find_spec("sklearn") else "scikit-learn is not installed"


def _evaluated(run: RunView) -> tuple[list[Trial], list[str]]:
    """Return the trials with a value, evenly thinned, and the parameters that vary among them."""
    ended = [t for t in run.trials if t.state in (TrialState.COMPLETE, TrialState.PRUNED)]
    valued = [t for t in ended if t.last_value is not None and math.isfinite(t.last_value)]
    trials = thinned(valued, MAX_TRIALS)
    return trials, [name for name in varying(trials) if is_drawn(trials, name)]


def _shares(
    run: RunView, trials: Sequence[Trial], names: Sequence[str]
) -> tuple[list[_Share], list[str]]:
    """Return the shares, smallest first, and the parameters that too few trials have."""
    owners: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        present = (i for i, value in enumerate(values_of(trials, name)) if value is not None)
        owners.setdefault(tuple(present), []).append(name)
    shares, unknown = [], []
    for numbers, own in owners.items():
        some = [trials[i] for i in numbers]
        if len(some) < MIN_TRIALS or len({trial.last_value for trial in some}) < 2:
            unknown += own
            continue
        # The parameters of these trials, of which others have been judged among more trials.
        known = [
            name for present, found in owners.items() if {*present} >= {*numbers} for name in found
        ]
        found = _importances(run, some, [name for name in known if name in varying(some)])
        shares += [_Share(name, found[name], len(some)) for name in own if name in found]
    return sorted(shares, key=lambda share: share.share), unknown


def _importances(run: RunView, trials: Sequence[Trial], names: Sequence[str]) -> dict[str, float]:
    import optuna
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    columns = {name: _column(values_of(trials, name)) for name in names}
    distributions = {name: _distribution(values) for name, values in columns.items()}
    with _quiet():
        study = optuna.create_study(direction="maximize" if run.direction == "max" else "minimize")
    for number, trial in enumerate(trials):
        params = {name: columns[name][number] for name in names}
        study.add_trial(
            optuna.create_trial(params=params, distributions=distributions, value=trial.last_value)
        )
    evaluator = FanovaImportanceEvaluator(n_trees=NUM_TREES, seed=0)
    found = get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in found.items()}


def _column(values: Sequence[Any]) -> list[Any]:
    """Return values as fANOVA weighs them: those of a logarithmic scale by their logarithms."""
    if is_number(values[0]) and is_wide(values):
        return [math.log10(value) for value in values]
    return list(values)


def _distribution(values: Sequence[Any]) -> "BaseDistribution":
    """Return a distribution from which the values may have been sampled."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if is_number(values[0]):
        return FloatDistribution(min(values), max(values))
    return CategoricalDistribution(sorted(set(values)))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Optuna, which logs the creation of every study."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
