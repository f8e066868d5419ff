"""Runs anywhere (pure). Functions of the user that compute columns from the columns of a batch."""

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.data.ragged import Ragged
from sparkdl.errors import ConfigError, suggest
from sparkdl.options import check_count

MAX_THREADS = 8
STRINGS = np.dtype(object)


@dataclass(frozen=True)
class Map:
    """A function that computes columns from the columns of a batch, for `map=` of all readers.

    Several threads call the function, each with another batch, and the order of the batches stays.
    Threads compute at the same time wherever the function leaves Python: NumPy's operations on
    numbers do, a loop of Python over rows does not. The arrays of a batch may be changed in place.

    Attributes:
        function: called with a dict of arrays (rows, ...), as `Rows.as_numpy` returns them. It
            returns a dict of arrays with as many rows; they are added to the columns of the batch,
            and replace columns of the same name. An array of objects that are arrays (n,) is a
            ragged column. If the function has a parameter `random`, it is given there a
            `numpy.random.Generator` of its own for each batch, which follows from the seed of the
            trial, the pass, the rank and the number of the batch. The rest of a pass, after
            `load_state_dict`, has other ones.
        columns: names of the columns that the function is given; by default all columns of the
            data, which are then read.
        outputs: dtype, or dtype and shape of a row, of all columns that the function returns:
            `{"image": ("float32", [28, 28, 1]), "name": "string"}`; None in a shape is any length.
            By default they are those of the first batch, and are the same in all batches.
        num_threads: number of threads; by default one for each core of the trial, and at most 8. A
            function that must not be called by several threads at once needs `num_threads=1`.

    Example:
        >>> import pyarrow as pa, pyarrow.parquet as pq
        >>> from sparkdl import data
        >>> pq.write_table(pa.table({"x": [1, 2, 3], "y": [0, 1, 1]}), "three.parquet")
        >>> def scale(rows):
        ...     return {"x": (rows["x"] / 2).astype("float32")}
        >>> rows = data.parquet("three.parquet", map=data.Map(scale, columns=["x"]),
        ...     label_cols="y", batch_size_per_worker=2)
        >>> for x, y in rows.as_numpy():
        ...     print(x, y)
        [0.5 1. ] [0 1]
        [1.5] [1]
    """

    function: Callable[..., Mapping[str, Any]]
    columns: Sequence[str] | None = None
    outputs: Mapping[str, Any] | None = None
    num_threads: int | None = None

    @classmethod
    def parse(cls, value: Any) -> "Map | None":
        """Create from the argument `map`: a function, a `Map`, or None.

        Raises:
            ConfigError: if the value, or an attribute of it, is invalid.
        """
        if value is None:
            return None
        batch_map = value if isinstance(value, cls) else cls(value)
        if not callable(batch_map.function):
            raise ConfigError(
                f"map is {value!r}; expected a function of a dict of arrays, or data.Map(function)."
            )
        if isinstance(batch_map.columns, str):
            raise ConfigError(
                f"columns of data.Map is {batch_map.columns!r}; expected a list of names."
            )
        if batch_map.columns is not None and not list(batch_map.columns):
            raise ConfigError("columns of data.Map is empty; expected names, or None for all.")
        if batch_map.num_threads is not None:
            check_count("num_threads", batch_map.num_threads)
        batch_map.declared()
        return batch_map

    @property
    def name(self) -> str:
        """The name of the function, and the place of its source."""
        function: Any = inspect.unwrap(self.function)
        while isinstance(function, functools.partial):
            function = function.func
        name = getattr(function, "__qualname__", type(function).__qualname__)
        code = getattr(function, "__code__", None)
        return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name

    @property
    def threads(self) -> int:
        """The number of threads that call the function."""
        if self.num_threads:
            return self.num_threads
        # The cores of the trial, where several share a host.
        cores = int(os.environ.get("TF_NUM_INTEROP_THREADS") or len(os.sched_getaffinity(0)))
        return max(min(cores, MAX_THREADS), 1)

    def inputs(self, columns: Sequence[str]) -> list[str]:
        """Return the names of the columns that the function is given.

        Args:
            columns: names of the columns of the data.

        Raises:
            ConfigError: if a column does not exist.
        """
        names = list(columns if self.columns is None else self.columns)
        for name in names:
            if name not in columns:
                raise ConfigError(
                    f"data.Map names column {name!r}, which does not exist."
                    f"{suggest(str(name), columns)} Columns are {', '.join(columns)}."
                )
        return names

    def declared(self) -> dict[str, "Output"] | None:
        """Return the declared outputs by name; None without a declaration.

        Raises:
            ConfigError: if a declaration is invalid.
        """
        if self.outputs is None:
            return None
        if not isinstance(self.outputs, Mapping):
            raise ConfigError(
                f"outputs of data.Map is {self.outputs!r}; expected a dict from names to a dtype, "
                "or to a dtype and a shape."
            )
        return {name: Output.parse(name, each) for name, each in self.outputs.items()}

    def __call__(self, batch: Mapping[str, Any], random: Any) -> dict[str, Any]:
        """Return the columns that the function computes from a batch, by name.

        Args:
            batch: the columns that the function is given: arrays, or `Ragged`.
            random: the generator for a function that has a parameter `random`.

        Raises:
            RuntimeError: if the function fails; its own error is the cause.
            ValueError: if the function does not return a dict of arrays with as many rows.
        """
        rows = len(next(iter(batch.values()))) if batch else 0
        arguments = {"random": random} if _takes_random(self.function) else {}
        try:
            returned = self.function({n: _visible(each) for n, each in batch.items()}, **arguments)
        except Exception as exc:
            raise RuntimeError(
                f"the function {self.name} of map= failed for a batch of {rows} rows with the "
                f"columns {', '.join(batch)}: {type(exc).__name__}: {exc}"
            ) from exc
        if not isinstance(returned, Mapping):
            raise ValueError(
                f"the function {self.name} of map= returned {type(returned).__name__}; expected a "
                "dict from names of columns to arrays."
            )
        return {name: self._column(name, value, rows) for name, value in returned.items()}

    def _column(self, name: Any, value: Any, rows: int) -> Any:
        """Return a value as an array (rows, ...) of numbers or strings, or as `Ragged`."""
        problem = None
        is_list = isinstance(value, list | tuple) and all(isinstance(v, str | bytes) for v in value)
        try:
            # NumPy's own type for bytes cuts off zeros at their end.
            array = np.asarray(value, object if is_list else None)
        except ValueError as exc:  # Lists of different lengths.
            array = np.empty(0)
            problem = str(exc)
        if array.dtype.kind in "US":
            array = array.astype(object)
        if problem is None and array.shape[:1] != (rows,):
            problem = f"its shape is {list(array.shape)}"
        elif array.dtype == STRINGS and array.ndim == 1 and _all_are(array, np.ndarray):
            if {part.ndim for part in array} == {1} and STRINGS not in {p.dtype for p in array}:
                return Ragged.from_lengths(np.concatenate(array), [[len(part) for part in array]])
            problem = "it has arrays of several dimensions, or of objects"
        elif array.dtype == STRINGS and not _all_are(array, str, bytes):
            problem = "it has objects that are neither strings nor arrays of NumPy"
        elif array.dtype != STRINGS and array.dtype.kind not in "biuf":
            problem = f"its dtype is {array.dtype}"
        if problem is None and isinstance(name, str):
            return array.astype(array.dtype.newbyteorder("="), copy=False)
        raise ValueError(
            f"the function {self.name} of map= returned a column {name!r} for {rows} rows, but "
            f"{problem or 'its name is not a string'}; expected an array of numbers or strings "
            f"with {rows} rows, or an array of objects with an array (n,) of numbers for each row."
        )


