"""Runs beside one another: what differs, in a table and in a figure."""

from pathlib import Path

import pytest

from sparkdl import experiment
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.runs import Run
from tests.helpers.stored_runs import ended, started
from tests.runs.views.test_report import report_steps

_COPIES = (("original", 0.6), ("copy", 0.7))


@pytest.fixture
def two(root: str) -> list[Run]:
    """Two runs that differ in a parameter, a package, the code and the commit."""
    common = {"versions": {"python": "3.11", "tensorflow": "2.20"}, "framework": "tensorflow"}
    a = ended(root, "a", (0.5, 0.75), **common).run
    params = ({"lr": 0.01, "opt": "adam"}, {"lr": 0.2, "opt": "adam"})
    common["versions"] = {"python": "3.11", "tensorflow": "2.21"}
    b = ended(root, "b", (0.9, 0.8), params, **{**common, "git_commit": "def+changes"}).run
    for run, numpy in ((a, "2.0"), (b, "2.1")):
        storage.write(f"{run.path}/environment.txt", f"# Python\nkeras==3.1\nnumpy=={numpy}\n")
        storage.write(f"{run.path}/source/function.py", f"def train(): return {numpy}\n")
    return [a, b]


def test_the_table_has_what_differs(two: list[Run]) -> None:
    frame = experiment.compare(two).to_pandas()
    assert frame.columns.tolist() == ["a", "b"]
    rows = {name: values.tolist() for name, values in frame.iterrows()}
    assert rows["result", "best value"] == [0.75, 0.9]
    assert rows["result", "duration in s"] == [4.0, 4.0]  # Shown although it is the same.
    assert rows["metrics", "loss"] == [0.25, pytest.approx(0.1)]
    assert rows["parameters", "lr"] == [0.2, 0.01]
    assert rows["parameters", "opt"] == [None, "adam"]
    assert rows["tried", "lr"] == ["0.1, 0.2", "0.01, 0.2"]
    assert rows["environment", "git commit"] == ["abc", "def+changes"]
    assert rows["environment", "tensorflow"] == ["2.20", "2.21"]
    assert rows["packages", "numpy"] == ["2.0", "2.1"]
    assert ("environment", "source") in rows
    names = {name for _, name in rows}
    assert not {"keras", "python", "framework", "metric"} & names
    assert ("packages", "keras") in experiment.compare(two).to_pandas(everything=True).index


def test_copies_of_a_run_are_told_apart_and_nan_is_the_same_as_nan(root: str) -> None:
    params = ({"lr": float("nan"), "x": 1},) * 2
    runs = [ended(f"{root}/{name}", "one", (0.5, value), params).run for name, value in _COPIES]
    comparison = experiment.compare(runs)
    paths = [run.path for run in runs]
    assert comparison.to_dict()["differences"]["metrics"]["accuracy"] == dict(
        zip(paths, (0.6, 0.7), strict=True)
    )
    assert comparison.to_pandas().columns.tolist() == paths
    assert str(comparison).splitlines()[0].endswith(paths[1])
    assert "lr" in comparison.same


def test_print_and_notebook_show_the_same_rows(two: list[Run]) -> None:
    comparison = experiment.compare(two)
    text, page = str(comparison), comparison._repr_html_()
    for part in ("best value", "0.75", "0.9", "parameters", "tensorflow", "2.21", "numpy"):
        assert part in text
        assert part in page
    assert text.splitlines()[0].split() == ["name", "a", "b"]
    last = "metric, direction, complete, training of a trial in s, framework, seed, user, python"
    assert text.splitlines()[-1] == f"The same in all: {last}"
    assert repr(comparison) == "<Comparison of a, b>"


def test_runs_are_named_by_path_or_id(two: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKDL_ROOT", str(Path(two[0].path).parent))
    assert [run.id for run in experiment.compare(["a", two[1].path]).runs] == ["a", "b"]
    for wrong in (two[:1], "a", []):
        with pytest.raises(ConfigError, match="two or more runs"):
            experiment.compare(wrong)


def test_the_figure_has_a_line_for_each_run(two: list[Run]) -> None:
    figure = experiment.compare(two).figure()
    lines = {trace.name: list(trace.y) for trace in figure.data}
    assert lines == {"a": [0.5, 0.75], "b": [0.9, 0.9]}
    assert figure.layout.title.text == "Best value so far"
    report_steps(two[0].trials[1], [0.1, 0.7])
    report_steps(two[1].trials[0], [0.2, 0.8, 0.9])
    figure = experiment.compare(two).figure()
    lines = {trace.name: list(trace.y) for trace in figure.data}
    assert lines == {"a": [0.1, 0.7], "b": [0.2, 0.8, 0.9]}
    assert figure.layout.title.text == "The best trial of each run"
    assert list(experiment.compare(two).figure("history").data[0].y) == [0.5, 0.75]
    assert len({trace.line.color for trace in figure.data}) == 2


def test_a_figure_without_values_is_refused(root: str) -> None:
    runs = []
    for name in ("a", "b"):
        opened = started(root, name)
        opened.owner.release()
        runs.append(opened.run)
    with pytest.raises(ConfigError, match="have no values to draw"):
        experiment.compare(runs).figure()
    with pytest.raises(ConfigError, match="Did you mean 'curves'"):
        experiment.compare(runs).figure("curve")
    assert "state" in str(experiment.compare(runs))
