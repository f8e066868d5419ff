"""Runs in the training process. Set up the process as its task asks, call the user's function.

The task sends one pickled dictionary over a private socket. The process sends two messages back:
`s` when the user's function is called, and `o`, eight bytes with the length, and the `Outcome` as
JSON when the function has ended.
"""

import atexit
import contextlib
import functools
import importlib
import io
import logging
import os
import pickle
import re
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle

from sparkdl import context
from sparkdl.cluster.outcome import Outcome, Status
from sparkdl.cluster.process.framework_errors import error_line
from sparkdl.cluster.process.keras_2_programs import keras_2_advice
from sparkdl.cluster.process.outputs import (
    collect_outputs,
    note_of_left_models,
    save_with_the_chief,
)
from sparkdl.cluster.process.seeds import seed_everything
from sparkdl.cluster.program.local_modules import install
from sparkdl.data.dataset_report import notes_of_datasets
from sparkdl.errors import InvalidTrial, MissingPackageError
from sparkdl.files import storage
from sparkdl.host.optional_packages import advice_for_missing
from sparkdl.secrets.masks import mask_value
from sparkdl.secrets.output import MaskedOutput
from sparkdl.training import preloaded

# Frames of this package are left out of the top of tracebacks: they only call the function.
_PACKAGE = f"{Path(__file__).parents[2]}{os.sep}"

_logger = logging.getLogger("sparkdl.cluster")


def main(channel: socket.socket, more: Mapping[str, Any]) -> int:
    """Run the function that `channel` asks for, send its outcome, return the exit code.

    Args:
        channel: the socket to the task.
        more: descriptors of more sockets, by the names of the fields of `Context` for them.
    """
    request = receive(channel)
    set_up(request)
    folder = os.open(".", os.O_PATH)
    context.activate(context.Context(**request["context"], **more))
    outcome = _run(channel, request).to_json().encode()
    channel.sendall(b"o" + len(outcome).to_bytes(8, "big") + outcome)
    channel.close()
    _finish()
    os.chdir("/")
    with contextlib.suppress(OSError):
        # The function has left nothing there. A next attempt may have moved the folder away and
        # work in another one of that name.
        os.rmdir(os.readlink(f"/proc/self/fd/{folder}"))
    return 0


def _finish() -> None:
    """End as Python does: wait for threads, then call exit functions. The task bounds the time."""
    try:
        # Also the work that is left for the threads of `concurrent.futures`.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        _flush()


def _flush() -> None:
    """Write what was printed, unless the disk does not take it: an outcome counts for more."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()


def set_up(request: Mapping[str, Any]) -> None:
    """Take over the environment and the import path of a task, and enter a working directory."""
    os.environ.clear()  # The fork server may have the environment of another executor of the host.
    os.environ.update(request["environ"])
    storage.make_directory(request["cwd"])
    os.chdir(request["cwd"])
    tempfile.tempdir = None  # The fork server may have asked for it.
    sys.path[:] = request["path"]
    _open_output(request["secrets"])


def receive(channel: socket.socket) -> dict[str, Any]:
    """Return the request that the task of this process sent."""
    with channel.makefile("rb") as stream:
        size = int.from_bytes(stream.read(8), "big")
        request: dict[str, Any] = pickle.loads(stream.read(size))
    return request


def _run(channel: socket.socket, request: dict[str, Any]) -> Outcome:
    """Call the user's function and return its outcome; an exception is an outcome too."""
    begin_s = time.monotonic()
    try:
        outcome = _call(channel, request)
    except InvalidTrial as invalid:
        outcome = Outcome(status=Status.INVALID, error=str(invalid))
    except SystemExit as left:
        outcome = Outcome(
            status=Status.FAILED,
            error=f"SystemExit: the function called sys.exit({left.code!r})",
            traceback=_traceback(left),
        )
    except BaseException as exc:  # noqa: BLE001 Errors of the user's function are values.
        outcome = Outcome(status=Status.PRUNED) if _is_pruned(exc) else _failure(exc)
    finally:
        _flush()
    # The disk may have been full, so that the file of the reports lacks the last ones.
    last_values = dict(context.this_reporter().metrics)
    return replace(outcome, usage=_reporting_times(begin_s), reported=last_values)


def _call(channel: socket.socket, request: dict[str, Any]) -> Outcome:
    install(request["modules"])
    for name in request.get("loaded", ()):
        # In the program's own order, which the pickle of its function does not keep.
        with contextlib.suppress(ImportError):  # The function needs the module, and says so better.
            importlib.import_module(name)
    function = _function(request["function"])
    if request.get("preload"):
        from sparkdl.cluster.process.preload_call import call

        call(request["preload"], is_forked=False)
    preloaded.take()
    seed_everything(request["context"]["seed"])
    me = context.current()
    if me.role == "evaluator" or (me.strategy == "multi_worker" and me.world_size > 1):
        from sparkdl.distribute.strategies import correct_strategies

        correct_strategies()
    notes: list[str] = []
    if me.ring is not None and me.world_size > 1:
        from sparkdl.distribute.lone_training import note_lone_training

        notes = note_lone_training(me)
    channel.sendall(b"s")
    returned = _returned(function, request["context"]["params"])
    me = context.current()
    if not me.is_chief:
        save_with_the_chief(returned)
        return Outcome(status=Status.RETURNED)
    masked = functools.partial(mask_value, secrets=request["secrets"])
    outputs = collect_outputs(returned, request["metrics"], me.folder or ".", masked)
    notes += notes_of_datasets(me.folder or ".")
    notes += [*outputs.notes, *note_of_left_models(outputs, me.folder or ".")]
    note = "; ".join(notes) or None
    return Outcome(
        status=Status.RETURNED,
        outputs=outputs.values,
        shape=outputs.shape,
        is_chief=True,
        note=note,
    )


