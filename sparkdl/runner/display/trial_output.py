"""Runs on the driver. Show what trials print."""

import re
from collections import Counter
from collections.abc import Callable

from sparkdl.cluster.plan import Plan
from sparkdl.files import storage
from sparkdl.files.jsonl import LogTail
from sparkdl.host.tensorflow_noise import is_noise
from sparkdl.options import Options
from sparkdl.runner.display.terminal_text import visible_text, without_styles
from sparkdl.runs import Run, Trial

# The number of ranks of a gang, or of trials on a remote store, whose output is shown live.
MAX_LOGS = 8

# With more trials than this, only the output of the best trials is shown by default.
MAX_TRIALS = 20

# The lines of Keras's progress bars, and the times in them.
_EPOCH = re.compile(r"Epoch \d+/\d+\s*$|\d+/\d+ (?:[━\[]|- \d+m?s )")
_TIMES = re.compile(r"\b\d+(?:\.\d+)?(?:us|ms|s)(?:/step|/epoch)?(?!\w)")


def logs_of(options: Options, num_trials: float, is_gang: bool) -> str:
    """Return the output to show: `all`, `best` or `none`.

    Example:
        >>> logs_of(Options(), 20, False), logs_of(Options(), 21, False)
        ('all', 'best')
    """
    if options.logs is not None:
        return options.logs
    is_small = num_trials <= MAX_TRIALS and options.wait
    return "all" if is_small or is_gang else "best"


class TrialOutput:
    """The output of the trials of a run, as lines that name their trial.

    Args:
        run: the run.
        plan: the processes of a trial.
        logs: `all` shows the output of each trial while it runs; `best` that of a trial which has
            ended as the best so far; `none` shows no output.
        say: shows the user a text.
        has_styles: the text is shown where colors are visible.
    """

    def __init__(
        self, run: Run, plan: Plan, logs: str, say: Callable[[str], None], has_styles: bool
    ) -> None:
        self._run = run
        self._plan = plan
        self._logs = logs
        self._say = say
        self._has_styles = has_styles
        self._logs_of_attempts: dict[int, _Logs] = {}

    def show_new(self, trial: Trial, last: bool = False) -> None:
        """Show what a trial has printed since the last call.

        Args:
            trial: the trial.
            last: the attempt is over; also show a last line without a line end.
        """
        if self._logs != "all":
            return
        if trial.number not in self._logs_of_attempts:
            self._logs_of_attempts[trial.number] = self._new_logs(trial)
        try:
            self._show_lines(trial, self._logs_of_attempts[trial.number], last)
        finally:
            if last:
                del self._logs_of_attempts[trial.number]

    def show_best(self, trial: Trial) -> None:
        """Show the output of a trial that has ended as the best so far, with `logs="best"`."""
        if self._logs == "best":
            self._show_lines(trial, self._new_logs(trial), last=True)

    def _new_logs(self, trial: Trial) -> "_Logs":
        files = dict(list(self._plan.logs.items())[:MAX_LOGS])
        return _Logs({n: LogTail(storage.join(trial.path, file)) for n, file in files.items()})

    def _show_lines(self, trial: Trial, logs: "_Logs", last: bool) -> None:
        for name, tail in logs.tails.items():
            self._show_tail(trial, name, tail, logs.new_lines(name, last))

    def _show_tail(self, trial: Trial, name: str, tail: LogTail, lines: list[str]) -> None:
        if not self._has_styles:
            lines = [without_styles(line) for line in lines]
        if tail.num_skipped_bytes:
            lines.insert(0, f"... {tail.num_skipped_bytes} bytes are in {tail.url}")
            tail.num_skipped_bytes = 0
        label = name if name and len(self._run.trials) == 1 else f"trial {trial.number} {name}"
        if lines:
            self._say("\n".join(f"[{label.strip()}] {line}" for line in lines))


class _Logs:
    """The logs of all ranks of an attempt, of which equal lines of epochs are read once.

    Args:
        tails: the log of each rank, by its name.
    """

    def __init__(self, tails: dict[str, LogTail]) -> None:
        self.tails = tails
        # How often each rank has printed each line of an epoch, and how often a line was read.
        self._printed: dict[str, Counter[str]] = {name: Counter() for name in tails}
        self._read: Counter[str] = Counter()

    def new_lines(self, name: str, last: bool) -> list[str]:
        """Return what a rank has printed since the last call, without what others have printed.

        All ranks log the metrics of all rows, so that only their times differ.
        """
        tail = self.tails[name]
        lines = [visible_text(line) for line in tail.lines(last) if not is_noise(line)]
        return [line for line in lines if len(self.tails) == 1 or self._is_new(name, line)]

    def _is_new(self, name: str, line: str) -> bool:
        if not _EPOCH.match(text := without_styles(line)):
            return True
        text = _TIMES.sub("", text)
        self._printed[name][text] += 1  # A second `fit` prints the same line again.
        is_new = self._printed[name][text] > self._read[text]
        self._read[text] += is_new
        return is_new
