"""Runs on the driver. Compare runs: a table of what differs, and figures over one another."""

import hashlib
import html
import json
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from sparkdl.files import storage
from sparkdl.files.layout import RunPaths
from sparkdl.runs import table
from sparkdl.runs.run import Run

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Comparison"]

# Rows that are shown although they are the same in all runs.
_ALWAYS = {("result", "state"), ("result", "trials"), ("result", "duration in s")}

_GROUPS = ("result", "metrics", "parameters", "tried", "environment", "packages")
_FACTS = ("description", "function", "plan", "framework", "seed", "user", "host", "git_commit")

Rows = dict[tuple[str, str], list[Any]]


class Comparison:
    """Several runs beside one another.

    `print` shows what differs, and a notebook shows the same as HTML.

    Args:
        runs: two or more runs.

    Attributes:
        runs: the runs, in the order of the columns.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = list(runs)
        self._rows = _rows(self.runs)
        ids = [run.id for run in self.runs]
        # A copy of a run has the same id.
        self._names = ids if len(set(ids)) == len(ids) else [run.path for run in self.runs]

    @property
    def same(self) -> list[str]:
        """The names of the fields without a row that all runs have alike, packages left out."""
        rows = self._rows_to_show()
        return [
            name
            for (group, name), values in self._rows.items()
            if (group, name) not in rows
            and group not in ("tried", "packages")
            and values[0] is not None
        ]

    def to_pandas(self, everything: bool = False) -> "pd.DataFrame":
        """Return the table, with a column for each run and two names for each row.

        The first name is `result`, `metrics`, `parameters`, `tried` (the values in all trials),
        `environment` or `packages`. Metrics and parameters are those of the best trial, or of the
        only one.

        Args:
            everything: also return the rows that are the same in all runs.
        """
        import pandas as pd

        rows = self._rows if everything else self._rows_to_show()
        index = pd.MultiIndex.from_tuples(list(rows), names=["group", "name"])
        return pd.DataFrame(list(rows.values()), index=index, columns=self._names, dtype=object)

    def figure(self, what: str | None = None) -> Any:
        """Return a plotly figure with the runs over one another.

        Args:
            what: `curves`, the reported values of the best trial of each run, or `history`, the
                best value after each trial. None chooses the curves if two runs have one, and
                otherwise the history.

        Raises:
            ConfigError: if there is no such figure, or the runs have too few values for it.
        """
        from sparkdl.runs.views.figures.overlay import overlay  # Importing plotly takes a second.

        return overlay(self.runs, what)

    def to_dict(self) -> dict[str, Any]:
        """Return the runs and the table as a JSON object."""
        groups: dict[str, dict[str, Any]] = {}
        for (group, name), values in self._rows_to_show().items():
            groups.setdefault(group, {})[name] = dict(zip(self._names, values, strict=True))
        runs = [{"id": run.id, "path": run.path} for run in self.runs]
        return {"runs": runs, "differences": groups, "same": self.same}

    def _rows_to_show(self) -> Rows:
        return {
            name: values
            for name, values in self._rows.items()
            if name in _ALWAYS or not _is_same(values)
        }

    def _columns(self) -> list[tuple[str, list[str]]]:
        rows = self._rows_to_show()
        groups = [group for group, _ in rows]
        first = [g if i == 0 or groups[i - 1] != g else "" for i, g in enumerate(groups)]
        columns = [("", first), ("name", [name for _, name in rows])]
        for number, title in enumerate(self._names):
            cells = [
                "" if row[number] is None else table.cell(row[number]) for row in rows.values()
            ]
            columns.append((title, cells))
        return columns

    def __str__(self) -> str:
        lines = table.padded(self._columns())
        return "\n".join([*lines, f"The same in all: {', '.join(self.same) or 'nothing'}"])

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(run.id for run in self.runs)}>"

    def _repr_html_(self) -> str:
        same = html.escape(", ".join(self.same) or "nothing")
        return f"{table.grid(self._columns())}<p>The same in all: {same}</p>"


def _is_same(values: Sequence[Any]) -> bool:
    first = values[0]
    # NaN differs from itself.
    return all(value == first or (value != value and first != first) for value in values)


def _rows(runs: Sequence[Run]) -> Rows:
    """Return the values of all fields; None for a run that lacks a field."""
    each = [_fields(run) for run in runs]
    # A set would bring the names in another order each time.
    names = dict.fromkeys(name for fields in each for name in fields)
    ordered = sorted(names, key=lambda name: _GROUPS.index(name[0]))
    return {name: [fields.get(name) for fields in each] for name in ordered}


def _fields(run: Run) -> dict[tuple[str, str], Any]:
    fields = {("result", name): value for name, value in _result(run).items()}
    best = run.top(1) or (run.trials if len(run.trials) == 1 else [])
    if best:
        fields |= {("metrics", name): value for name, value in best[0].metrics.items()}
        fields |= {("parameters", name): value for name, value in best[0].params.items()}
    if len(run.trials) > 1:
        params = [trial.params for trial in run.trials]
        names = dict.fromkeys(name for each in params for name in each)
        fields |= {("tried", name): table.tried(params, name) for name in names}
    fields |= {("environment", name): value for name, value in _environment(run).items()}
    packages = _packages(run.path)
    return fields | {("packages", name): version for name, version in packages.items()}


def _result(run: Run) -> dict[str, Any]:
    best = run.top(1)
    times = [trial.usage.running_s for trial in run.trials if trial.usage.running_s]
    return {
        "state": str(run.state),
        "best value": best[0].value if best else None,
        "metric": run.metric,
        "direction": run.direction,
        "trials": len(run.trials),
        "complete": run.counts().get("COMPLETE", 0),
        "duration in s": round(run.duration_s, 3),
        "training of a trial in s": round(median(times), 3) if times else None,
        "tags": ", ".join(run.tags) or None,
    }


def _environment(run: Run) -> dict[str, Any]:
    paths = RunPaths(run.path)
    facts = json.loads(storage.read(paths.run))
    spark = facts.get("spark") or {}
    environment = {name.replace("_", " "): facts.get(name) for name in _FACTS}
    environment |= facts.get("versions") or {}
    environment |= {"spark": spark.get("version"), "master": spark.get("master")}
    environment["env"] = ", ".join(facts.get("env") or ()) or None
    source = _text(storage.join(paths.source, "function.py"))
    # Code that differs is named; which lines differ, a diff of the files tells.
    environment["source"] = hashlib.sha256(source.encode()).hexdigest()[:8] if source else None
    return {name: value for name, value in environment.items() if value is not None}


def _packages(path: str) -> dict[str, str]:
    lines = _text(RunPaths(path).environment).splitlines()
    return dict(line.split("==", 1) for line in lines if "==" in line)


def _text(url: str) -> str:
    try:
        return storage.read(url).decode(errors="replace")
    except FileNotFoundError:
        return ""
