"""Runs on the driver. The result of a comparison: a table, in a terminal and in a notebook."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# The status of windows of another version than the one whose training data is the reference.
OTHER_VERSION = "other version"

_COLUMNS = ["feature", "metric", "value", "threshold", "status", "rows", "nulls"]
# Okabe and Ito's colours, see runs/views/figures/base.py.
_BAD, _GOOD = "#d55e00", "#0072b2"
MAX_ROWS = 40
# Names of features in a line.
MAX_NAMES = 12


def as_text(names: Sequence[str]) -> str:
    """Return the names of features, not too many.

    Example:
        >>> as_text(["a", "b"]), as_text(["a"] * 20)[-10:]
        ('a, b', 'and 8 more')
    """
    more = len(names) - MAX_NAMES
    text = ", ".join(names[:MAX_NAMES])
    return f"{text} and {more} more" if more > 0 else text


@dataclass(frozen=True, repr=False)
class Drift:
    """The drift of features.

    Attributes:
        table: a pandas DataFrame with a row for each feature and metric, and for each group if the
            rows were compared by group. `status` is `ok`, `drift`, `too few rows` or, in the
            windows of a watch, `other version`.
        by: the name of the column of the groups; None without groups.
        left_out: lines of a log that were left out, by reason: `unreadable` lines, and requests
            whose time is `ahead` of the clock; `num` is their number, and `example` one of them.
        performance: of a watch, the windows whose labels have come, see `monitoring.performance`:
            a DataFrame with `window`, `version`, `metric`, `value`, `requests` and `labelled`.
        refused: of a watch, the number of alerts that places have refused for good so far, by
            place.
        remarks: what the comparison cannot tell, such as drift of single elements of arrays whose
            profile is of an older version.
    """

    table: pd.DataFrame
    by: str | None = None
    left_out: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    performance: pd.DataFrame = field(default_factory=pd.DataFrame)
    refused: Mapping[str, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], by: str | None) -> "Drift":
        """Return the drift that rows of the table tell of."""
        columns = [by, *_COLUMNS] if by else _COLUMNS
        return cls(pd.DataFrame(rows, columns=columns), by)

    @property
    def drifted(self) -> list[str]:
        """The names of the features that have drifted by some metric, in some group."""
        return list(dict.fromkeys(self.table.loc[self._is_drift, "feature"]))

    @property
    def _is_drift(self) -> "pd.Series[bool]":
        return self.table["status"] == "drift"

    def _drift_first(self) -> pd.DataFrame:
        """Return the table, what has drifted first."""
        return self.table.sort_values("status", key=lambda s: s != "drift", kind="stable")

    @property
    def headline(self) -> str:
        """A line that says how many features have drifted."""
        rows = self.table[self.table["status"] != OTHER_VERSION]
        names = self.drifted
        num = rows["feature"].nunique()
        if not len(rows):
            others = " but those of other versions" if len(self.table) else ""
            return f"No rows to compare{others}"
        if not names:
            few = int((rows["status"] == "too few rows").sum())
            note = f" ({few} comparisons had too few rows)" if few else ""
            return f"No feature of {num} has drifted{note}"
        verb = "has" if len(names) == 1 else "have"
        return f"{len(names)} of {num} features {verb} drifted: {as_text(names)}"

    @property
    def notes(self) -> list[str]:
        """Lines about what was not compared, lines that were left out, and refused alerts."""
        left_out = [
            f"{lines['num']} lines were left out ({reason}), such as {lines['example']}"
            for reason, lines in self.left_out.items()
        ]
        refused = [f"{num} alerts were refused by {place}" for place, num in self.refused.items()]
        return [*self.remarks, *left_out, *refused]

    def __repr__(self) -> str:
        table = self._drift_first().head(MAX_ROWS)
        lines = [self.headline, table.to_string(index=False, float_format=lambda x: f"{x:.4g}")]
        if len(self.table) > MAX_ROWS:
            lines.append(f"... {len(self.table) - MAX_ROWS} more rows in .table")
        return "\n".join([*lines, *self.notes])

    def _repr_html_(self) -> str:
        rows = (
            self._drift_first()
            .head(MAX_ROWS)
            .to_html(index=False, float_format=lambda x: f"{x:.4g}", border=0)
        )
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<p><b>{html.escape(self.headline)}</b></p>{rows}{notes}"

    def figure(self) -> "Figure":
        """Return a figure: the value of each metric as a share of its threshold."""
        import plotly.graph_objects as go

        figure = go.Figure()
        for metric, part in self.table.groupby("metric", sort=False):
            names = part["feature"].astype(str)
            x = names if not self.by else [names, part[self.by].astype(str)]
            colors = [_BAD if status == "drift" else _GOOD for status in part["status"]]
            ratio = part["value"] / part["threshold"]
            figure.add_bar(
                name=str(metric),
                x=x,
                y=ratio,
                marker_color=colors,
                customdata=part[["value", "threshold", "rows"]].to_numpy(),
                hovertemplate=f"{metric} %{{customdata[0]:.4g}} (threshold %{{customdata[1]:.4g}})"
                "<br>%{customdata[2]} rows<extra>%{x}</extra>",
            )
        figure.add_hline(y=1.0, line_dash="dash", line_color=_BAD)
        figure.update_layout(
            title=self.headline,
            yaxis_title="value / threshold",
            showlegend=False,
            template="plotly_white",
        )
        return figure
