"""Runs in the training process.

The training process: becomes what it is told, runs the person's function.
"""

import atexit
import io
import json
import os
import pickle
import random
import shutil
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import cloudpickle

from sparkdl import context
from sparkdl.cluster.program.local_modules import install
from sparkdl.errors import InvalidTrial
from sparkdl.runs.redact import MASK

__all__ = ["become", "main", "receive"]

# What calls the person's function is left out of its tracebacks.
_OURS = f"{Path(__file__).parents[2]}{os.sep}"


def main(channel: socket.socket, more: Mapping[str, Any]) -> int:
    """Run what `channel` asks for, answer on it, return the exit code.

    More channels are descriptors by the name that they have in `Context`.

    Two things are said: `s` when the person's function starts, and its outcome: `o`, eight bytes
    with the length, a pickled dict.
    """
    asked = receive(channel)
    become(asked)
    context.activate(context.Context(**asked["context"], **more))
    begun = time.monotonic()
    outcome = pickle.dumps({**_outcome(channel, asked), "spent": _spent(begun)})
    channel.sendall(b"o" + len(outcome).to_bytes(8, "big") + outcome)
    channel.close()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return 0


def become(asked: Mapping[str, Any]) -> None:
    """Take over the environment of a task, its folder, and where it imports from."""
    os.environ.clear()  # The fork server's is that of another executor of this host, perhaps.
    os.environ.update(asked["environ"])
    os.chdir(asked["cwd"])
    sys.path[:] = asked["path"]
    _open_output(asked["secrets"])


def receive(channel: socket.socket) -> dict[str, Any]:
    """What a process is to do, from the task that had it forked."""
    with channel.makefile("rb") as stream:
        size = int.from_bytes(stream.read(8), "big")
        asked: dict[str, Any] = pickle.loads(stream.read(size))
    return asked


def _outcome(channel: socket.socket, asked: dict[str, Any]) -> dict[str, Any]:
    try:
        install(asked["modules"])
        function = _function(asked["function"])
        seed_everything(asked["context"]["seed"])
        channel.sendall(b"s")
        returned = function(**asked["context"]["params"])
        if not context.current().is_chief:
            return {"outputs": {}}  # The chief's value is the value of all.
        kept = keep(returned, asked["metrics"], context.current().folder or ".")
        return {"outputs": kept, "is_chief": True}
    except InvalidTrial as invalid:
        return {"invalid": str(invalid)}
    except SystemExit as left:
        error = f"SystemExit: the function called sys.exit({left.code!r})"
        return {"error": error, "traceback": _traceback(left)}
    except BaseException as exc:  # noqa: BLE001 An error of the person's is a value to us.
        return {"pruned": True} if _is_pruned(exc) else _failure(exc)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _spent(begun: float) -> dict[str, float]:
    """How long it was until the first report, and what all of them took, in seconds."""
    reporter = context.this_reporter()
    first_s = reporter.first_s - begun if reporter.first_s else 0.0
    return {"first_step_s": round(first_s, 4), "reporting_s": round(reporter.spent_s, 4)}


def _function(pickled: bytes | None) -> Callable[..., Any]:
    if pickled is None:
        from sparkdl.distribute import serve

        return serve
    function: Callable[..., Any] = cloudpickle.loads(pickled)
    return function


def _is_pruned(exc: BaseException | None) -> bool:
    """Whether it is `TrialPruned`, ours or Optuna's, or was raised from one."""
    seen: set[int] = set()
    while exc is not None and id(exc) not in seen:
        seen.add(id(exc))
        named = [kind for kind in type(exc).__mro__ if kind.__name__ == "TrialPruned"]
        if any(kind.__module__.startswith(("optuna.", "sparkdl.")) for kind in named):
            return True
        exc = exc.__cause__
    return False


def _failure(exc: BaseException) -> dict[str, Any]:
    text = _traceback(exc)
    print(text, file=sys.stderr)
    last = "".join(traceback.format_exception_only(exc)).strip().split("\n")[0]
    try:
        pickled: bytes | None = cloudpickle.dumps(exc.with_traceback(None))
        cloudpickle.loads(pickled)
    except Exception:  # noqa: BLE001 Whatever an exception's own pickling may raise.
        pickled = None
    return {"error": last, "traceback": text, "exception": pickled}


