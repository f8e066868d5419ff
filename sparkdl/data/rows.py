"""Runs in the training process. The rows of a rank: a `tf.data.Dataset`, or arrays without it.

A reader cannot know which framework its rows are for, and loading TensorFlow takes seconds and
hundreds of megabytes. So the result of a reader becomes a dataset when it is first used as one.
"""

import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sparkdl.data.blocks import Blocks
from sparkdl.data.data_state import DataState
from sparkdl.data.loaders import JaxLoader, NumpyLoader, Plan, TorchLoader, torch_loader
from sparkdl.data.nested import leaves, map_together
from sparkdl.data.stateful_passes import StatefulPasses
from sparkdl.distribute.autoshard import mark_share
from sparkdl.host.optional_packages import require


class Rows:
    """The rows of a rank in batches, as all readers of `sparkdl.data` return them.

    Rows are a `tf.data.Dataset`: they have its methods, `isinstance` says so, and Keras takes
    them. TensorFlow is loaded when rows are first used in this way. `as_numpy`, `as_torch` and
    `as_jax` give the same batches to other frameworks without TensorFlow.

    Args:
        name: the source as the user would call it.
        blocks: the rank's rows.
        plan: how rows become batches.
        once: returns the rows without repeated ones; None if none are repeated.

    Attributes:
        name, blocks, plan: the arguments.
    """

    def __init__(
        self,
        name: str,
        blocks: Blocks,
        plan: Plan,
        once: Callable[[], "Rows"] | None = None,
    ) -> None:
        self.name = name
        self.blocks = blocks
        self.plan = plan
        self._once = once
        self._may_be_short = False  # True if an iteration may begin in the middle of an epoch.

    @functools.cached_property
    def without_repeats(self) -> "Rows":
        """The same rows, each of them on one rank only, for an evaluation over all ranks.

        With `last_batch="pad"` a rank may read a row that it, or another rank, has read. Here it
        does not, so that ranks may have a row, and even a batch, less than others. `evaluate` of a
        model with `distribute.optimizer`, and the validation of its `fit`, use these rows.

        Example:
            >>> import pyarrow as pa, pyarrow.parquet as pq
            >>> from sparkdl import data
            >>> pq.write_table(pa.table({"x": [0, 1, 2]}), "three.parquet")
            >>> rows = data.parquet("three.parquet", batch_size_per_worker=2)
            >>> [x.tolist() for x in rows.without_repeats.as_numpy()]
            [[0, 1], [2]]
        """
        return self._once() if self._once else self

    def as_numpy(self) -> NumpyLoader:
        """Return the batches as NumPy arrays, with strings as objects.

        A ragged column is an array (rows,) of objects, the array of each row. The arrays of a
        batch may be changed in place.

        Returns:
            An object to iterate over once per epoch, with `len()` and `set_epoch(epoch)`.

        Example:
            >>> import pyarrow as pa, pyarrow.parquet as pq
            >>> from sparkdl import data
            >>> pq.write_table(pa.table({"x": [0.5, 1.5, 2.5], "y": [0, 1, 1]}), "three.parquet")
            >>> rows = data.parquet("three.parquet", batch_size_per_worker=2, label_cols="y")
            >>> for x, y in rows.as_numpy():
            ...     print(x, y)
            [0.5 1.5] [0 1]
            [2.5] [1]
        """
        return NumpyLoader(self.blocks, self.plan)

    def as_torch(self, *, pin_memory: bool = False, dtype: Any = "float32") -> TorchLoader:
        """Return the batches as tensors of PyTorch, in place of a `DataLoader`.

        Columns of float and double become float32, the dtype of the weights of new modules: a
        module takes floats of its own dtype only. Whole numbers keep their type. Strings are
        lists, and a ragged column is a jagged `torch.nested` tensor. Every rank of a gang takes
        the same number of batches, so no `DistributedSampler` is needed.

        Args:
            pin_memory: copy the tensors to page-locked memory, from which
                `tensor.to("cuda", non_blocking=True)` does not wait; ignored without a GPU.
            dtype: the dtype of columns of float and double, features, labels and weights alike:
                `float32`, `float64`, `float16` or `bfloat16`, or one of PyTorch. None keeps the
                type of each column. A finite number that it has no finite number for is an error
                during iteration.

        Returns:
            An object to iterate over once per epoch, with `len()` and `set_epoch(epoch)`.

        Raises:
            ConfigError: if `dtype` is none of these.
            MissingPackageError: if PyTorch is not installed.

        Example:
            >>> import pyarrow as pa, pyarrow.parquet as pq
            >>> from sparkdl import data
            >>> pq.write_table(pa.table({"x": [0.5, 1.5, 2.5], "y": [0, 1, 1]}), "three.parquet")
            >>> rows = data.parquet("three.parquet", batch_size_per_worker=2, label_cols="y")
            >>> for x, y in rows.as_torch():  # doctest: +SKIP
            ...     print(x, y)
            tensor([0.5000, 1.5000]) tensor([0, 1])
            tensor([2.5000]) tensor([1])
        """
        return torch_loader(self.blocks, self.plan, pin_memory, dtype)

    def as_jax(self) -> JaxLoader:
        """Return the batches as arrays of JAX, on its default device.

        Unless JAX uses 64 bits (`jax_enable_x64`), int64 becomes int32 and float64 float32; a
        number outside of int32 is an error during iteration. A column that is ragged or has
        strings is an error too.

        Returns:
            An object to iterate over once per epoch, with `len()` and `set_epoch(epoch)`.

        Raises:
            MissingPackageError: if JAX is not installed.

        Example:
            >>> import pyarrow as pa, pyarrow.parquet as pq
            >>> from sparkdl import data
            >>> pq.write_table(pa.table({"x": [0.5, 1.5, 2.5]}), "three.parquet")
            >>> rows = data.parquet("three.parquet", batch_size_per_worker=2)
            >>> [batch.sum().item() for batch in rows.as_jax()]  # doctest: +SKIP
            [2.0, 2.5]
        """
        return JaxLoader(self.blocks, self.plan)

    def state_dict(self, epoch: int, steps: int) -> dict[str, Any]:
        """Return the place after some steps of an epoch, for a loop over the `tf.data.Dataset`.

        TensorFlow reads ahead, so that only the loop knows how many batches it has used. Other
        loaders count themselves. With `data.dataset`, all ranks call it, first before the first
        iteration: it waits until all rows have arrived.

        Args:
            epoch: number of the iteration over the rows, from 0; `load_state_dict` counts on.
            steps: number of batches of this iteration that were used.

        Returns:
            A small dict, as JSON has it, for `load_state_dict`; the same on every rank.

        Raises:
            ConfigError: if these rows have no state, an iteration has fewer steps, or the
                iteration was begun before the first call with `data.dataset`.
        """
        return self.known_passes().state(epoch, steps).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where a state was taken, and later ones count on from there.

        The next iteration yields the rest of the epoch: every row that no step has used, once. The
        number of ranks and the batch size may have changed. All ranks load the same state, before
        they derive other datasets, such as `rows.map(...)`.

        Args:
            state: the result of `state_dict`, also that of a loader.

        Raises:
            ConfigError: if these rows have no state: those of `data.mix`, with `epochs` or
                `bucket_by`, in an elastic gang, and those of `data.dataset` with `steps` or
                `cache=False`. Or if the state is that of other files, of a DataFrame with other
                rows, or of arguments with which the order is another.

        Example:
            >>> import pyarrow as pa, pyarrow.parquet as pq
            >>> from sparkdl import data
            >>> pq.write_table(pa.table({"x": [0, 1, 2, 3, 4]}), "five.parquet")
            >>> rows = data.parquet("five.parquet", batch_size_per_worker=2)
            >>> rows.load_state_dict(rows.state_dict(epoch=7, steps=1))
            >>> [batch.numpy().tolist() for batch in rows]
            [[2, 3], [4]]
        """
        self.known_passes().go_on(DataState.from_dict(state))
        if not self._may_be_short:
            self._may_be_short = True
            vars(self).pop("_dataset", None)

    def known_passes(self) -> StatefulPasses:
        """Return the passes, from the middle of which reading can go on from now on.

        Raises:
            ConfigError: if these rows have no state.
        """
        had_length = self.plan.steps_per_pass is not None
        passes = self.plan.known_passes()
        if not had_length:
            vars(self).pop("_dataset", None)  # The next one has a length.
        return passes

    @functools.cached_property
    def _dataset(self) -> Any:
        require("tensorflow", f"{self.name} as a tf.data.Dataset")
        import tensorflow as tf

        try:
            # A dataset that is first used in a tf.function outlives its graph.
            with tf.init_scope():
                batches = _batched(self.blocks.tensors(), self.plan, self.blocks.padding)
                finished = _short if self._may_be_short else _finished
                return mark_share(finished(batches, self.plan).prefetch(2))
        except AttributeError as exc:  # It would mean that there is no `_dataset`.
            raise RuntimeError(f"{self.name} cannot become a tf.data.Dataset: {exc}") from exc

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # `isinstance` asks here. It cannot be about a class of TensorFlow before that is loaded.
        tf = sys.modules.get("tensorflow")
        dataset: type = getattr(getattr(tf, "data", None), "Dataset", Rows)
        return dataset

    def __getattr__(self, name: str) -> Any:
        # Private names are for TensorFlow, which is loaded when it asks. Notebooks ask as well.
        is_foreign = name.startswith("_") and "tensorflow" not in sys.modules
        is_bare = "plan" not in vars(self)  # A copy is asked before it has its attributes.
        if is_foreign or is_bare:
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._dataset)

    def __len__(self) -> int:
        return len(self._dataset)

    def __bool__(self) -> bool:
        return True  # As a `tf.data.Dataset`, whose length may be unknown.

    def __repr__(self) -> str:
        steps = "unknown" if self.plan.steps is None else self.plan.steps
        return f"<Rows of {self.name}: batch_size={self.plan.batch_size}, steps={steps}>"


def _batched(elements: Any, plan: Plan, padding: Any) -> Any:
    """Return elements of any number of rows as batches.

    Args:
        elements: a `tf.data.Dataset` of this rank's rows, repeated rows included.
        plan: how rows become batches.
        padding: see `Blocks`.
    """
    dataset = elements.prefetch(1).rebatch(plan.batch_size, drop_remainder=plan.drop_remainder)
    if any(pad is not None for pad in leaves(padding)):
        dataset = dataset.map(
            lambda *parts: map_together(
                _padded, parts if isinstance(padding, tuple) else parts[0], padding
            )
        )
    return dataset


def _finished(dataset: Any, plan: Plan) -> Any:
    """Return the batches of all passes of an iteration."""
    import tensorflow as tf

    if plan.max_steps:
        dataset = dataset.take(plan.max_steps)
    if (steps := plan.steps_per_pass) is not None:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
    return _repeat(dataset, plan) if plan.epochs > 1 else dataset


def _short(dataset: Any, plan: Plan) -> Any:
    """Return the batches of an iteration, which may begin in the middle of an epoch.

    The dataset has the cardinality of a whole epoch, which Keras takes for all epochs; it lets an
    epoch have fewer batches. TensorFlow computes the cardinality from the endless dataset that is
    chosen from, not from the choices.
    """
    import tensorflow as tf

    def choices() -> Iterator[int]:
        yield from itertools.repeat(0, plan.next_steps or 0)

    chosen = tf.data.Dataset.from_generator(choices, output_signature=tf.TensorSpec([], tf.int64))
    endless = tf.data.Dataset.choose_from_datasets([dataset.repeat()], chosen)
    return endless.take(plan.steps_per_pass)


def _repeat(dataset: Any, plan: Plan) -> Any:
    """Return all passes of an iteration, which counts all of them even if it is left early."""
    import tensorflow as tf

    def begin() -> Iterator[Any]:
        plan.numbers.begin(plan.epochs)
        yield 0

    start = tf.data.Dataset.from_generator(begin, output_signature=tf.TensorSpec([], tf.int64))
    passes = start.flat_map(lambda _: dataset.repeat(plan.epochs))
    if plan.steps is None:
        return passes
    return passes.apply(
        tf.data.experimental.assert_cardinality(dataset.cardinality() * plan.epochs)
    )


def _padded(tensor: Any, pad: Any) -> Any:
    return tensor if pad is None else tensor.to_tensor(pad)
