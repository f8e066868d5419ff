"""Runs anywhere (pure). Find whole numbers in CSV text that float64 does not have."""

import math

import pyarrow as pa
import pyarrow.compute as pc

_WHOLE = r"^\s*[+-]?[0-9]+\s*$"
# float64 has all whole numbers of fewer digits.
_LARGE = r"^\s*[+-]?[0-9]{16,}\s*$"
_EXACT = 1 << 53


def are_whole(texts: pa.Array) -> bool:
    """Return True if all texts are whole numbers.

    Example:
        >>> are_whole(pa.array(["1", "-20"])), are_whole(pa.array(["1", "2.5"]))
        (True, False)
    """
    return bool(len(texts) and pc.all(pc.match_substring_regex(texts, _WHOLE)).as_py())


def has_rounded(texts: pa.Array) -> bool:
    """Return True if a text is a whole number that float64 rounds.

    Example:
        >>> has_rounded(pa.array(["0.1", str(2**53)])), has_rounded(pa.array([str(2**53 + 1)]))
        (False, True)
    """
    large = texts.filter(pc.match_substring_regex(texts, _LARGE)).to_pylist()
    return any(int(text) != int(float(text)) for text in large)


def may_be_rounded(values: pa.Array) -> bool:
    """Return True if the text of a value may have been a whole number that float64 rounds.

    Example:
        >>> may_be_rounded(pa.array([0.1, 1e300])), may_be_rounded(pa.array([0.1, None]))
        (True, False)
    """
    extremes = pc.min_max(values).as_py().values()
    return any(n is not None and _EXACT <= abs(n) < math.inf for n in extremes)
