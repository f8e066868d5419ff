"""Runs in the training process. Turn the rows of any reader into the batches of this rank."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from sparkdl import context
from sparkdl.data.column_selection import ColumnSelection
from sparkdl.data.readers.base import Pass, Source
from sparkdl.data.shard import LAST_BATCH, Share, share
from sparkdl.distribute.autoshard import mark_share
from sparkdl.errors import ConfigError, suggest
from sparkdl.options import check_count, with_keywords_of

__all__ = ["Batches", "finished", "make_dataset", "report_dataset", "takes_batches"]

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
        epochs: number of passes over the rows.
        shuffle: shuffle the rows, differently in each pass.
        last_batch: treatment of rows that do not fill the last batch of every rank: `pad` makes
            the last batch smaller, and repeats a row on ranks that have one row less than others;
            `drop` leaves these rows out.
        steps: maximum number of batches in one pass; by default there is no maximum.
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
    def parse(cls, arguments: Mapping[str, Any]) -> "Batches":
        """Create from keyword arguments.

        Raises:
            ConfigError: if a name or a value is invalid; the message names the right one.

        Example:
            >>> Batches.parse({"global_batch_size": 64}).per_worker(4)
            16
        """
        known = [field.name for field in fields(cls)]
        for name in arguments:
            if name not in known:
                hint = " Pass batch_size_per_worker= or global_batch_size=."
                hint = hint if name == "batch_size" else suggest(name, known)
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
        if self.last_batch not in LAST_BATCH:
            raise ConfigError(f"last_batch is {self.last_batch!r}; expected 'pad' or 'drop'.")

    def per_worker(self, world_size: int) -> int:
        """Return the number of rows in a batch of one rank.

        Args:
            world_size: number of ranks.

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


def make_dataset(source: Source, batches: Batches) -> Any:
    """Return this rank's share of a source as a `tf.data.Dataset`, with equal steps on every rank.

    Args:
        source: the rows of all ranks.
        batches: how rows become batches.

    Raises:
        ConfigError: if a column does not exist, or the global batch cannot be shared equally.
    """
    me = context.current()
    # An evaluator has a rank beyond the world of the workers, and reads all rows.
    rank, world_size = (me.rank, me.world_size) if me.rank < me.world_size else (0, 1)
    batch_size = batches.per_worker(world_size)
    selection = ColumnSelection.among(source.columns, batches.feature_cols, batches.label_cols)

    def own_share(order: Sequence[int] | None = None) -> Share:
        return share(source.sizes, rank, world_size, batch_size, batches.last_batch, order)

    pass_numbers = iter(range(1 << 62))

    def next_pass() -> Pass:
        number = next(pass_numbers)
        if not batches.shuffle:
            return Pass(own_share().ranges)
        # The division among the ranks is the same in all passes: a rank that iterates once more
        # than others must not change it.
        pieces = np.random.default_rng(me.seed).permutation(len(source.sizes)).tolist()
        seed = int(np.random.SeedSequence([me.seed, number, rank]).generate_state(1)[0])
        ranges = own_share(pieces).ranges
        order = np.random.default_rng(seed).permutation(len(ranges))
        return Pass(tuple(ranges[place] for place in order), seed)

    whole = own_share()
    report_dataset(source.name, batches, whole.rows, whole.steps, whole.padded, whole.dropped)
    return finished(source.elements(next_pass, selection), batches, batch_size, whole.steps)


def finished(elements: Any, batches: Batches, batch_size: int, steps: int | None) -> Any:
    """Return elements of any number of rows as batches, repeated and prefetched.

    Args:
        elements: a `tf.data.Dataset` of this rank's rows, repeated rows included.
        batches: how rows become batches.
        batch_size: number of rows in a batch of this rank.
        steps: number of batches of one pass; None if it is not known yet.
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


def report_dataset(
    name: str, batches: Batches, rows: int, steps: int, padded: int, dropped: int
) -> None:
    """Log the size of a dataset and record it in the trial's folder; only the chief does.

    Args:
        name: name of the dataset.
        batches: how rows become batches.
        rows: number of rows of all ranks together.
        steps: number of batches of each rank in one pass.
        padded: number of rows that are repeated, over all ranks.
        dropped: number of rows that are left out, over all ranks.
    """
    me = context.current()
    if not me.is_chief:
        return
    per_worker = batches.per_worker(me.world_size)
    record = {
        "data": name,
        "rows": rows,
        "batch_size_per_worker": per_worker,
        "global_batch_size": per_worker * me.world_size,
        "steps": min(steps, batches.steps or steps),
        "padded": padded,
        "dropped": dropped,
    }
    remainder = f", {padded} repeated" if padded else f", {dropped} left out" if dropped else ""
    ranks = f" on each of {me.world_size} ranks, {record['global_batch_size']} together"
    _logger.info(
        "%s: %d rows%s; batches of %d%s; %d steps per epoch",
        name,
        rows,
        remainder,
        per_worker,
        ranks if me.world_size > 1 else "",
        record["steps"],
    )
    if me.folder:
        line = json.dumps(record).encode() + b"\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        descriptor = os.open(Path(me.folder, "data.jsonl"), flags, 0o644)
        os.write(descriptor, line)
        os.close(descriptor)
