"""Runs on the driver. Keep the user's functions in the run directory, and restore a space."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cloudpickle

from sparkdl.cluster.program.local_modules import find, install
from sparkdl.cluster.program.packaging import Program, pack, pack_preload
from sparkdl.errors import ConfigError, FunctionError
from sparkdl.files import storage
from sparkdl.files.layout import RunPaths
from sparkdl.runner.prepared_run import PreparedRun
from sparkdl.runner.request import Request
from sparkdl.runs import provenance

# A larger program is not kept: it is searched for credentials at some megabytes per second.
MAX_KEPT_BYTES = 16 << 20


def keep_program(prepared: PreparedRun, paths: RunPaths) -> list[str]:
    """Write the source code for readers, and the packed functions for a later resume.

    Args:
        prepared: the request with the functions of this call; a function that the run directory
            already holds is not written again.
        paths: the run directory.

    Returns:
        Notes for the user about functions that are not kept.
    """
    request, notes = prepared.request, []
    if request.train is not None:
        reason = _keep_function(prepared, paths, request.train)
        notes += [_note("function", "train", reason)] if reason else []
    space = request.search.space if request.search else None
    if callable(space) and not storage.exists(paths.space):
        reason = _keep_space(space, paths, prepared.secrets)
        notes += [_note("space", "space", reason)] if reason else []
    return notes


def _keep_function(prepared: PreparedRun, paths: RunPaths, train: Callable[..., Any]) -> str | None:
    program, secrets = prepared.program, prepared.secrets
    texts = {name: source.text for name, source in program.modules.items()}
    provenance.write_source(paths, train, texts, secrets)
    if program.num_bytes > MAX_KEPT_BYTES:
        size = f"{program.num_bytes >> 20} MiB, more than {MAX_KEPT_BYTES >> 20} MiB"
        reason = f"together with the modules that travel with it, it has {size}"
        return provenance.write_reason(paths.program, reason)
    called = prepared.request.target
    return provenance.write_program(paths.program, program.to_dict(), called, secrets)


def _keep_space(space: Callable[..., Any], paths: RunPaths, secrets: tuple[str, ...]) -> str | None:
    try:
        program = pack(space).to_dict()
    except FunctionError as exc:  # The function is called on the driver, and need not travel.
        _, _, cause = str(exc).partition(": ")
        return provenance.write_reason(paths.space, cause.partition(". (")[0])
    return provenance.write_program(paths.space, program, space, secrets)


def _note(what: str, argument: str, reason: str) -> str:
    note = f"Note: the {what} is not kept, because {reason}."
    if "credential" in reason:
        note += " To keep it, read credentials from os.environ inside it, and pass them with env=."
    return f"{note} Without it, experiment.resume needs {argument}=."


def program_of(request: Request, paths: RunPaths, had_preload: bool) -> Program:
    """Return the program of a run that runs again: new functions, and those that it has kept.

    Args:
        request: the request, whose functions are None where the run has kept them.
        paths: the directory of the run.
        had_preload: the run has a function of `preload=`.

    Raises:
        ConfigError: if a function was not kept or cannot be loaded.
        FunctionError: if a new function cannot leave this process.
    """
    preload = request.options.preload
    if request.train is None:
        kept = Program.from_dict(provenance.read_program(paths.program))
        return kept if preload is None else kept.with_preload(pack_preload(preload))
    program = pack(request.target, preload)
    if preload is None and had_preload:
        kept = Program.from_dict(provenance.read_program(paths.program, "preload"))
        if kept.preload:
            return program.with_preload(replace(kept.preload, modules=kept.modules))
    return program


def restore_space(paths: RunPaths) -> Callable[..., Any]:
    """Return the function that is the space of a search, from the run directory.

    Raises:
        ConfigError: if the function was not kept or cannot be loaded.
    """
    program = Program.from_dict(provenance.read_program(paths.space, "space"))
    install({name: source for name, source in program.modules.items() if find(name) is None})
    try:
        space: Callable[..., Any] = cloudpickle.loads(program.function)
    except Exception as exc:
        raise ConfigError(
            f"the space of this run is a function that cannot be loaded from {paths.space}: "
            f"{type(exc).__name__}: {exc}. Pass space= with the function."
        ) from exc
    return space
