"""The figures of a run, and its self-contained report."""

import itertools
import json
import math
import random
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.files.layout import TrialPaths
from sparkdl.runs import Run, Trial
from sparkdl.runs.events import RunEnded, TrialChanged, event_from_dict
from sparkdl.runs.history import load
from sparkdl.runs.opening import RunDescription, open_run
from sparkdl.runs.states import RunState, TrialState
from sparkdl.runs.views.figures import plot
from sparkdl.runs.views.figures.base import COLORS
from sparkdl.runs.views.figures.timeline import Bar, assign_rows
from sparkdl.runs.views.report import write_report
from tests.helpers.runs import quiet
from tests.ui.browsers import browser_page, chromium

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


def make_run(
    root: str,
    params: list[dict[str, Any]],
    end: Callable[[int], dict[str, Any]],
    metric: str | None = "accuracy",
    name: str = "toy",
    **changes: Any,
) -> Run:
    """Create a run on two slots whose trials last a second; `end(i)` is the end of trial i."""
    description = RunDescription(
        id="toy-1",
        name=name,
        kind="search",
        description=None,
        metric=metric,
        direction="max",
        params=params,
        seed=7,
        secrets=(),
        facts={"user": "anna"},
    )
    opened = open_run(root, description, "error")
    run = opened.run
    for number in range(len(params)):
        start = 1000.0 + number // 2
        events = [{"state": "RUNNING", "attempt": 0, "time": start}]
        events.append({"attempt": 0, "time": start + 0.9, **end(number)})
        for event in events:
            run.apply(event_from_dict({"event": "trial", "number": number, **event}))
    run.apply(RunEnded(state=RunState.COMPLETE, duration_s=9.0, **changes))
    opened.owner.release()
    return run


def complete(value: float, **metrics: float) -> dict[str, Any]:
    usage = {"queued_s": 1.0, "starting_s": 0.2, "running_s": 0.7, "first_step_s": 0.1}
    metrics = {"accuracy": value, **metrics}
    return {"state": "COMPLETE", "value": value, "metrics": metrics, "usage": usage}


def report_steps(trial: Trial, values: list[float], name: str = "accuracy") -> None:
    rows = [{"step": step, "metrics": {name: value}} for step, value in enumerate(values)]
    storage.write(TrialPaths(trial.path).metrics, "".join(json.dumps(r) + "\n" for r in rows))


def traces(figure: Any) -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data}


ENDS: list[dict[str, Any]] = [
    complete(0.5),
    {"state": "FAILED", "error": "ValueError: too wide\n\nTraceback ... line 7"},
    complete(0.7),
    {"state": "PRUNED"},
    complete(0.6),
    {"state": "INVALID", "error": "metric 'accuracy' is nan"},
]


@pytest.fixture
def mixed(root: str) -> Run:
    """Six trials: 0.5, failed, 0.7, pruned, 0.6, invalid."""
    params = [{"lr": 10.0 ** -(i % 4 + 1), "layers": 1 + i % 3, "epochs": 5} for i in range(6)]
    return make_run(root, params, ENDS.__getitem__)


def test_history_shows_every_trial_and_the_best_so_far(mixed: Run) -> None:
    shown = traces(plot(mixed, "history"))
    assert list(shown["COMPLETE"].x) == [0, 2, 4]
    assert list(zip(shown["best so far"].x, shown["best so far"].y, strict=True)) == [
        (0, 0.5),
        (2, 0.7),
        (5, 0.7),
    ]
    below = {name: list(trace.x) for name, trace in shown.items() if trace.yaxis == "y2"}
    assert below == {"PRUNED": [3], "INVALID": [5], "FAILED": [1]}
    assert shown["FAILED"].marker.color == COLORS[TrialState.FAILED]
    assert "too wide" in shown["FAILED"].text[0]


