"""Runs on the driver. The sections of a report on the code of a run, and what has changed in it."""

import json
from collections.abc import Sequence

from sparkdl.files import storage
from sparkdl.files.jsonl import from_json
from sparkdl.files.layout import RunPaths
from sparkdl.runs.differences import MAX_PACKAGES, Difference, read_differences
from sparkdl.runs.earlier_run import differences, find_earlier, sources
from sparkdl.runs.views.figures import RunView
from sparkdl.runs.views.html_parts import (
    MAX_PARAM,
    details,
    escaped,
    preformatted,
    row,
    section,
    short,
    table,
)

# The files of code that are shown; all are in the run directory.
MAX_FILES = 12

_TITLES = {
    "function.py": "the training function",
    "main.py": "the script",
    "cells.py": "the cells of the notebook",
    "changes.diff": "changes that were not committed",
}


def changes(run: RunView) -> str:
    """Return the section on what differs from an earlier run; empty if there is none.

    That is the run that the run reproduces, or else the newest run of the same name before it.

    Args:
        run: the run.
    """
    title = "What has changed"
    description = json.loads(storage.read(RunPaths(run.path).run))
    if reproduced := description.get("reproduces"):
        found: Sequence[Difference] = read_differences(run.path)
        head = f"from run {reproduced.get('id')}, which this run reproduces"
        return section(title, escaped(head), _changes(found))
    earlier = find_earlier(run.path, description)
    if earlier is None:
        return ""
    name = earlier.rsplit("/", 1)[-1]
    head = f"since run {name}, the one before with this name{_result(earlier)}"
    found = differences(earlier, run.path, [trial.params for trial in run.trials])
    return section(title, escaped(head), _changes(found))


def _result(path: str) -> str:
    """Return the state and the best value of an earlier run in words, if its summary has them."""
    url = RunPaths(path).summary
    try:
        summary = from_json(storage.read_many([url])[url])
        state, best, metric = (summary.get(name) for name in ("state", "best", "metric"))
    except (KeyError, ValueError, AttributeError):
        return ""
    value = "" if best is None else f", {metric or 'value'} {short(best)}"
    return f": {state}{value}"


def _changes(found: Sequence[Difference]) -> str:
    if not found:
        return "<p>Nothing that a run keeps.</p>"
    packages = [one for one in found if one.subject.startswith("package ")]
    hidden = packages[MAX_PACKAGES:]
    rows = [row(["", "before", "now"])]
    for one in found:
        if one not in hidden:
            where = f" ({one.where})" if one.where else ""
            texts = (one.subject, one.before, one.now)
            subject, before, now = (text[:MAX_PARAM] for text in texts)
            rows.append(row([f"{subject}{where}", before, now]))
    more = f'<p class="soft">and {len(hidden)} more packages</p>' if hidden else ""
    diffs = (
        details(escaped(one.subject[:MAX_PARAM]), _diff(one.lines), is_open=True)
        for one in found
        if one.lines
    )
    return f'<div class="changes">{table(rows)}</div>{more}{"".join(diffs)}'


def _diff(lines: Sequence[str]) -> str:
    """Return the lines of a diff, with those that were added and removed in colours."""
    text = preformatted(lines)
    begin, end = text.index(">") + 1, text.index("</pre>")
    marked = []
    for line in text[begin:end].split("\n"):
        tag = {"+": "ins", "-": "del"}.get(line[:1])
        marked.append(f"<{tag}>{line}</{tag}>" if tag else line)
    return text[:begin] + "\n".join(marked) + text[end:]


def code(run: RunView) -> str:
    """Return the section with the code that the run has kept; empty if it has kept none."""
    kept = sources(run.path)
    parts = []
    for name, text in list(kept.items())[:MAX_FILES]:
        lines = text.splitlines()
        about = f" {_TITLES[name]}" if name in _TITLES else ""
        head = f"<b>{escaped(name)}</b>{about}, {len(lines)} lines"
        parts.append(details(head, preformatted(lines), is_open=name == "function.py"))
    more = f" {len(kept) - MAX_FILES} more files are there." if len(kept) > MAX_FILES else ""
    note = f"as the run has kept it in {RunPaths(run.path).source}.{more}"
    return section("Code", escaped(note), "".join(parts)) if parts else ""
