"""Runs on the driver. Compare the results of a trial with those of the same trial trained again."""

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sparkdl.checkpoints.reader import MARKER
from sparkdl.files import folders, storage
from sparkdl.files.jsonl import from_json, read_lines
from sparkdl.files.layout import ARTIFACTS, CHECKPOINTS, METRICS, TrialPaths
from sparkdl.files.model_formats import left_models
from sparkdl.files.typed_json import decoded
from sparkdl.runs.states import TrialState
from sparkdl.runs.trial import Trial
from sparkdl.runs.trial_files import is_path
from sparkdl.runs.verification.contents import compare_contents
from sparkdl.runs.verification.mismatch import (
    ABSENT,
    Mismatch,
    compare_arrays,
    is_same,
    sizes,
    text_of,
)

METRIC, RETURNED, FILE, STATE = "metric", "returned", "file", "state"
# The name of the only value that a function returned.
_VALUE = "value"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The results that were compared.

    Attributes:
        num_steps: the number of reports of the trial.
        metrics: the names of the reported metrics.
        returned: the names of the returned values.
        files: the paths of the files, relative to the folder of the trial: returned files,
            checkpoints, and models that the function has left.
        num_bytes: the size of the files.
        not_kept: returned objects that were not kept, so that they cannot be compared.
    """

    num_steps: int = 0
    metrics: Sequence[str] = ()
    returned: Sequence[str] = ()
    files: Sequence[str] = ()
    num_bytes: int = 0
    not_kept: Sequence[str] = ()

    @property
    def is_nothing(self) -> bool:
        """True if there is no result to compare."""
        return not (self.metrics or self.returned or self.files)

    def __str__(self) -> str:
        parts = []
        if self.metrics:
            parts.append(f"{self.num_steps} steps of {', '.join(self.metrics)}")
        if self.returned:
            parts.append(f"the returned {', '.join(self.returned)}")
        if self.files:
            parts.append(f"{len(self.files)} files of {self.num_bytes} bytes")
        else:
            parts.append("no weights and no files, as the trial has kept none")
        if self.not_kept:
            parts.append(f"not the returned {', '.join(self.not_kept)}, which was not kept")
        return "; ".join(parts)


def compare_trials(
    before: Trial, now: Trial, ignored: Collection[str] = ()
) -> tuple[list[Mismatch], Compared]:
    """Return the results that differ, and what was compared.

    Args:
        before: a trial that is COMPLETE.
        now: the same trial, trained again.
        ignored: names of metrics and returned values that are not compared.
    """
    old, new = (_reports(trial) for trial in (before, now))
    mismatches = [*_state(before, now), *_metrics(METRIC, old, new, ignored)]
    if before.attempts <= 1:  # Of the other ranks, the reports of the last attempt are there.
        mismatches += _metrics_of_ranks(before, now, ignored)
    values, not_kept = _returned(before)
    files = _compared_files(before, ignored)
    if now.state == TrialState.COMPLETE:
        mismatches += _compare_returned(values, _returned(now)[0], ignored)
        mismatches += _compare_files(before, now, files, _compared_files(now, ignored))
    compared = Compared(
        num_steps=len(old),
        metrics=[name for name in _names(old) if name not in ignored],
        returned=[name for name in dict.fromkeys(map(_top, values)) if name not in ignored],
        files=list(files),
        num_bytes=sum(files.values()),
        not_kept=not_kept,
    )
    return mismatches, compared


def _state(before: Trial, now: Trial) -> Iterator[Mismatch]:
    if before.state != now.state:
        reason = f": {now.summary}" if now.summary else ""
        yield Mismatch(what=STATE, before=str(before.state), now=f"{now.state}{reason}")


# ---- metrics

# The metrics of each report, by its step and its number among the reports of this step.
Reports = dict[tuple[int, int], Mapping[str, Any]]


def _reports(trial: Trial) -> Reports:
    return _numbered(trial.reports())


def _numbered(rows: Sequence[tuple[int, Mapping[str, Any]]]) -> Reports:
    reports: Reports = {}
    counts: dict[int, int] = {}
    for step, metrics in rows:
        counts[step] = counts.get(step, -1) + 1
        reports[step, counts[step]] = metrics
    return reports


def _names(*sides: Reports) -> list[str]:
    return list(dict.fromkeys(name for side in sides for row in side.values() for name in row))


def _metrics(what: str, old: Reports, new: Reports, ignored: Collection[str]) -> Iterator[Mismatch]:
    places = sorted({*old, *new})
    for name in _names(old, new):
        if name in ignored:
            continue
        pairs = [(old.get(place, {}).get(name), new.get(place, {}).get(name)) for place in places]
        differing = [n for n, (a, b) in enumerate(pairs) if not is_same(a, b)]
        if differing:
            first = differing[0]
            largest, relative = sizes([pairs[n] for n in differing])
            yield Mismatch(
                what=f"{what} {name}",
                step=places[first][0],
                before=text_of(pairs[first][0]),
                now=text_of(pairs[first][1]),
                num_differing=len(differing),
                num_compared=sum(pair != (None, None) for pair in pairs),
                largest=largest,
                relative=relative,
            )


def _metrics_of_ranks(before: Trial, now: Trial, ignored: Collection[str]) -> Iterator[Mismatch]:
    """Yield the metrics of the ranks of a gang beside its chief."""
    prefix, suffix = METRICS.split(".")
    names = {
        name
        for trial in (before, now)
        for name in storage.list_names(trial.path)
        if name.startswith(f"{prefix}-") and name.endswith(f".{suffix}")
    }
    for name in sorted(names):
        sides = [
            _numbered([(row["step"], row["metrics"]) for row in read_lines(f"{trial.path}/{name}")])
            for trial in (before, now)
        ]
        rank = name.removeprefix(f"{prefix}-").removesuffix(f".{suffix}").replace("-", " ")
        yield from _metrics(f"{rank}: {METRIC}", sides[0], sides[1], ignored)


# ---- returned values


def _returned(trial: Trial) -> tuple[dict[str, Any], list[str]]:
    """Return the parts of what the function returned by name, and what was not kept of it.

    A model is the path of its file, which is compared with the other files.
    """
    try:
        typed = from_json(storage.read(TrialPaths(trial.path).result))
    except FileNotFoundError:
        return dict(trial.outputs), []
    parts: dict[str, Any] = {}
    not_kept: list[str] = []
    _add_parts(typed, "", parts, not_kept)
    return parts, not_kept


def _add_parts(typed: Any, name: str, parts: dict[str, Any], not_kept: list[str]) -> None:
    """Add the parts of a value in typed JSON."""
    if not isinstance(typed, dict):
        parts[name or _VALUE] = typed
        return
    ((kind, items),) = typed.items()
    if not items:
        parts[name or _VALUE] = kind
    elif kind == "dict":
        for key, item in items:
            _add_parts(item, f"{name}.{decoded(key)}".lstrip("."), parts, not_kept)
    elif kind in ("list", "tuple"):
        for number, item in enumerate(items):
            _add_parts(item, f"{name or _VALUE}[{number}]", parts, not_kept)
    elif kind in ("set", "frozenset"):  # The order of texts differs from process to process.
        parts[name or _VALUE] = sorted(map(repr, items))
    elif kind == "lost":
        not_kept.append(name or _VALUE)
    elif kind == "array":
        parts[name or _VALUE] = decoded(typed)
    else:
        parts[name or _VALUE] = [kind, items]


def _top(part: str) -> str:
    """Return the name of the returned value that a part belongs to."""
    return part.replace("[", ".").split(".")[0]


def _compare_returned(
    old: Mapping[str, Any], new: Mapping[str, Any], ignored: Collection[str]
) -> Iterator[Mismatch]:
    for name in dict.fromkeys([*old, *new]):
        if name in ignored or _top(name) in ignored:
            continue
        what = f"{RETURNED} {name}"
        before: Any = old.get(name)
        now: Any = new.get(name)
        if hasattr(before, "dtype") and hasattr(now, "dtype"):
            if found := compare_arrays(what, before, now):
                yield found
        elif hasattr(before, "dtype") or hasattr(now, "dtype") or not is_same(before, now):
            largest, relative = sizes([(before, now)])
            texts = [text_of(value) for value in (before, now)]
            yield Mismatch(
                what=what, before=texts[0], now=texts[1], largest=largest, relative=relative
            )


# ---- files


def result_files(trial: Trial) -> dict[str, int]:
    """Return the sizes of the files that are results of a trial, by their paths in its folder."""
    places = [ARTIFACTS, CHECKPOINTS]
    places += [value for value in trial.outputs.values() if is_path(value) and Path(value).parts]
    places += [url.removeprefix(f"{trial.path.rstrip('/')}/") for url in left_models(trial.path)]
    files: dict[str, int] = {}
    for place in dict.fromkeys(places):
        url = storage.join(trial.path, place)
        inner = {f"{place}/{name}": size for name, size in folders.files_in(url).items()}
        if not inner and storage.exists(url):
            inner = {place: storage.size(url)}
        files |= inner
    return {name: size for name, size in files.items() if _is_result(name)}


def _compared_files(trial: Trial, ignored: Collection[str]) -> dict[str, int]:
    """Return the files without those of returned values that are ignored."""
    paths = [value for name, value in trial.outputs.items() if name in ignored and is_path(value)]
    return {
        name: size
        for name, size in result_files(trial).items()
        if not any(name == path or name.startswith(f"{path}/") for path in paths)
    }


def _is_result(name: str) -> bool:
    """Return True unless a file is one that only the checkpoints themselves need."""
    parts = name.split("/")
    return parts[0] != CHECKPOINTS or not (parts[-1] == MARKER or parts[-1].startswith("."))


def _compare_files(
    before: Trial, now: Trial, old: Mapping[str, int], new: Mapping[str, int]
) -> Iterator[Mismatch]:
    for name in dict.fromkeys([*old, *new]):
        what = f"{FILE} {name}"
        if name not in old or name not in new:
            words = [f"{side[name]} bytes" if name in side else ABSENT for side in (old, new)]
            yield Mismatch(what=what, before=words[0], now=words[1])
            continue
        urls = [storage.join(trial.path, name) for trial in (before, now)]
        with _opened(urls[0]) as first, _opened(urls[1]) as second:
            yield from compare_contents(what, first, second)


@contextmanager
def _opened(url: str) -> Iterator[BinaryIO]:
    """Open a file; of a store, a copy of it."""
    if storage.is_local(url):
        with storage.local_path(url).open("rb") as file:
            yield file
        return
    with tempfile.TemporaryDirectory(prefix="sparkdl-") as folder:
        copy = Path(folder, "file")
        storage.download(url, copy)
        with copy.open("rb") as file:
            yield file
