"""Runs on the driver. Write what the ranks print to the streams of `horovod.spark.run`."""

import functools
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from sparkdl.callbacks import Callback
from sparkdl.files import storage
from sparkdl.files.jsonl import LogTail
from sparkdl.files.layout import PRINTED
from sparkdl.horovod.printed_lines import call_with_kept_lines
from sparkdl.runs import Run, Trial

__all__ = ["RedirectedOutput", "redirect"]

# A progress bar ends its lines by a carriage return, after which a line feed may come.
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r(?!\Z)|\n)")


def redirect(
    function: Callable[..., Any],
    options: dict[str, Any],
    stdout: Any = None,
    stderr: Any = None,
    with_time: bool = False,
) -> Callable[..., Any]:
    """Return a function whose output goes to streams of the driver, and add what that needs.

    Args:
        function: the function of the ranks.
        options: the options of the run, to which some are added.
        stdout, stderr: the streams; without any, function and options stay as they are.
        with_time: begin each line with the time.
    """
    streams = {"stdout": stdout, "stderr": stderr}
    if stdout is None and stderr is None:
        return function
    options["callbacks"] = [RedirectedOutput(streams, with_time)]
    if None not in streams.values():
        options["logs"] = "none"  # The lines are shown once.
    return functools.partial(call_with_kept_lines, function)


class RedirectedOutput(Callback):
    """Write the lines that ranks print to streams, as `[0]<stdout>:line`, while the run goes on.

    Args:
        streams: the streams by name, `stdout` and `stderr`; None for one that is not written to.
        with_time: begin each line with the time.
    """

    interval_s = 0.5

    def __init__(self, streams: Mapping[str, TextIO | None], with_time: bool = False) -> None:
        self._streams = streams
        self._with_time = with_time
        self._tails: dict[str, LogTail] = {}
        self._rests: dict[str, str] = {}

    def on_interval(self, run: Run) -> None:
        """Write the new lines."""
        for trial in run.trials:
            self._write_new(trial)

    def on_run_end(self, run: Run) -> None:
        """Write the last lines."""
        self.on_interval(run)
        for name, rest in self._rests.items():
            self._write(name, [rest] if rest else [])

    def _write_new(self, trial: Trial) -> None:
        folder = storage.join(trial.path, PRINTED)
        for name in sorted(storage.list_names(folder)):
            tail = self._tails.setdefault(name, LogTail(storage.join(folder, name)))
            text = self._rests.pop(name, "") + "".join(tail.pieces())
            # Half a line is never written, as a line of another rank may come next.
            lines = _LINE.findall(text)
            self._write(name, lines)
            self._rests[name] = text[sum(map(len, lines)) :]

    def _write(self, name: str, lines: list[str]) -> None:
        kind, rank, _ = name.split("-", 2)
        stream: Any = self._streams.get(kind)
        if stream is not None and lines:
            prefix = f"{time.asctime() if self._with_time else ''}[{rank}]<{kind}>:"
            stream.write("".join(prefix + line for line in lines))
            stream.flush()
