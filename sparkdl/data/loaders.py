"""Runs in the training process. Iterate over a rank's batches in NumPy, PyTorch or JAX."""

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.data.array_batches import rebatched
from sparkdl.data.blocks import Blocks
from sparkdl.data.data_state import DataState
from sparkdl.data.exact_numbers import first_inexact
from sparkdl.data.nested import map_leaves
from sparkdl.data.pass_numbers import PassNumbers
from sparkdl.data.ragged import Ragged
from sparkdl.data.stateful_passes import StatefulPasses
from sparkdl.distribute.step_times import step_times
from sparkdl.errors import ConfigError
from sparkdl.host.optional_packages import require

# The dtypes of floating-point tensors, with the one of NumPy that has their range.
_FLOATS: dict[str | None, str | None] = {
    "float32": "float32",
    "float64": "float64",
    "float16": "float16",
    "bfloat16": "float32",
    None: None,
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The batches that a rank takes in an iteration.

    Attributes:
        batch_size: number of rows in a batch of this rank.
        drop_remainder: leave out rows that do not fill a batch.
        epochs: number of passes over the rows.
        max_steps: maximum number of batches in one pass; None for no maximum.
        steps: number of batches in one pass; None if it is not known yet.
        rows: number of rows in one pass of this rank, repeated rows included; None if it is not
            known yet.
        numbers: counts the passes.
        is_bucketed: True if rows of similar length come into the same batch.
        passes: the passes, if reading can go on in the middle of one; otherwise None.
    """

    batch_size: int
    drop_remainder: bool
    epochs: int
    max_steps: int | None
    steps: int | None
    rows: int | None
    numbers: PassNumbers
    is_bucketed: bool = False
    passes: StatefulPasses | None = None

    @property
    def steps_per_pass(self) -> int | None:
        """The number of batches that an iteration takes of one pass; None if it is not known."""
        if self.passes and self.passes.is_known:
            return self.passes.steps_per_pass
        return self.steps and min(self.steps, self.max_steps or self.steps)

    @property
    def next_steps(self) -> int | None:
        """The number of batches of the next pass; None if it is not known."""
        if self.passes and self.passes.is_known:
            return self.passes.num_steps()
        return self.steps_per_pass

    def known_passes(self) -> StatefulPasses:
        """Return the passes, from the middle of which reading can go on from now on.

        Raises:
            ConfigError: if reading cannot go on in the middle of a pass.
        """
        if self.passes is None:
            raise ConfigError(
                "these rows have no state from which reading could go on in the middle of an "
                "epoch. The readers of files and data.dataset have one, without bucket_by= and "
                "epochs= (iterate several times), and not in an elastic gang; data.dataset also "
                "not with steps= or cache=False, and data.mix has none. Without a state, commit "
                "checkpoints at the end of epochs: Checkpoint without data= and every_steps=."
            )
        self.passes.prepare()
        return self.passes


class Loader(ABC):
    """The batches of a rank, with equal steps on every rank; iterate once per epoch.

    All loaders behave as the `DataLoader` of PyTorch with a `DistributedSampler` does, except that
    with `shuffle=True` each iteration has another order without `set_epoch`.

    Args:
        blocks: the rank's rows.
        plan: how rows become batches.

    Attributes:
        batch_size: number of rows in a batch of this rank; the last batch may have fewer.
    """

    def __init__(self, blocks: Blocks, plan: Plan) -> None:
        self.batch_size = plan.batch_size
        self._blocks = blocks
        self._plan = plan
        self._epoch = plan.numbers.upcoming
        self._num_taken = 0

    def __len__(self) -> int:
        """Return the number of batches in the next iteration.

        Raises:
            TypeError: if the number is unknown, because rows still arrive from Spark, or the number
                of workers changes.
        """
        if (steps := self._plan.next_steps) is None:
            raise TypeError(
                "the number of batches is unknown: rows still arrive from Spark, or the number of "
                "workers changes (num_workers=(least, most)). Iterate until the rows end."
            )
        return self._plan.epochs * steps

    def __iter__(self) -> Iterator[Any]:
        """Yield features, or `(features, labels)`, in the structure of `feature_cols`."""
        plan = self._plan
        plan.numbers.begin(plan.epochs)
        self._epoch = plan.numbers.upcoming
        self._num_taken = 0
        is_known = plan.passes and plan.passes.is_known
        max_steps = plan.next_steps if is_known else plan.max_steps
        for _ in range(plan.epochs):
            with closing(self._blocks.arrays()) as blocks:  # type: ignore[type-var]
                batches = rebatched(blocks, plan.batch_size, plan.drop_remainder)
                arrays = (
                    map_leaves(self._convert, map_leaves(_padded, batch))
                    for batch in itertools.islice(batches, max_steps)
                )
                for converted in step_times().take(arrays):
                    self._num_taken += 1
                    yield converted

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next iteration, to go on after a restart.

        Args:
            epoch: number of the iteration, from 0; iterations after it count on from there.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise ConfigError(f"epoch is {epoch!r}; expected a whole number of at least 0.")
        if self._plan.passes:
            self._plan.passes.begin_at(epoch)
        else:
            self._plan.numbers.upcoming = epoch * self._plan.epochs
        self._epoch = epoch
        self._num_taken = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the epoch: the batches that the loop has taken count as used.

        The state is the same on every rank, so that one rank can store it for all. With
        `data.dataset`, all ranks call the method before the first iteration, see
        `Rows.state_dict`.

        Returns:
            A small dict, as JSON has it, for `load_state_dict`.

        Raises:
            ConfigError: if these rows have no state, see `Rows.load_state_dict`.

        Example:
            >>> import pyarrow as pa, pyarrow.parquet as pq
            >>> from sparkdl import data
            >>> pq.write_table(pa.table({"x": [0, 1, 2, 3, 4]}), "five.parquet")
            >>> batches = data.parquet("five.parquet", batch_size_per_worker=2).as_numpy()
            >>> for batch in batches:
            ...     state = batches.state_dict()
            ...     break
            >>> after_a_restart = data.parquet("five.parquet", batch_size_per_worker=1).as_numpy()
            >>> after_a_restart.load_state_dict(state)
            >>> [batch.tolist() for batch in after_a_restart]
            [[2], [3], [4]]
        """
        return self._plan.known_passes().state(self._epoch, self._num_taken).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where a state was taken; see `Rows.load_state_dict`.

        Args:
            state: the result of `state_dict`.
        """
        self._plan.known_passes().go_on(DataState.from_dict(state))
        self._epoch = self._plan.numbers.upcoming
        self._num_taken = 0

    @abstractmethod
    def _convert(self, array: Any) -> Any:
        """Return an array, or `Ragged`, as the framework's."""


def _padded(array: Any) -> Any:
    is_padded = isinstance(array, Ragged) and array.pad is not None
    return array.padded() if is_padded else array


class NumpyLoader(Loader):
    """Batches of NumPy arrays, which may be changed in place."""

    def _convert(self, array: Any) -> Any:
        return array.rows() if isinstance(array, Ragged) else array


class TorchLoader(Loader):
    """Batches of tensors of PyTorch; what `torch_loader` returns is an `IterableDataset`, too.

    Args:
        blocks, plan: see `Loader`.
        pin_memory: copy the tensors to page-locked memory, if there is a GPU of CUDA.
        dtype: the dtype of floating-point numbers; None keeps that of each column.
    """

    def __init__(self, blocks: Blocks, plan: Plan, pin_memory: bool, dtype: Any) -> None:
        import torch

        super().__init__(blocks, plan)
        self._floats = None if dtype is None else str(dtype).removeprefix("torch.")
        if self._floats not in _FLOATS:
            names = ", ".join(repr(name) for name in _FLOATS)
            raise ConfigError(f"dtype is {dtype!r}; expected one of {names}.")
        self._torch: Any = torch
        self._is_pinned = pin_memory and torch.cuda.is_available()

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch, as PyTorch's loaders with a state do.

        Lightning counts the batches before a restart itself.

        Raises:
            TypeError: if the number is unknown, see `Loader.__len__`.
        """
        steps = self._plan.steps_per_pass
        return super().__len__() if steps is None else self._plan.epochs * steps

    def dataloader(self) -> Any:
        """Return the batches as a `torch.utils.data.DataLoader`, for tools that want one.

        Its `set_epoch` chooses the order, and `state_dict` and `load_state_dict` the place, of
        these batches.

        Example:
            >>> trainer.get_train_dataloader = rows.as_torch().dataloader  # doctest: +SKIP
        """
        return _dataloader_class()(self, batch_size=None)

    def __iter__(self) -> Iterator[Any]:
        """Yield batches, see `Loader.__iter__`.

        Raises:
            ConfigError: in a worker process of a `DataLoader`, each of which would read all rows.
        """
        if self._torch.utils.data.get_worker_info() is not None:
            raise ConfigError(
                "a DataLoader with num_workers reads these rows, each worker all of them. Pass "
                "num_workers=0: threads read ahead already."
            )
        return super().__iter__()

    def _convert(self, array: Any) -> Any:
        if isinstance(array, Ragged):
            return self._jagged(array)
        if array.dtype == object:  # Strings, for which PyTorch has no tensor.
            return array.tolist()
        tensor = self._torch.from_numpy(array)
        if self._floats and array.dtype.kind == "f":
            in_numpy = _FLOATS[self._floats]
            if (value := first_inexact(array, in_numpy)) is not None:
                raise ValueError(
                    f"a column has {value}, which {self._floats}, the dtype of as_torch, cannot "
                    "represent. Scale the column, or pass as_torch(dtype=...): 'float64', or None "
                    "to keep the types of the columns."
                )
            tensor = tensor.to(getattr(self._torch, self._floats))
        return tensor.pin_memory() if self._is_pinned else tensor

    def _jagged(self, ragged: Ragged) -> Any:
        if len(ragged.offsets) > 1 or ragged.values.dtype == object:
            raise ConfigError(
                "a ragged column has several dimensions or strings, for which PyTorch has no "
                "tensor. Use as_numpy(), or store numbers in arrays of one dimension."
            )
        values, offsets = self._convert(ragged.values), self._convert(ragged.offsets[0])
        return self._torch.nested.nested_tensor_from_jagged(values, offsets)


@functools.cache
def _dataloader_class() -> Any:
    """Return the class of what `TorchLoader.dataloader` returns."""
    from torch.utils.data import DataLoader

    def forward(name: str) -> Any:
        return lambda self, *arguments: getattr(self.dataset, name)(*arguments)

    methods = ("set_epoch", "state_dict", "load_state_dict")
    return type("DataLoader", (DataLoader,), {name: forward(name) for name in methods})


@functools.cache
def _torch_class() -> type[TorchLoader]:
    """Return the loader as a class of PyTorch, which is imported only now."""
    from torch.utils.data import IterableDataset

    return type(TorchLoader.__name__, (TorchLoader, IterableDataset), {})


def torch_loader(blocks: Blocks, plan: Plan, pin_memory: bool, dtype: Any) -> TorchLoader:
    """Return the batches as a `torch.utils.data.IterableDataset`, see `TorchLoader`.

    Raises:
        ConfigError: if `dtype` is no dtype of floating-point numbers.
        MissingPackageError: if PyTorch is not installed.
    """
    require("torch", "as_torch()")
    return _torch_class()(blocks, plan, pin_memory, dtype)


class JaxLoader(Loader):
    """Batches of arrays of JAX on its default device."""

    def __init__(self, blocks: Blocks, plan: Plan) -> None:
        require("jax", "as_jax()")
        import jax

        super().__init__(blocks, plan)
        self._jax: Any = jax

    def _convert(self, array: Any) -> Any:
        if isinstance(array, Ragged) or array.dtype == object:
            kind = "is ragged" if isinstance(array, Ragged) else "has strings"
            raise ConfigError(
                f"a column {kind}, for which JAX has no array. Choose other columns with "
                "feature_cols and label_cols, or use as_numpy()."
            )
        dtype = self._jax.dtypes.canonicalize_dtype(array.dtype)
        if dtype.kind in "iu" and array.size and dtype != array.dtype:
            limits = np.iinfo(dtype)
            extremes = int(array.min()), int(array.max())
            if extremes[0] < limits.min or extremes[1] > limits.max:
                raise ValueError(
                    f"a column of {array.dtype} has numbers from {extremes[0]} to {extremes[1]}, "
                    f"and JAX would cut them to {dtype}. Let JAX use 64 bits: "
                    "jax.config.update('jax_enable_x64', True)."
                )
        return self._jax.numpy.asarray(array)