def test_history_of_repeats_follows_their_mean(root: str) -> None:
    values = [0.9, 0.1, 0.6, 0.6]
    run = make_run(root, [{"lr": i // 2} for i in range(4)], lambda i: complete(values[i]))
    for trial in run.trials:
        trial.configuration = trial.number // 2 * 2
    line = traces(plot(run, "history"))["best mean so far"]
    assert list(zip(line.x, line.y, strict=True)) == [(1, 0.5), (3, 0.6), (3, 0.6)]


def test_parallel_chooses_axes_by_their_values(root: str) -> None:
    def params(i: int) -> dict[str, Any]:
        params = {"lr": 10.0 ** -(i % 4 + 1), "optimizer": ["adam", "sgd"][i % 2], "fixed": 1}
        return {**params, "units": 16 + i, **({"momentum": i / 12} if i % 2 else {})}

    run = make_run(root, [params(i) for i in range(12)], lambda i: complete(i / 12))
    axes = {axis.label: axis for axis in plot(run, "parallel").data[0].dimensions}
    assert list(axes) == ["lr", "optimizer", "units", "momentum", "accuracy"]
    assert list(axes["lr"].tickvals) == pytest.approx([-4, -3, -2, -1])
    assert list(axes["lr"].ticktext) == ["0.0001", "0.001", "0.01", "0.1"]
    assert list(axes["optimizer"].ticktext) == ["adam", "sgd"]
    assert axes["units"].tickvals[0] == 16.0
    assert axes["momentum"].ticktext[-1] == "none"
    assert min(axes["momentum"].values) == axes["momentum"].values[0] < 1 / 12


def shares_of(run: Run) -> dict[str, float]:
    bars = plot(run, "importance")
    shares = bars.data[0].x
    return dict(zip(bars.layout.yaxis.ticktext, shares, strict=True))


def test_importance_is_the_share_of_the_variance(
    root: str, capfd: pytest.CaptureFixture[str]
) -> None:
    # For a sum of functions of independent parameters, a share is the variance of its function:
    # 100 / 12 for 10 times a uniform number, 9 / 12 for 3 times one.
    draw = random.Random(0)
    params = [
        {"large": draw.random(), "small": draw.random(), "none": draw.random(), "kind": "ab"[i % 2]}
        for i in range(60)
    ]
    values = [10 * p["large"] + 3 * p["small"] for p in params]
    run = make_run(root, params, lambda i: complete(values[i]))
    shares = shares_of(run)
    assert shares["large"] == pytest.approx(100 / 109, abs=0.08)
    assert shares["small"] == pytest.approx(9 / 109, abs=0.08)
    assert max(shares["none"], shares["kind"]) < 0.05
    assert sum(shares.values()) == pytest.approx(1.0)
    assert capfd.readouterr().err == ""  # Optuna does not log the creation of the study.


def test_importance_counts_the_last_values_of_pruned_trials(root: str) -> None:
    # A search that stops every large learning rate leaves COMPLETE trials that are all alike.
    draw = random.Random(1)
    params = [{"lr": 10 ** draw.uniform(-5, 0), "units": draw.randrange(8, 64)} for _ in range(40)]

    def end(i: int) -> dict[str, Any]:
        loss = (math.log10(params[i]["lr"]) + 3) ** 2 + params[i]["units"] / 500
        if loss > 1:
            return {"state": "PRUNED", "metrics": {"accuracy": -loss}}
        return complete(-loss)

    run = make_run(root, params, end)
    assert min(t.last_value for t in run.trials if t.last_value) < -1
    assert shares_of(run)["lr"] > 0.9


def test_importance_compares_a_conditional_parameter_among_its_trials(root: str) -> None:
    draw = random.Random(2)
    params: list[dict[str, Any]] = []
    for i in range(90):
        params.append({"model": ["tree", "net"][i % 3 > 0], "lr": draw.random()})
        params[-1] |= {"units": draw.random()} if i % 3 else {}
        params[-1] |= {"rare": draw.random()} if i % 9 == 1 else {}
    values = [20 * (p["model"] == "net") + 3 * p["lr"] + 9 * p.get("units", 0) for p in params]
    run = make_run(root, params, lambda i: complete(values[i]))
    shares = shares_of(run)
    assert list(shares)[-1] == "model"
    assert shares["model"] + shares["lr"] == pytest.approx(1.0)
    # Among the trials that have it: 81 / 12 of the variance, beside 9 / 12 of the learning rate.
    assert shares["units (60 trials)"] == pytest.approx(0.9, abs=0.08)
    assert "too few trials to tell: rare" in plot(run, "importance").layout.title.subtitle.text


def test_importance_of_few_trials_is_not_told(root: str) -> None:
    params = [{"lr": i % 4, "units": i % 5} for i in range(19)]
    run = make_run(root, params, lambda i: complete(i / 19))
    with pytest.raises(ConfigError, match=r"it needs 20 COMPLETE or PRUNED trials"):
        plot(run, "importance")
    page = Path(write_report(run)).read_text()
    assert "too few trials to tell: 19 have a value, and 20 are needed" in page


def test_curves_show_the_best_and_other_trials(mixed: Run) -> None:
    for trial in mixed.trials[:4]:
        report_steps(trial, [0.1 * trial.number, 0.2 * trial.number])
    shown = traces(plot(mixed, "curves"))
    assert {name: trace.line.dash for name, trace in shown.items()} == {
        "trial 0": "solid",
        "trial 1": "solid",
        "trial 2": "solid",
        "trial 3": "dash",
    }
    assert (
        plot(mixed, "curves").data[-1].name == "trial 2"
    )  # The best trial is drawn above the others.
    assert list(shown["trial 2"].y) == [0.2, 0.4]


def test_figures_leave_out_values_that_are_no_numbers(root: str) -> None:
    params: list[dict[str, Any]] = [{"a": i, "b": [None, 1.0][i % 2]} for i in range(10)]
    params[3] |= {"rare": 2, "none": None, "endless": float("inf")}
    run = make_run(root, params, lambda i: complete(i / 10))
    report_steps(run.trials[9], [0.1, float("nan"), float("inf"), 0.4])
    report_steps(run.trials[8], [float("nan"), float("inf")])
    assert [d.label for d in plot(run, "parallel").data[0].dimensions[:-1]] == [
        "a",
        "b",
        "rare",
        "endless",
    ]
    assert "Infinity" not in plot(run, "curves").to_json()
    assert "Learning curves" in Path(write_report(run)).read_text()


def test_curves_read_few_files_and_all_metrics_of_a_single_trial(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(root, [{"a": i} for i in range(100)], lambda i: complete(i / 100))
    for trial in run.trials:
        report_steps(trial, [float(step) for step in range(1000)])
    reads: list[str] = []
    read = storage.read
    monkeypatch.setattr(storage, "read", lambda url, *more: reads.append(url) or read(url, *more))
    shown = plot(run, "curves")
    # Other runs of this process may be read at the same time.
    assert len([url for url in reads if url.startswith(run.path)]) == len(shown.data) == 30
    assert 290 < len(shown.data[0].x) <= 300
    assert shown.data[0].x[-1] == 999
    assert "the best 15 and 15 other trials" in shown.layout.title.subtitle.text
    run.trials, run.metric = run.trials[:1], None
    report_steps(run.trials[0], [2.0, 1.0], "loss")
    assert list(traces(plot(run, "curves"))) == ["loss"]


def test_timeline_shows_each_attempt_on_a_slot(root: str) -> None:
    run = make_run(root, [{"a": i} for i in range(3)], lambda i: complete(0.5))
    for state, attempt, now in (("RUNNING", 0, 1001.5), ("WAITING", 0, 1002), ("RUNNING", 1, 1003)):
        event = TrialChanged(number=2, state=TrialState(state), attempt=attempt, time=now)
        run.apply(event)
    end = {"event": "trial", "number": 2, "attempt": 1, "time": 1004.0, **complete(0.5)}
    run.apply(event_from_dict(end))
    run.trials[2].spans.pop(0)
    run.trials[2].span_states.pop(0)
    shown = traces(plot(run, "timeline"))
    assert list(shown["LOST"].base) == [1.5]
    assert list(shown["COMPLETE"].base) == [0, 0, 3]
    assert list(shown["COMPLETE"].y) == [1, 2, 1]
    assert list(shown["COMPLETE"].x) == pytest.approx([0.9, 0.9, 1.0])


def test_timeline_names_the_end_of_each_attempt(root: str) -> None:
    run = make_run(root, [{"a": i} for i in range(3)], lambda i: complete(0.5))
    ends = ["CANCELLED", "PAUSED", "LOST", None, "PRUNED"]
    trial, now = run.trials[2], 1002.0
    trial.spans, trial.span_states = [], []
    for attempt, end in enumerate(ends):
        for state in ("RUNNING", end):
            if state:  # The driver of the fourth attempt died without a word.
                event = TrialChanged(number=2, state=TrialState(state), attempt=attempt, time=now)
                run.apply(event)
            now += 1.0
    assert trial.span_states == ["CANCELLED", "PAUSED", "LOST", "LOST", "PRUNED"]
    shown = traces(plot(run, "timeline"))
    assert {name: len(trace.base) for name, trace in shown.items()} == {
        "CANCELLED": 1,
        "COMPLETE": 2,
        "LOST": 2,
        "PAUSED": 1,
        "PRUNED": 1,
    }


def test_timeline_has_no_slot_for_an_end_that_was_noted_late() -> None:
    trial = Trial(0, {}, "")

    def rows(*spans: tuple[float, float]) -> list[tuple[float, float, int]]:
        bars = [Bar(start_s=a, end_s=b, state=trial.state, trial=trial) for a, b in spans]
        return [(bar.start_s, bar.end_s, bar.row) for bar in assign_rows(bars)]

    # Two slots: each trial's end is noted 0.4 s after the next one has begun there.
    found = rows((0.0, 8.4), (0.1, 5.4), (5.0, 12.4), (8.0, 14.0), (12.0, 20.0))
    assert found == [(0.0, 8.0, 0), (0.1, 5.0, 1), (5.0, 12.0, 1), (8.0, 14.0, 0), (12.0, 20.0, 1)]
    # What overlaps for longer, or for a large part of it, ran beside the other one.
    assert [row for *_, row in rows((0.0, 8.0), (6.0, 12.0))] == [0, 1]
    assert [row for *_, row in rows((0.0, 0.5), (0.1, 0.6))] == [0, 1]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), min_size=1, max_size=40))
def test_assign_rows_gives_bars_that_do_not_overlap(spans: list[tuple[int, int]]) -> None:
    trial = Trial(0, {}, "")
    bars = [
        Bar(start_s=start, end_s=start + length, state=TrialState.COMPLETE, trial=trial)
        for start, length in spans
    ]
    placed = assign_rows(bars, lag_s=0.0)
    for row in range(1 + max(bar.row for bar in placed)):
        bars = [bar for bar in placed if bar.row == row]
        assert all(a.end_s <= b.start_s for a, b in itertools.pairwise(bars))
    most = max(sum(s <= now < s + d for s, d in spans) for now in range(60))
    assert 1 + max(bar.row for bar in placed) == most


def test_pareto_marks_the_front(root: str) -> None:
    latencies = [3.0, 9.0, 1.0]
    run = make_run(
        root,
        [{"a": i} for i in range(3)],
        lambda i: complete([0.8, 0.7, 0.6][i], latency=latencies[i]),
    )
    run.objectives = {"accuracy": "max", "latency": "min"}
    shown = traces(plot(run))
    assert list(shown["Pareto front"].x) == [0.6, 0.8]
    assert list(shown["dominated"].y) == [9.0]
    page = Path(write_report(run)).read_text()
    assert "2 trials that no other trial beats in all metrics" in page


def test_plot_refuses_figures_without_data_with_the_reason(mixed: Run) -> None:
    with pytest.raises(ConfigError, match=r"no figure 'histroy'.*Did you mean 'history'"):
        plot(mixed, "histroy")
    with pytest.raises(ConfigError, match=r"'importance': it needs 20 COMPLETE .* 3 of 6 trials"):
        plot(mixed, "importance")
    for trial in mixed.trials:  # Now there are enough trials, but their values are equal.
        trial.state, trial.value = TrialState.COMPLETE, 0.5
    mixed.trials *= 4
    with pytest.raises(ConfigError, match="whose values differ"):
        plot(mixed, "importance")
    with pytest.raises(ConfigError, match="a trial that has started"):
        plot(Run("r", "", "r", "launch"))


def test_report_shows_the_results(root: str) -> None:
    ends = [complete(0.5), complete(0.7), *[{"state": "FAILED", "error": "Oh: no\n\nline 7"}] * 3]
    idle = "31 % idle: last wave 3 trials on 8 slots"
    run = make_run(root, [{"lr": i / 10} for i in range(5)], ends.__getitem__, idle=idle)
    url = write_report(run)
    assert url == storage.join(run.path, "report.html")
    page = re.sub(r"<script>.*?</script>", "", Path(url).read_text(), flags=re.DOTALL)
    assert "2 of 5 trials complete, 3 failed" in page
    assert "<b>0.7</b> accuracy" in page
    assert idle in page
    assert "<td>first step</td><td>0.2 s</td><td>5%</td>" in re.sub(r"<i[^>]*></i>", "", page)
    assert Path(url).stat().st_size < 2_500_000  # Of the figures' library there is a packed copy.
    assert page.count("line 7") == 1  # Equal failures are shown once.
    assert "trial 2 and 2 more" in page
    assert "also trials 3, 4" in page
    # What failed has lr of 0.2 to 0.4: of five trials, chance alone may bring that.
    assert "failed trials have" not in page
    assert "duration of all trials together 1.8 s, of which training 1.4 s" in page
    assert "anna" in page
    assert page.count("application/json") == 4  # history, parallel, slices, timeline
    assert "http://" not in page
    assert "https://" not in page


def test_report_of_a_run_without_results(root: str) -> None:
    description = RunDescription(
        id="toy-1",
        name="toy",
        kind="launch",
        description=None,
        metric=None,
        direction="max",
        params=[{}],
        seed=7,
        secrets=(),
        facts={},
    )
    run = open_run(root, description, "error").run
    page = Path(write_report(run)).read_text()
    assert "0 of 1 trials complete" in page
    assert len(page) < 20_000  # Without a figure the page has no plotly.js.


HOSTILE = (
    "</script><script>document.documentElement.dataset.owned=1</script>"
    "<img src=x onerror='document.documentElement.dataset.owned=2'>\"'&amp;\u2028%{x}"
)


OWN = "(window.top || window).document.documentElement.dataset.owned"


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("guarded", [True, False])
def test_report_runs_no_script_in_the_text_of_a_user(
    root: str, tmp_path: Path, guarded: bool
) -> None:
    def end(i: int) -> dict[str, Any]:
        if i % 5:
            return {**complete(i / 20), "metrics": {HOSTILE: i / 20}}
        return {"state": "FAILED", "error": HOSTILE + "\n" + HOSTILE}

    params = [{HOSTILE: HOSTILE[i % 3 :], "a": 10.0**-i, "<b>": i % 7} for i in range(30)]
    run = make_run(root, params, end, metric=HOSTILE, name=HOSTILE, reason=HOSTILE, idle=HOSTILE)
    for trial in run.trials:
        report_steps(trial, [1.0, 2.0], HOSTILE)
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" onload="{OWN}=3"><script>{OWN}=4</script></svg>'
    storage.write(f"{run.trials[29].path}/work/<img src=x onerror=alert(1)>.svg", svg)
    storage.write(f"{run.path}/source/function.py", HOSTILE)
    storage.write(f"{run.path}/data.json", json.dumps({HOSTILE: {"schema": f"{HOSTILE}: int64"}}))
    page = Path(write_report(run)).read_text()
    policy = re.search(r'<meta http-equiv="Content-Security-Policy"[^>]*>', page)
    assert policy
    if not guarded:  # The escaping must suffice without the policy, too.
        page = page.replace(policy[0], "")
    seen = rendered(tmp_path, page)
    assert "data-owned" not in re.search("<html[^>]*>", seen)[0]  # type: ignore[index]
    assert seen.count('class="plot-container') == 6
    assert not re.search(r"could not draw it: [^$]", seen)


@pytest.mark.slow
def test_nothing_of_a_report_is_cut_at_1400_pixels(root: str) -> None:
    names = ["learning_rate", "a_rather_long_name_of_a_parameter_that_is_true", "units", "kind"]
    params = [{name: i * (7 + j) % 13 for j, name in enumerate(names)} for i in range(30)]
    error = {"state": "FAILED", "error": "InternalError: " + "no space left on the device " * 9}
    run = make_run(root, params, lambda i: complete(i / 30, loss=1.0) if i % 9 else error)
    for trial in run.trials:
        report_steps(trial, [0.1, 0.2, 0.3])
        for file in ("0.use.jsonl", "0.use-worker-11.jsonl"):
            storage.write(f"{trial.path}/attempts/{file}", 3 * (json.dumps(USED) + "\n"))
    storage.write(f"{run.path}/source/function.py", f"def train():\n    x = '{'long' * 90}'\n")
    columns = ", ".join(f"a_rather_long_name_of_a_column_{i}: list<float>" for i in range(60))
    storage.write(f"{run.path}/data.json", json.dumps({"train": {"schema": columns}}))
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="3000" height="900"/>'
    storage.write(f"{run.trials[29].path}/work/wide.svg", svg)
    with chromium() as browser:
        uri = Path(write_report(run)).as_uri()
        with browser_page(browser, uri, viewport={"width": 1400, "height": 900}) as tab:
            tab.wait_for_selector("section:has-text('Slots over time') .main-svg")
            assert tab.evaluate(SCROLLING) == []
            assert tab.evaluate(CUT_TEXTS) == []


USED = {"time": 1.0, "cpu": 1.5, "memory_mb": 99.0, "gpu": 40.0, "gpu_memory_mb": 3e4}

# The parts of a page that are wider than their place, and the texts beyond the edge of a figure.
SCROLLING = """() => [...document.querySelectorAll("main, section, .wide, .figure, pre")]
  .filter((each) => each.scrollWidth > each.clientWidth + 1)
  .map((each) => each.closest("section")?.querySelector("h2")?.textContent)"""
CUT_TEXTS = """() => [...document.querySelectorAll("svg.main-svg")].flatMap((figure) => {
  const { left, right } = figure.getBoundingClientRect();
  return [...figure.querySelectorAll("text")].filter((text) => {
    const place = text.getBoundingClientRect();
    return place.width && (place.left < left - 1 || place.right > right + 1);
  }).map((text) => text.textContent);
})"""


@pytest.mark.slow
@needs_browser
def test_report_lets_the_browser_run_only_its_own_scripts(mixed: Run, tmp_path: Path) -> None:
    page = Path(write_report(mixed)).read_text()
    script = "<script>document.documentElement.dataset.owned=1</script>"
    for name, added in (("image", HOSTILE[HOSTILE.index("<img") :]), ("script", script)):
        seen = rendered(tmp_path, page.replace("<h1>", f"{added}<h1>"), name)
        assert "data-owned" not in re.search("<html[^>]*>", seen)[0]  # type: ignore[index]
        assert 'class="plot-container' in seen


def rendered(folder: Path, page: str, name: str = "page") -> str:
    """Return the page after a browser has run its scripts."""
    path = folder / f"{name}.html"
    path.write_text(page)
    options = ["--headless", "--no-sandbox", f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    command = [str(CHROMIUM), *options, "--virtual-time-budget=10000", path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=480, check=True).stdout


@pytest.mark.slow
def test_report_of_ten_thousand_trials_is_small_and_fast(root: str) -> None:
    def end(i: int) -> dict[str, Any]:
        return complete(i % 997 / 997) if i % 3 else {"state": "FAILED", "error": f"E: {i}"}

    run = make_run(root, [{"a": i % 13, "b": i % 7} for i in range(10_000)], end)
    begun = time.process_time()
    path = Path(write_report(run))
    assert time.process_time() - begun < 10
    assert path.stat().st_size < 8_000_000
    page = path.read_text()
    assert re.search(r"\d{4} of 10000 trials are drawn", page)
    assert "bars too narrow to distinguish are joined" in page
    assert "50 of 3334 kinds shown" in page


@pytest.mark.slow
def test_report_of_a_real_run(spark: SparkSession, root: str) -> None:
    def train(lr: float, units: int) -> float:
        from sparkdl import context

        if units == 3:
            raise ValueError("three do not fit")
        for step in range(3):
            context.report(lr * step, step)
        return lr * units

    args = {"lr": [0.1, 0.01], "units": [1, 2, 3]}
    run = experiment.launch(train, args, metric="accuracy", name="toy", **quiet(root))
    read_back = load(run.path)
    for shown in (run, read_back):
        page = Path(write_report(shown)).read_text()
        assert "4 of 6 trials complete, 2 failed" in page
        assert "three do not fit" in page
        assert "Traceback" in page
        for title in ("Trial by trial", "Learning curves", "Parameters and values"):
            assert f"<h2>{title}</h2>" in page
        rows = {y for trace in plot(shown, "timeline").data for y in trace.y}
        assert 1 in rows
