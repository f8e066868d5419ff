"""Runs in the training process. Mix the rows of several datasets in fixed proportions."""

import itertools
import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl import context
from sparkdl.data.array_batches import concatenate, rebatched
from sparkdl.data.blocks import Blocks, to_tensor
from sparkdl.data.growing_gangs import refuse_mixing
from sparkdl.data.loaders import Plan
from sparkdl.data.nested import leaves, map_leaves
from sparkdl.data.pass_numbers import PassNumbers
from sparkdl.data.ragged import Ragged
from sparkdl.data.rows import Rows
from sparkdl.errors import ConfigError

STOPS = ("shortest", "longest")

_logger = logging.getLogger("sparkdl.data")


def mix(
    rows: Sequence[Any],
    weights: Sequence[float] | None = None,
    *,
    stop: str = "shortest",
    epochs: int = 1,
) -> Rows:
    """Return batches that have rows of several datasets, in the same proportions in every batch.

    Every rank takes the same number of steps, and all batches are full. A dataset that is
    `shuffle`d is read in another order in each pass.

    Args:
        rows: the results of readers, such as `data.parquet`, with the same batch size, columns,
            types and `pad`, and without `epochs`, `steps` and `bucket_by`.
        weights: the share of each dataset in a batch, in any unit; by default equal shares. Each
            dataset has at least one row in a batch.
        stop: `shortest` ends a pass when the rows of one dataset fill no further batch; `longest`
            when all rows have been read, while shorter datasets begin anew.
        epochs: number of passes over the mixture.

    Returns:
        A dataset of batches of the given size. The rows of a batch are in the order of `rows`.

    Raises:
        ConfigError: if the datasets do not fit together, an argument is invalid, or a dataset has
            fewer rows than its share of a batch, or an unknown number of rows.

    Example:
        >>> import pyarrow as pa, pyarrow.parquet as pq
        >>> from sparkdl import data
        >>> pq.write_table(pa.table({"x": [1, 2, 3, 4, 5, 6]}), "some.parquet")
        >>> pq.write_table(pa.table({"x": [-1, -2]}), "rare.parquet")
        >>> files = ["some.parquet", "rare.parquet"]
        >>> both = [data.parquet(file, batch_size_per_worker=4) for file in files]
        >>> for batch in data.mix(both, weights=[3, 1]).as_numpy():
        ...     print(batch)
        [ 1  2  3 -1]
        [ 4  5  6 -2]
    """
    refuse_mixing()
    parts = _parts(rows, weights)
    if stop not in STOPS:
        raise ConfigError(f"stop is {stop!r}; expected 'shortest' or 'longest'.")
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise ConfigError(f"epochs is {epochs!r}; expected a whole number of at least 1.")
    counts = [part.steps(stop) for part in parts]
    steps = min(counts) if stop == "shortest" else max(counts)
    plan = Plan(
        batch_size=sum(part.size for part in parts),
        drop_remainder=True,
        epochs=epochs,
        max_steps=None,
        steps=steps,
        rows=None,
        numbers=PassNumbers(),
    )
    name = " and ".join(part.rows.name for part in parts)
    if context.current().is_chief:
        sizes = " and ".join(str(part.size) for part in parts)
        _logger.info("%s: batches of %s rows; %d steps per epoch", name, sizes, steps)
    return Rows(name, _MixedBlocks(parts, steps, plan.numbers), plan)


