"""Where it runs: D. What is written down when a run starts, so that it can be understood later."""

import functools
import getpass
import importlib.metadata
import inspect
import platform
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from sparkdl import storage
from sparkdl._version import __version__
from sparkdl.runs.layout import RunPaths
from sparkdl.runs.redact import mask_text

__all__ = ["environment", "function_name", "git_commit", "versions", "write_source"]

# What must agree between the driver and every executor, by the name it is installed under.
COMPARED = ("tensorflow", "keras", "pyarrow")


def versions() -> dict[str, str]:
    """The versions of Python, sparkdl and the packages whose versions must agree everywhere."""
    found = {"python": ".".join(platform.python_version_tuple()[:2]), "sparkdl": __version__}
    for name in COMPARED:
        version = _version(name) or _version(f"{name}-cpu")
        if version:
            found[name] = version
    return found


@functools.cache
def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def environment() -> str:
    """Every installed package with its version, as `pip freeze` writes them."""
    lines = {f"{d.metadata['Name']}=={d.version}" for d in importlib.metadata.distributions()}
    return "\n".join([f"# Python {sys.version}", *sorted(lines, key=str.lower), ""])


def git_commit(folder: Path) -> str | None:
    """The commit checked out in `folder`, with `+changes` where files differ from it."""
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+changes" if changed else commit


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return run.stdout.strip()


def function_name(function: Callable[..., Any]) -> str:
    """What a person would call this function; for a partial, the function inside."""
    inner = inspect.unwrap(getattr(function, "func", function))
    return getattr(inner, "__name__", type(inner).__name__)


def who() -> dict[str, str]:
    """The user and host that started the run."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # A container's numeric user has no name.
        user = "unknown"
    return {"user": user, "host": socket.gethostname()}


def write_source(
    paths: RunPaths,
    function: Callable[..., Any],
    modules: Mapping[str, str],
    secrets: Iterable[str],
) -> None:
    """Keep the function's source as `function.py`, and each local module's beside it."""
    sources = {f"modules/{name.replace('.', '/')}.py": text for name, text in modules.items()}
    try:
        inner = inspect.unwrap(getattr(function, "func", function))
        sources["function.py"] = inspect.getsource(inner)
    except (OSError, TypeError):
        pass  # Typed at a prompt, or a callable object: there is no source to keep.
    for name, text in sources.items():
        storage.write(storage.join(paths.source, name), mask_text(text, secrets))
