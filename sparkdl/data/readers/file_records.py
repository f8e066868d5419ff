"""Runs in the training process to write records, on the driver to compare them.

The first reader of a trial records the files that its paths refer to: their number, their sizes,
and digests of names, sizes and modification marks. A later run can tell whether they are the same.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sparkdl import context
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.files.jsonl import from_json, read_lines
from sparkdl.files.layout import FILES, RunPaths
from sparkdl.files.polling import retry

# A password before the host, or arguments, such as those of a signed URL.
_CREDENTIAL = re.compile(r"://([^/@]*:[^/@]*@|.*\?)")


def record(matches: Sequence[Any], **details: Any) -> None:
    """Add the files of a reader to the record of the trial; outside a run, do nothing.

    URLs that contain credentials are not recorded.

    Args:
        matches: the `Files` that the paths of the user refer to.
        **details: for a table, `version`, and `is_newest` if the user asked for the newest one.
    """
    folder = context.current().folder
    if folder and not any(_CREDENTIAL.search(files.root) for files in matches):
        line = json.dumps({**_summary(matches), **details}).encode() + b"\n"
        with Path(folder, FILES).open("ab") as file:
            file.write(line)


def _summary(matches: Sequence[Any]) -> dict[str, Any]:
    names_hash, marks_hash = hashlib.sha256(), hashlib.sha256()
    for files in matches:
        listing = files.to_dict()
        for name, size in zip(listing["names"], listing["sizes"], strict=True):
            names_hash.update(f"{name}\0{size}\0".encode())
        marks_hash.update("\0".join(listing["marks"]).encode())
    return {
        "paths": [*dict.fromkeys(files.root for files in matches)],
        "num_files": sum(len(files.paths) for files in matches),
        "num_bytes": sum(sum(files.sizes) for files in matches),
        "names": names_hash.hexdigest(),
        "marks": marks_hash.hexdigest(),
    }


def version_before(path: str) -> int | None:
    """Return the version of a table that the trial has read which this one verifies, or None.

    Args:
        path: the folder of the table, as it was recorded.
    """
    run = context.current().run_path
    if run is None:
        return None
    url = RunPaths(run).table_versions
    texts = retry(lambda: storage.read_many([url]), "read the versions of tables")
    version: int | None = from_json(texts[url]).get(path) if url in texts else None
    return version


def compare_files(
    url: str, find: Callable[[list[str]], Sequence[Any]], newest_version: Callable[[str], int]
) -> Iterator[tuple[str, str, str]]:
    """Yield the paths whose files are not those that a trial has read, with both in words.

    Args:
        url: the record of the trial.
        find: lists the files of paths, see `paths.find`.
        newest_version: returns the newest version of a table, see `delta_log.newest_version`.
    """
    before = {(*line["paths"], line.get("is_newest")): line for line in read_lines(url)}
    for old in before.values():
        paths = old["paths"]
        if "version" in old:
            yield from _compare_table(paths, old, newest_version)
            continue
        new: Mapping[str, Any] | None = None
        with suppress(OSError, ConfigError):
            new = _summary(find(paths))
        if new == old:
            continue
        same_names = new is not None and new["names"] == old["names"]
        words = "the same names and sizes, written at other times" if same_names else _words(new)
        yield ", ".join(paths), _words(old), words


def _compare_table(
    paths: Sequence[str], old: Mapping[str, Any], newest_version: Callable[[str], int]
) -> Iterator[tuple[str, str, str]]:
    """Yield a table of which another version would be read now."""
    if not old["is_newest"]:
        return  # A version never changes.
    words = "nothing that this driver can read"
    with suppress(OSError, ConfigError, ImportError):
        newest = newest_version(paths[0])
        if newest == old["version"]:
            return
        words = f"version {newest}, the newest one"
    yield paths[0], f"version {old['version']}, the newest one", words


def _words(summary: Mapping[str, Any] | None) -> str:
    if summary is None:
        return "nothing that this driver can read"
    return f"{summary['num_files']} file(s) of {summary['num_bytes']} bytes"