def _returned(function: Callable[..., Any], params: Mapping[str, Any]) -> Any:
    """Call the user's function, and return its value in the process that was started for it.

    A process that the function has forked comes back here too, if it does not end itself. It ends
    here, as its value or exception is not that of the trial.
    """
    started = os.getpid()
    try:
        with _commits_finished():
            return function(**params)
    finally:
        if os.getpid() != started:
            _end_forked(sys.exc_info()[1])


@contextlib.contextmanager
def _commits_finished() -> Iterator[None]:
    """Wait for the commit that the function leaves behind; an error of the function counts."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            context.this_committer().finish(alone=True)
        raise
    context.this_committer().finish()


def _end_forked(exc: BaseException | None) -> NoReturn:
    """End a process that the user's function has forked, as the end of its program would."""
    code = 0 if exc is None else 1
    if isinstance(exc, SystemExit):
        code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    elif exc is not None:
        print(_traceback(exc), file=sys.stderr)
    _logger.warning(
        "process %d, which the function has forked, left the function; what it returned or raised "
        "is not the result of the trial. End such a process with os._exit().",
        os.getpid(),
    )
    _flush()
    os._exit(code)


def _reporting_times(begin_s: float) -> dict[str, float]:
    """Return the seconds until the first report, and the seconds spent in reports."""
    reporter = context.this_reporter()
    first_s = reporter.first_s - begin_s if reporter.first_s else 0.0
    return {"first_step_s": round(first_s, 4), "reporting_s": round(reporter.spent_s, 4)}


def _function(pickled: bytes | None) -> Callable[..., Any]:
    if pickled is None:
        from sparkdl.distribute import serve

        return serve
    function: Callable[..., Any] = cloudpickle.loads(pickled)
    return function


def _is_pruned(exc: BaseException | None) -> bool:
    """Return True for `TrialPruned` of sparkdl or Optuna, and for exceptions raised from one."""
    exception_ids: set[int] = set()
    while exc is not None and id(exc) not in exception_ids:
        exception_ids.add(id(exc))
        classes = [cls for cls in type(exc).__mro__ if cls.__name__ == "TrialPruned"]
        if any(cls.__module__.startswith(("optuna.", "sparkdl.")) for cls in classes):
            return True
        exc = exc.__cause__
    return False


def _failure(exc: BaseException) -> Outcome:
    text = _traceback(exc)
    last = error_line(exc)
    printed = ""
    if remedy := _remedy(exc):
        last, printed = f"{last}. {remedy}", f"\nsparkdl: {remedy}"
    with contextlib.suppress(OSError):  # The disk may be full.
        print(f"{text}{printed}", file=sys.stderr)
    try:
        pickled: bytes | None = cloudpickle.dumps(exc.with_traceback(None))
        cloudpickle.loads(pickled)
    except Exception:  # noqa: BLE001 The pickling of a user's class may raise anything.
        pickled = None
    return Outcome(status=Status.FAILED, error=last, traceback=text, exception=pickled)


def _remedy(exc: BaseException) -> str | None:
    """Return advice for a missing package, a file where the function would work, or Keras 2."""
    is_told = isinstance(exc, MissingPackageError)
    is_missing = isinstance(exc, ModuleNotFoundError) and not is_told
    if is_missing and (advice := advice_for_missing(getattr(exc, "name", None) or "")):
        return advice
    if not isinstance(exc, FileNotFoundError) and type(exc).__name__ != "NotFoundError":
        return keras_2_advice(exc)
    try:
        here, original = Path.cwd(), Path(context.current().original_cwd)
    except FileNotFoundError:  # The function has removed its working directory.
        return None
    text = str(exc)
    for name in (getattr(exc, "filename", None), *re.findall("'([^']+)'", text), *text.split("; ")):
        # Some libraries make the name absolute first.
        path = os.path.relpath(name, here) if isinstance(name, str) else ".."
        if here != original and not path.startswith("..") and (original / path).exists():
            return (
                "The function runs in a working directory of its own, and "
                f"{path} is in {original}: open it by an absolute path, or as "
                f"os.path.join(context.original_cwd, {path!r})"
            )
    return None


def _traceback(exc: BaseException) -> str:
    """Return the traceback without the frames of this package above the user's code."""
    trace = exc.__traceback__
    while trace and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE) and trace.tb_next:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(exc), exc, trace))


def _open_output(secrets: list[str]) -> None:
    """Open standard output and error line by line, with credentials masked; log to the latter.

    Only what Python code prints is masked; native code writes to the descriptors directly.
    """
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        raw = io.BufferedWriter(io.FileIO(descriptor, "wb", closefd=False))
        setattr(sys, name, MaskedOutput(raw, secrets))
    _log_to_stderr()


def _log_to_stderr() -> None:
    """Let messages of this package reach the log of the trial, marked as such."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("sparkdl: %(message)s"))
    logger = logging.getLogger("sparkdl")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
