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
        self._tails: dict[int, dict[str, LogTail]] = {}
        # The lines of epochs that each rank of each trial has printed, with their numbers.
        self._epoch_lines: dict[tuple[int, str], Counter[str]] = {}
        self._shown_lines: set[tuple[int, str, int]] = set()

    def show_new(self, trial: Trial, last: bool = False) -> None:
        """Show what a trial has printed since the last call.

        Args:
            trial: the trial.
            last: the attempt is over; also show a last line without a line end.
        """
        if self._logs != "all":
            return
        if trial.number not in self._tails:
            self._tails[trial.number] = self._new_tails(trial)
        try:
            for name, tail in self._tails[trial.number].items():
                self._show_lines(trial, name, tail, last)
        finally:
            if last:
                del self._tails[trial.number]

    def show_best(self, trial: Trial) -> None:
        """Show the output of a trial that has ended as the best so far, with `logs="best"`."""
        if self._logs == "best":
            for name, tail in self._new_tails(trial).items():
                self._show_lines(trial, name, tail, last=True)

    def _new_tails(self, trial: Trial) -> dict[str, LogTail]:
        logs = dict(list(self._plan.logs.items())[:MAX_LOGS])
        return {name: LogTail(storage.join(trial.path, file)) for name, file in logs.items()}

    def _show_lines(self, trial: Trial, name: str, tail: LogTail, last: bool) -> None:
        lines = [visible_text(line) for line in tail.lines(last) if not is_noise(line)]
        if len(self._plan.logs) > 1:
            lines = [line for line in lines if self._is_new(trial.number, name, line)]
        if not self._has_styles:
            lines = [without_styles(line) for line in lines]
        if tail.num_skipped_bytes:
            lines.insert(0, f"... {tail.num_skipped_bytes} bytes are in {tail.url}")
            tail.num_skipped_bytes = 0
        label = name if name and len(self._run.trials) == 1 else f"trial {trial.number} {name}"
        if lines:
            self._say("\n".join(f"[{label.strip()}] {line}" for line in lines))

    def _is_new(self, number: int, rank: str, line: str) -> bool:
        """Return False for a line of an epoch that another rank of the trial has printed, too.

        All ranks log the metrics of all rows, so that only their times differ.
        """
        if not _EPOCH.match(text := without_styles(line)):
            return True
        text = _TIMES.sub("", text)
        of_rank = self._epoch_lines.setdefault((number, rank), Counter())
        of_rank[text] += 1  # A second `fit` prints the same line again.
        key = number, text, of_rank[text]
        is_new = key not in self._shown_lines
        self._shown_lines.add(key)
        return is_new
