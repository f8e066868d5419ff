"""Runs on the driver. The columns that a model was trained with, which predictions use again."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructType

from sparkdl.data import schema as data_schema
from sparkdl.data.column_record import ColumnRecord
from sparkdl.data.column_selection import ColumnSelection
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.files.jsonl import from_json
from sparkdl.inference.resolve import trial_of
from sparkdl.runs import Run, Trial
from sparkdl.runs.lineage import RECORD

_logger = logging.getLogger("sparkdl.inference")

_ADVICE = (
    "Compute it in df in the same way, or predict with a class that calls the function before the "
    "model, see docs/tabular.md"
)


@dataclass(frozen=True)
class TrainedColumns:
    """A record of the columns that training told its readers of.

    Attributes:
        source: the trial or the version that the model belongs to.
        records: a record for each reader with arguments of its own; none for a model of which
            nothing is known.
    """

    source: str
    records: tuple[ColumnRecord, ...] = ()

    @classmethod
    def of(cls, model: Any) -> "TrainedColumns":
        """Return the columns of a model: of a run, a trial, or a version of an exported model."""
        if isinstance(model, Run):
            model = trial_of(model)
        if isinstance(model, Trial):
            lines, source = model.columns, f"trial {model.number} of {model.path}"
        elif isinstance(model, str | os.PathLike):
            source = storage.absolute(model)
            record = storage.join(source, RECORD)
            content = from_json(storage.read(record)) if storage.exists(record) else {}
            lines = content.get("lineage", {}).get("columns", [])
        else:
            return cls(type(model).__name__)
        records = [ColumnRecord.from_dict(line) for line in lines]
        # Rows without labels may be read for something else, such as a vocabulary.
        labelled = [record for record in records if record.labels is not None]
        return cls(source, tuple(labelled or records))

    def features(self) -> Any:
        """Return the feature columns of the training.

        Raises:
            ConfigError: if they are not known, or several were used.
        """
        found: list[Any] = []
        for record in self.records:
            if record.features not in found:
                found.append(record.features)
        if len(found) == 1:
            return found[0]
        known = f"its training has read {' and '.join(map(repr, found))}"
        raise ConfigError(
            f"feature_cols is missing, and the model of {self.source} does not tell them: "
            f"{known if found else 'there is no record of its training'}. Pass a column's name, a "
            "list of names that are put side by side, or a tuple or dict for several inputs."
        )

    def check(self, schema: StructType, feature_cols: Any) -> None:
        """Compare the columns of a prediction with those of the training.

        Raises:
            ConfigError: if columns are in another order, or dates have become timestamps or
                numbers, or the reverse; or if a column is missing that `map` has computed.
        """
        names = ColumnSelection(feature_cols).names
        for record in self.records:
            computed = [name for name in names if name in record.computed]
            if not computed:
                continue
            how = f"in training, the function {record.function} of map= has computed"
            if missing := [name for name in computed if name not in schema.names]:
                raise ConfigError(
                    f"there is no column {missing[0]!r} in df: {how} it, and predict does not call "
                    f"the function. {_ADVICE}."
                )
            text = "%s %s, and predict takes the columns of df as they are. %s"
            _logger.warning(text, how, ", ".join(map(repr, computed)), _ADVICE)
        self._check_order(feature_cols)
        self._check_types(schema, names)

    def _check_order(self, feature_cols: Any) -> None:
        trained = [part for record in self.records for part in _parts(record.features)]
        for part in _parts(feature_cols):
            same = [other for other in trained if _is_reordered(part, other)]
            if same and part not in same:
                raise ConfigError(
                    f"feature_cols has {part!r}, and the model of {self.source} was trained with "
                    f"{same[0]!r}: it would take one column for another. Use this order, or leave "
                    "feature_cols out. For a model that has to get another order, pass the path "
                    "of its file as model."
                )

    def _check_types(self, schema: StructType, names: Sequence[str]) -> None:
        for record in self.records:
            for name in names:
                if name not in schema.names or name not in record.types:
                    continue
                with suppress(data_schema.UnsupportedType):  # It is refused later.
                    now = str(data_schema.arrow_type(schema[name].dataType))
                    if _unit(now) != _unit(record.types[name]):
                        raise ConfigError(
                            f"column {name!r} is {schema[name].dataType.simpleString()}, and was "
                            f"{record.types[name]} when the model of {self.source} was trained: "
                            "dates count days and timestamps microseconds, so that the numbers "
                            "would be others. Cast the column to its type in the training, or "
                            "train on a column of this type."
                        )

    def options(
        self, schema: StructType, names: Sequence[str], fill: Any, decode: Any
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return `fill` and `decode` of the caller, completed by those of the training.

        Raises:
            ConfigError: if readers of the training have used different values.
        """
        fill, decode = dict(fill or {}), dict(decode or {})
        for name in names:
            if name not in fill and (value := self._value("fill", name)) is not None:
                fill[name] = value
                text = "nulls of %r become %r, as in training; fill= takes another value"
                _logger.info(text, name, value)
            is_binary = name in schema.names and schema[name].dataType.typeName() == "binary"
            if is_binary and name not in decode and (kind := self._value("decode", name)):
                decode[name] = kind
        return fill, decode

    def pads(self, names: Sequence[str], pad: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the values of `pad` in training for columns that the caller does not pad.

        Raises:
            ConfigError: if readers of the training have used different values.
        """
        others = [name for name in names if name not in (pad or {})]
        values = {name: self._value("pad", name) for name in others}
        return {name: value for name, value in values.items() if value is not None}

    def _value(self, option: str, name: str) -> Any:
        """Return the value of an option for a column; None if no reader had one."""
        values = [getattr(r, option)[name] for r in self.records if name in getattr(r, option)]
        others = [value for value in values if value != values[0]]
        if others:
            raise ConfigError(
                f"column {name!r} had the values {values[0]!r} and {others[0]!r} for {option} when "
                f"the model of {self.source} was trained. Pass {option}={{{name!r}: ...}}."
            )
        return values[0] if values else None


def _parts(choice: Any) -> Iterator[Any]:
    """Yield the lists, tuples and dicts of a choice of columns."""
    if isinstance(choice, list | tuple | Mapping):
        yield choice
        for part in choice.values() if isinstance(choice, Mapping) else choice:
            yield from _parts(part)


def _is_reordered(choice: Any, other: Any) -> bool:
    """Return True if two choices are of one kind, and have the same columns in any order."""
    if type(choice) is not type(other):
        return False
    if isinstance(choice, Mapping) and set(choice) != set(other):
        return False
    return set(ColumnSelection(choice).names) == set(ColumnSelection(other).names)


def _unit(arrow_type: str) -> str:
    for unit in ("date", "timestamp"):
        if unit in arrow_type:
            return unit
    return "number"
