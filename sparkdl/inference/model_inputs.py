"""Runs on the driver. The feature columns that go into a model, checked before anything starts."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from sparkdl.data import schema as table
from sparkdl.data.arrow_arrays import Arrays
from sparkdl.data.column_selection import ColumnSelection, stacked_dtype
from sparkdl.data.schema import Column, UnsupportedType
from sparkdl.errors import ConfigError, suggest
from sparkdl.inference.loader import Loaded
from sparkdl.inference.tensor_spec import Tensor, fits

__all__ = ["by_input", "columns_of", "settled"]


def columns_of(schema: Any, names: Sequence[str], **options: Any) -> tuple[Column, ...]:
    """How each of these columns of a DataFrame becomes an array.

    Args:
        schema: the DataFrame's schema.
        names: the columns.
        **options: `fill` and `decode`, see `data.schema.column`.

    Raises:
        ConfigError: a column's type has no array, and all such columns are named; or an option
            is for a column that is none of them.
    """
    for option, given in options.items():
        for name in given or ():
            if name not in names:
                raise ConfigError(
                    f"{option} names {name!r}, which is no feature column.{suggest(name, names)}"
                )
    found, wrong = [], []
    for name in names:
        kind = schema[name].dataType
        try:
            found.append(table.column(pa.field(name, table.arrow_type(kind)), **options))
        except UnsupportedType as exc:
            wrong.append(f"feature column {name!r} is {kind.simpleString()}: {exc}")
    if wrong:
        raise ConfigError("\n".join(wrong))
    return tuple(found)


def by_input(model: Loaded, features: Any) -> tuple[Any, ...]:
    """The chosen columns of each input, in the model's order.

    Args:
        model: what takes them.
        features: a column's name or a list of names for the one input; a tuple, by position, or
            a dict, by input, for several.

    Raises:
        ConfigError: they are not those that the model takes.
    """
    names = [tensor.name for tensor in model.inputs]
    if isinstance(features, Mapping):
        if set(features) != set(names):
            raise ConfigError(
                f"feature_cols names the inputs {', '.join(map(repr, features))}; the model's "
                f"are {', '.join(map(repr, names))}."
            )
        return tuple(features[name] for name in names)
    parts = features if isinstance(features, tuple) else (features,)
    if len(parts) != len(names) or (model.by_name and len(names) > 1):
        example = "{" + ", ".join(f"{name!r}: ..." for name in names) + "}"
        raise ConfigError(
            f"feature_cols={features!r} is for {len(parts)} input(s); the model takes "
            f"{len(names)}: {', '.join(map(str, model.inputs))}. Say which columns go where: "
            f"feature_cols={example}" + ("." if model.by_name else ", or a tuple in that order.")
        )
    return tuple(parts)


def settled(
    inputs: Sequence[Tensor], wanted: ColumnSelection, columns: Sequence[Column]
) -> tuple[Tensor, ...]:
    """The inputs, with what the model does not say taken from the columns that go in.

    Args:
        inputs: the model's.
        wanted: a tuple of the columns of each.
        columns: how each column becomes an array.

    Raises:
        ConfigError: columns do not go into an input: other numbers of values, or another kind.
    """
    Arrays(columns, wanted)  # Refuses what cannot be stacked.
    known = {column.name: column for column in columns}
    found = []
    for tensor, choice in zip(inputs, wanted.features, strict=True):
        parts = [known[name] for name in ColumnSelection(choice).names]
        dtype = stacked_dtype([part.dtype for part in parts])
        shape = _shape(parts, isinstance(choice, list))
        kind = tensor.dtype or _default_dtype(dtype)
        _check_kind(tensor, dtype, kind, choice)
        if tensor.shape is not None and not fits(shape, tensor.shape):
            raise ConfigError(
                f"the model's input {tensor} takes other rows than feature_cols "
                f"{choice!r} give: their shape is {list(shape)}."
            )
        found.append(Tensor(tensor.name, shape if tensor.shape is None else tensor.shape, kind))
    return tuple(found)


def _shape(parts: Sequence[Column], is_list: bool) -> tuple[int | None, ...]:
    if not is_list:
        return (None,) * parts[0].depth
    return (None if any(part.depth for part in parts) else len(parts),)


def _default_dtype(dtype: Any) -> str:
    if dtype.kind == "O":
        return "string"
    return "float32" if dtype.kind == "f" else str(dtype)  # What Keras computes in.


def _check_kind(tensor: Tensor, dtype: Any, kind: str, chosen: Any) -> None:
    """Numbers become numbers, but never fractions whole numbers."""
    takes_text, is_text = kind == "string", dtype.kind == "O"
    takes_fractions = kind.startswith(("float", "bfloat"))
    if takes_text == is_text and (takes_fractions or is_text or dtype.kind != "f"):
        return
    given = "text" if is_text else str(dtype)
    raise ConfigError(
        f"the model's input {tensor.name!r} takes {kind}, and feature_cols {chosen!r} give "
        f"{given}. Cast the columns."
    )
