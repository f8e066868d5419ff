"""Runs anywhere (pure). The selection of the columns for features, labels and weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.errors import ConfigError, suggest

# A column's name; a list of names, stacked into one tensor; a tuple; or a dict with keys of the
# user's choice.
Choice = str | list[str] | tuple[Any, ...] | dict[str, Any]


@dataclass(frozen=True)
class ColumnSelection:
    """The columns that make the features, the labels and the weights, and their structure.

    Attributes:
        features: a column's name for one tensor; a list of names for one tensor with their values
            side by side; a tuple of such selections, or a dict of them with any keys.
        labels: the same for the labels; None for elements of features only.
        weights: the column with the weight of each row in the loss; None for elements without.
    """

    features: Choice
    labels: Choice | None = None
    weights: str | None = None

    @classmethod
    def among(
        cls, columns: Sequence[str], features: Any, labels: Any, weights: Any = None
    ) -> "ColumnSelection":
        """Create a selection among the columns of a dataset.

        Args:
            columns: names of the columns of the dataset.
            features: see `ColumnSelection`; None selects all columns that are neither labels nor
                weights.
            labels: see `ColumnSelection`.
            weights: see `ColumnSelection`.

        Raises:
            ConfigError: if a selected column does not exist, or there are weights without labels.

        Example:
            >>> ColumnSelection.among(["x", "y"], None, "y")
            ColumnSelection(features='x', labels='y', weights=None)
        """
        if weights is not None and (labels is None or not isinstance(weights, str)):
            raise ConfigError(
                f"weight_col is {weights!r} and label_cols is {labels!r}; expected the name of a "
                "column whose numbers weigh the loss of each row, and labels."
            )
        for name in [*_names(features), *_names(labels), *_names(weights)]:
            if name not in columns:
                raise ConfigError(
                    f"there is no column {name!r}.{suggest(name, columns)} Columns are "
                    f"{', '.join(columns)}."
                )
        if features is None:
            others = [*_names(labels), *_names(weights)]
            rest = [name for name in columns if name not in others]
            if not rest:
                kind = "labels" if weights is None else "labels or weights"
                raise ConfigError(f"all columns are {kind}: {', '.join(columns)}.")
            features = rest[0] if len(rest) == 1 else {name: name for name in rest}
        return cls(features, labels, weights)

    @property
    def names(self) -> list[str]:
        """The names of the selected columns, each once."""
        names = [*_names(self.features), *_names(self.labels), *_names(self.weights)]
        return list(dict.fromkeys(names))

    def pick(self, values: Mapping[str, Any], stack: Callable[[list[str], list[Any]], Any]) -> Any:
        """Arrange values as features, `(features, labels)` or `(features, labels, weights)`.

        Args:
            values: one value for each column, by name.
            stack: combines the values of a list of columns into one, given the names of the columns
                and their values.
        """
        features = _pick(values, self.features, stack)
        if self.labels is None:
            return features
        labels = _pick(values, self.labels, stack)
        if self.weights is None:
            return features, labels
        return features, labels, values[self.weights]


def _names(choice: Any) -> list[str]:
    if choice is None:
        return []
    if isinstance(choice, str):
        return [choice]
    if isinstance(choice, Mapping):
        choice = tuple(choice.values())
    kinds: Any = str if isinstance(choice, list) else str | list | tuple | Mapping
    parts = choice if isinstance(choice, list | tuple) else ()
    if not parts or not all(isinstance(part, kinds) for part in parts):
        raise ConfigError(
            f"columns are chosen by {choice!r}; expected a column's name, or a list, tuple or dict "
            "of names. A list, which is stacked into one tensor, may hold names only."
        )
    return [name for part in choice for name in _names(part)]


def _pick(values: Mapping[str, Any], choice: Any, stack: Callable[..., Any]) -> Any:
    if isinstance(choice, str):
        return values[choice]
    if isinstance(choice, list):
        return stack(choice, [values[name] for name in choice])
    if isinstance(choice, tuple):
        return tuple(_pick(values, part, stack) for part in choice)
    return {key: _pick(values, part, stack) for key, part in choice.items()}


def stacked_dtype(dtypes: Sequence[Any]) -> Any:
    """Return the dtype of columns stacked side by side; float32 and integers give float32.

    Numbers of the stack that the dtype cannot represent are found by
    `exact_numbers.first_inexact`.

    Raises:
        ConfigError: if strings are mixed with numbers.

    Example:
        >>> stacked_dtype([np.int64, np.float32])
        dtype('float32')
    """
    kinds = {np.dtype(d) for d in dtypes}
    if len(kinds) == 1:
        return kinds.pop()
    if np.dtype(object) in kinds:
        raise ConfigError(
            "a list of columns is stacked into one tensor, and strings cannot be stacked with "
            "numbers. Choose the columns as a tuple or a dict."
        )
    floats = [kind for kind in kinds if kind.kind == "f"]
    # NumPy would promote int64 and float32 to float64, twice the size that a network computes in.
    return np.result_type(*floats, np.float32) if floats else np.result_type(*kinds)


def inexact_message(names: Sequence[str], name: str, value: Any, dtype: Any) -> str:
    """Return the error message for a number that a stack of columns cannot represent.

    Args:
        names: the columns that are stacked into one tensor.
        name: the column of the number.
        value: the number.
        dtype: the dtype of the tensor.
    """
    spark_type = "double" if np.dtype(dtype).itemsize > 4 else "float"
    wider = "" if spark_type == "double" else ", or cast a column to double"
    return (
        f"column {name!r} has {value}, which {np.dtype(dtype)} cannot represent: the columns "
        f"{', '.join(names)} are stacked into one tensor of {np.dtype(dtype)}. Choose the columns "
        f"as a tuple or a dict, so that each column keeps its type{wider}. To accept rounded "
        f"numbers, cast {name!r} to {spark_type}."
    )