@dataclass(frozen=True)
class _Part:
    """A dataset of a mixture.

    Attributes:
        rows: the dataset.
        size: number of its rows in a batch.
        num_rows: number of its rows in a pass of this rank.
    """

    rows: Rows
    size: int
    num_rows: int

    def steps(self, stop: str) -> int:
        """Return the number of batches that one pass fills, or that have all of its rows."""
        return self.num_rows // self.size if stop == "shortest" else -(-self.num_rows // self.size)

    def begin(self, number: int, steps: int) -> None:
        """Let the next pass be the one with which a pass over the mixture begins."""
        first = number * -(-steps * self.size // self.num_rows)
        plan = self.rows.plan
        if plan.passes:
            plan.passes.begin_at(first)
        else:
            plan.numbers.upcoming = first


def _parts(rows: Sequence[Any], weights: Sequence[float] | None) -> list[_Part]:
    if not rows or not all(type(each) is Rows for each in rows):
        raise ConfigError(
            "data.mix was given "
            f"{[type(each).__name__ for each in rows]}; expected a list of the results of readers, "
            "such as data.parquet."
        )
    plans = [each.plan for each in rows]
    sizes = {plan.batch_size for plan in plans}
    if len(sizes) > 1 or any(
        plan.epochs > 1 or plan.max_steps or plan.is_bucketed for plan in plans
    ):
        raise ConfigError(
            f"data.mix was given datasets with batches of {sorted(sizes)} rows; expected one "
            "batch_size_per_worker or global_batch_size for all, and neither epochs nor steps nor "
            "bucket_by."
        )
    paddings = [each.blocks.padding for each in rows]
    if any(pad is not None for pad in leaves(paddings)) and paddings != paddings[:1] * len(rows):
        raise ConfigError(
            f"data.mix was given datasets that are padded with {paddings}; expected the same "
            "columns and the same pad= for all."
        )
    shares = _shares(plans[0].batch_size, [1.0] * len(rows) if weights is None else weights)
    if len(shares) != len(rows):
        raise ConfigError(
            f"there are {len(rows)} datasets and {len(shares)} weights; expected a "
            "weight for each dataset."
        )
    parts = []
    for each, size in zip(rows, shares, strict=True):
        num_rows = each.plan.rows
        if num_rows is None or num_rows < size:
            found = "an unknown number of" if num_rows is None else num_rows
            raise ConfigError(
                f"{each.name} has {found} rows for each rank, and data.mix takes {size} in each "
                "batch; expected at least one batch. Rows of data.dataset are counted in a gang of "
                "several workers only; read files, or mix DataFrames in Spark, with union."
            )
        parts.append(_Part(each, size, num_rows))
    return parts


def _shares(batch_size: int, weights: Sequence[float]) -> list[int]:
    """Return the number of rows of each dataset in a batch, by the method of largest remainders."""
    numbers = [w for w in weights if isinstance(w, int | float) and 0 < w < float("inf")]
    if len(numbers) != len(weights) or not numbers or len(numbers) > batch_size:
        raise ConfigError(
            f"weights are {list(weights)!r} for batches of {batch_size} rows; expected numbers "
            "above 0, at most as many as a batch has rows."
        )
    # One row for each, and the others in proportion.
    exact = np.maximum(np.array(numbers) / sum(numbers) * batch_size, 1.0)
    shares = np.floor(exact).astype(int)
    by_remainder = itertools.cycle(np.argsort(shares - exact, kind="stable"))
    while missing := batch_size - int(shares.sum()):
        place = next(by_remainder)
        if missing > 0 or shares[place] > 1:
            shares[place] += 1 if missing > 0 else -1
    return [int(share) for share in shares]


class _MixedBlocks(Blocks):
    """Blocks that are batches of several datasets.

    Args:
        parts: the datasets.
        steps: number of batches in a pass.
        numbers: counts the passes over the mixture.
    """

    def __init__(self, parts: Sequence[_Part], steps: int, numbers: PassNumbers) -> None:
        self._parts = parts
        self._steps = steps
        self._numbers = numbers
        self.padding = parts[0].rows.blocks.padding

    def arrays(self) -> Iterator[Any]:
        """Implement `Blocks.arrays`."""
        number = self._numbers.take()
        streams = []
        for part in self._parts:
            part.begin(number, self._steps)
            streams.append(rebatched(_endless(part.rows.blocks), part.size, drop_remainder=True))
        forms: list[Any] = []
        for batches in itertools.islice(zip(*streams, strict=True), self._steps):
            forms = forms or self._checked_forms(batches)
            yield concatenate(batches[0], [list(leaves(batch)) for batch in batches])

    def _checked_forms(self, batches: Sequence[Any]) -> list[Any]:
        """Return dtype and shape of the arrays of each dataset, which must be the same."""
        forms = [map_leaves(_form, batch) for batch in batches]
        for part, form in zip(self._parts, forms, strict=True):
            if form != forms[0]:
                raise ValueError(
                    f"{part.rows.name} has elements of {form}, and {self._parts[0].rows.name} of "
                    f"{forms[0]}; expected the same columns and types. Choose them with "
                    "feature_cols and label_cols."
                )
        return forms

    def tensors(self) -> Any:
        """Implement `Blocks.tensors`."""
        import tensorflow as tf

        def elements() -> Iterator[Any]:
            for batch in self.arrays():
                yield map_leaves(to_tensor, batch)

        signature = self._parts[0].rows.blocks.tensors().element_spec
        return tf.data.Dataset.from_generator(elements, output_signature=signature)


def _form(array: Any) -> str:
    if isinstance(array, Ragged):
        return f"{array.values.dtype} {[None] * len(array.offsets)}"
    return f"{array.dtype} {list(array.shape[1:])}"


def _endless(blocks: Blocks) -> Iterator[Any]:
    """Yield the blocks of a dataset pass after pass."""
    while True:
        with closing(blocks.arrays()) as of_pass:  # type: ignore[type-var]
            yield from of_pass
