"""Runs in the training process. Turn the rows of any reader into the batches of this rank."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from sparkdl import context
from sparkdl.context import Context
from sparkdl.data.batch_map import Map
from sparkdl.data.blocks import Blocks
from sparkdl.data.column_selection import ColumnSelection
from sparkdl.data.dataset_report import record_columns, report_dataset
from sparkdl.data.growing_gangs import check_growing
from sparkdl.data.lanes import WINDOW_ROWS, Pass
from sparkdl.data.length_buckets import WINDOW_BATCHES
from sparkdl.data.loaders import Plan
from sparkdl.data.mapped_blocks import MappedBlocks, MappedColumns, stored_columns
from sparkdl.data.pass_numbers import PassNumbers
from sparkdl.data.passes import Passes
from sparkdl.data.per_worker import refuse_sending
from sparkdl.data.readers.base import Source
from sparkdl.data.readers.chosen_rows import chosen_rows, row_tests
from sparkdl.data.readers.keyed_rows import record_row_keys
from sparkdl.data.rows import Rows
from sparkdl.data.shard import LAST_BATCH, Range, Share, share
from sparkdl.data.stateful_passes import StatefulPasses
from sparkdl.errors import ConfigError, suggest
from sparkdl.host.supported_versions import check_versions
from sparkdl.options import check_count, with_keywords_of

__all__ = ["Batches", "make_dataset", "passes", "rows_of", "takes_batches", "whole_share"]

# A reader of fewer rows needs no time, whichever piece they are in.
MANY_ROWS = 1 << 16

_logger = logging.getLogger("sparkdl.data")


@dataclass(frozen=True)
class Batches:
    """The arguments of all readers: how rows become batches.

    Attributes:
        batch_size_per_worker: number of rows in a batch of one rank. Pass exactly one of
            `batch_size_per_worker` and `global_batch_size`.
        global_batch_size: number of rows in a step of all ranks together; a multiple of the number
            of ranks.
        feature_cols: a column's name; a list of names, for one tensor with their values side by
            side; a tuple or a dict of such selections. By default all columns that are not labels:
            a single column by itself, several as a dict.
        label_cols: the same for the labels; by default there are no labels, and elements are
            features only.
        weight_col: the column with the weight of each row in the loss, a number; elements are then
            `(features, labels, weights)`, as Keras takes them.
        epochs: number of passes over the rows.
        shuffle: shuffle the rows, differently in each pass; a number of at least 2 is the number of
            rows of all ranks that are shuffled together, by default 65 536, and at most 256 MiB; 1
            is True, and 0 is False. The pieces of the data, such as files and row groups, are
            divided among the ranks anew in each pass, in random order. So all ranks must iterate
            equally often: once a rank has begun more iterations than others, each pass has some
            rows twice and others not at all. An iteration that is left early counts with all of
            its `epochs`, and the rest of its rows is not read. See `docs/data.md`.
        last_batch: treatment of rows that do not fill the last batch of every rank: `pad` makes
            the last batch smaller, and repeats a row on ranks that have one row less than others;
            `drop` leaves these rows out.
        bucket_by: name of a column of arrays that differ in length, among the features or labels:
            rows of similar length come into the same batch, within windows of 64 batches (or of
            `steps`, if those are fewer), so that `pad` adds little. With `shuffle` the batches of a
            window come in random order, and otherwise in order of length.
        split: a column and a range within 0 and 1, such as `("id", 0.0, 0.9)`: only the rows whose
            value of the column has a hash in this range, see `sparkdl.data.row_split`. Rows with
            the same value are always in the same split.
        where: conditions for the rows to read, by column: a function that is given the values of
            many rows as an array of NumPy and returns an array of bool, or the wanted values, such
            as `{"age": lambda age: age >= 18, "label": [0, 1]}`; or a predicate of petastorm. A
            null passes no function.
        map: a function that computes columns from the columns of a batch, a dict of arrays, or a
            `data.Map`; `feature_cols`, `label_cols` and `weight_col` may name what it returns.
        steps: maximum number of batches in one pass; by default there is no maximum. Each pass
            begins anew: without `shuffle`, and always with `data.dataset`, all passes have the same
            first rows, and the rows after them are never read.
    """

    batch_size_per_worker: int | None = None
    global_batch_size: int | None = None
    feature_cols: Any = None
    label_cols: Any = None
    weight_col: str | None = None
    epochs: int = 1
    shuffle: bool | int = False
    last_batch: str = "pad"
    bucket_by: str | None = None
    split: tuple[str, float, float] | None = None
    where: Mapping[str, Any] | None = None
    map: Any = None
    steps: int | None = None

    @classmethod
    def parse(cls, arguments: Mapping[str, Any]) -> "Batches":
        """Create from keyword arguments.

        Raises:
            ConfigError: if a name or a value is invalid, in which case the message names the right
                one, or if pyarrow is too old.

        Example:
            >>> Batches.parse({"global_batch_size": 64}).per_worker(4)
            16
        """
        check_versions("pyarrow")  # Each reader begins here.
        names = [field.name for field in fields(cls)]
        for name in arguments:
            if name not in names:
                hint = " Pass batch_size_per_worker= or global_batch_size=."
                hint = hint if name == "batch_size" else suggest(name, names)
                raise ConfigError(f"unknown argument {name!r}.{hint}")
        batches = cls(**arguments)
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
            if value is not None:
                check_count(name, value)
        if not isinstance(self.shuffle, int) or (self.shuffle < 2 and self.shuffle not in (0, 1)):
            raise ConfigError(
                f"shuffle is {self.shuffle!r}; expected True (or 1), False (or 0), or the number "
                "of rows that are shuffled together, at least 2."
            )
        row_tests(self.split, self.where)
        Map.parse(self.map)
        if self.last_batch not in LAST_BATCH:
            raise ConfigError(f"last_batch is {self.last_batch!r}; expected 'pad' or 'drop'.")

    @property
    def window_rows(self) -> int:
        """The number of rows that are shuffled together.

        Example:
            >>> Batches.parse({"global_batch_size": 64, "shuffle": 1000}).window_rows
            1000
        """
        return WINDOW_ROWS if self.shuffle == 1 else self.shuffle

    @property
    def division(self) -> dict[str, Any]:
        """The arguments that must be the same on every rank: the division of rows depends on them.

        Example:
            >>> Batches.parse({"global_batch_size": 64, "shuffle": True}).division["shuffle"]
            True
        """
        names = [field.name for field in fields(self)]
        args = [name for name in names if not name.endswith(("_cols", "_col")) and name != "map"]
        return {name: getattr(self, name) for name in args}

    def select(self, columns: Sequence[str]) -> ColumnSelection:
        """Return the selection of the columns to read among those of a dataset.

        Args:
            columns: names of the columns of the dataset.

        Raises:
            ConfigError: if a selected column does not exist.
        """
        batch_map = Map.parse(self.map)
        if batch_map is None:
            selection = ColumnSelection.among(columns, *self._selection_args)
        else:
            selection = stored_columns(batch_map, columns, *self._selection_args)
        if self.bucket_by is not None and self.bucket_by not in selection.names:
            raise ConfigError(
                f"bucket_by is {self.bucket_by!r}; expected one of the selected columns "
                f"{', '.join(selection.names)}.{suggest(str(self.bucket_by), selection.names)}"
            )
        return selection

    def mapped(self, columns: Sequence[str], sample: Callable[[], Any]) -> MappedColumns | None:
        """Return the columns with those that `map` computes; None without `map`.

        Args:
            columns: names of the columns of the dataset.
            sample: returns the columns to read of the first rows; None if there are no rows.

        Raises:
            ConfigError: see `MappedColumns.learn`.
        """
        batch_map = Map.parse(self.map)
        if batch_map is None:
            return None
        return MappedColumns.learn(batch_map, columns, sample(), *self._selection_args)

    @property
    def _selection_args(self) -> tuple[Any, Any, Any]:
        return self.feature_cols, self.label_cols, self.weight_col

    def per_worker(self, world_size: int) -> int:
        """Return the number of rows in a batch of one rank.

        Args:
            world_size: number of ranks that divide the rows.

        Raises:
            ConfigError: if the global batch cannot be shared equally.
        """
        if self.global_batch_size is None:
            return self.batch_size_per_worker or 1
        each, rest = divmod(self.global_batch_size, world_size)
        if rest:
            multiple = max(each, 1) * world_size
            raise ConfigError(
                f"global_batch_size={self.global_batch_size} cannot be shared equally by "
                f"{world_size} ranks. Use a multiple of {world_size}, such as {multiple}."
            )
        return each


takes_batches = with_keywords_of(Batches)


def make_dataset(source: Source, batches: Batches) -> Rows:
    """Return this rank's share of a source, with equal steps on every rank.

    Args:
        source: the rows of all ranks.
        batches: how rows become batches.

    Raises:
        ConfigError: if there are no rows, a column does not exist, or the global batch cannot be
            shared equally.
    """
    me = context.current()
    refuse_sending(me)
    source = chosen_rows(source, row_tests(batches.split, batches.where))
    selection = batches.select(source.columns)
    if not any(source.sizes):
        raise ConfigError(
            f"{source.name} has no rows. A training loop would take no step: "
            "look at the files, and at the conditions filter=, where= and split=."
        )
    if me.grows:
        check_growing(batches, source.name, sum(source.sizes))
    batch_size = batches.per_worker(me.reading[1])
    whole = whole_share(source.sizes, batches, me)
    _warn_of_few_pieces(source, me)
    numbers_of_rows = whole.rows, whole.steps, whole.padded, whole.dropped
    report_dataset(source.name, batch_size, batches.steps, *numbers_of_rows)
    names = selection.names
    read = passes(source.sizes, batches, me, names)
    samples = _samples(source, batches, batch_size)
    blocks = source.blocks(lambda: samples.pop() if samples else read.next(), selection)
    mapped = batches.mapped(source.columns, lambda: next(blocks.arrays()) if samples else None)
    # An elastic gang leaves out the rows of lost ranks, and no rank knows which.
    has_state = not (me.is_elastic or batches.bucket_by or batches.epochs > 1)

    record_columns(source.name, mapped or selection, source.schema, source.options)
    record_row_keys(source)

    def rows_in(blocks: Blocks, part: Share, **more: Any) -> Rows:
        num_rows = sum(rows.stop - rows.start for rows in part.ranges)
        known = (None, None) if me.grows else (part.steps, num_rows)  # That changes with the ranks.
        counts = batch_size, known[0], known[1], read.numbers
        return rows_of(source.name, blocks, batches, *counts, mapped, **more)

    def once() -> Rows:
        part = whole_share(source.sizes, batches, me, repeats=False)
        return rows_in(source.blocks(lambda: read.next(repeats=False), selection), part)

    resumable = read if has_state else None
    is_padded = batches.last_batch == "pad" if me.grows else whole.padded
    return rows_in(blocks, whole, resumable=resumable, once=once if is_padded else None)


def _samples(source: Source, batches: Batches, batch_size: int) -> list[Pass]:
    """Return a pass over the first rows, from which the results of `map` are learnt, if any."""
    if batches.map is None:
        return []
    first = next((piece for piece, rows in enumerate(source.sizes) if rows), None)
    if first is None:
        return []
    return [Pass.in_order([Range(first, 0, min(source.sizes[first], batch_size))])]


def whole_share(sizes: Sequence[int], batches: Batches, me: Context, repeats: bool = True) -> Share:
    """Return the rows that a rank reads in one pass.

    Args:
        sizes: number of rows of each piece.
        batches: how rows become batches.
        me: the context of the rank.
        repeats: see `share`.
    """
    rank, num_readers = me.reading
    batch_size = batches.per_worker(num_readers)
    return share(sizes, rank, num_readers, batch_size, batches.last_batch, repeats=repeats)


def passes(
    sizes: Sequence[int],
    batches: Batches,
    me: Context,
    columns: Sequence[str] = (),
) -> Passes:
    """Return the passes of a rank over its share.

    Args:
        sizes: number of rows of each piece; the same on every rank.
        batches: how rows become batches.
        me: the context of the rank.
        columns: names of the columns.
    """
    return Passes(
        sizes,
        me,
        batch_size=batches.per_worker(me.reading[1]),
        last_batch=batches.last_batch,
        max_steps=batches.steps,
        window_rows=batches.window_rows if batches.shuffle else None,
        columns=columns,
    )


def _warn_of_few_pieces(source: Source, me: Context) -> None:
    num_pieces = sum(rows > 0 for rows in source.sizes)
    if me.is_chief and num_pieces < me.num_readers and sum(source.sizes) >= MANY_ROWS:
        _logger.warning(
            "%s has %d pieces (files or row groups) with rows for %d ranks: several ranks read the "
            "same piece, each from its start. Write at least as many as there are ranks",
            source.name,
            num_pieces,
            me.num_readers,
        )


def rows_of(
    name: str,
    blocks: Blocks,
    batches: Batches,
    batch_size: int,
    steps: int | None,
    num_rows: int | None,
    numbers: PassNumbers,
    mapped: MappedColumns | None = None,
    resumable: StatefulPasses | None = None,
    once: Callable[[], Rows] | None = None,
) -> Rows:
    """Return blocks of any number of rows as batches.

    Args:
        name: the source as the user would call it.
        blocks: this rank's rows, repeated rows included.
        batches: how rows become batches.
        batch_size: number of rows in a batch of this rank.
        steps: number of batches of one pass; None if it is not known yet.
        num_rows: number of rows of one pass of this rank; None if it is not known yet.
        numbers: counts the passes of the blocks.
        mapped: the columns with those that `map` computes.
        resumable: the passes, if reading can go on in the middle of one.
        once: returns the rows without repeated ones; None if none are repeated.
    """
    plan = Plan(
        batch_size=batch_size,
        drop_remainder=batches.last_batch == "drop",
        epochs=batches.epochs,
        max_steps=batches.steps,
        steps=steps,
        rows=num_rows,
        numbers=numbers,
        is_bucketed=batches.bucket_by is not None,
        passes=resumable,
    )
    me = context.current()

    def entropy() -> list[int]:
        """Return the seed of the pass that has just begun."""
        if resumable is not None:
            return resumable.entropy(numbers.upcoming - 1)
        return [me.data_seed, numbers.upcoming - 1, me.reading[0]]

    if batches.bucket_by is not None:

        def seed() -> Any:
            return np.random.SeedSequence(entropy()) if batches.shuffle else None

        # The batches of a window begin with the shortest rows, and all of them must be read.
        window_batches = min(WINDOW_BATCHES, batches.steps or WINDOW_BATCHES)
        blocks = blocks.bucketed(batches.bucket_by, batch_size, seed, window_batches)
    if mapped is not None:
        blocks = MappedBlocks(blocks, mapped, batch_size, plan.drop_remainder, entropy)
    return Rows(name, blocks, plan, once)
