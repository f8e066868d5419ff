"""Runs anywhere (pure). Sentences about the ranks of a gang."""

from sparkdl.runs.events import GangEvent, GangResized, RankSlow


def rank_text(event: GangEvent) -> str:
    """Return a sentence about a rank, or about the number of ranks, for the user.

    Example:
        >>> place = {"number": 0, "rank": 1, "name": "worker 1", "host": "b"}
        >>> rank_text(RankSlow(**place, wait_s=0.12, step_s=0.25, waits_for_rows=True))
        'worker 1 (rank 1) on host b is slow: the other ranks wait 120 ms for it in each step of \
250 ms, as it waits for its rows'
        >>> from sparkdl.runs.events import RankMoved
        >>> rank_text(RankMoved(**place, target="c"))
        'worker 1 (rank 1) has moved from host b to host c'
        >>> rank_text(GangResized(number=0, before=2, after=4, reason="slots were idle"))
        '2 -> 4 workers: slots were idle'
    """
    if isinstance(event, GangResized):
        if event.before == event.after:
            return f"the gang stays at {event.before} workers: {event.reason}"
        return f"{event.before} -> {event.after} workers: {event.reason}"
    who = f"{event.name} (rank {event.rank})"
    if isinstance(event, RankSlow):
        reasons = {True: ", as it waits for its rows", False: ", and not for its rows", None: ""}
        return (
            f"{who} on host {event.host} is slow: the other ranks wait {_duration(event.wait_s)} "
            f"for it in each step of {_duration(event.step_s)}{reasons[event.waits_for_rows]}"
        )
    if event.target is None:
        return f"{who} stays on host {event.host}: {event.reason}"
    return f"{who} has moved from host {event.host} to host {event.target}"


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
