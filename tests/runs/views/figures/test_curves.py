"""All reported values are drawn, and few of them squeeze no axis."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl.files import storage
from sparkdl.files.layout import TrialPaths
from sparkdl.runs import Run, Trial
from sparkdl.runs.states import TrialState
from sparkdl.runs.views.figures import plot
from sparkdl.runs.views.figures.curves import extremes, why_no_curves
from sparkdl.runs.views.figures.value_axis import value_axis


def run_of(root: str, values: list[float], metric: str = "accuracy") -> Run:
    trials = [
        Trial(
            i,
            {"a": i},
            f"{root}/{i}",
            configuration=i,
            state=TrialState.COMPLETE,
            value=v,
            attempts=1,
            metric=metric,
        )
        for i, v in enumerate(values)
    ]
    return Run("r", root, "r", "launch", metric=metric, trials=trials)


def report(trial: Trial, **series: list[float]) -> None:
    rows = [
        {"step": step, "metrics": dict(zip(series, numbers, strict=True))}
        for step, numbers in enumerate(zip(*series.values(), strict=True))
    ]
    storage.write(TrialPaths(trial.path).metrics, "".join(json.dumps(r) + "\n" for r in rows))


def panels(figure: Any) -> dict[str, list[tuple[str, list[float]]]]:
    """The curves of each panel, by its title."""
    titles = [note.text for note in figure.layout.annotations]
    found: dict[str, list[tuple[str, list[float]]]] = {title: [] for title in titles}
    for trace in figure.data:
        number = int(trace.xaxis.removeprefix("x") or 1) - 1
        found[titles[number]].append((f"{trace.name} {trace.line.dash}", list(trace.y)))
    return found


def test_every_metric_has_a_panel_with_training_beside_validation(root: str) -> None:
    run = run_of(root, [0.8])
    report(run.trials[0], loss=[3.0, 2.0], accuracy=[0.1, 0.9], val_loss=[4.0, 5.0], lr=[0.5, 0.25])
    figure = plot(run, "curves")
    assert panels(figure) == {
        "accuracy (higher is better)": [("accuracy solid", [0.1, 0.9])],
        "loss, val_loss": [("val_loss solid", [4.0, 5.0]), ("loss dot", [3.0, 2.0])],
        "lr": [("lr solid", [0.5, 0.25])],
    }
    assert figure.layout.showlegend
    assert "dotted: training" in figure.layout.title.subtitle.text


def test_a_run_without_curves_says_why(root: str) -> None:
    run = run_of(root, [0.8, 0.7])
    assert "No trial has reported values. The training function" in why_no_curves(run)
    report(run.trials[1], loss=[3.0])
    assert why_no_curves(run).startswith("No metric was reported at two steps")


def test_the_trials_of_a_search_show_every_metric(root: str) -> None:
    run = run_of(root, [0.7, 0.9], metric="val_acc")
    for trial in run.trials:
        report(trial, acc=[0.1, 0.2], val_acc=[0.3, trial.value or 0.0], grad_norm=[1.0, 2.0])
    shown = panels(plot(run, "curves"))
    assert list(shown) == ["acc, val_acc (higher val_acc is better)", "grad_norm"]
    assert "thick: trial 1, the best" in plot(run, "curves").layout.title.subtitle.text
    names = [name for name, _ in shown["acc, val_acc (higher val_acc is better)"]]
    assert names == ["trial 0 solid", "trial 0 dot", "trial 1 solid", "trial 1 dot"]
    assert [values for _, values in shown["grad_norm"]] == [[1.0, 2.0], [1.0, 2.0]]


def test_a_spike_of_a_long_curve_is_drawn(root: str) -> None:
    run = run_of(root, [0.5])
    values = np.random.default_rng(1).random(20_000)
    values[12_345] = 7.0
    report(run.trials[0], accuracy=values.tolist())
    (curve,) = plot(run, "curves").data
    assert (12_345, 7.0) in zip(curve.x, curve.y, strict=True)
    assert len(curve.x) <= 300


def test_a_value_that_is_not_finite_is_said(root: str) -> None:
    run = run_of(root, [0.5, 0.6])
    for trial, end in zip(run.trials, (0.5, math.inf), strict=True):
        line = {"step": 1, "metrics": {"accuracy": end if end < 1 else {"$float": "inf"}}}
        first = {"step": 0, "metrics": {"accuracy": 0.1}}
        storage.write(TrialPaths(trial.path).metrics, f"{json.dumps(first)}\n{json.dumps(line)}\n")
    note = plot(run, "curves").layout.title.subtitle.text
    assert note.endswith("not finite at some steps: trial 1")


def test_one_bad_trial_does_not_squeeze_the_others(root: str) -> None:
    values = [0.95 + i / 1000 for i in range(28)] + [0.35, 0.54]
    figure = plot(run_of(root, values), "history")
    low, high = figure.layout.yaxis.range
    assert 0.9 < low < 0.95
    assert high > 0.977
    (arrows,) = [trace for trace in figure.data if trace.name == "beyond the axis"]
    assert list(arrows.x) == [28, 29]
    assert "0.35" in arrows.text[0]
    assert "trial 28 with 0.35, trial 29 with 0.54" in figure.layout.title.subtitle.text
    # The values themselves are in the figure, for a reader who wants the whole axis.
    assert 0.35 in next(t for t in figure.data if t.name == "COMPLETE").y


def test_the_best_trial_is_always_on_the_axis(root: str) -> None:
    values = [0.1 + i / 1000 for i in range(29)] + [0.99]
    figure = plot(run_of(root, values), "history")
    assert figure.layout.yaxis.range is None


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e9])
def test_values_of_one_kind_are_never_cut(scale: float) -> None:
    # Two groups, a uniform spread, a normal spread: Tukey's fences are for outliers.
    draw = np.random.default_rng(3)
    groups = [0.1 * scale] * 15 + [0.9 * scale] * 15
    for values in (groups, draw.random(50) * scale, draw.normal(5, 1, 500) * scale):
        assert value_axis([float(v) for v in values]).limits is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.integers(0, 59))
def test_an_axis_is_cut_only_to_show_more(values: list[float], number: int) -> None:
    kept = values[number % len(values)]
    axis = value_axis(values, [kept])
    assert axis.edge(kept) is None
    if axis.limits:
        assert len(axis.beyond(values)) <= 0.2 * len(values)
        assert len(axis.beyond(values)) >= 1


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=300), st.integers(4, 50))
def test_extremes_keep_the_ends_and_the_range(values: list[float], most: int) -> None:
    points = list(enumerate(values))
    chosen = extremes(points, most)
    assert len(chosen) <= max(most, 4)
    assert chosen[0] == points[0]
    assert chosen[-1] == points[-1]
    assert {min(values), max(values)} == {min(v for _, v in chosen), max(v for _, v in chosen)}
    assert [step for step, _ in chosen] == sorted({step for step, _ in chosen})
