"""Runs on the driver (pure). Build a self-contained HTML page, which needs no network.

The content security policy of the page lists the hashes of its scripts, so that the browser runs no
other script: text that escaped the escaping would be displayed, but not executed.
https://www.w3.org/TR/CSP3/#framework-directive-source-list
"""

import base64
import functools
import gzip
import hashlib
from collections.abc import Sequence
from importlib import resources

from sparkdl.runs.views.html_parts import escaped

# Unpack plotly.js, and draw each figure in the element before its data.
_DRAW_ALL = """
const unpack = async () => {
  const bytes = Uint8Array.from(atob(LIBRARY), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  (0, eval)(await new Response(stream).text());
  document.querySelectorAll("script[type='application/json']").forEach((data) => {
    drawFigure(data.previousElementSibling, JSON.parse(data.textContent));
  });
};
unpack().catch((error) => {
  document.querySelectorAll(".figure").forEach((place) => {
    place.textContent = `This browser could not load the figures: ${error}`;
  });
});
"""


@functools.cache
def shared_file(name: str) -> str:
    """Return the text of a file that this page shares with the page of `sparkdl ui`.

    Args:
        name: `page.css` or `figures.js`.
    """
    return (resources.files("sparkdl.runs.views") / "static" / name).read_text()


@functools.cache
def _compress(library: str) -> str:
    """Return a script as base64 of gzip, which takes less than half of its size."""
    return base64.b64encode(gzip.compress(library.encode(), mtime=0)).decode()


def _script(library: str) -> str:
    return f'const LIBRARY = "{_compress(library)}";\n{shared_file("figures.js")}\n{_DRAW_ALL}'


def page(title: str, sections: Sequence[str], library: str) -> str:
    """Return a whole page.

    Args:
        title: the title, as plain text.
        sections: the parts of the page, as HTML. A plotly figure in a
            `<script type="application/json">` is drawn in the element before it.
        library: the source of plotly.js; empty if the page has no figure.

    Example:
        >>> page("a < b", ["<p>none</p>"], "").count("a &lt; b")
        1
    """
    # The library is in the script, as the script may trust no element of the page.
    scripts = [_script(library)] if library else []
    hashes = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    # Unpacking the library, and its WebGL figures, which are compiled, need unsafe-eval.
    allowed = " ".join(["'unsafe-eval'", *(f"'sha256-{digest}'" for digest in hashes)])
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"
    )
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escaped(title)}</title><style>{shared_file('page.css')}</style></head><body><main>",
        *sections,
        "</main>",
        *(f"<script>{script}</script>" for script in scripts),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"
