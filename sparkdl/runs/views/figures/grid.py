"""Runs on the driver (pure). Several panels in one figure, in rows from the top."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Pixels: a panel, the gap between two rows, a single panel, and what is around the panels.
PANEL, GAP, SINGLE, AROUND = 240, 62, 310, 160
# The part of the width between two columns.
BETWEEN = 0.09


@dataclass(frozen=True)
class Grid:
    """The places of the panels of a figure.

    Attributes:
        num_panels: the number of panels.
        num_columns: the largest number of panels side by side.
    """

    num_panels: int
    num_columns: int = 2

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return -(-self.num_panels // self.num_columns)

    @property
    def height(self) -> int:
        """The pixels from the top of the first row to the bottom of the last one."""
        return SINGLE if self.num_panels == 1 else self.num_rows * (PANEL + GAP) - GAP

    @property
    def layout(self) -> dict[str, Any]:
        """The height of the figure, and the place of its legend above the titles."""
        return {
            "height": AROUND + self.height,
            "legend": {"orientation": "h", "y": 1 + 22 / self.height, "yanchor": "bottom", "x": 0},
            "margin": {"l": 60, "r": 20, "t": 110, "b": 50},
        }

    def domain(self, number: int) -> tuple[list[float], list[float]]:
        """Return the place of a panel: from left to right, and from bottom to top.

        Example:
            >>> Grid(1).domain(0)
            ([0.0, 1.0], [0.0, 1.0])
        """
        if self.num_panels == 1:
            return [0.0, 1.0], [0.0, 1.0]
        row, column = divmod(number, self.num_columns)
        width = (1 - BETWEEN * (self.num_columns - 1)) / self.num_columns
        left = column * (width + BETWEEN)
        top = 1 - row * (PANEL + GAP) / self.height
        return [left, min(1.0, left + width)], [max(0.0, top - PANEL / self.height), top]

    def axes(self, number: int, x: Mapping[str, Any], y: Mapping[str, Any]) -> dict[str, Any]:
        """Return the axes of a panel for the layout of the figure."""
        place = suffix(number)
        across, up = self.domain(number)
        return {
            f"xaxis{place}": {"domain": across, "anchor": f"y{place}", "zeroline": False, **x},
            f"yaxis{place}": {"domain": up, "anchor": f"x{place}", "zeroline": False, **y},
        }

    def is_lowest(self, number: int) -> bool:
        """Return True for a panel that has no other one below it."""
        return number >= self.num_panels - self.num_columns

    def titles(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Return the titles of the panels, above each at its left."""
        how = {"showarrow": False, "xref": "paper", "yref": "paper", "font": {"size": 13}}
        found = []
        for number, text in enumerate(texts):
            across, up = self.domain(number)
            place = {"x": across[0], "y": up[1], "xanchor": "left", "yanchor": "bottom"}
            found.append({"text": text, **place, **how})
        return found


def suffix(number: int) -> str:
    """Return the number of a panel in the names of its axes, such as `2` of `xaxis2`."""
    return str(number + 1) if number else ""


def placed(trace: Any, number: int) -> Any:
    """Return a plotly trace in a panel."""
    return trace.update(xaxis=f"x{suffix(number)}", yaxis=f"y{suffix(number)}")
