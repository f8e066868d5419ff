"""Compare what the runs of the soak did with what they promise."""

import math
import statistics
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from lib.soak.faults import STOP_S, Fault

__all__ = ["check_ends", "check_single_calls", "count", "leftovers", "time_to_notice"]

# What a failure may say: that a process was killed, lost, silent or had no disk. Anything else is
# an error of ours, since the functions have none.
EXPECTED_ERRORS = (
    "SIGKILL",
    "was killed",
    "lost",
    "No space left",
    "no space",
    "hangs",
    "silent",
    "PeerLost",
    "Connection",
    "Broken pipe",
    "did not start",
    "exited unexpectedly",
    # Of the driver's own Java, by Spark, py4j and sparkdl.
    "Spark has ended",
    "SparkContext",
    "Java side",
)
# A process that is killed in this time around its end is rightly run again.
WINDOW_S = 3.0


def check_ends(ends: list[dict[str, Any]]) -> list[str]:
    """Return a sentence for each run that gave a wrong result, or did not end as promised."""
    found = []
    for end in ends:
        who = f"{end['kind']} {end.get('run')} of driver {end['driver']}"
        if end.get("wrong"):
            found.append(f"{who}: wrong results {end['wrong']}")
        message = end.get("error") or end.get("other_error") or ""
        if message and not any(text in message for text in EXPECTED_ERRORS):
            found.append(f"{who}: {message[:500]}")
        for trial in end.get("trials", ()):
            if trial["state"] in ("RUNNING", "WAITING"):
                found.append(f"{who}: trial {trial['number']} is {trial['state']} after the end")
            error = trial["error"] or ""
            if trial["state"] == "FAILED" and not any(text in error for text in EXPECTED_ERRORS):
                found.append(f"{who}: trial {trial['number']} failed: {error[:500]}")
    return found


def check_single_calls(
    notes: list[dict[str, Any]], ends: list[dict[str, Any]], faults: list[Fault]
) -> list[str]:
    """Return a sentence for each trial whose function ran to its end again without reason."""
    returned = defaultdict(list)
    for note in notes:
        if note["what"] == "end" and note["rank"] == 0:
            returned[note["run"], note["trial"]].append(note["t"])
    roots = {
        end.get("run"): _root(end["driver"])
        for end in ends
        if end["kind"].startswith(("launch", "search", "promote", "pbt"))
    }
    found = []
    for (run, trial), times in returned.items():
        hits = [fault for fault in faults if _root(fault.driver) == roots.get(run)]
        for earlier in sorted(times)[:-1] if run in roots else ():
            if not any(_covers(fault, earlier) for fault in hits):
                found.append(f"trial {trial} of {run} returned {len(times)} times")
    return found


def _root(driver: str) -> str:
    """Return the root of a driver: drivers are named by it, with a number."""
    return driver.rpartition("-")[0]


def _covers(fault: Fault, at: float) -> bool:
    """Return True if a fault may have hit the end of a process at this time."""
    lasts_s = STOP_S[1] if fault.kind.startswith("stopped") else 0.0
    return -WINDOW_S - lasts_s < fault.at - at < WINDOW_S


def time_to_notice(
    faults: list[Fault], notes: list[dict[str, Any]], ends: list[dict[str, Any]]
) -> dict[str, dict[str, float]]:
    """Return how long it took until a killed training process began again, or its run had ended."""
    seconds = defaultdict(list)
    for fault in faults:
        if fault.run is None or fault.kind.startswith("stopped"):
            continue
        begins = [
            n["t"] - fault.at
            for n in notes
            if n["what"] == "begin" and (n["run"], n["trial"]) == (fault.run, fault.trial)
        ]
        ended = [end["t"] - fault.at for end in ends if end.get("run") == fault.run]
        if later := [s for s in begins + ended if s > 0]:
            seconds[fault.kind].append(min(later))
    return {kind: _summary(values) for kind, values in seconds.items()}


def _summary(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "count": len(ordered),
        "median_s": round(statistics.median(ordered), 2),
        "p95_s": round(ordered[math.ceil(0.95 * len(ordered)) - 1], 2),
        "max_s": round(ordered[-1], 2),
    }


def leftovers(temporary: Path) -> list[str]:
    """Return the names of sparkdl's files and folders in a temporary folder."""
    left = [path for path in temporary.glob("sparkdl-*") if path.name != "sparkdl-gpus"]
    return [str(path) for path in left if path.is_symlink() or any(path.rglob("*"))]


def count(ends: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return how many verbs of each kind ended in which state."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for end in ends:
        state = end.get("state") or ("error" if "error" in end else "other error")
        counts[end["kind"]][state] += 1
    return {kind: dict(states) for kind, states in sorted(counts.items())}
