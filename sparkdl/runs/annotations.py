"""Runs on the driver. The tags and notes that users give to a run.

Each call writes one file, `notes/<number>-<token>.json`, which no other process writes: any number
of processes may annotate a run at once, also while it goes on. The files are read in the order of
their numbers. A writer takes the number after the newest that it sees, so that what it removes,
it has seen.

The folder `.notes` in the root has an empty file for each run with annotations: a list of runs
on a store then costs no request for the runs that have none.
"""

import getpass
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.files.jsonl import from_json, to_json
from sparkdl.files.layout import MAX_RECORD_BYTES, RunPaths
from sparkdl.secrets.masks import mask_text

INDEX = ".notes"
MAX_TAG = 100


@dataclass(frozen=True)
class Note:
    """A note on a run.

    Attributes:
        text: the text.
        user: the user who wrote the note.
        time: the time at which the note was written, such as `2026-11-22T16:05:00+0000`.
    """

    text: str
    user: str
    time: str

    def __str__(self) -> str:
        return f"{self.text} ({self.user}, {self.time})"


@dataclass(frozen=True)
class Annotations:
    """The tags and notes of a run.

    Attributes:
        tags: the tags, the first given first.
        notes: the notes, the oldest first.
    """

    tags: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


def check_tags(tags: Sequence[Any]) -> list[str]:
    """Return tags, without spaces around them.

    Raises:
        ConfigError: if one is no text, is empty, is too long, or has a comma or a line break.

    Example:
        >>> check_tags(["baseline", " for the paper "])
        ['baseline', 'for the paper']
    """
    for tag in tags:
        if (
            not isinstance(tag, str)
            or not tag.strip()
            or len(tag) > MAX_TAG
            or set(tag) & set(",\n")
        ):
            raise ConfigError(
                f"a tag is {tag!r}; expected a text of at most {MAX_TAG} characters without commas "
                "and line breaks. Several tags are several arguments: run.tag('a', 'b')."
            )
    return [tag.strip() for tag in tags]


def add(path: str, **content: Any) -> None:
    """Write an annotation of a run.

    Args:
        path: the run directory.
        content: `tags` to add, `untag` to remove, or a `note`.

    Raises:
        OSError: if the run directory cannot be written.
    """
    folder = RunPaths(path).notes
    number = max((int(name[:6]) for name in _names(folder)), default=0) + 1
    row = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "user": _user(), **_masked(content)}
    root, run_id = path.rstrip("/").rsplit("/", 1)
    # First the index: of a run without an entry there, lists do not look for annotations.
    storage.write(storage.join(root, INDEX, run_id), "")
    name = f"{number:06d}-{secrets.token_hex(8)}.json"
    storage.write(storage.join(folder, name), to_json(row))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # A numeric user of a container has no name.
        return "unknown"


def _masked(content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: mask_text(value, ()) if isinstance(value, str) else [mask_text(v, ()) for v in value]
        for name, value in content.items()
    }


def _names(folder: str) -> list[str]:
    return [n for n in storage.list_names(folder) if n.endswith(".json") and n[:6].isdigit()]


def read(path: str, is_complete: bool = False) -> Annotations:
    """Return the annotations of a run.

    Args:
        path: the run directory.
        is_complete: raise an error for a file that cannot be read, in place of leaving it out.

    Raises:
        OSError: if the run directory cannot be read.
    """
    return _read([path], storage.read_many if is_complete else _readable)[path]


def forget(path: str) -> None:
    """Remove a run that was deleted from the index of its root."""
    root, run_id = path.rstrip("/").rsplit("/", 1)
    storage.remove(storage.join(root, INDEX, run_id))


def read_all(root: str, names: Sequence[str]) -> dict[str, Annotations]:
    """Return the annotations of the runs below a root, by run directory.

    Args:
        root: the root.
        names: the names of all files and folders in the root. Those without annotations are left
            out.
    """
    annotated = list(names)
    if not storage.is_local(root):
        index = storage.list_names(storage.join(root, INDEX)) if INDEX in names else []
        annotated = [name for name in names if name in set(index)]
    paths = [storage.join(root, name) for name in annotated]
    return _read([path for path in paths if _may_read(path)], _readable)


def _may_read(path: str) -> bool:
    """Return False for the run directory of another user, which only its owner may read."""
    return not storage.is_local(path) or os.access(
        storage.local_path(path), os.R_OK | os.X_OK, effective_ids=True
    )


def _readable(urls: Iterable[str]) -> dict[str, bytes]:
    return storage.read_new(dict.fromkeys(urls, 0), MAX_RECORD_BYTES)


def _read(
    paths: Iterable[str], read_files: Callable[[Iterable[str]], Mapping[str, bytes]]
) -> dict[str, Annotations]:
    urls = {}
    for path in paths:
        folder = RunPaths(path).notes
        urls[path] = [storage.join(folder, name) for name in _names(folder)]
    contents = read_files([url for many in urls.values() for url in many])
    return {path: _fold(contents.get(url, b"") for url in many) for path, many in urls.items()}


def _fold(contents: Iterable[bytes]) -> Annotations:
    """Return the annotations after all calls, in their order. Damaged files are left out."""
    tags: dict[str, None] = {}
    notes = []
    for data in contents:
        try:
            row = from_json(data)
            tags |= dict.fromkeys(map(str, row.get("tags", ())))
            for tag in row.get("untag", ()):
                tags.pop(str(tag), None)
            if "note" in row:
                notes.append(Note(str(row["note"]), str(row.get("user")), str(row.get("time"))))
        except (ValueError, TypeError, AttributeError):
            continue
    return Annotations(list(tags), notes)
