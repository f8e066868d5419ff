"""Runs in the training process. Call the user's function for each batch, in several threads."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from sparkdl.data.array_batches import rebatched
from sparkdl.data.arrow_arrays import stack_arrays, stacked_spec
from sparkdl.data.batch_map import Map, Output
from sparkdl.data.blocks import Blocks, to_tensor
from sparkdl.data.column_selection import ColumnSelection
from sparkdl.data.nested import map_leaves
from sparkdl.data.own_memory import copied, separately_owned
from sparkdl.errors import ConfigError


def stored_columns(
    batch_map: Map, columns: Sequence[str], features: Any, labels: Any, weights: Any
) -> ColumnSelection:
    """Return the selection of the columns to read: by name, those of the function and all others.

    Args:
        batch_map: the user's function.
        columns: names of the columns of the data.
        features, labels, weights: see `ColumnSelection`; some may name what the function returns.
    """
    selected_columns = ColumnSelection(features, labels, weights).names
    others = columns if features is None else [name for name in selected_columns if name in columns]
    names = dict.fromkeys([*batch_map.inputs(columns), *others])
    return ColumnSelection({name: name for name in names})


@dataclass(frozen=True)
class MappedColumns:
    """The columns of a dataset with a function.

    Attributes:
        batch_map: the user's function.
        inputs: names of the columns that the function is given.
        outputs: the form of each column that it returns, by name.
        selection: the arrangement of the columns that were read and returned.
    """

    batch_map: Map
    inputs: Sequence[str]
    outputs: Mapping[str, Output]
    selection: ColumnSelection

    @classmethod
    def learn(
        cls, batch_map: Map, columns: Sequence[str], sample: Any, *selected_columns: Any
    ) -> "MappedColumns":
        """Create from the columns that the function returns for a sample.

        Args:
            batch_map: the user's function.
            columns: names of the columns of the data.
            sample: the columns of a batch by name; None if there are no rows.
            *selected_columns: features, labels and weights, see `ColumnSelection`.

        Raises:
            ConfigError: if there are no rows and no declared outputs, the function returns others
                than declared, or a selected column does not exist.
        """
        inputs, declared = batch_map.inputs(columns), batch_map.declared()
        if sample is None and declared is None:
            raise ConfigError(
                f"there are no rows to learn from which columns {batch_map.name} returns. Declare "
                "them: map=data.Map(function, outputs={'x': 'float32'})."
            )
        outputs = declared or {}
        returned = {}
        if sample is not None:
            random = np.random.default_rng(0)
            returned = batch_map({name: sample[name] for name in inputs}, random)
            returned_forms = {name: Output.of(each) for name, each in returned.items()}
            outputs = (
                returned_forms
                if declared is None
                else _declared_forms(batch_map, declared, returned_forms)
            )
        names = dict.fromkeys([*columns, *outputs])
        selection = ColumnSelection.among(list(names), *selected_columns)
        if sample is not None:  # An error here is plain; TensorFlow would wrap it.
            selection.pick({**sample, **returned}, stack_arrays)
        return cls(batch_map, inputs, outputs, selection)

    def __call__(self, batch: Mapping[str, Any], seed: Sequence[int]) -> Any:
        """Return the features and labels of a batch.

        Args:
            batch: the columns that were read, by name.
            seed: the seed of the batch.

        Raises:
            ValueError: if the function returns columns of another form than before.
        """
        returned = self.batch_map(
            {name: batch[name] for name in self.inputs}, np.random.default_rng(list(seed))
        )
        found = {name: Output.of(each) for name, each in returned.items()}
        if found != self.outputs:
            _check_forms(self.batch_map, self.outputs, found)
        kept = {name: _own_copy(each) for name, each in returned.items()}
        element = self.selection.pick({**batch, **kept}, stack_arrays)
        return map_leaves(separately_owned(), element)


def _own_copy(array: Any) -> Any:
    """Return a copy of an array that the function may return again, or change, at the next call."""
    return copied(array) if isinstance(array, np.ndarray) else array


def _declared_forms(
    batch_map: Map, declared: Mapping[str, Output], returned: Mapping[str, Output]
) -> dict[str, Output]:
    """Return the declared forms; only the columns themselves say which are ragged."""
    try:
        forms = {
            name: Output(each.dtype, each.shape, name in returned and returned[name].is_ragged)
            for name, each in declared.items()
        }
        _check_forms(batch_map, forms, returned)
    except ValueError as exc:
        raise ConfigError(str(exc)) from None
    return forms


def _check_forms(
    batch_map: Map, expected: Mapping[str, Output], returned: Mapping[str, Output]
) -> None:
    if returned.keys() != expected.keys():
        raise ValueError(
            f"the function {batch_map.name} of map= returned the columns {_comma_list(returned)}; "
            f"expected {_comma_list(expected)}, as declared or as in the first batch."
        )
    for name, form in expected.items():
        its = returned[name]
        if its.is_ragged != form.is_ragged or not form.includes(its):
            kind = "ragged " if its.is_ragged else ""
            raise ValueError(
                f"the function {batch_map.name} of map= returned column {name!r} as {kind}{its} in "
                f"each row; expected {'ragged ' if form.is_ragged else ''}{form}, as declared or "
                "as in the first batch. Use astype for another dtype, and None for a length that "
                "differs from batch to batch: data.Map(function, outputs={"
                f"{name!r}: ({str(form.dtype)!r}, [None])}})."
            )


def _comma_list(names: Mapping[str, Any]) -> str:
    return ", ".join(names) or "none"


class MappedBlocks(Blocks):
    """Blocks that are batches, with the columns that a function has computed.

    Args:
        stored: blocks of a dict of the columns that were read, by name.
        columns: the function, and the columns with its results.
        batch_size: number of rows in a batch.
        drop_remainder: leave out the last batch if it has fewer rows.
        seed: returns the seed of the pass that has just begun.
    """

    def __init__(
        self,
        blocks: Blocks,
        columns: MappedColumns,
        batch_size: int,
        drop_remainder: bool,
        seed: Callable[[], Sequence[int]],
    ) -> None:
        self._blocks = blocks
        self._columns = columns
        self._batch_size = batch_size
        self._drop_remainder = drop_remainder
        self._seed = seed
        padding = {**(blocks.padding or {}), **dict.fromkeys(columns.outputs)}
        by_name = {name: padding.get(name) for name in columns.selection.names}
        self.padding = columns.selection.pick(by_name, lambda *_: None)

    def arrays(self) -> Iterator[Any]:
        """Implement `Blocks.arrays`; threads compute the next batches while one is used."""
        num_threads = self._columns.batch_map.threads
        pool = ThreadPoolExecutor(num_threads, "sparkdl-map")
        pending: deque[Future[Any]] = deque()
        try:
            with closing(self._blocks.arrays()) as blocks:  # type: ignore[type-var]
                batches = rebatched(blocks, self._batch_size, self._drop_remainder)
                seed: Sequence[int] = ()
                for number, batch in zip(count(1), batches):  # A last 0 would change no seed.
                    seed = seed or self._seed()
                    pending.append(pool.submit(self._columns, batch, [*seed, number]))
                    if len(pending) > num_threads:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def tensors(self) -> Any:
        """Implement `Blocks.tensors`."""
        import tensorflow as tf

        def elements() -> Iterator[Any]:
            for batch in self.arrays():
                yield map_leaves(to_tensor, batch)

        outputs = {name: output.spec() for name, output in self._columns.outputs.items()}
        specs = {**self._blocks.tensors().element_spec, **outputs}
        signature = self._columns.selection.pick(specs, stacked_spec)
        return tf.data.Dataset.from_generator(elements, output_signature=signature)
