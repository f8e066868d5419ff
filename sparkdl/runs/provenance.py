"""Runs on the driver. Record the program and the environment with which a run starts.

Spark tasks compare the `versions` of their host with those of the driver.
"""

import base64
import functools
import getpass
import importlib.metadata
import inspect
import json
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from sparkdl._version import __version__
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.files.layout import RunPaths
from sparkdl.host import supported_versions
from sparkdl.secrets.masks import mask_text
from sparkdl.secrets.programs import find_credential, find_in_pickle

# Packages whose versions must agree between the driver and every executor.
COMPARED = ("tensorflow", "keras", "pyarrow")

# The end of a git commit, if tracked files were changed.
CHANGES = "+changes"

# The key of the reason for which a program was not written.
_NOT_KEPT = "not_kept"


def versions() -> dict[str, str]:
    """Return the versions of Python, sparkdl and the packages that must agree on all hosts."""
    by_name = {"python": ".".join(platform.python_version_tuple()[:2]), "sparkdl": __version__}
    return by_name | {name: version for name in COMPARED if (version := _version(name))}


_version = functools.cache(supported_versions.installed)


@functools.cache
def environment() -> str:
    """Return every installed package with its version, in the format of `pip freeze`."""
    lines: dict[str, str] = {}
    for installed in importlib.metadata.distributions():
        name = installed.metadata["Name"]
        # Python imports the first of several on its path.
        lines.setdefault(re.sub(r"[-_.]+", "-", name.lower()), f"{name}=={installed.version}")
    return "\n".join([f"# Python {sys.version}", *sorted(lines.values(), key=str.lower), ""])


def git_commit(folder: Path) -> str | None:
    """Return the commit checked out in `folder`, with `+changes` if tracked files were changed."""
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}{CHANGES}" if changed else commit


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return run.stdout.strip()


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function; for a partial, the name of the inner function."""
    inner = inspect.unwrap(getattr(function, "func", function))
    return getattr(inner, "__name__", type(inner).__name__)


def who() -> dict[str, str]:
    """Return the user and the host that start the run."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # A numeric user of a container has no name.
        user = "unknown"
    return {"user": user, "host": socket.gethostname()}


def source_of(function: Callable[..., Any]) -> str | None:
    """Return the source of a function; None for a callable object or a function without a file."""
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
    """Write the source of the function to `function.py`, and local modules to `modules/`."""
    sources = {f"modules/{name.replace('.', '/')}.py": text for name, text in modules.items()}
    if text := source_of(function):
        sources["function.py"] = text
    else:  # The source of an earlier function.
        storage.remove(storage.join(paths.source, "function.py"))
    for name, text in sources.items():
        masked = mask_text(text, secrets, is_code=True)
        storage.write(storage.join(paths.source, name), masked)


def write_program(
    url: str,
    program: Mapping[str, Any],
    function: Callable[..., Any],
    secrets: Iterable[str],
) -> str | None:
    """Write a program in the form in which it is sent to the executors.

    A program that contains what looks like a credential is not kept; only the reason is written.

    Args:
        url: the file to write.
        program: the packed function and the modules that travel with it.
        function: the function before it was packed.
        secrets: values that must not be stored.

    Returns:
        The reason for which the program is not kept; None if the program was written.
    """
    if phrase := _credential_in(program, function, tuple(secrets)):
        return write_reason(url, f"it contains what looks like a credential: {phrase}")
    storage.write(url, json.dumps({"python": versions()["python"], **program}))
    return None


def write_reason(url: str, reason: str) -> str:
    """Write the reason for which a program is not kept, for `read_program`; return the reason."""
    storage.write(url, json.dumps({_NOT_KEPT: reason}))
    return reason


def _credential_in(
    program: Mapping[str, Any], function: Callable[..., Any], secrets: tuple[str, ...]
) -> str | None:
    for name, (text, *_) in program["modules"].items():
        if mask_text(text, secrets, is_code=True) != text:
            return f"the module {name}"
    parts = [part for part in (program, program.get("preload")) if part]
    found = (find_in_pickle(base64.b64decode(part["function"]), secrets) for part in parts)
    return find_credential(function, secrets) or next(filter(None, found), None)


def read_program(url: str, argument: str = "train") -> dict[str, Any]:
    """Return the program that `write_program` wrote.

    Args:
        url: the file.
        argument: the argument of `resume` that takes the function, for the messages.

    Raises:
        ConfigError: if there is no program, or if this version of Python cannot load it.
    """
    remedy = f"Pass {argument}= with the function."
    try:
        program: dict[str, Any] = json.loads(storage.read(url))
    except FileNotFoundError:
        raise ConfigError(
            f"the function is not in {url}: the run was killed while it started. {remedy}"
        ) from None
    if reason := program.get(_NOT_KEPT):
        raise ConfigError(f"the function was not kept, because {reason}. {remedy}")
    python = versions()["python"]
    if program["python"] != python:
        raise ConfigError(
            f"{url} was written by Python {program['python']} and cannot be loaded by "
            f"Python {python}. {remedy}"
        )
    return program
