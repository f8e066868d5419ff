"""Runs anywhere (pure). Which columns make the features and which the labels."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.errors import ConfigError, suggest

__all__ = ["Wanted", "stacked_dtype"]

# A column's name; a list: stacked into one tensor; a tuple; or names of one's own.
Choice = str | list[str] | tuple[Any, ...] | dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """Which columns make the features and which the labels, and in what structure.

    Attributes:
        features, labels: a column's name for its tensor; a list of names for one tensor with
            their values side by side; a tuple, or a dict by names of one's own, of such. Without
            labels an element is the features alone.
    """

    features: Choice
    labels: Choice | None = None

    @classmethod
    def among(cls, columns: Sequence[str], features: Any, labels: Any) -> "Wanted":
        """The choice among these columns. Features are by default all that are no labels.

        Raises:
            ConfigError: a column is not there.

        Example:
            >>> Wanted.among(["x", "y"], None, "y")
            Wanted(features='x', labels='y')
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
        """The columns that are needed, each once."""
        return list(dict.fromkeys([*_names(self.features), *_names(self.labels)]))

    def pick(self, values: Mapping[str, Any], stack: Callable[[list[Any]], Any]) -> Any:
        """Arrange `values`, by column, as features, or as `(features, labels)`."""
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
            "of names. In a list, which is stacked into one tensor, there are names alone."
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
    """The dtype of columns side by side. Numbers with float32 among them become float32.

    Example:
        >>> stacked_dtype([np.int64, np.float32])
        dtype('float32')
    """
    kinds = {np.dtype(d) for d in dtypes}
    if len(kinds) == 1:
        return kinds.pop()
    if np.dtype(object) in kinds:
        raise ConfigError(
            "a list of columns is stacked into one tensor, and strings do not go with numbers. "
            "Choose them as a tuple or a dict."
        )
    floats = [kind for kind in kinds if kind.kind == "f"]
    # NumPy would make int64 and float32 a float64, twice the size of what a network computes in.
    return np.result_type(*(floats or kinds))
