"""Runs on the driver (pure). Sentences about a run that goes on, for logs without a terminal."""

import math
from collections import Counter
from collections.abc import Sequence

from sparkdl.runs import Trial, TrialState

# A line each minute at first, and later one in five minutes.
FIRST_S = 60.0
LATER_S = 300.0
NUM_FIRST = 10


class LineTimes:
    """The times at which a run shows that it goes on.

    Args:
        now_s: the time of the start.

    Example:
        >>> times = LineTimes(0.0)
        >>> [second for second in range(0, 1500, 30) if times.is_due(second)][8:]
        [540, 600, 900, 1200]
    """

    def __init__(self, now_s: float) -> None:
        self._next_s = now_s + FIRST_S
        self._num_lines = 0

    def is_due(self, now_s: float) -> bool:
        """Return True, once, when the time of the next line has come."""
        if now_s < self._next_s:
            return False
        self._num_lines += 1
        self._next_s = now_s + (FIRST_S if self._num_lines < NUM_FIRST else LATER_S)
        return True


def progress_text(trials: Sequence[Trial], total: float, elapsed_s: float, best: str) -> str:
    """Return a sentence with the counts of the trials, the best value and the time.

    Args:
        trials: the trials of the run.
        total: the number of trials of the whole run; infinity for a search without an end.
        elapsed_s: seconds since the start.
        best: the best value with its name; empty if there is none.

    Example:
        >>> trials = [Trial(0, {}, "", state=TrialState.COMPLETE)]
        >>> progress_text(trials, 4, 1860, "accuracy 0.93")
        '1 of 4 trials complete, best accuracy 0.93, after 31 min'
    """
    counts = Counter(str(trial.state) for trial in trials)
    of = "" if total == math.inf else f" of {total:g}"
    parts = [f"{counts.pop('COMPLETE', 0)}{of} trials complete"]
    running = counts.pop("RUNNING", 0)
    parts += [f"{running} running"] if running else []
    counts.pop("WAITING", 0)
    parts += [f"{count} {state.lower()}" for state, count in sorted(counts.items())]
    parts += [f"best {best}"] if best else []
    return ", ".join([*parts, f"after {duration_text(elapsed_s)}"])


def estimate_left_s(
    trials: Sequence[Trial], total: float, at_once: int, now_s: float
) -> float | None:
    """Return an estimate of the seconds until the end; None without a trial that has ended.

    Args:
        trials: the trials of the run.
        total: the number of trials of the whole run.
        at_once: the number of trials that run at the same time.
        now_s: seconds since 1970.

    Example:
        >>> done = Trial(0, {}, "", state=TrialState.COMPLETE, spans=[(0.0, 60.0)])
        >>> estimate_left_s([done], 5, at_once=2, now_s=60.0)
        120.0
    """
    measured = [
        t for t in trials if t.state in (TrialState.COMPLETE, TrialState.PRUNED) and t.spans
    ]
    if not measured or total == math.inf:
        return None
    lasted_s = [sum((end or now_s) - begin for begin, end in trial.spans) for trial in measured]
    mean_s = sum(lasted_s) / len(lasted_s)
    running = [t for t in trials if t.state == TrialState.RUNNING and t.spans]
    left_s = [max(0.0, mean_s - (now_s - trial.spans[-1][0])) for trial in running]
    num_final = sum(trial.state.is_final for trial in trials)
    num_coming = max(0.0, total - num_final - len(running))
    at_once = max(1, min(at_once, int(num_coming) + len(running)))
    return max([(num_coming * mean_s + sum(left_s)) / at_once, *left_s])


def duration_text(seconds: float) -> str:
    """Return a duration in words.

    Example:
        >>> [duration_text(s) for s in (12, 240, 5400)]
        ['12 s', '4 min', '1.5 h']
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
