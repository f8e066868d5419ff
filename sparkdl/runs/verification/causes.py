"""Runs on the driver. Name why a trial may have other results when it is trained again.

The causes are of two kinds. What differs between the two trainings, as far as a run records it:
code, data, packages, hardware and so on. And what the program itself does: two trainings under the
same conditions that differ from one another are not determined by their seed.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl.runs.differences import Difference
from sparkdl.runs.states import TextEnum
from sparkdl.runs.trial import Trial
from sparkdl.runs.verification.mismatch import Mismatch
from sparkdl.runs.verification.trials import METRIC, RETURNED

MAX_NAMES = 5


class CauseKind(TextEnum):
    """The kinds of causes. Equal to their names: `cause.kind == "data"`."""

    CODE = "code"
    DATA = "data"
    PACKAGES = "packages"
    HARDWARE = "hardware"
    RANKS = "number of ranks"
    OPTIONS = "options"
    RESTART = "restart"
    CLOCK = "wall clock"
    NOT_DETERMINISTIC = "not deterministic"
    NOT_RECORDED = "not recorded"


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A possible cause of other results.

    Attributes:
        kind: the kind of the cause.
        text: a sentence about the cause.
    """

    kind: CauseKind
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


# The beginnings of the subjects of differences. Of code on disk and of the originals of resources,
# the kept copies are used, so that these are no causes.
_KEPT_COPY = "(the run uses the kept c"
_SUBJECTS = {
    "Python": CauseKind.PACKAGES,
    "package ": CauseKind.PACKAGES,
    "sparkdl": CauseKind.PACKAGES,
    "CPU": CauseKind.HARDWARE,
    "GPUs": CauseKind.HARDWARE,
    "code ": CauseKind.CODE,
    "git commit": CauseKind.CODE,
    "files since commit": CauseKind.CODE,
    "option ": CauseKind.OPTIONS,
    "files of ": CauseKind.DATA,
    "data ": CauseKind.DATA,
    "resource ": CauseKind.DATA,
    "number of ranks": CauseKind.RANKS,
}

# Words, and the units at the ends of names, that tell of a time or of a speed.
_CLOCK_WORDS = {
    *("time", "times", "duration", "elapsed", "seconds", "second", "secs", "sec", "minutes"),
    *("hours", "ms", "latency", "throughput", "wall", "walltime", "timestamp", "clock", "fps"),
    *("runtime", "speed"),
}
# Parts of the paths of the files of a SavedModel.
_SAVED_MODEL = ("/saved_model.pb", "/fingerprint.pb", "/variables/variables.")
_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+")


def tells_time(name: str) -> bool:
    """Return True if the name of a metric tells that its value is a time or a speed.

    Example:
        >>> [tells_time(name) for name in ("epoch_s", "stepTime", "images_per_sec", "loss", "s")]
        [True, True, True, False, False]
    """
    words = [word.lower() for word in _WORD.findall(name)]
    has_unit = len(words) > 1 and words[-1] in ("s", "us", "ns")
    return has_unit or not _CLOCK_WORDS.isdisjoint(words)


def causes_of(
    mismatches: Sequence[Mismatch],
    differences: Sequence[Difference],
    trial: Trial,
    description: Mapping[str, Any],
    varying: Collection[str] | None,
) -> list[Cause]:
    """Return the possible causes, the likely ones first.

    Args:
        mismatches: the results that differ.
        differences: what differs between the two trainings.
        trial: the trial before.
        description: the content of the `run.json` of its run.
        varying: the results that differ between two further trainings, as `Mismatch.what`; None
            if there was one only.
    """
    if not mismatches:
        return []
    clocks = [one for one in mismatches if _is_clock(one, varying)]
    varies = [one for one in mismatches if one not in clocks and one.what in (varying or ())]
    is_open = len(clocks) + len(varies) < len(mismatches)
    recorded = [*_recorded(differences), *_of_the_run(trial, description)]
    causes = [*_clock(clocks), *_not_deterministic(varies, description)]
    if varies or is_open:  # A clock alone needs no other cause.
        causes += recorded
    if is_open and not (recorded or varies):
        causes.append(_not_recorded(varying is not None))
    return causes


