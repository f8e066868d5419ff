"""Runs on the driver. The section of a report on the data of a run."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparkdl.files import storage
from sparkdl.files.jsonl import from_json, read_lines
from sparkdl.files.layout import RunPaths, TrialPaths
from sparkdl.files.typed_json import decoded
from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial
from sparkdl.runs.views.figures import RunView
from sparkdl.runs.views.html_parts import details, escaped, pairs, row, section, short, table

# The columns of a dataset, the datasets and the groups of files that are shown.
MAX_COLUMNS, MAX_SHOWN = 100, 12

# Characters of a digest that are shown.
DIGEST = 16


def data(run: RunView) -> str:
    """Return the section on the data of a run; empty if it has read none with sparkdl.

    The datasets of `data=` are those of the run. What readers have read is told of one trial: the
    best one, or else the first that has read something.

    Args:
        run: the run.
    """
    url = RunPaths(run.path).data_fingerprints
    given = {name: from_json(text) for name, text in storage.read_many([url]).items()}.get(url, {})
    trial, read = _first_with_data(run)
    columns = read_lines(TrialPaths(trial.path).columns) if trial else []
    files = read_lines(TrialPaths(trial.path).files) if trial else []
    names = dict.fromkeys([*given, *(str(each.get("data")) for each in (*read, *columns))])
    parts = [
        _dataset(name, given.get(name, {}), _of(name, read), _of(name, columns))
        for name in list(names)[:MAX_SHOWN]
    ]
    parts += _files(files)
    more = f"; the first {MAX_SHOWN} of {len(names)} datasets" if len(names) > MAX_SHOWN else ""
    by = f"as trial {trial.number} has read it" if trial and len(run.trials) > 1 else ""
    return section("Data", by + more, "".join(parts)) if parts else ""


def _first_with_data(run: RunView) -> tuple[Trial | None, list[dict[str, Any]]]:
    """Return a trial that has told of its data, and what it has told; look into few folders."""
    ended = [trial for trial in run.trials if trial.state == TrialState.COMPLETE]
    started = [trial for trial in run.trials if trial.attempts]
    looked_at = {t.number: t for t in [*run.top(1), *ended[:2], *started[:2]]}
    for trial in looked_at.values():
        paths = TrialPaths(trial.path)
        if read := read_lines(paths.data):
            return trial, read
        if storage.read_many([paths.columns, paths.files]):
            return trial, []
    return None, []


def _of(name: str, records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the last record of a dataset; a program may open it in each epoch."""
    return next((each for each in reversed(records) if str(each.get("data")) == name), {})


def _dataset(
    name: str, given: Mapping[str, Any], read: Mapping[str, Any], columns: Mapping[str, Any]
) -> str:
    types = dict(_columns(str(given.get("schema", "")))) or columns.get("types") or {}
    rows = read.get("rows", given.get("rows"))
    batch, all_ranks = read.get("batch_size_per_worker"), read.get("global_batch_size")
    is_alone = all_ranks in (batch, None)
    batches = f"{batch} rows" if is_alone else f"{batch} rows, {all_ranks} of all ranks"
    facts = {
        "rows": rows,
        "fingerprint": given.get("hash"),
        "columns": len(types) or None,
        "features": _chosen(columns.get("features")),
        "labels": _chosen(columns.get("labels")),
        "computed by map": _chosen(columns.get("computed")),
        "function of map": columns.get("function"),
        "nulls filled": _chosen(
            {name: repr(decoded(value)) for name, value in (columns.get("fill") or {}).items()}
        ),
        "batch": batches if batch else None,
        "steps of an epoch": read.get("steps"),
        "rows repeated in an epoch": read.get("padded") or None,
        "rows left out in an epoch": read.get("dropped") or None,
    }
    known = {key: value for key, value in facts.items() if value not in (None, "")}
    shown = [row(pair) for pair in list(types.items())[:MAX_COLUMNS]]
    more = len(types) - len(shown)
    rest = f'<p class="soft">and {more} more columns</p>' if more else ""
    listed = details("columns and types", table(shown) + rest) if types else ""
    return f"<h3>{escaped(short(name))}</h3>{pairs(known)}{listed}"


def _columns(schema: str) -> Iterator[tuple[str, str]]:
    """Yield the names and types of a schema such as `id: int64, size: decimal128(15, 2)`."""
    depth, begin = 0, 0
    for place, character in enumerate(f"{schema}, "):
        depth += (character in "(<[{") - (character in ")>]}")
        if character == "," and depth <= 0:
            name, _, kind = schema[begin:place].strip().partition(": ")
            if name:
                yield name, kind
            begin = place + 1


def _chosen(names: Any) -> str:
    """Return a selection of columns, as the typed JSON of a record or plain, as short text."""
    if isinstance(names, dict) and [*names] in (["list"], ["tuple"], ["dict"]):
        names = decoded(names)
    if isinstance(names, Mapping):
        names = [f"{key}: {value}" for key, value in names.items()]
    if isinstance(names, list | tuple):
        text = ", ".join(map(str, names[:MAX_COLUMNS]))
        return f"{short(text)} ... {len(names)} in all" if len(text) > len(short(text)) else text
    return "" if names is None else short(names)


def _files(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what is known of the files that readers have read, equal records once."""
    distinct = {str(sorted(map(str, record.items()))): record for record in records}
    for record in list(distinct.values())[:MAX_SHOWN]:
        digests = (str(record.get(name, ""))[:DIGEST] for name in ("names", "marks"))
        facts = {
            "files": record.get("num_files"),
            "bytes": record.get("num_bytes"),
            "version of the table": record.get("version"),
            "fingerprint of names and sizes, and of times": " ".join(digests).strip(),
        }
        known = {key: value for key, value in facts.items() if value not in (None, "")}
        paths = ", ".join(map(str, record.get("paths", ())))
        yield f"<h3>files of {escaped(short(paths))}</h3>{pairs(known)}"
