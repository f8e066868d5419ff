"""Where it runs: P. What a training function may ask about itself.

Use the module as it is: `context.rank`, `context.trial`, `context.report(0.9)`. Outside a run, in
a plain Python session, everything answers as rank 0 of 1, so that the same function can be called
directly to debug it.
"""

import dataclasses
import functools
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["VARIABLE", "Context", "activate", "current", "report"]

VARIABLE = "SPARKDL_CONTEXT"
MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class Context:
    """Who this process is.

    Attributes:
        rank, world_size: this process among all of its run, `0 <= rank < world_size`.
        local_rank, local_world_size: the same among those of its host.
        role: `worker`, `chief`, `ps` or `evaluator`.
        run: the run id; None outside a run.
        trial: the trial's number.
        params: the parameters that the function was called with; empty where they are very many.
        seed: `random`, NumPy and the framework are seeded with it already; in `[0, 2**31)`.
        folder: the local folder of this trial's files; None outside a run.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    role: str = "worker"
    run: str | None = None
    trial: int = 0
    params: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    folder: str | None = None

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one that saves and reports for all."""
        return self.rank == 0

    @property
    def logdir(self) -> str:
        """Where TensorBoard's event files go; the folder exists."""
        path = Path(self.folder or "runs/local", "tensorboard").absolute()
        path.mkdir(parents=True, exist_ok=True)
        return str(path)


@functools.lru_cache(maxsize=1)
def _parse(text: str) -> Context:
    return Context(**json.loads(text))


def current() -> Context:
    """This process's context. Processes that a training function starts have the same one.

    Example:
        >>> current().rank, current().world_size
        (0, 1)
    """
    return _parse(os.environ.get(VARIABLE, "{}"))


def activate(context: Context) -> None:
    """Make `context` this process's own; called before the training function."""
    fields = dataclasses.asdict(context)
    if len(json.dumps(fields["params"])) > MOST_BYTES:
        fields["params"] = {}  # One variable may have 128 KiB, or no process can be started.
    os.environ[VARIABLE] = json.dumps(fields)


def report(value: float | Mapping[str, float], step: int | None = None) -> None:
    """Tell the driver how it goes: live in its progress line, kept in `metrics.jsonl`.

    Costs some ten microseconds: one line appended to a local file.

    Args:
        value: a number, or several by name. A plain number is called `value`, and stands for the
            run's metric.
        step: the step or epoch it belongs to, from 0; by default the next one.

    Raises:
        TypeError: a value is not a number.

    Example:
        >>> from sparkdl import context
        >>> context.report({"loss": 0.25, "accuracy": 0.9}, step=3)
        step 3: loss=0.25, accuracy=0.9
    """
    metrics = {k: _number(k, v) for k, v in _named(value).items()}
    folder = current().folder
    if folder is None:
        shown = ", ".join(f"{name}={number:g}" for name, number in metrics.items())
        print(f"step {step}: {shown}" if step is not None else shown)
        return
    _reporter(folder, os.getpid()).write(metrics, step)


def _named(value: float | Mapping[str, float]) -> Mapping[str, float]:
    return value if isinstance(value, Mapping) else {"value": value}


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"context.report got {name}={value!r} of type {type(value).__name__}; expected a "
            "number, or a dict of numbers by name."
        ) from None


class _Reporter:
    """Appends to this trial's metrics file. One unbuffered write per line: a kill loses none."""

    def __init__(self, folder: str) -> None:
        path = Path(folder, "metrics.jsonl")
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._step = -1

    def write(self, metrics: dict[str, float], step: int | None) -> None:
        self._step = self._step + 1 if step is None else int(step)
        line = json.dumps({"step": self._step, "metrics": metrics})
        os.write(self._file, line.encode() + b"\n")


@functools.lru_cache(maxsize=1)
def _reporter(folder: str, pid: int) -> _Reporter:
    return _Reporter(folder)


def __getattr__(name: str) -> Any:
    if name in {f.name for f in dataclasses.fields(Context)} | {"is_chief", "logdir"}:
        return getattr(current(), name)
    raise AttributeError(
        f"module 'sparkdl.context' has no attribute {name!r}. Expected one of "
        f"{', '.join(f.name for f in dataclasses.fields(Context))}, is_chief, logdir, report."
    )


def __dir__() -> list[str]:
    names = {f.name for f in dataclasses.fields(Context)} | {"is_chief", "logdir"}
    return sorted(names | set(vars(sys.modules[__name__])))
