"""Each parameter is drawn against the value, also where trials failed."""

from typing import Any

import pytest

from sparkdl.errors import ConfigError
from sparkdl.runs import Run, Trial
from sparkdl.runs.states import TrialState
from sparkdl.runs.views.figures import plot


def trial(number: int, value: float | None, state: str = "COMPLETE", **params: Any) -> Trial:
    made = Trial(number, params, "", configuration=number, state=TrialState(state), value=value)
    made.metric = "loss"
    if state == "PRUNED":
        made.value, made.metrics = None, {"loss": value or 0.0}
    return made


def run_of(trials: list[Trial]) -> Run:
    return Run("r", "", "r", "search", metric="loss", direction="min", trials=trials)


def panels(figure: Any) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """The points of each state, by the title of the panel."""
    titles = [note.text for note in figure.layout.annotations]
    found: dict[str, Any] = {title: {} for title in titles}
    for trace in figure.data:
        title = titles[int(trace.xaxis.removeprefix("x") or 1) - 1]
        if len(trace.x):
            found[title][trace.name] = list(zip(trace.x, trace.y, strict=True))
    return found


def test_each_parameter_has_a_panel_with_its_scale() -> None:
    trials = [
        trial(i, i / 10, lr=10.0 ** -(1 + i % 7), depth=i, kind=["a", "b"][i % 2], same=1)
        for i in range(14)
    ]
    figure = plot(run_of(trials), "slices")
    shown = panels(figure)
    assert list(shown) == ["lr", "depth", "kind"]
    assert figure.layout.xaxis.type == "log"
    assert figure.layout.xaxis2.type == "linear"
    assert list(figure.layout.xaxis3.ticktext) == ["a", "b"]
    # The lowest loss is the best.
    assert shown["depth"]["best"] == [(0.0, 0.0)]
    assert sorted(shown["depth"]["COMPLETE"]) == [(i, i / 10) for i in range(1, 14)]
    # Trials of a choice stand apart, and nearer to their choice than to another.
    places = [x for x, _ in (*shown["kind"]["COMPLETE"], *shown["kind"]["best"])]
    assert len(set(places)) == 14
    assert sorted(round(place) for place in places) == [0] * 7 + [1] * 7


def test_the_cause_of_failures_is_drawn_although_no_complete_trial_has_it() -> None:
    trials = [trial(i, i / 10, units=32, depth=i) for i in range(6)]
    trials += [trial(6 + i, None, "FAILED", units=64, depth=i) for i in range(3)]
    figure = plot(run_of(trials), "slices")
    units = panels(figure)["units"]
    assert list(figure.layout.xaxis.ticktext) == ["32", "64"]
    assert [round(x) for x, _ in units["FAILED"]] == [1, 1, 1]
    lowest = min(y for _, y in (*units["COMPLETE"], *units["best"]))
    assert all(y < lowest for _, y in units["FAILED"])
    low, high = figure.layout.yaxis.range
    assert low < units["FAILED"][0][1] < high
    assert "crosses" in figure.layout.title.subtitle.text


def test_pruned_trials_have_their_last_value_and_outliers_the_edge() -> None:
    trials = [trial(i, 0.1 + i / 100, x=i) for i in range(20)]
    trials += [trial(20, 0.15, "PRUNED", x=20), trial(21, 50.0, x=21)]
    figure = plot(run_of(trials), "slices")
    shown = panels(figure)["x"]
    assert shown["PRUNED"] == [(20.0, 0.15)]
    outlier = dict(shown["COMPLETE"])[21.0]
    assert 0.29 < outlier < 0.4
    assert figure.layout.yaxis.type == "linear"  # The outlier alone is no reason for another one.
    assert outlier <= figure.layout.yaxis.range[1] < 1
    note = figure.layout.title.subtitle.text
    assert "at its edge: 50" in note
    assert "pruned trials have their last value" in note


def test_the_points_of_a_conditional_parameter_are_those_of_its_trials() -> None:
    trials = [trial(i, i / 10, a=i, **({"momentum": i / 20} if i % 2 else {})) for i in range(12)]
    shown = panels(plot(run_of(trials), "slices"))
    assert [x for x, _ in shown["momentum"]["COMPLETE"]] == [i / 20 for i in range(1, 12, 2)]
    assert "best" not in shown["momentum"]


def test_slices_need_two_values() -> None:
    with pytest.raises(ConfigError, match="two trials with a value"):
        plot(run_of([trial(0, 0.5, x=1)]), "slices")
