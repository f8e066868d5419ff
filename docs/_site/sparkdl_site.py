"""The parts of the site that Sphinx lacks: menu, notebooks, docstrings, and source files."""

import html
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import reference
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

__all__ = ["setup"]

SOURCES = "source"
# Pages whose first heading does not tell what they are, in the menu.
TITLES = {"README": "A short tour", "benchmarks/results/README": "Benchmarks"}
LANGUAGES = {".conf": "properties", ".ipynb": "json", ".py": "python", ".sh": "sh"}


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the functions of this module to the events of Sphinx."""
    app.add_config_value("navigation", {}, "env")
    app.add_transform(LinkToSource)
    app.connect("builder-inited", write_pages)
    app.connect("source-read", convert_notebook)
    app.connect("source-read", add_menu)
    app.connect("autodoc-process-docstring", markdown_to_rst, priority=400)
    app.connect("autodoc-process-signature", no_constructor)
    app.connect("html-collect-pages", source_pages)
    app.connect("build-finished", check_that_nothing_is_remote)
    return {"parallel_read_safe": False}


# ---- pages


def add_menu(app: Sphinx, page: str, source: list[str]) -> None:
    """Add the menu to the start page."""
    if page != app.config.root_doc:
        return
    for caption, pages in app.config.navigation.items():
        entries = "\n".join(
            f"{TITLES[name]} </{name}>" if name in TITLES else f"/{name}" for name in pages
        )
        options = f":caption: {caption}\n:hidden:\n:glob:\n:maxdepth: 1"
        source[0] += f"\n```{{toctree}}\n{options}\n\n{entries}\n```\n"


def convert_notebook(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace a notebook, which is kept without outputs, by Markdown."""
    if app.env.doc2path(page).suffix != ".ipynb":
        return
    parts = []
    for cell in json.loads(source[0])["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    parts.insert(1, f"This page is the notebook [{page}.ipynb](/{page}.ipynb).")
    source[0] = "\n\n".join(parts)


# ---- the reference


def write_pages(app: Sphinx) -> None:
    """Write the pages of the reference, which are no part of the repository."""
    folder = Path(app.srcdir, "docs/api")
    folder.mkdir(exist_ok=True)
    written = reference.pages()
    for old in folder.glob("*.rst"):
        if old.stem not in written:
            old.unlink()
    for name, text in written.items():
        path = folder / f"{name}.rst"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def markdown_to_rst(
    app: Sphinx, kind: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Change what docstrings share with Markdown to reStructuredText."""
    blocks = re.split(r"^( *)```(\w*)\n(.*?)^ *```$", "\n".join(lines), flags=re.M | re.S)
    text = _inline(blocks[0])
    for indent, language, code, after in zip(*[iter(blocks[1:])] * 4, strict=True):
        body = "".join(f"   {line}".rstrip() + "\n" for line in code.splitlines())
        text += f"{indent}.. code-block:: {language or 'text'}\n\n{body}{_inline(after)}"
    lines[:] = text.split("\n")


def _inline(text: str) -> str:
    parts = re.split(r"((?<!`)`[^`]+`(?!`))", text)
    for number, part in enumerate(parts):
        if number % 2 == 0:
            parts[number] = re.sub(r"(?<=\S )\*(?=\w)", r"\\*", part)
        elif re.fullmatch(r"`sparkdl\.[\w.]+`", part):
            parts[number] = f":py:obj:{part}"
        else:
            # A literal ends at a space or a sign; `int`s has neither.
            follows = parts[number + 1][:1]
            parts[number] = f"`{part}`" + "\\ " * follows.isalnum()
    return "".join(parts)


def no_constructor(
    app: Sphinx, kind: str, name: str, thing: Any, options: Any, signature: str, returns: str
) -> tuple[str, str] | None:
    """Leave the arguments out of classes whose objects users get from calls."""
    return ("", "") if kind == "class" and name in reference.NOT_CONSTRUCTED else None


# ---- source files


class LinkToSource(SphinxTransform):
    """Replaces links to files of the repository by links to pages that show the files."""

    default_priority = 10

    def apply(self, **kwargs: Any) -> None:
        """Replace the links of a page."""
        here = posixpath.dirname(self.env.docname)
        for node in list(self.document.findall(addnodes.download_reference)):
            target = node["reftarget"]
            path = target[1:] if target.startswith("/") else posixpath.join(here, target)
            path = posixpath.normpath(path)
            shown = getattr(self.env, "shown_sources", set())
            self.env.shown_sources = shown | {path}
            link = posixpath.relpath(f"{SOURCES}/{path}.html", here or ".")
            node.replace_self(nodes.reference("", "", *node.children, refuri=link, internal=True))


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for each file that a page links to."""
    for path in sorted(getattr(app.env, "shown_sources", ())):
        file = Path(app.srcdir, path)
        if not file.is_file():
            continue
        language = LANGUAGES.get(file.suffix, "text")
        text = app.builder.highlighter.highlight_block(file.read_text(), language)
        body = f"<h1>{html.escape(path)}</h1>{text}"
        yield f"{SOURCES}/{path}", {"title": path, "body": body, "parents": []}, "page.html"


def check_that_nothing_is_remote(app: Sphinx, error: Exception | None) -> None:
    """Warn of scripts, styles and images that a browser would load from the network."""
    remote = re.compile(r"<(?:script|link|img)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
    for page in [] if error else Path(app.outdir).rglob("*.html"):
        if match := remote.search(page.read_text()):
            logging.getLogger(__name__).warning("%s is not offline: %s", page, match[0])