def _takes_random(function: Any) -> bool:
    try:
        # The function inside a wrapper may have parameters that the wrapper does not have.
        return "random" in inspect.signature(function, follow_wrapped=False).parameters
    except (TypeError, ValueError):  # A function that is not written in Python.
        return False


def _all_are(array: "np.ndarray[Any, Any]", *kinds: type) -> bool:
    return all(issubclass(kind, kinds) for kind in set(map(type, array.flat)))


def _visible(array: Any) -> Any:
    """Return a column of a batch as the function gets it."""
    if not isinstance(array, Ragged):
        return array
    return array.rows() if array.pad is None else array.padded()


@dataclass(frozen=True)
class Output:
    """The form of a column that a function returns.

    Attributes:
        dtype: dtype of its values; `object` for strings.
        shape: shape of a row; None is any length.
        is_ragged: True if the rows of a batch differ in length.
    """

    dtype: "np.dtype[Any]"
    shape: tuple[int | None, ...] = ()
    is_ragged: bool = False

    @classmethod
    def parse(cls, name: str, value: Any) -> "Output":
        """Create from a declaration: a dtype, or a dtype and a shape.

        Raises:
            ConfigError: if the declaration is invalid.

        Example:
            >>> Output.parse("image", ("float32", [None, 4]))
            Output(dtype=dtype('float32'), shape=(None, 4), is_ragged=False)
        """
        kind, shape = value if type(value) in (tuple, list) and len(value) == 2 else (value, ())
        try:
            dtype = STRINGS if kind in ("string", "bytes", str, bytes) else np.dtype(kind)
            sizes = tuple(shape)
            are_sizes = all(size is None or (type(size) is int and size >= 0) for size in sizes)
            is_valid = are_sizes and (dtype == STRINGS or dtype.kind in "biuf")
        except TypeError:
            is_valid = False
        if not is_valid:
            raise ConfigError(
                f"outputs of data.Map has {value!r} for {name!r}; expected a dtype such as "
                "'float32' or 'string', or a dtype and the shape of a row, such as "
                "('float32', [28, 28, 1])."
            )
        return cls(dtype, sizes)

    @classmethod
    def of(cls, column: Any) -> "Output":
        """Return the form of a column of a batch.

        Example:
            >>> Output.of(np.zeros((2, 3)))
            Output(dtype=dtype('float64'), shape=(3,), is_ragged=False)
        """
        if isinstance(column, Ragged):
            return cls(column.values.dtype, (None,), True)
        return cls(column.dtype, column.shape[1:])

    def includes(self, other: "Output") -> bool:
        """Return True if all columns of another form, with its raggedness, have this form too."""
        return (
            self.dtype == other.dtype
            and len(self.shape) == len(other.shape)
            and all(mine in (None, its) for mine, its in zip(self.shape, other.shape, strict=True))
        )

    def spec(self) -> Any:
        """Return the `tf.TypeSpec` of a batch."""
        import tensorflow as tf

        dtype = tf.string if self.dtype == STRINGS else tf.as_dtype(self.dtype)
        kind = tf.RaggedTensorSpec if self.is_ragged else tf.TensorSpec
        return kind([None, *self.shape], dtype)

    def __str__(self) -> str:
        dtype = "string" if self.dtype == STRINGS else str(self.dtype)
        return f"{dtype} {list(self.shape)}" if self.shape else dtype
