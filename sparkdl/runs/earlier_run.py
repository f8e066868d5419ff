"""Runs on the driver. The run before a run that has the same name, and what differs from it.

Only the files of the earlier run are read, and few of them: a page about a run must not take long
where there are many runs.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from difflib import unified_diff
from itertools import islice
from typing import Any

from sparkdl.files import resources, storage
from sparkdl.files.jsonl import from_json, object_of, read_lines
from sparkdl.files.layout import MAX_RECORD_BYTES, RunPaths
from sparkdl.runs.differences import (
    Difference,
    Differences,
    compare,
    compare_executors,
    compare_fingerprints,
    read_environment,
    read_executors,
)
from sparkdl.runs.events import TrialsAdded
from sparkdl.runs.ids_and_seeds import new_run_id
from sparkdl.runs.journal import scan_journal
from sparkdl.runs.table import tried

# The runs whose description is read, the files of code, and the lines of a file's difference.
MAX_LOOKED_AT = 20
MAX_FILES = 50
MAX_LINES = 400
# Bytes of a file of code. The earlier run may be that of another user.
MAX_SOURCE_BYTES = 1 << 21
# Lines around a changed line that are shown with it.
CONTEXT = 2

# The id of a run that was given none, see `new_run_id`.
_ID = re.compile(r"(?P<name>.+)-(?P<time>\d{8}-\d{6})-[0-9a-f]{4}")
_FACTS = ("function", "kind", "plan", "metric", "direction", "framework", "user", "host", "env")


def find_earlier(path: str, description: Mapping[str, Any]) -> str | None:
    """Return the directory of the newest run of the same name that was started before a run.

    It is looked for beside the run, among those with the newest ids.

    Args:
        path: the directory of the run.
        description: the content of its `run.json`.
    """
    root, _, own = path.rstrip("/").rpartition("/")
    names = [name for name in storage.list_names(root) if name != own and name[0] != "."]
    ids = {name: match for name in names if (match := _ID.fullmatch(name))}
    beginning = new_run_id(description["name"])[: -len("-20261129-135858-0f19")]
    alike = (match for match in ids.values() if match["name"] == beginning)
    newest = sorted(alike, key=lambda match: match["time"], reverse=True)
    others = [name for name in reversed(names) if name not in ids]
    looked_at = [match[0] for match in newest if _is_before(match["time"], description)]
    urls = {
        RunPaths(storage.join(root, name)).run: name
        for name in [*looked_at[: MAX_LOOKED_AT // 2], *others][:MAX_LOOKED_AT]
    }
    found = []
    # Those of other users may be closed, or no runs at all.
    for url, text in storage.read_new(dict.fromkeys(urls, 0), MAX_RECORD_BYTES).items():
        other = object_of(text)
        is_older = (created := _created(other)) and created < (_created(description) or created)
        if is_older and other.get("name") == description["name"]:
            found.append((created, urls[url]))
    return storage.join(root, max(found)[1]) if found else None


def _is_before(time: str, description: Mapping[str, Any]) -> bool:
    created = _created(description)
    return created is None or time <= created.strftime("%Y%m%d-%H%M%S")


def _created(description: Mapping[str, Any]) -> datetime | None:
    try:
        return datetime.strptime(description["created"], "%Y-%m-%dT%H:%M:%S%z")
    except (KeyError, TypeError, ValueError):
        return None


def differences(before: str, now: str, params: Sequence[Mapping[str, Any]]) -> Differences:
    """Return what differs between two runs: code, parameters, options, data and environment.

    Args:
        before: the directory of the earlier run.
        now: the directory of the later one.
        params: the parameters of each trial of the later one.

    Raises:
        FileNotFoundError: if one of them is no run.
    """
    old, new = (object_of(storage.read(RunPaths(path).run)) for path in (before, now))
    return Differences(
        [
            *code_differences(before, now),
            *_params((before, old), new, params),
            *_options(old, new),
            *_data(before, now),
            *_environment((before, old), (now, new)),
        ]
    )


def sources(path: str) -> dict[str, str]:
    """Return the texts of the code that a run has kept, by their names in `source/`.

    The function is first; the packed program is left out.
    """
    folder = RunPaths(path).source
    names = list(islice(_files(folder), MAX_FILES))
    texts = storage.read_many((storage.join(folder, n) for n in names), MAX_SOURCE_BYTES)
    first = {"function.py": 0, "main.py": 1, "cells.py": 3, "changes.diff": 4}
    names.sort(key=lambda name: (first.get(name, 2), name))
    return {
        name: texts[url].decode(errors="replace")
        for name in names
        if (url := storage.join(folder, name)) in texts
    }


def _files(folder: str, prefix: str = "") -> Iterator[str]:
    for name in storage.list_names(storage.join(folder, prefix) if prefix else folder):
        if name.endswith((".py", ".diff")):
            yield prefix + name
        elif "." not in name and prefix.count("/") < 8:
            yield from _files(folder, f"{prefix}{name}/")


def code_differences(before: str, now: str) -> Iterator[Difference]:
    """Yield the files of the code that two runs have kept and that differ."""
    old, new = sources(before), sources(now)
    shown: list[list[str]] = []
    for name in dict.fromkeys([*new, *old]):
        # What a notebook has run before grows from run to run.
        if name in ("cells.py", "changes.diff") or old.get(name) == new.get(name):
            continue
        then, text = (side.get(name, "").splitlines() for side in (old, new))
        lines = list(unified_diff(then, text, lineterm="", n=CONTEXT))[2:]
        changed = [line for line in lines if line[0] in "+-"]
        if changed in shown:
            continue  # The script has the function, too.
        shown.append(changed)
        yield Difference(
            subject=f"code {name.removeprefix('modules/')}",
            before=_count(changed, "-", "") if name in old else "absent",
            now=_count(changed, "+", "other ") if name in new else "absent",
            lines=tuple(lines[:MAX_LINES]),
        )


def _count(changed: Sequence[str], sign: str, other: str) -> str:
    count = sum(line[0] == sign for line in changed)
    return f"{count} {other}{'line' if count == 1 else 'lines'}"


def _params(
    before: tuple[str, Mapping[str, Any]],
    now: Mapping[str, Any],
    params: Sequence[Mapping[str, Any]],
) -> Iterator[Difference]:
    """Yield the parameters whose values, or for a search whose spaces, differ."""
    path, description = before
    if now.get("request", {}).get("search"):
        spaces = [side.get("space") or {} for side in (description, now)]
        sides = [{name: json.dumps(value) for name, value in space.items()} for space in spaces]
    else:
        events = scan_journal(RunPaths(path).journal, with_reports=False).events
        old = [trial.params for e in events if isinstance(e, TrialsAdded) for trial in e.trials]
        sides = [
            {name: tried(each, name) for name in dict.fromkeys(n for p in each for n in p)}
            for each in (old, params)
        ]
    for name in dict.fromkeys([*sides[1], *sides[0]]):
        texts = [side.get(name, "absent") for side in sides]
        if texts[0] != texts[1]:
            yield Difference(subject=f"parameter {name}", before=texts[0], now=texts[1])


def _options(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    requests = [description.get("request", {}) for description in (before, now)]
    for part in ("options", "search"):
        old, new = (request.get(part) or {} for request in requests)
        names = [name for name in new if name != "space"]
        yield from compare(old, new, {name: f"option {name}" for name in names})


def _data(before: str, now: str) -> Iterator[Difference]:
    urls = [RunPaths(path).data_fingerprints for path in (before, now)]
    prints = storage.read_many(urls)
    if any(prints.values()):
        sides = [from_json(prints[url]) if url in prints else {} for url in urls]
        yield from compare_fingerprints(*sides)
    yield from files_read(before, now)
    old, new = (resources.read_manifest(path) for path in (before, now))
    for name in dict.fromkeys([*old, *new]):
        words = ["absent" if name not in side else "present" for side in (old, new)]
        if name in old and name in new:
            if old[name].files == new[name].files:
                continue
            words = ["other content", "this content"]
        yield Difference(subject=f"resource {name}", before=words[0], now=words[1])


def files_read(before: str, now: str, number: int = 0) -> Iterator[Difference]:
    """Yield the paths of which a trial of both runs has read other files, or another version."""
    sides = []
    for path in (before, now):
        records = read_lines(RunPaths(path).trial(number).files)
        sides.append({", ".join(map(str, each.get("paths", ()))): each for each in records})
    for name in [name for name in sides[1] if name in sides[0]]:
        old, new = (side[name] for side in sides)
        kept = ("names", "marks", "version")
        if any(key in old and old[key] != new.get(key) for key in kept):
            texts = [_files_in_words(each) for each in (old, new)]
            other = ", others or later ones" if texts[0] == texts[1] else ""
            yield Difference(subject=f"files of {name}", before=texts[0], now=texts[1] + other)


def _files_in_words(record: Mapping[str, Any]) -> str:
    version = f"version {record['version']}: " if "version" in record else ""
    return f"{version}{record.get('num_files')} files, {record.get('num_bytes')} bytes"


def _environment(
    before: tuple[str, Mapping[str, Any]], now: tuple[str, Mapping[str, Any]]
) -> Iterator[Difference]:
    old, new = before[1], now[1]
    yield from compare(old, new, {name: name for name in _FACTS})
    yield from compare(old, new, {"git_commit": "git commit"})
    yield from compare(old.get("spark") or {}, new.get("spark") or {}, {"version": "Spark"})
    versions = [side.get("versions") or {} for side in (old, new)]
    yield from compare(versions[0], versions[1], {"sparkdl": "sparkdl"})
    hardware = [side.get("hardware") or {} for side in (old, new)]
    subjects = {"cpu": "CPU", "cores": "CPU cores", "gpus": "GPUs"}
    yield from compare(hardware[0], hardware[1], subjects, "driver")
    packages = [(read_environment(path), read_executors(path)) for path, _ in (before, now)]
    yield from compare_executors(packages[0], packages[1])
