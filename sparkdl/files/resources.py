"""Runs anywhere. The files of `versioned_resources`: their copies, their hashes, their way back.

A run keeps copies in `resources/`, and in `resources.json` the SHA-256 of each file and the place
that it came from. A training process gets copies of its own, in `resources/` of its trial.
"""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sparkdl.errors import ConfigError, suggest
from sparkdl.files import folders, storage
from sparkdl.files.jsonl import from_json, naming_damage, to_json

FOLDER = "resources"
MANIFEST = "resources.json"


@dataclass(frozen=True)
class Resource:
    """A file or a folder that a run keeps.

    Attributes:
        source: the path that the user passed, absolute.
        files: the SHA-256 of each file, by its path below `resources/`.
    """

    source: str
    files: Mapping[str, str]


def distinct_names(paths: Iterable[str]) -> dict[str, str]:
    """Return absolute paths by the names of their copies: as few last parts as tell them apart.

    Example:
        >>> distinct_names(["/p/a/config.yaml", "/p/b/config.yaml", "/p/b/labels.txt"])
        {'a/config.yaml': '/p/a/config.yaml', 'b/config.yaml': '/p/b/config.yaml', \
'labels.txt': '/p/b/labels.txt'}
    """
    parts = {path: Path(path).parts[1:] for path in dict.fromkeys(paths)}
    depths = dict.fromkeys(parts, 1)

    def name(path: str) -> str:
        return "/".join(parts[path][-depths[path] :])

    def clashes(path: str) -> bool:
        """Return True if the copy of a path would be another copy, or a file in it."""
        mine = f"{name(path)}/"
        return any(
            mine.startswith(f"{name(other)}/")
            or (name(other) == name(path) and depths[other] <= depths[path])
            for other in parts
            if other != path
        )

    while longer := [p for p in parts if clashes(p) and depths[p] < len(parts[p])]:
        for path in longer:
            depths[path] += 1
    return {name(path): path for path in parts}


def check_exists(path: Path) -> None:
    """Validate that a file or folder, which the user has passed, exists.

    Raises:
        ConfigError: if it does not.
    """
    if not path.exists():
        raise ConfigError(
            f"versioned_resources contains {str(path)!r}, which does not exist. Correct the "
            "path, or remove it from the list."
        )


def hashes(path: Path, name: str) -> dict[str, str]:
    """Return the SHA-256 of a file, or of every file in a folder.

    Args:
        path: the file or folder.
        name: the name under which it is kept.
    """
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return {
        "/".join([name, *file.relative_to(path).parts]): folders.sha256(str(file))
        for file in files
        if file.is_file()
    }


def keep(run: str, resources: Mapping[str, Path], sources: Mapping[str, str]) -> None:
    """Copy files and folders into a run directory, and write their hashes.

    Args:
        run: path or URL of the run directory.
        resources: the files and folders, by the names of their copies.
        sources: the places that they come from, for those that are copies themselves.
    """
    if not resources:
        return
    manifest = {}
    for name, path in resources.items():
        source = sources.get(name, os.path.abspath(path))
        manifest[name] = {"source": source, "files": hashes(path, name)}
        storage.copy(path, storage.join(run, FOLDER, name))
    storage.write(storage.join(run, MANIFEST), to_json(manifest, indent=1))


def read_manifest(run: str) -> dict[str, Resource]:
    """Return the resources that a run keeps, by name; empty if it keeps none.

    Raises:
        RunDamagedError: if their list is damaged.
    """
    url = storage.join(run, MANIFEST)
    try:
        text = storage.read(url)
    except FileNotFoundError:
        return {}
    with naming_damage(url):
        entries = from_json(text).items()
        return {name: Resource(entry["source"], dict(entry["files"])) for name, entry in entries}


def check(folder: Path, resources: Mapping[str, Resource], run: str) -> None:
    """Validate that the copies of a run are the files that the run has kept.

    Args:
        folder: the local folder of the copies.
        resources: the resources by name, see `read_manifest`.
        run: path or URL of the run directory, for the message.

    Raises:
        ConfigError: if a copy was changed.
    """
    for name, resource in resources.items():
        if hashes(folder / name, name) != dict(resource.files):
            raise ConfigError(
                f"{storage.join(run, FOLDER, name)} was changed after the run had started: its "
                f"SHA-256 is not the one in {MANIFEST}. Put the original there, from "
                f"{resource.source} or a copy of the run, or start a new run."
            )


@contextmanager
def local_copy(url: str) -> Iterator[Path]:
    """Return a folder on this machine with the content of another: itself if it is local."""
    if storage.is_local(url):
        yield storage.local_path(url)
        return
    with tempfile.TemporaryDirectory(prefix="sparkdl-") as folder:
        storage.download(url, Path(folder))
        yield Path(folder)


def fetch(run: str, name: str, folder: Path) -> str:
    """Return the local path of a process's own copy of a resource.

    Args:
        run: path or URL of the run directory.
        name: the name of a resource, the path of a file in one, or the last parts of a name that no
            other resource has.
        folder: the folder of the copies; several processes may use one.

    Raises:
        FileNotFoundError: if the run has no such resource, or several with these last parts.
        ValueError: if a file in the run directory is not the one that was kept.
    """
    files = {path: digest for r in read_manifest(run).values() for path, digest in r.files.items()}
    full = _full_name(name, read_manifest(run), files)
    for path, digest in files.items():
        if path == full or path.startswith(f"{full}/"):
            _fetch_file(storage.join(run, FOLDER, path), folder / path, digest)
    target = folder / full
    if not target.exists():
        target.mkdir(parents=True, exist_ok=True)  # A folder without files.
    return str(target.absolute())


def _full_name(name: str, resources: Mapping[str, Resource], files: Mapping[str, str]) -> str:
    """Return the path below `resources/` that the user means."""
    path = name.strip("/")
    names = [*dict.fromkeys([*resources, *files])]
    if path in names or any(path.startswith(f"{path}/") for path in files):
        return path
    same = [other for other in resources if other.endswith(f"/{path}")]
    if len(same) == 1:
        return same[0]
    if same:
        raise FileNotFoundError(
            f"several resources end with {name!r}: {', '.join(same)}. Pass one of these names."
        )
    hint = f"It has {', '.join(resources)}.{suggest(path, names)}" if resources else "It has none."
    raise FileNotFoundError(
        f"the run has no resource {name!r}. {hint} Pass the file or a folder that contains it "
        "with versioned_resources=."
    )


def _fetch_file(url: str, target: Path, digest: str) -> None:
    if target.is_file() and folders.sha256(str(target)) == digest:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        if storage.is_local(url):
            shutil.copyfile(storage.local_path(url), aside)
        else:
            storage.download(url, aside)
        if folders.sha256(str(aside)) != digest:
            raise ValueError(
                f"{url} was changed after the run had started: its SHA-256 is not the one in "
                f"{MANIFEST}. Start a new run with the changed file."
            )
        aside.replace(target)  # Another rank of this host may be reading the target.
    finally:
        aside.unlink(missing_ok=True)
