"""Runs on the driver. A plotly figure whose notebook output is also drawn in an exported page.

By itself, plotly gives JupyterLab the data of a figure only, which JupyterLab's extension draws. A
page that `jupyter nbconvert` has made, and a notebook without the extension, show an empty cell.
"""

import base64
import gzip
import json
import sys
import uuid
from dataclasses import dataclass
from functools import cache
from typing import Any

from plotly.graph_objects import Figure

# The renderer that plotly chooses in JupyterLab. Any other one was chosen by the user, or belongs
# to a frontend with ways of its own.
DATA_ONLY = "plotly_mimetype"

# The library is in the output of one figure of a notebook, because Jupyter drops outputs of several
# megabytes that follow one another. The other figures wait for it this long, in milliseconds, and
# then load it from the network, in case that output was removed.
WAIT_MS = 5000

_SCRIPT = """
{
  const place = document.getElementById(ID);
  const unpack = async (library) => {
    const bytes = Uint8Array.from(atob(library), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    (0, eval)(await new Response(stream).text());
  };
  const load = () => new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = URL;
    script.onload = resolve;
    script.onerror = () => reject(new Error(`${URL} could not be loaded`));
    document.head.append(script);
  });
  const wait = async () => {
    const end = Date.now() + WAIT_MS;
    while (!window.Plotly && Date.now() < end) {
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    return window.Plotly || load();
  };
  const ready = window.Plotly ? Promise.resolve() : LIBRARY ? unpack(LIBRARY) : wait();
  ready.then(() => {
    const config = { responsive: true, displaylogo: false };
    return Plotly.newPlot(place, FIGURE.data, FIGURE.layout, config);
  }).catch((error) => {
    place.textContent = `The figure could not be drawn: ${error.message}. Run the cell again.`;
  });
}
"""


# Process-wide state: the cell whose output has the library, which a repeated run of the cell must
# write again. None if no figure was shown, or the frontend does not name its cells.
@dataclass
class _Shown:
    cell: str | None = None
    has_library: bool = False


_shown = _Shown()


class NotebookFigure(Figure):  # type: ignore[misc]
    """A plotly figure whose output in a notebook has the data and HTML with a script."""

    def _ipython_display_(self) -> None:
        import plotly.io as pio

        if pio.renderers.default != DATA_ONLY:
            super()._ipython_display_()
            return
        from IPython.display import display

        html = figure_html(self, _needs_library(_current_cell()))
        display({**self._repr_mimebundle_(), "text/html": html}, raw=True)

    def show(self, *args: Any, **kwargs: Any) -> None:
        """Show the figure: in a notebook below the cell, otherwise in a browser."""
        if args or kwargs or "IPython" not in sys.modules:
            super().show(*args, **kwargs)
        else:
            self._ipython_display_()


def figure_html(figure: Figure, has_library: bool) -> str:
    """Return the HTML of a figure.

    Args:
        figure: the figure.
        has_library: include plotly.js, so that this figure and others on the page need no network.
    """
    from plotly.offline import get_plotlyjs_version

    name = f"sparkdl-{uuid.uuid4().hex}"
    height = figure.layout.height or 450
    values = {
        "ID": json.dumps(name),
        "URL": json.dumps(f"https://cdn.plot.ly/plotly-{get_plotlyjs_version()}.min.js"),
        "WAIT_MS": str(WAIT_MS),
        "LIBRARY": json.dumps(_packed_library() if has_library else ""),
        # Text in a figure must not end the script.
        "FIGURE": figure.to_json().replace("<", "\\u003c"),
    }
    constants = ", ".join(f"{name} = {value}" for name, value in values.items())
    script = _SCRIPT.replace("{", f"{{ const {constants};", 1)
    return f'<div id="{name}" style="height:{height}px"></div><script>{script}</script>'


@cache
def _packed_library() -> str:
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()


def _current_cell() -> str | None:
    """Return the id of the cell that is running; None if the frontend does not name its cells."""
    ipython: Any = sys.modules["IPython"].get_ipython()
    parent: Any = getattr(getattr(ipython, "kernel", None), "get_parent", dict)()
    cell = (parent.get("metadata") or {}).get("cellId")
    return cell if isinstance(cell, str) else None


def _needs_library(cell: str | None) -> bool:
    """Return True for the first figure, and for the figures of the same cell."""
    if not _shown.has_library:
        _shown.has_library = True
        _shown.cell = cell
        return True
    return cell is not None and cell == _shown.cell
