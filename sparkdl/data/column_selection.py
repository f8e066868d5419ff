"""Runs anywhere (pure). The selection of the columns that make the features and the labels."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.errors import ConfigError, suggest

__all__ = ["ColumnSelection", "stacked_dtype"]

# A column's name; a list of names, stacked into one tensor; a tuple; or a dict with keys of the
# user's choice.
Choice = str | list[str] | tuple[Any, ...] | dict[str, Any]


@dataclass(frozen=True)
class ColumnSelection:
    """The columns that make the features and the labels, and their structure.

    Attributes:
        features: a column's name for one tensor; a list of names for one tensor with their values
            side by side; a tuple of such selections, or a dict of them with any keys.
        labels: the same for the labels; None for elements of features only.
    """

    features: Choice
    labels: Choice | None = None

    @classmethod
    def among(cls, columns: Sequence[str], features: Any, labels: Any) -> "ColumnSelection":
        """Create a selection among the columns of a dataset.

        Args:
            columns: names of the columns of the dataset.
            features: see `ColumnSelection`; None selects all columns that are not labels.
            labels: see `ColumnSelection`.

        Raises:
            ConfigError: if a selected column does not exist.

        Example:
            >>> ColumnSelection.among(["x", "y"], None, "y")
            ColumnSelection(features='x', labels='y')
        """
        for name in [*_names(features), *_names(labels)]:
            if name not in columns:
                raise ConfigError(
                    f"there is no column {name!r}.{suggest(name, columns)} Columns are "
                    f"{', '.join(columns)}."
                )
        if features is None:
            rest = [name for name in columns if name not in _names(labels)]
            if not rest:
                raise ConfigError(f"all columns are labels: {', '.join(columns)}.")
            features = rest[0] if len(rest) == 1 else {name: name for name in rest}
        return cls(features, labels)

    @property
    def names(self) -> list[str]:
        """The names of the selected columns, each once."""
        return list(dict.fromkeys([*_names(self.features), *_names(self.labels)]))

    def pick(self, values: Mapping[str, Any], stack: Callable[[list[Any]], Any]) -> Any:
        """Arrange values as features, or as `(features, labels)`.

        Args:
            values: one value for each column, by name.
            stack: combines the values of a list of columns into one.
        """
        features = _pick(values, self.features, stack)
        if self.labels is None:
            return features
        return features, _pick(values, self.labels, stack)


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


def _pick(values: Mapping[str, Any], choice: Any, stack: Callable[[list[Any]], Any]) -> Any:
    if isinstance(choice, str):
        return values[choice]
    if isinstance(choice, list):
        return stack([values[name] for name in choice])
    if isinstance(choice, tuple):
        return tuple(_pick(values, part, stack) for part in choice)
    return {key: _pick(values, part, stack) for key, part in choice.items()}


def stacked_dtype(dtypes: Sequence[Any]) -> Any:
    """Return the dtype of columns stacked side by side; float32 and integers give float32.

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
    return np.result_type(*(floats or kinds))
