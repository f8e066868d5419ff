"""Runs on the driver (pure). Build a self-contained HTML page, which needs no network.

The content security policy of the page lists the hashes of its scripts, so that the browser runs no
other script: text that escaped the escaping would be displayed, but not executed.
https://www.w3.org/TR/CSP3/#framework-directive-source-list
"""

import base64
import functools
import gzip
import hashlib
import html
from collections.abc import Sequence

__all__ = ["escaped", "page"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #656d76; --line: #e2e5e9;
  --back: #f7f8fa; --card: #fff; --accent: #0072b2; --faint: #b4bac2 }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e6ea; --soft: #9aa3ad; --line: #30363d;
  --back: #0f1216; --card: #171b21; --accent: #56b4e9; --faint: #454c56 } }
* { box-sizing: border-box }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif }
main { max-width: 1080px; margin: 0 auto; padding: 24px 16px 60px }
h1 { font-size: 24px; margin: 0; overflow-wrap: anywhere }
h2 { font-size: 16px; margin: 0 0 2px }
p { margin: 6px 0; overflow-wrap: anywhere }
.soft { color: var(--soft) }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 16px; margin-top: 16px }
.wide { overflow-x: auto }
.best b { font-size: 30px; font-weight: 600; color: var(--accent) }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 8px 0 0 }
dt { color: var(--soft); max-width: 40vw; overflow-wrap: anywhere }
dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px }
td { border-bottom: 1px solid var(--line); white-space: nowrap; padding: 2px 12px 2px 0 }
.share { display: flex; height: 14px; border-radius: 4px; overflow: hidden; margin: 8px 0 }
.key { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px }
.figure { min-height: 120px }
details { border-top: 1px solid var(--line); padding: 8px 0 }
summary { cursor: pointer; overflow-wrap: anywhere }
pre { overflow-x: auto; font-size: 12.5px; line-height: 1.4; background: var(--back);
  padding: 12px; border-radius: 6px }
"""

# Draw each figure in the element before its data, in the colours of the page.
_DRAW = """
const css = getComputedStyle(document.documentElement);
const color = (name) => css.getPropertyValue(name).trim();
const draw = (data) => {
  const place = data.previousElementSibling;
  const { data: traces, layout } = JSON.parse(data.textContent);
  delete layout.title;
  layout.margin.t -= 60;  // The page has its own heading.
  layout.height -= 60;
  Object.assign(layout, { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)" });
  layout.font.color = color("--ink");
  layout.modebar = { bgcolor: "rgba(0,0,0,0)", color: color("--line") };
  layout.hoverlabel.bgcolor = color("--card");
  layout.hoverlabel.font = { color: color("--ink") };
  for (const axis of Object.keys(layout).filter((key) => /^[xy]axis/.test(key))) {
    Object.assign(layout[axis], { gridcolor: color("--line"), linecolor: color("--line") });
  }
  for (const trace of traces.filter((trace) => trace.type === "parcoords")) {
    trace.line.colorscale[0][1] = color("--faint");
    place.style.minWidth = `${100 * trace.dimensions.length}px`;
  }
  const bar = innerWidth < 700 ? false : "hover";
  const config = { responsive: true, displaylogo: false, displayModeBar: bar };
  Plotly.newPlot(place, traces, layout, config).catch((error) => {
    place.textContent = `This browser could not draw the figure: ${error}`;
  });
};
const unpack = async () => {
  const bytes = Uint8Array.from(atob(LIBRARY), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  (0, eval)(await new Response(stream).text());
  document.querySelectorAll("script[type='application/json']").forEach(draw);
};
unpack().catch((error) => {
  document.querySelectorAll(".figure").forEach((place) => {
    place.textContent = `This browser could not load the figures: ${error}`;
  });
});
"""


@functools.cache
def _packed(library: str) -> str:
    """Return a script as base64 of gzip, which takes less than half of its size."""
    return base64.b64encode(gzip.compress(library.encode(), mtime=0)).decode()


def escaped(value: object) -> str:
    """Return a value as text that is safe in HTML."""
    return html.escape(str(value))


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
    scripts = [f'const LIBRARY = "{_packed(library)}";\n{_DRAW}'] if library else []
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
        f"<title>{escaped(title)}</title><style>{_STYLE}</style></head><body><main>",
        *sections,
        "</main>",
        *(f"<script>{script}</script>" for script in scripts),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"
