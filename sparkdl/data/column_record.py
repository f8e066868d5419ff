"""Runs anywhere. A record of what training told a reader about its columns, for predictions."""

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import Any

import numpy as np

from sparkdl.files.typed_json import decoded, encoded

# Values of `fill` beside those of JSON: how each is written as text, and read again. A datetime
# is a date, too, and comes first.
_TEXTS: Mapping[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "datetime": (
        datetime.datetime,
        datetime.datetime.isoformat,
        datetime.datetime.fromisoformat,
    ),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "decimal": (Decimal, str, Decimal),
}


@dataclass(frozen=True, kw_only=True)
class ColumnRecord:
    """The columns that a reader has read in training, and the arguments that are about them.

    Attributes:
        data: the source as the user would call it.
        features, labels: see `ColumnSelection`.
        fill, pad, decode: the arguments of the reader, by column.
        types: the Arrow type of each feature column that is stored, if the source has such types.
        function: the name and the place of the function of `map`; None without one.
        computed: the columns that the function returns.
    """

    data: str
    features: Any
    labels: Any = None
    fill: Mapping[str, Any] = field(default_factory=dict)
    pad: Mapping[str, Any] = field(default_factory=dict)
    decode: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    function: str | None = None
    computed: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON can hold it, without what is empty.

        Example:
            >>> ColumnRecord(data="train", features=["a", "b"], fill={"a": 0}).to_dict()
            {'data': 'train', 'features': {'list': ['a', 'b']}, 'fill': {'a': 0}}
        """
        values = {
            "data": self.data,
            "features": encoded(self.features),
            "labels": encoded(self.labels),
            "fill": {name: encoded(value, _as_text) for name, value in self.fill.items()},
            "pad": {name: encoded(value, _as_text) for name, value in self.pad.items()},
            "decode": {name: str(np.dtype(kind)) for name, kind in self.decode.items()},
            "types": dict(self.types),
            "function": self.function,
            "computed": list(self.computed),
        }
        return {name: value for name, value in values.items() if value not in (None, {}, [])}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ColumnRecord":
        """Return the record that `to_dict` has returned, or that of a later version."""
        names = {each.name for each in fields(cls)}
        kept = {name: value for name, value in values.items() if name in names}
        for name in ("features", "labels"):
            kept[name] = decoded(kept.get(name))
        for name in ("fill", "pad"):
            kept[name] = {key: _value(each) for key, each in kept.get(name, {}).items()}
        return cls(**{**kept, "computed": tuple(kept.get("computed", ()))})


def _as_text(value: Any, where: Any) -> Any:
    for name, (kind, write, _) in _TEXTS.items():
        if isinstance(value, kind):
            return {name: write(value)}
    return {"other": repr(value)}


def _value(value: Any) -> Any:
    found = decoded(value, lambda kind, text: _TEXTS[kind][2](text) if kind in _TEXTS else text)
    return found[()] if isinstance(found, np.ndarray) else found
