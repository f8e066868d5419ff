"""Runs on the driver. Tell which versions of models were trained on given rows.

A trial that ran with `row_key=` has a digest of the key of each row that it has opened. A version
is made of its trial, and of all trials from whose checkpoints that one has begun. What none of them
has recorded is not known: the answer is never no unless all of their rows are.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sparkdl.errors import ModelDamagedError, RunDamagedError
from sparkdl.files import storage
from sparkdl.models import registry
from sparkdl.models.asked_rows import AskedRows
from sparkdl.models.layout import ModelPaths, models_folder
from sparkdl.models.numbered import numbers
from sparkdl.models.training_rows import TrainingRows
from sparkdl.models.version import ModelVersion

YES, NO, UNKNOWN = "yes", "no", "unknown"


@dataclass(frozen=True, kw_only=True)
class Affected:
    """The answer for a version of a model.

    Attributes:
        name: the name of the model.
        version: the number of the version.
        answer: `yes` if a row is among those that it was trained on, `no` if none is, `unknown` if
            that was not recorded.
        num_rows: the number of the given rows that it has seen.
        data: the datasets in which they were, such as `train`.
        reason: why the answer is not known, or may be incomplete; empty if all is known.
    """

    name: str
    version: int
    answer: str
    num_rows: int = 0
    data: tuple[str, ...] = ()
    reason: str = ""

    def __str__(self) -> str:
        word = "row" if self.num_rows == 1 else "rows"
        rows = f", {self.num_rows} {word} in {', '.join(self.data)}" if self.num_rows else ""
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.name}/{self.version}: {self.answer}{rows}{reason}"

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as a JSON object."""
        return {**asdict(self), "data": list(self.data)}


def affected(
    rows: Any,
    *,
    key: str | Sequence[str] | None = None,
    name: str | None = None,
    root: str | os.PathLike[str] | None = None,
) -> list[Affected]:
    """Return for each version of the models whether it was trained on given rows.

    Training keeps what is needed only with the option `row_key="customer"`: a digest of the key of
    each row that a trial opens, of `data=` and of the readers of `sparkdl.data`. A row counts also
    if no batch with it was reached, and as a row of validation data; `data` names the dataset. A
    version that began with the checkpoint of another trial has seen the rows of that trial.

    Args:
        rows: the rows, or their keys: a DataFrame of pandas or Spark, a table of pyarrow, a list of
            the values of a single key, or the path of a Parquet or CSV file.
        key: the columns of the key, under the names that `row_key=` had; by default all columns of
            `rows`.
        name: the name of a model; by default all models.
        root: the folder that holds the runs and the models; by default the one that the verbs of
            `experiment` use.

    Returns:
        An answer for each version: `yes`, `no`, or `unknown` where a trial has not recorded its
        rows, or has begun with weights of an unknown origin. It is never `no` then.

    Raises:
        ConfigError: if there are no rows, or a column of the key is missing, has nulls, or is of
            another type than integers, text, binary values or dates.
        ModelNotFoundError: if there is no model of this name.

    Example:
        >>> from sparkdl import models
        >>> models.affected([17, 23], key="customer")
        []
    """
    asked = AskedRows.of(rows, key)
    root = None if root is None else os.fspath(root)
    versions = list(_all(name, root))
    if name is not None and not versions:
        registry.get(name, root=root)  # It raises, with the names that there are.
    return [_answer(model, number, version, asked) for model, number, version in versions]


def _all(name: str | None, root: str | None) -> Iterator[tuple[str, int, ModelVersion | str]]:
    """Yield each version, and in place of a version that cannot be read, the reason."""
    folder = models_folder(root)
    for model in [name] if name is not None else storage.list_names(folder):
        paths = ModelPaths(storage.join(folder, model))
        for number in numbers(storage.list_names(paths.folder)):
            if not storage.exists(paths.record(number)):
                continue  # It is being written, or its export was killed.
            try:
                yield model, number, registry.get(model, number, root=root)
            except ModelDamagedError as exc:
                yield model, number, str(exc)


def _answer(model: str, number: int, version: ModelVersion | str, asked: AskedRows) -> Affected:
    found: set[bytes] = set()
    data: list[str] = []
    problems = [version] if isinstance(version, str) else []
    try:
        rows = TrainingRows() if isinstance(version, str) else TrainingRows.of(version)
        problems += rows.problems
        for record in rows.records:
            seen = asked.among(record)
            if isinstance(seen, str):
                problems.append(seen)
            elif seen:
                found |= seen
                data.append(str(record["data"]))
    except (OSError, RunDamagedError, ValueError, LookupError, TypeError) as exc:
        problems.append(f"its records cannot be read: {type(exc).__name__}: {exc}")
    return Affected(
        name=model,
        version=number,
        answer=YES if found else UNKNOWN if problems else NO,
        num_rows=len(found),
        data=tuple(dict.fromkeys(data)),
        reason="; ".join(dict.fromkeys(problems)),
    )
