"""Runs on the driver.

What is written down when a run starts, so that it can be understood later.
"""

import base64
import functools
import getpass
import importlib.metadata
import inspect
import json
import platform
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from sparkdl import storage
from sparkdl._version import __version__
from sparkdl.errors import ConfigError
from sparkdl.runs.layout import RunPaths
from sparkdl.runs.redact import mask_text

__all__ = [
    "environment",
    "function_name",
    "git_commit",
    "read_program",
    "source_of",
    "versions",
    "write_program",
    "write_source",
]

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


def source_of(function: Callable[..., Any]) -> str | None:
    """Its source; None of one typed at a prompt, or a callable object."""
    try:
        return inspect.getsource(inspect.unwrap(getattr(function, "func", function)))
    except (OSError, TypeError):
        return None


def write_source(
    paths: RunPaths,
    function: Callable[..., Any],
    modules: Mapping[str, str],
    secrets: Iterable[str],
) -> None:
    """Keep the function's source as `function.py`, and each local module's beside it."""
    sources = {f"modules/{name.replace('.', '/')}.py": text for name, text in modules.items()}
    if text := source_of(function):
        sources["function.py"] = text
    for name, text in sources.items():
        storage.write(storage.join(paths.source, name), mask_text(text, secrets))


def write_program(paths: RunPaths, program: Mapping[str, Any], secrets: Iterable[str]) -> bool:
    """Keep the program as it travels, unless it holds what looks like a credential; whether it is
    kept."""
    pickled = base64.b64decode(program["function"]).decode("latin-1")
    texts = [pickled, *(text for text, *_ in program["modules"].values())]
    if any(mask_text(text, secrets) != text for text in texts):
        storage.remove(paths.program)
        return False
    python = versions()["python"]
    storage.write(paths.program, json.dumps({"python": python, **program}))
    return True


def read_program(paths: RunPaths) -> dict[str, Any]:
    """What `write_program` kept.

    Raises:
        ConfigError: there is none, or this Python cannot load it.
    """
    again = "Pass train= with the function."
    try:
        program: dict[str, Any] = json.loads(storage.read(paths.program))
    except FileNotFoundError:
        raise ConfigError(
            f"the function of this run is not in {paths.program}: it holds what looks like a "
            f"credential, which is not kept, or the run was killed as it began. {again}"
        ) from None
    here = versions()["python"]
    if program["python"] != here:
        raise ConfigError(
            f"{paths.program} was written by Python {program['python']}, and this is {here}, "
            f"which cannot load it. {again}"
        )
    return program
