"""Runs anywhere (pure). Names of trials in TensorBoard, made of their parameters."""

import re
from collections.abc import Mapping
from typing import Any

from sparkdl.runs.table import cell

# A name is the name of a folder, of at most 255 bytes. A longer one cannot be read anyway.
MAX_BYTES = 120
MAX_VALUE = 30

_UNSAFE = re.compile(r"[^\w.+-]+")
_CUT = "..."


def name_of(number: int, params: Mapping[str, Any], run: str) -> str:
    """Return the name of a trial, which no other trial of the run has.

    Characters that are neither letters nor digits become `_`. A long name is cut.

    Args:
        number: the number of the trial.
        params: the parameters of the trial.
        run: the name of the run, for a trial without parameters.

    Example:
        >>> name_of(0, {"learning_rate": 0.1, "layers": [64, 32]}, "digits")
        '0-learning_rate=0.1,layers=64_32'
        >>> name_of(3, {}, "digits")
        '3-digits'
    """
    pairs = [f"{_safe(name)}={_safe(cell(value, MAX_VALUE))}" for name, value in params.items()]
    name = f"{number}-{','.join(pairs) or _safe(run)}"
    data = name.encode()
    if len(data) <= MAX_BYTES:
        return name
    return data[: MAX_BYTES - len(_CUT)].decode(errors="ignore") + _CUT


def _safe(text: str) -> str:
    return _UNSAFE.sub("_", text).strip("_")
