"""Runs on the driver. Describe the share of the slots' time that no trial used, and the cause."""

import time
from collections.abc import Iterable

from sparkdl.runs import Trial

# A smaller share needs no explanation.
NEGLIGIBLE_SHARE = 0.05

Span = tuple[float, float | None]


def idle_sentence(spans: Iterable[Span], slots: int, begin_s: float, end_s: float) -> str | None:
    """Return a sentence about the share of the slots' time that no trial used.

    Args:
        spans: the start and the end of each attempt, in seconds; an attempt without an end lasted
            until `end_s`.
        slots: number of trials that could run at once.
        begin_s: start of the run, in the same seconds. Attempts that started before `begin_s` were
            started by an earlier driver and are left out.
        end_s: end of the run, in the same seconds.

    Returns:
        The sentence; None if no attempt started in this time.

    Example:
        >>> idle_sentence([(0, 10), (0, 10), (10, 20)], 2, 0, 20)
        '25 % idle: last wave 1 trial on 2 slots'
    """
    whole_spans = sorted((b, end_s if e is None else e) for b, e in spans if b >= begin_s)
    total = slots * (end_s - begin_s)
    if not whole_spans or total <= 0:
        return None
    # More trials than the counted slots may have run at once; the idle time is then 0.
    idle = max(0.0, total - sum(end - begin for begin, end in whole_spans))
    share = f"{100 * idle / total:.0f} % idle"
    if idle / total < NEGLIGIBLE_SHARE:
        return share
    first, last = whole_spans[0][0], whole_spans[-1][0]
    wave = [(max(begin, last), end) for begin, end in whole_spans if end > last]
    causes = {
        "the first trial started after {0:.1f} s": slots * (first - begin_s),
        "last wave {1} trial{2} on {3} slots": slots * (end_s - last) - sum(e - b for b, e in wave),
    }
    causes["between trials"] = idle - sum(causes.values())
    cause = max(causes, key=lambda text: causes[text])
    plural = "" if len(wave) == 1 else "s"
    return f"{share}: {cause.format(first - begin_s, len(wave), plural, slots)}"


def idle_now(trials: Iterable[Trial], slots: int, lasted_s: float) -> str | None:
    """Return `idle_sentence` for the last `lasted_s` seconds; None for fewer than two attempts."""
    spans = [span for trial in trials for span in trial.spans]
    now = time.time()  # The clock of the journal.
    return idle_sentence(spans, slots, now - lasted_s, now) if len(spans) > 1 else None