def _traceback(exc: BaseException) -> str:
    """The traceback from the person's code on, without our frames above it."""
    trace = exc.__traceback__
    while trace and trace.tb_frame.f_code.co_filename.startswith(_OURS) and trace.tb_next:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(exc), exc, trace))


def seed_everything(seed: int) -> None:
    """Seed `random`, and NumPy and the framework where the program has imported them."""
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)
    if tensorflow := sys.modules.get("tensorflow"):
        tensorflow.random.set_seed(seed)
    for name in ("keras", "tf_keras"):
        if module := sys.modules.get(name):
            module.utils.set_random_seed(seed)


def keep(returned: Any, metrics: Sequence[str | None], folder: str) -> dict[str, Any]:
    """What a function returned, as JSON can hold it; files are copied into the trial's folder.

    A number stands under the metric's name, or under `value`; as many numbers as there are
    metrics under their names. A path of a file, and a `Path` of a
    folder, is replaced by its copy's path, relative to `folder`.

    Example:
        >>> keep(0.9, ["accuracy"], "."), keep((0.9, 5), ["accuracy", "latency"], ".")
        ({'accuracy': 0.9}, {'accuracy': 0.9, 'latency': 5})
    """
    if returned is None:
        return {}
    if not isinstance(returned, Mapping):
        values = returned if len(metrics) > 1 and isinstance(returned, tuple | list) else [returned]
        returned = {name or "value": value for name, value in zip(metrics, values, strict=False)}
    return {str(name): _kept(str(name), value, folder) for name, value in returned.items()}


def _kept(name: str, value: Any, folder: str) -> Any:
    if _is_path(value, Path(folder)):
        return _copied(name, Path(value), Path(folder))
    try:
        # Through JSON and back: an enum of the person's, say, is not known elsewhere.
        value = json.loads(json.dumps(_plain(value)))
        if isinstance(value, int):
            float(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        print(
            f"sparkdl: the returned {name!r} is a {type(value).__name__}, kept as its text. "
            "Return numbers, or save it to a file and return the path.",
            file=sys.stderr,
        )
        return repr(value)
    return value


def _plain(value: Any) -> Any:
    """Arrays and tensors of any framework as numbers and lists of them."""
    for method in ("detach", "cpu", "numpy"):  # PyTorch; the last also TensorFlow and JAX.
        value = getattr(value, method)() if hasattr(value, method) else value
    return value.tolist() if hasattr(value, "tolist") else value


def _is_path(value: Any, folder: Path) -> bool:
    """Whether a returned value names a file or folder to keep, and is not a word like one."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        return False
    if not os.path.isdir(value):
        return os.path.isfile(value)
    # A folder may hold anything: one is copied only if it is given as a path, not as text.
    return not isinstance(value, str) and Path(value).resolve() not in folder.resolve().parents


def _copied(name: str, source: Path, folder: Path) -> str:
    source, folder = source.resolve(), folder.resolve()
    if source.is_relative_to(folder):
        return source.relative_to(folder).as_posix()  # It is where it belongs already.
    target = folder / "artifacts" / quote(name, safe="") / source.name
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
    return target.relative_to(folder).as_posix()


class _Masked(io.TextIOWrapper):
    """A text stream that never lets one of some secrets through."""

    secrets: tuple[str, ...] = ()

    def write(self, text: str) -> int:
        for secret in self.secrets:
            text = text.replace(secret, MASK)
        return super().write(text)


def _open_output(secrets: list[str]) -> None:
    """Let what is printed reach the log a line at a time, whatever Spark set for its workers.

    What Python code prints is masked; what native code writes by itself is not seen here.
    """
    masked = tuple(sorted((s for s in secrets if len(s) >= 4), key=len, reverse=True))
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        raw = io.BufferedWriter(io.FileIO(descriptor, "wb", closefd=False))
        kind = _Masked if masked else io.TextIOWrapper
        stream = kind(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
        if isinstance(stream, _Masked):
            stream.secrets = masked
        setattr(sys, name, stream)
