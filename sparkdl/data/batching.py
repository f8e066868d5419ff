"""Runs in the training process.

From rows in pieces to this rank's batches: what all readers have in common.
"""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sparkdl import context
from sparkdl.data import schema as table
from sparkdl.data.arrow_arrays import Arrays, arrow_dataset
from sparkdl.data.column_selection import Wanted, stacked_dtype
from sparkdl.data.shard import LAST_BATCH, Range, Share, share
from sparkdl.data.shuffle import shuffled
from sparkdl.distribute.autoshard import mark_share
from sparkdl.errors import ConfigError, suggest
from sparkdl.options import with_keywords_of

__all__ = [
    "ArrowSource",
    "Batches",
    "Pass",
    "Source",
    "finished",
    "make_dataset",
    "shuffled",
    "takes_batches",
    "tell",
]


@dataclass(frozen=True)
class Batches:
    """How rows become batches; what all readers take.

    Attributes:
        batch_size_per_worker: rows in a batch of one rank. Exactly one of this and the next.
        global_batch_size: rows in a step of all ranks together; a multiple of their number.
        feature_cols: a column's name; a list of names, for one tensor with their values side by
            side; a tuple or a dict of such. By default all columns that are no labels: the one,
            or a dict of them.
        label_cols: the same for the labels; by default none, and elements are features alone.
        epochs: passes over the rows.
        shuffle: the rows of each pass in another order.
        last_batch: where rows do not fill the last batch of every rank, `pad` makes it smaller,
            and repeats a row on ranks that have one less than others; `drop` leaves rows out.
        steps: batches of one pass at most; by default all.
    """

    batch_size_per_worker: int | None = None
    global_batch_size: int | None = None
    feature_cols: Any = None
    label_cols: Any = None
    epochs: int = 1
    shuffle: bool = False
    last_batch: str = "pad"
    steps: int | None = None

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> "Batches":
        """From keyword arguments.

        Raises:
            ConfigError: a name or a value is wrong; the message names the right one.

        Example:
            >>> Batches.parse({"global_batch_size": 64}).per_worker(4)
            16
        """
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                near = " Say which: batch_size_per_worker= or global_batch_size=."
                near = near if name == "batch_size" else suggest(name, known)
                raise ConfigError(f"unknown argument {name!r}.{near}")
        batches = cls(**given)
        batches._check()
        return batches

    def _check(self) -> None:
        sizes = (self.batch_size_per_worker, self.global_batch_size)
        if (sizes[0] is None) == (sizes[1] is None):
            raise ConfigError(
                f"batch_size_per_worker={sizes[0]!r}, global_batch_size={sizes[1]!r}; expected "
                "exactly one: rows in a batch of one rank, or in a step of all ranks together."
            )
        for name in ("batch_size_per_worker", "global_batch_size", "epochs", "steps"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if value is not None and not whole:
                raise ConfigError(f"{name} is {value!r}; expected a whole number of at least 1.")
        if self.last_batch not in LAST_BATCH:
            raise ConfigError(f"last_batch is {self.last_batch!r}; expected 'pad' or 'drop'.")

    def per_worker(self, world_size: int) -> int:
        """Rows in a batch of one rank.

        Raises:
            ConfigError: the global batch cannot be shared equally.
        """
        if self.global_batch_size is None:
            return self.batch_size_per_worker or 1
        each, rest = divmod(self.global_batch_size, world_size)
        if rest:
            near = max(each, 1) * world_size
            raise ConfigError(
                f"global_batch_size={self.global_batch_size} cannot be shared equally by "
                f"{world_size} ranks. The next that can is {near}."
            )
        return each


takes_batches = with_keywords_of(Batches)


@dataclass(frozen=True)
class Pass:
    """One pass over this rank's share.

    Attributes:
        ranges: what to read, in this order.
        seed: None to keep the order of the rows; else shuffle them with it.
    """

    ranges: tuple[Range, ...]
    seed: int | None = None


class Source(ABC):
    """Rows in pieces that can be read in any order, as often as one likes.

    Attributes:
        name: what the person would call it, such as its path.
        sizes: rows of each piece; the same on every rank.
        columns: the names of its columns.
    """

    name: str
    sizes: Sequence[int]
    columns: Sequence[str]

    @abstractmethod
    def blocks(self, next_pass: Callable[[], Pass], names: Sequence[str]) -> Any:
        """A `tf.data.Dataset` of dicts from name to a tensor (rows, *shape).

        Args:
            next_pass: called once whenever the dataset is iterated; says what to read.
            names: the columns that are wanted.
        """

    def elements(self, next_pass: Callable[[], Pass], wanted: Wanted) -> Any:
        """A `tf.data.Dataset` of the columns arranged as wanted, any number of rows each."""
        blocks = self.blocks(next_pass, wanted.names)
        return blocks.map(lambda values: wanted.pick(values, _stacked))


def _stacked(parts: list[Any]) -> Any:
    """Tensors of (rows,) or (rows, width) side by side, as one of (rows, all widths)."""
    import tensorflow as tf

    dtype = tf.as_dtype(stacked_dtype([part.dtype.as_numpy_dtype for part in parts]))
    flat = [tf.cast(p, dtype) if p.dtype != dtype else p for p in parts]
    return tf.concat([p[:, None] if p.shape.rank == 1 else p for p in flat], -1)


class ArrowSource(Source):
    """A source that reads Arrow.

    Attributes:
        schema: its columns and their types.
        options: the arguments `ragged`, `decode` and `fill` of `schema.column`.
        window_rows: how many rows are shuffled among each other.
    """

    schema: pa.Schema
    options: Mapping[str, Any]
    window_rows: int = 1 << 16

    @property
    def columns(self) -> Sequence[str]:  # type: ignore[override]
        """The names of the columns."""
        names: list[str] = self.schema.names
        return names

    @abstractmethod
    def read(self, ranges: Sequence[Range], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of `ranges`, in batches of any number of rows, with the columns `names`."""

    def blocks(self, next_pass: Callable[[], Pass], names: Sequence[str]) -> Any:
        """See `Source.blocks`."""
        return self.elements(next_pass, Wanted({name: name for name in names}))

    def elements(self, next_pass: Callable[[], Pass], wanted: Wanted) -> Any:
        """See `Source.elements`: arranged as NumPy arrays, which is faster than as tensors."""
        arrays = Arrays(table.columns(self.schema, wanted.names, **self.options), wanted)
        first = [Range(piece, 0, 1) for piece, rows in enumerate(self.sizes) if rows][:1]
        for batch in self.read(first, wanted.names):
            arrays.learn(batch)

        def batches() -> Iterator[pa.RecordBatch]:
            this = next_pass()
            rows = self.read(this.ranges, wanted.names)
            return rows if this.seed is None else shuffled(rows, self.window_rows, this.seed)

        return arrow_dataset(batches, arrays)


def make_dataset(source: Source, batches: Batches) -> Any:
    """This rank's share of a source as a `tf.data.Dataset`, with equal steps on every rank.

    Raises:
        ConfigError: a column is not there, or the global batch cannot be shared equally.
    """
    me = context.current()
    # An evaluator stands outside and sees all rows.
    rank, world_size = (me.rank, me.world_size) if me.rank < me.world_size else (0, 1)
    batch_size = batches.per_worker(world_size)
    wanted = Wanted.among(source.columns, batches.feature_cols, batches.label_cols)

    def shared(order: Sequence[int] | None = None) -> Share:
        return share(source.sizes, rank, world_size, batch_size, batches.last_batch, order)

    passes = iter(range(1 << 62))

    def next_pass() -> Pass:
        number = next(passes)
        if not batches.shuffle:
            return Pass(shared().ranges)
        # What a rank has stays the same: one that looks once more than others must change nothing.
        mixed = np.random.default_rng(me.seed).permutation(len(source.sizes)).tolist()
        seed = int(np.random.SeedSequence([me.seed, number, rank]).generate_state(1)[0])
        ranges = shared(mixed).ranges
        order = np.random.default_rng(seed).permutation(len(ranges))
        return Pass(tuple(ranges[place] for place in order), seed)

    whole = shared()
    tell(source.name, batches, whole.rows, whole.steps, whole.padded, whole.dropped)
    return finished(source.elements(next_pass, wanted), batches, batch_size, whole.steps)


def finished(elements: Any, batches: Batches, batch_size: int, steps: int | None) -> Any:
    """Elements of any number of rows as batches, repeated and prefetched.

    Args:
        elements: a `tf.data.Dataset` of this rank's rows, those that it repeats included.
        batches, batch_size: how to batch them.
        steps: batches of one pass; None where that is not known yet.
    """
    import tensorflow as tf

    dataset = elements.prefetch(1).rebatch(batch_size, drop_remainder=batches.last_batch == "drop")
    if batches.steps:
        dataset = dataset.take(batches.steps)
    if steps is not None:
        steps = min(steps, batches.steps or steps)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
    if batches.epochs > 1:
        dataset = dataset.repeat(batches.epochs)
    return mark_share(dataset.prefetch(2))


def tell(name: str, batches: Batches, rows: int, steps: int, padded: int, dropped: int) -> None:
    """Say and keep what a dataset holds; the chief does for all ranks."""
    me = context.current()
    if not me.is_chief:
        return
    per_worker = batches.per_worker(me.world_size)
    said = {
        "data": name,
        "rows": rows,
        "batch_size_per_worker": per_worker,
        "global_batch_size": per_worker * me.world_size,
        "steps": min(steps, batches.steps or steps),
        "padded": padded,
        "dropped": dropped,
    }
    spare = f", {padded} repeated" if padded else f", {dropped} left out" if dropped else ""
    world = f" on each of {me.world_size} ranks, {said['global_batch_size']} together"
    print(
        f"sparkdl: {name}: {rows} rows{spare}; batches of {per_worker}"
        f"{world if me.world_size > 1 else ''}; {said['steps']} steps an epoch"
    )
    if me.folder:
        line = json.dumps(said).encode() + b"\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        descriptor = os.open(Path(me.folder, "data.jsonl"), flags, 0o644)
        os.write(descriptor, line)
        os.close(descriptor)
