"""Runs on the driver. The result of training a trial again, and where results are kept.

The results of a run are beside it, as the run itself is never written to:

```
<root>/.verified/<run id>/<id of the new training>.json  a result
                         /<id of the new training>/      its run directory, if something differs
```
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sparkdl.files import storage
from sparkdl.files.jsonl import from_json, to_json
from sparkdl.files.layout import place_of_verifications
from sparkdl.runs.differences import Difference
from sparkdl.runs.states import TextEnum
from sparkdl.runs.verification.causes import Cause, CauseKind
from sparkdl.runs.verification.mismatch import Mismatch
from sparkdl.runs.verification.trials import Compared

MAX_SHOWN = 20

_logger = logging.getLogger("sparkdl.runs")


class Verdict(TextEnum):
    """The answer. Equal to its name: `verification.verdict == "equal"`."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The result of `experiment.verify`.

    Attributes:
        run: the id of the run.
        trial: the number of the trial.
        verdict: `equal` if all results that were compared are the same to the last bit,
            `different` if one is not, `unknown` if the trial has kept no result.
        mismatches: the results that differ.
        causes: where it may come from that they differ.
        differences: what differs between the two trainings, as of `run.differences`.
        compared: the results that were compared.
        ignored: the names of metrics and returned values that were left out.
        trainings: the run directories of the new trainings, which are removed if all is equal.
        time: the time of the verification, in ISO 8601.
        versions: the versions of Python, sparkdl and others with which it was made.
    """

    run: str
    trial: int
    verdict: Verdict
    mismatches: Sequence[Mismatch] = ()
    causes: Sequence[Cause] = ()
    differences: Sequence[Difference] = ()
    compared: Compared = field(default_factory=Compared)
    ignored: Sequence[str] = ()
    trainings: Sequence[str] = ()
    time: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool:
        """True if the verdict is `equal`."""
        return self.verdict == Verdict.EQUAL

    def __str__(self) -> str:
        return "\n".join(
            [f"Trial {self.trial} of run {self.run}: {self._answer()}", *self._lines()]
        )

    def _answer(self) -> str:
        if self.verdict == Verdict.EQUAL:
            return "bit-equal"
        if self.verdict == Verdict.UNKNOWN:
            return "unknown, as the trial has kept no result that can be compared"
        return f"different in {len(self.mismatches)} results"

    def _lines(self) -> list[str]:
        lines = [f"  {one}" for one in self.mismatches[:MAX_SHOWN]]
        if hidden := len(self.mismatches) - MAX_SHOWN:
            lines += [f"  and {hidden} more"] if hidden > 0 else []
        if self.causes:
            lines += ["It may come from", *(f"  {cause}" for cause in self.causes)]
        lines.append(f"Compared: {self.compared}")
        if self.ignored:
            lines.append(f"Ignored: {', '.join(self.ignored)}")
        if self.verdict != Verdict.EQUAL:
            lines += [f"The new training is in {path}" for path in self.trainings]
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return the verification as a JSON object; `from_dict` reads it."""
        return {**asdict(self), "verdict": str(self.verdict)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Verification":
        """Create a verification from its JSON object; a later version may have written more."""
        names = {each.name for each in fields(cls)}
        known = {name: value for name, value in content.items() if name in names}
        return cls(
            **{
                **known,
                "verdict": Verdict(known["verdict"]),
                "mismatches": [Mismatch(**each) for each in known["mismatches"]],
                "causes": [
                    Cause(kind=CauseKind(each["kind"]), text=each["text"])
                    for each in known["causes"]
                ],
                "differences": [
                    Difference(**{**each, "lines": tuple(each["lines"])})
                    for each in known["differences"]
                ],
                "compared": Compared(**known["compared"]),
            }
        )


def write_verification(place: str, name: str, verification: Verification) -> None:
    """Write a verification, for `read_verifications`.

    Args:
        place: the folder of the verifications of the run.
        name: the id of the new training.
        verification: the result.
    """
    text = to_json(verification.to_dict(), indent=1)
    storage.write(storage.join(place, f"{name}.json"), text)


def read_verifications(path: str, root: str | None = None) -> list[Verification]:
    """Return the verifications of a run, oldest first.

    Args:
        path, root: see `place_of_verifications`.
    """
    place = place_of_verifications(path, root)
    names = [name for name in storage.list_names(place) if name.endswith(".json")]
    texts = storage.read_many(storage.join(place, name) for name in names)
    found = []
    for url, text in texts.items():
        try:
            found.append(Verification.from_dict(from_json(text)))
        except (ValueError, LookupError, TypeError, AttributeError) as exc:
            _logger.warning("left out: %s is no verification: %r", url, exc)
    return sorted(found, key=lambda each: each.time)
