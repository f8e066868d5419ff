"""Runs anywhere (pure). A result of a trial that is not the same in a second training."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

ABSENT = "absent"
MAX_TEXT = 80


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """A result that differs between two trainings.

    Attributes:
        what: the result, such as `metric loss`, `returned accuracy` or `file artifacts/w.npy`.
        before: its value in the trial, the first one that differs.
        now: its value in the training after that.
        step: the first step at which it differs; None for what is no metric of a step.
        num_differing: the number of steps, or of numbers in a file, that differ.
        num_compared: the number of steps or numbers that were compared.
        largest: the largest difference of two numbers.
        relative: the largest difference relative to the larger one of the two numbers.
    """

    what: str
    before: str
    now: str
    step: int | None = None
    num_differing: int | None = None
    num_compared: int | None = None
    largest: float | None = None
    relative: float | None = None

    def __str__(self) -> str:
        place = f" first differs at step {self.step}" if self.step is not None else " differs"
        parts = [f"{self.what}{place}: {self.before} before, {self.now} now"]
        if self.num_differing is not None:
            unit = "numbers" if self.step is None else "steps"
            parts.append(f"{self.num_differing} of {self.num_compared} {unit} differ")
        if self.largest is not None:
            relative = f" ({self.relative:.2g} relative)" if self.relative is not None else ""
            parts.append(f"by at most {self.largest:.2g}{relative}")
        return ", ".join(parts)


def is_same(before: Any, now: Any) -> bool:
    """Return True if two JSON values are the same to the last bit; NaN is the same as NaN.

    Example:
        >>> is_same([1.0, float("nan")], [1.0, float("nan")]), is_same(0.0, -0.0), is_same(1, 1.0)
        (True, False, False)
    """
    if type(before) is not type(now):
        return False
    if isinstance(before, float):
        both_nan = before != before and now != now
        return both_nan or struct.pack("d", before) == struct.pack("d", now)
    if isinstance(before, dict):
        return before.keys() == now.keys() and all(is_same(before[k], now[k]) for k in before)
    if isinstance(before, list | tuple):
        return len(before) == len(now) and all(map(is_same, before, now))
    return bool(before == now)


def text_of(value: Any) -> str:
    """Return a value as short text; a float with all of its digits."""
    text = ABSENT if value is None else repr(value)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."


def sizes(pairs: Sequence[tuple[Any, Any]]) -> tuple[float | None, float | None]:
    """Return the largest difference of pairs of numbers, and the largest relative one.

    Example:
        >>> sizes([(1.0, 1.5), (None, 2.0), (8.0, 8.5)])
        (0.5, 0.3333333333333333)
    """
    numbers = [
        (float(a), float(b))
        for a, b in pairs
        if all(isinstance(x, int | float) and math.isfinite(x) for x in (a, b))
    ]
    if not numbers:
        return None, None
    differences = [abs(a - b) for a, b in numbers]
    scales = [max(abs(a), abs(b)) or 1.0 for a, b in numbers]
    return max(differences), max(d / s for d, s in zip(differences, scales, strict=True))


def compare_arrays(
    what: str, before: "np.ndarray[Any, Any]", now: "np.ndarray[Any, Any]"
) -> Mismatch | None:
    """Return the mismatch of two arrays; None if they are the same to the last bit.

    Example:
        >>> import numpy as np
        >>> print(compare_arrays("w", np.array([1.0, 2.0]), np.array([1.0, 2.5])))
        w differs: 2.0 before, 2.5 now, 1 of 2 numbers differ, by at most 0.5 (0.2 relative)
    """
    import numpy as np

    if before.dtype != now.dtype or before.shape != now.shape:
        kinds = [f"{array.dtype} {list(array.shape)}" for array in (before, now)]
        return Mismatch(what=what, before=kinds[0], now=kinds[1])
    if before.dtype.hasobject:
        texts = [repr(array.tolist()) for array in (before, now)]
        if texts[0] == texts[1]:
            return None
        return Mismatch(what=what, before=texts[0][:MAX_TEXT], now=texts[1][:MAX_TEXT])
    if before.tobytes() == now.tobytes():
        return None
    size = before.dtype.itemsize
    rows = [np.frombuffer(array.tobytes(), np.uint8).reshape(-1, size) for array in (before, now)]
    places = np.flatnonzero((rows[0] != rows[1]).any(axis=1))
    values = [array.ravel()[places] for array in (before, now)]
    largest = relative = None
    if before.dtype.kind in "biuf" or before.dtype.name == "bfloat16":
        wide = [array.astype(np.float64) for array in values]
        is_finite = np.isfinite(wide[0]) & np.isfinite(wide[1])
        old, new = (array[is_finite] for array in wide)
        if len(old):
            gaps, scales = np.abs(old - new), np.maximum(np.abs(old), np.abs(new))
            scales[scales == 0] = 1.0
            largest, relative = float(gaps.max()), float((gaps / scales).max())
    firsts = [text_of(value[:1].tolist()[0]) for value in values]
    return Mismatch(
        what=what,
        before=firsts[0],
        now=firsts[1],
        num_differing=len(places),
        num_compared=before.size,
        largest=largest,
        relative=relative,
    )
