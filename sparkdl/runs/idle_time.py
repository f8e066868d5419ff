"""Runs on the driver. How much of the slots' time no trial used, and why."""

import time
from collections.abc import Iterable

from sparkdl.runs import Trial

__all__ = ["idle_now", "idle_sentence"]

# Less than this of the time needs no reason.
LITTLE = 0.05

Span = tuple[float, float | None]


def idle_sentence(spans: Iterable[Span], slots: int, begun: float, ended: float) -> str | None:
    """How much of the time from `begun` to `ended` no trial used, in a sentence.

    Args:
        spans: when each attempt started and ended, in seconds; one without an end lasted.
        slots: how many trials could run at once.
        begun, ended: of the run, in the same seconds; spans that began before do not count.

    Example:
        >>> idle_sentence([(0, 10), (0, 10), (10, 20)], 2, 0, 20)
        '25 % idle: last wave 1 trial on 2 slots'
    """
    # Those that began before are of an earlier driver.
    closed = sorted((b, ended if e is None else e) for b, e in spans if b >= begun)
    total = slots * (ended - begun)
    if not closed or total <= 0:
        return None
    # With more trials at once than slots were counted, none is idle.
    idle = max(0.0, total - sum(end - begin for begin, end in closed))
    share = f"{100 * idle / total:.0f} % idle"
    if idle / total < LITTLE:
        return share
    first, last = closed[0][0], closed[-1][0]
    wave = [(max(begin, last), end) for begin, end in closed if end > last]
    causes = {
        "the first trial started after {0:.1f} s": slots * (first - begun),
        "last wave {1} trial{2} on {3} slots": slots * (ended - last) - sum(e - b for b, e in wave),
    }
    causes["between trials"] = idle - sum(causes.values())
    cause = max(causes, key=lambda text: causes[text])
    many = "" if len(wave) == 1 else "s"
    return f"{share}: {cause.format(first - begun, len(wave), many, slots)}"


def idle_now(trials: Iterable[Trial], slots: int, lasted_s: float) -> str | None:
    """The same of trials that ran in the last `lasted_s` seconds; None of less than two."""
    spans = [span for trial in trials for span in trial.spans]
    now = time.time()  # The journal's clock.
    return idle_sentence(spans, slots, now - lasted_s, now) if len(spans) > 1 else None