def _name_of(mismatch: Mismatch) -> str:
    """Return the name of a metric or of a returned value; empty for other results."""
    for kind in (METRIC, RETURNED):
        head, found, name = mismatch.what.partition(f"{kind} ")
        if found and (not head or head.endswith(": ")):
            return name
    return ""


def _is_clock(mismatch: Mismatch, varying: Collection[str] | None) -> bool:
    name = _name_of(mismatch)
    return bool(name) and tells_time(name) and (varying is None or mismatch.what in varying)


def _clock(clocks: Sequence[Mismatch]) -> Iterator[Cause]:
    if clocks:
        names = list(dict.fromkeys(map(_name_of, clocks)))
        text = (
            f"{_listed(names)} seems to be a time or a speed, which differs in every training; "
            f"ignore={names!r} leaves it out"
        )
        yield Cause(kind=CauseKind.CLOCK, text=text)


def _not_deterministic(
    varies: Sequence[Mismatch], description: Mapping[str, Any]
) -> Iterator[Cause]:
    if not varies:
        return
    saved = [one for one in varies if any(part in one.what for part in _SAVED_MODEL)]
    if saved:
        text = (
            "TensorFlow writes the files of a SavedModel in another order each time, also with "
            "equal weights. Return a .keras file, too, and leave the SavedModel out by ignore="
        )
        yield Cause(kind=CauseKind.NOT_DETERMINISTIC, text=text)
    what = _listed([one.what for one in varies if one not in saved])
    if not what:
        return
    remedy = "random numbers without the seed, threads, the time, or the order of files or of a set"
    if description.get("framework") == "tensorflow":
        remedy += (
            "; or operations of TensorFlow that round sums in another order, which "
            "tf.config.experimental.enable_op_determinism() in the function avoids"
        )
    elif description.get("framework") == "torch":
        remedy += (
            "; or operations of PyTorch that round sums in another order, which "
            "torch.use_deterministic_algorithms(True) in the function avoids"
        )
    text = f"two trainings here differ from one another in {what}: {remedy}"
    yield Cause(kind=CauseKind.NOT_DETERMINISTIC, text=text)


def _recorded(differences: Sequence[Difference]) -> Iterator[Cause]:
    """Yield a cause for each difference that was recorded; the packages are one."""
    packages = []
    for one in differences:
        kind = next((k for name, k in _SUBJECTS.items() if one.subject.startswith(name)), None)
        if kind is None or _KEPT_COPY in one.subject:
            continue
        text = str(one).split("\n")[0]
        if kind == CauseKind.PACKAGES:
            packages.append(text)
        else:
            yield Cause(kind=kind, text=text)
    if packages:
        yield Cause(kind=CauseKind.PACKAGES, text=_listed(packages))


def _of_the_run(trial: Trial, description: Mapping[str, Any]) -> Iterator[Cause]:
    """Yield what the run tells about itself."""
    if trial.attempts > 1:
        text = (
            f"the trial had {trial.attempts} attempts, of which each goes on from a checkpoint; it "
            "was now trained in one"
        )
        yield Cause(kind=CauseKind.RESTART, text=text)
    if description.get("request", {}).get("elastic"):
        text = "the gang was elastic: ranks may have been lost, and may have joined, meanwhile"
        yield Cause(kind=CauseKind.RANKS, text=text)
    if names := description.get("env"):
        text = f"the values of env={{{', '.join(names)}}} were not kept, and were given again"
        yield Cause(kind=CauseKind.OPTIONS, text=text)


def _not_recorded(is_repeated: bool) -> Cause:
    text = "nothing that the run has recorded differs"
    if is_repeated:
        text += ", and two trainings here are equal"
    text += (
        ": something that is not recorded, such as files that the function reads without sparkdl, "
        "variables of the environment, or libraries of the system"
    )
    return Cause(kind=CauseKind.NOT_RECORDED, text=text)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more
