"""Arrow batches as arrays: every row of the table of types, slices, nulls, and arrangements."""

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl.data.arrow_arrays import Arrays, inner_shape, to_array
from sparkdl.data.blocks import to_tensor
from sparkdl.data.column_selection import ColumnSelection
from sparkdl.data.nested import map_leaves
from sparkdl.data.own_memory import owned
from sparkdl.data.schema import Column, column, columns
from sparkdl.errors import ConfigError


def column_of(values: pa.Array, **options: Any) -> Column:
    return column(pa.field("c", values.type), **options)


def converted(values: pa.Array, **options: Any) -> Any:
    """As its reader would do it: the shape is that of the first row."""
    column = column_of(values, **options)
    return to_array(values, column, inner_shape(values, column))


EPOCH = dt.date(1970, 1, 1)
MOMENT = dt.datetime(2020, 1, 2, 3, 4, 5, 678901)
MICROSECONDS = 1577934245678901

# An Arrow type, values, and what they become.
CASES: dict[str, tuple[pa.DataType, list[Any], list[Any], Any]] = {
    **{
        f"{kind}": (kind, [0, 1, top], [0, 1, top], kind.to_pandas_dtype())
        for kind, top in [
            (pa.int8(), 127),
            (pa.int16(), 2**15 - 1),
            (pa.int32(), 2**31 - 1),
            (pa.int64(), 2**63 - 1),
            (pa.uint8(), 255),
            (pa.uint16(), 2**16 - 1),
            (pa.uint32(), 2**32 - 1),
            (pa.uint64(), 2**64 - 1),
        ]
    },
    "float16": (pa.float16(), [0.5, -1.5], [0.5, -1.5], np.float16),
    "float32": (pa.float32(), [0.5, -1e38], [0.5, np.float32(-1e38)], np.float32),
    "float64": (pa.float64(), [0.1, -1e300], [0.1, -1e300], np.float64),
    "bool": (pa.bool_(), [True, False, True], [True, False, True], np.bool_),
    "decimal": (
        pa.decimal128(15, 2),
        [Decimal("9999999999999.99"), Decimal("-0.07"), Decimal("0.30")],
        [9999999999999.99, -0.07, 0.3],
        np.float64,
    ),
    "string": (pa.string(), ["", "a", "ä€😀"], ["", "a", "ä€😀"], object),
    "large_string": (pa.large_string(), ["", "ä"], ["", "ä"], object),
    "binary": (pa.binary(), [b"", b"\x00\xff"], [b"", b"\x00\xff"], object),
    "large_binary": (pa.large_binary(), [b"", b"\xff"], [b"", b"\xff"], object),
    "fixed_size_binary": (pa.binary(2), [b"ab", b"\x00\xff"], [b"ab", b"\x00\xff"], object),
    "date": (pa.date32(), [EPOCH, dt.date(1969, 12, 31)], [0, -1], np.int32),
    "timestamp s": (
        pa.timestamp("s"),
        [MOMENT.replace(microsecond=0)],
        [1577934245000000],
        np.int64,
    ),
    "timestamp ms": (
        pa.timestamp("ms"),
        [dt.datetime(1969, 12, 31, 23)],
        [-3600_000_000],
        np.int64,
    ),
    "timestamp us": (pa.timestamp("us"), [MOMENT], [MICROSECONDS], np.int64),
    "timestamp ns": (pa.timestamp("ns"), [MOMENT], [MICROSECONDS], np.int64),
    "timestamp of a zone": (
        pa.timestamp("us", "Europe/Berlin"),
        [MOMENT.replace(tzinfo=dt.timezone.utc)],
        [MICROSECONDS],
        np.int64,
    ),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["b", "a", "b"], ["b", "a", "b"], object),
    "dictionary of numbers": (
        pa.dictionary(pa.int32(), pa.int64()),
        [7, 5, 7],
        [7, 5, 7],
        np.int64,
    ),
    "list": (pa.list_(pa.float32()), [[1, 2], [3, 4]], [[1, 2], [3, 4]], np.float32),
    "large list": (pa.large_list(pa.int8()), [[1, 2], [3, 4]], [[1, 2], [3, 4]], np.int8),
    "fixed list": (pa.list_(pa.float64(), 2), [[1, 2], [3, 4]], [[1, 2], [3, 4]], np.float64),
    "list of strings": (pa.list_(pa.string()), [["a", "b"]], [["a", "b"]], object),
    "list of dates": (pa.list_(pa.date32()), [[EPOCH], [EPOCH]], [[0], [0]], np.int32),
    "list of dictionaries": (
        pa.list_(pa.dictionary(pa.int8(), pa.int64())),
        [[3, 4], [4, 3]],
        [[3, 4], [4, 3]],
        np.int64,
    ),
    "list of lists": (
        pa.list_(pa.list_(pa.int16())),
        [[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [0, 0, 0]]],
        [[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [0, 0, 0]]],
        np.int16,
    ),
    "fixed list of lists": (
        pa.list_(pa.list_(pa.int16()), 2),
        [[[1], [2]], [[3], [4]]],
        [[[1], [2]], [[3], [4]]],
        np.int16,
    ),
    "list of fixed lists": (
        pa.list_(pa.list_(pa.list_(pa.bool_(), 2))),
        [[[[True, False]]], [[[False, True]]]],
        [[[[True, False]]], [[[False, True]]]],
        np.bool_,
    ),
    "empty lists": (pa.list_(pa.float32()), [[], []], [[], []], np.float32),
}


@pytest.mark.parametrize("case", CASES)
def test_every_type_becomes_what_the_table_says(case: str) -> None:
    kind, given_values, expected, dtype = CASES[case]
    values = pa.array(given_values, kind)
    found = converted(values)
    assert found.dtype == dtype == column_of(values).dtype
    assert found.tolist() == expected
    assert found.shape == np.asarray(expected, object if dtype is object else dtype).shape


@pytest.mark.parametrize("case", CASES)
def test_a_slice_is_its_rows_alone(case: str) -> None:
    """Of rows before and after it, nulls among them, there is no trace."""
    kind, given_values, expected, _ = CASES[case]
    values = pa.array([None, *given_values, None], kind).slice(1, len(given_values))
    assert converted(values).tolist() == expected
    assert converted(values.slice(len(given_values) - 1)).tolist() == expected[-1:]


@pytest.mark.parametrize("case", CASES)
def test_no_rows_have_the_shape_of_others(case: str) -> None:
    kind, given_values, _, _ = CASES[case]
    values = pa.array(given_values, kind)
    column = column_of(values)
    shape = inner_shape(values, column)
    found = to_array(values.slice(0, 0), column, shape)
    assert found.shape == (0, *shape)
    assert found.dtype == column.dtype


@pytest.mark.parametrize("case", CASES)
def test_a_null_is_refused_wherever_it_is(case: str) -> None:
    kind, given_values, _, _ = CASES[case]
    values = pa.array([*given_values, None], kind)
    with pytest.raises(ValueError, match="column 'c' has 1 nulls among"):
        converted(values)


def test_an_inner_null_is_refused_or_filled() -> None:
    for kind in (pa.list_(pa.int64()), pa.list_(pa.int64(), 2)):
        values = pa.array([[1, 2], [3, None]], kind)
        with pytest.raises(ValueError, match=r"column 'c' has 1 nulls among 4 values.*fill="):
            converted(values)
        found = converted(values, fill={"c": -1})
        assert found.tolist() == [[1, 2], [3, -1]] and found.dtype == np.int64
    nested = pa.array([[[1, 2]], [None]], pa.list_(pa.list_(pa.int64())))
    with pytest.raises(ValueError, match="null as a whole cannot be filled"):
        converted(nested, fill={"c": 0})


@pytest.mark.parametrize(
    ("kind", "values", "fill", "expected"),
    [
        (pa.int64(), [2**53 + 1, None], 0, [2**53 + 1, 0]),  # Not by way of a float.
        (pa.bool_(), [True, None], False, [True, False]),
        (pa.string(), ["a", None], "?", ["a", "?"]),
        (pa.binary(), [b"a", None], b"?", [b"a", b"?"]),
        (pa.float32(), [1.5, None], float("inf"), [1.5, float("inf")]),
        (pa.date32(), [EPOCH, None], dt.date(1970, 1, 3), [0, 2]),
        (pa.timestamp("us"), [MOMENT, None], dt.datetime(1970, 1, 1), [MICROSECONDS, 0]),
        (pa.decimal128(5, 1), [Decimal("1.5"), None], Decimal("0.5"), [1.5, 0.5]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", None], "?", ["a", "?"]),
    ],
)
def test_fill_stands_for_a_null(kind: Any, values: list[Any], fill: Any, expected: Any) -> None:
    found = converted(pa.array(values, kind), fill={"c": fill, "other": 1})
    assert found.tolist() == expected
    assert found.dtype == column_of(pa.array(values, kind)).dtype


@given(st.decimals(min_value=-999_999_999, max_value=999_999_999, places=6))
def test_a_decimal_is_the_nearest_float(value: Decimal) -> None:
    assert converted(pa.array([value], pa.decimal128(15, 6))).tolist() == [float(value)]


def test_what_is_below_a_microsecond_is_refused_not_cut_off() -> None:
    kind = pa.timestamp("ns")
    assert converted(pa.array([1_000, 2_000], kind)).tolist() == [1, 2]
    with pytest.raises(ValueError, match=r"column 'c' is timestamp\[ns\].*whole microseconds"):
        converted(pa.array([1_000, 2_001], kind))


def test_arrays_of_another_length_are_refused() -> None:
    values = pa.array([[1, 2], [3, 4], [5]])
    with pytest.raises(ValueError, match=r"column 'c'.* has 1 values, the first one has 2.*ragged"):
        converted(values)
    with pytest.raises(ValueError, match="has 3 values, the first one has 2"):
        to_array(pa.array([[1, 2, 3]]), column_of(values), (2,))
    with pytest.raises(ValueError, match="has 1 values, the first one has 2"):
        converted(pa.array([[[1, 2], [3, 4]], [[5, 6], [7]]]))


# ---- binary columns that hold numbers


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
def test_binary_values_are_decoded(dtype: str) -> None:
    rows = np.arange(12).reshape(4, 3).astype(dtype)
    for kind in (pa.binary(), pa.large_binary(), pa.binary(rows[0].nbytes)):
        values = pa.array([row.tobytes() for row in rows], kind)
        found = converted(values, decode={"c": dtype})
        assert found.dtype == dtype and found.tolist() == rows.tolist()
        sliced = converted(values.slice(1, 2), decode={"c": dtype})
        assert sliced.tolist() == rows[1:3].tolist()
        assert not np.shares_memory(sliced, rows)


def test_arrays_are_copied_unless_nothing_else_uses_the_memory() -> None:
    numbers = converted(pa.array([0.5] * 20))
    binary = converted(pa.array([b"12345678"] * 20), decode={"c": "float32"})
    for array in (numbers, binary):
        assert not array.flags.writeable
        fresh, copy, unaligned = owned(array, is_fresh=True), owned(array), owned(array[1:], True)
        assert np.shares_memory(fresh, array) and fresh.ctypes.data == array.ctypes.data
        for own in (copy, unaligned):
            assert not np.shares_memory(own, array) and own.ctypes.data % 64 == 0
        for own in (fresh, copy, unaligned):
            assert own.tolist() == array[-len(own) :].tolist() and own.flags.writeable
        assert owned(copy) is copy


def test_binary_values_of_another_length_are_refused() -> None:
    values = pa.array([b"12345678", b"1234"])
    with pytest.raises(ValueError, match="4 bytes; expected 8, which is 2 of float32"):
        converted(values, decode={"c": "float32"})
    with pytest.raises(ValueError, match="nulls"):
        converted(pa.array([b"1234", None]), decode={"c": "float32"})


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(8)])
def test_fill_stands_for_a_null_that_would_be_decoded(kind: Any) -> None:
    row = np.array([1.5, 2.5], np.float32)
    values = pa.array([None, row.tobytes(), None], kind)
    options = {"decode": {"c": "float32"}, "fill": {"c": -1}}
    assert converted(values, **options).tolist() == [[-1, -1], [1.5, 2.5], [-1, -1]]
    assert converted(values.slice(1), **options).tolist() == [[1.5, 2.5], [-1, -1]]

    rows = pa.record_batch([values.slice(2)], ["c"])
    arrays = Arrays([column_of(values, **options)], ColumnSelection("c"))
    with pytest.raises(ValueError, match="column 'c': the first 1 rows are null"):
        arrays(rows)
    arrays(pa.record_batch([values], ["c"]))
    assert arrays(rows).tolist() == [[-1, -1]]


@pytest.mark.parametrize(
    ("kind", "fill", "decode"),
    [
        (pa.int8(), 300, None),
        (pa.int64(), 0.5, None),
        (pa.float32(), "0", None),
        (pa.string(), 0, None),
        (pa.list_(pa.int32()), [0], None),
        (pa.dictionary(pa.int8(), pa.string()), 0, None),
        (pa.binary(), b"00", {"c": "uint8"}),
        (pa.binary(), 256, {"c": "uint8"}),
    ],
)
def test_fill_of_another_type_is_refused_before_the_first_null(
    kind: Any, fill: Any, decode: Any
) -> None:
    with pytest.raises(ConfigError, match=r"fill has .* for column 'c'; expected a value of"):
        column_of(pa.array([], kind), fill={"c": fill}, decode=decode)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float32", "float64"])
def test_fill_of_a_decoded_column_is_a_number(dtype: str) -> None:
    column_of(
        pa.array([], pa.binary()), fill={"c": 0 if dtype != "bool" else False}, decode={"c": dtype}
    )


def test_decode_and_ragged_name_columns_that_can_be_so() -> None:
    for kind in (pa.string(), pa.int8(), pa.list_(pa.binary())):
        with pytest.raises(TypeError, match=r"decode names column 'c' of type .* a binary one"):
            column_of(pa.array([], kind), decode={"c": "float32"})
    with pytest.raises(TypeError, match="ragged names column 'c' of type int8, not an array"):
        column_of(pa.array([], pa.int8()), ragged=["c"])


REFUSED = [
    pa.struct([("a", pa.int8())]),
    pa.map_(pa.string(), pa.int8()),
    pa.null(),
    pa.time32("s"),
    pa.duration("s"),
    pa.decimal128(16, 2),
    pa.list_(pa.struct([("a", pa.int8())])),
]


@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_other_types_are_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(TypeError, match="column 'c' is "):
        column_of(pa.array([], kind))


def test_all_columns_that_are_refused_are_named() -> None:
    schema = pa.schema([("a", pa.null()), ("b", pa.int8()), ("c", pa.duration("s"))])
    with pytest.raises(TypeError, match=r"(?s)column 'a'.*column 'c'"):
        columns(schema, ["a", "b", "c"])


# ---- arrays of different lengths


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        (pa.list_(pa.int32()), [[1, 2], [], [3]]),
        (pa.large_list(pa.string()), [["a"], [], ["b", "ä"]]),
        (pa.list_(pa.list_(pa.float32())), [[[1.0], [2.0, 3.0]], [], [[]], [[4.0]]]),
        (pa.list_(pa.list_(pa.int8(), 2)), [[[1, 2]], [], [[3, 4], [5, 6]]]),
    ],
)
def test_ragged_arrays_keep_their_rows(kind: pa.DataType, rows: list[Any]) -> None:
    values = pa.array([None, *rows, None], kind).slice(1, len(rows))
    found = converted(values, ragged=["c"])
    assert found.to_list() == rows
    assert converted(values.slice(1), ragged=["c"]).to_list() == rows[1:]


def test_a_null_in_ragged_arrays_is_refused() -> None:
    for rows in ([[1], None], [[1], [None]]):
        with pytest.raises(ValueError, match="column 'c' has 1 nulls"):
            converted(pa.array(rows, pa.list_(pa.int8())), ragged=["c"])


# ---- several columns


def arrays_of(batch: pa.RecordBatch, features: Any, labels: Any = None, **options: Any) -> Arrays:
    wanted = ColumnSelection.among(batch.schema.names, features, labels)
    return Arrays(columns(batch.schema, wanted.names, **options), wanted)


BATCH = pa.record_batch(
    {
        "i": pa.array([1, 2], pa.int64()),
        "s": pa.array([1, 2], pa.int8()),
        "f": pa.array([0.5, 1.5], pa.float32()),
        "d": pa.array([0.5, 1.5], pa.float64()),
        "v": pa.array([[1, 2], [3, 4]], pa.list_(pa.float32())),
        "m": pa.array([[[1]], [[2]]], pa.list_(pa.list_(pa.float32()))),
        "t": pa.array(["a", "b"]),
        "u": pa.array(["c", "d"]),
    }
)


@pytest.mark.parametrize(
    ("names", "dtype", "expected"),
    [
        (["i"], "int64", [[1], [2]]),
        (["i", "s"], "int64", [[1, 1], [2, 2]]),
        (["s", "f"], "float32", [[1, 0.5], [2, 1.5]]),
        (["i", "f"], "float32", [[1, 0.5], [2, 1.5]]),
        (["f", "d"], "float64", [[0.5, 0.5], [1.5, 1.5]]),
        (["v", "i", "v"], "float32", [[1, 2, 1, 1, 2], [3, 4, 2, 3, 4]]),
        (["t", "u"], "object", [["a", "c"], ["b", "d"]]),
    ],
)
@pytest.mark.slow
def test_a_list_is_one_tensor_with_values_side_by_side(
    names: list[str], dtype: str, expected: list[Any]
) -> None:
    import tensorflow as tf

    arrays = arrays_of(BATCH, names)
    found = arrays(BATCH)
    assert found.dtype == dtype and found.tolist() == expected
    spec = arrays.signature()
    assert spec.shape.as_list() == [None, len(expected[0])]
    assert spec.dtype == tf.constant(found).dtype


def test_what_cannot_be_stacked_is_refused() -> None:
    with pytest.raises(ConfigError, match="strings cannot be stacked with numbers"):
        arrays_of(BATCH, ["i", "t"])
    with pytest.raises(ConfigError, match="may hold names only"):
        arrays_of(BATCH, ["i", ("f",)])
    with pytest.raises(ConfigError, match="'m' cannot be stacked"):
        arrays_of(BATCH, ["f", "m"])
    with pytest.raises(ConfigError, match="'v' cannot be stacked"):
        arrays_of(BATCH, ["f", "v"], ragged=["v"])


@pytest.mark.parametrize(
    ("first", "second", "dtype"),
    [
        (pa.array([7, 16_777_217]), pa.array([0.5, 1], pa.float32()), "float32"),
        (pa.array([7, -16_777_217], pa.int32()), pa.array([0.5, 1], pa.float32()), "float32"),
        (pa.array([0, 2**53 + 1]), pa.array([0.5, 1.5]), "float64"),
        (pa.array([0, 2**63 - 1]), pa.array([0.5, 1], pa.float32()), "float32"),
        (pa.array([0, 2**63 - 1]), pa.array([0, 1], pa.uint64()), "float64"),
        (pa.array([0, 2**64 - 1], pa.uint64()), pa.array([0, 1]), "float64"),
        (pa.array([MOMENT] * 2, pa.timestamp("us")), pa.array([1, 2], pa.float32()), "float32"),
    ],
)
def test_a_whole_number_that_would_be_rounded_is_refused(
    first: pa.Array, second: pa.Array, dtype: str
) -> None:
    rows = pa.record_batch([first, second], ["first", "second"])
    with pytest.raises(ValueError, match=rf"column 'first' has \d+|-\d+, which {dtype} cannot"):
        arrays_of(rows, ["first", "second"])(rows)
    assert arrays_of(rows, ("first", "second"))(rows)[0].dtype.kind in "iu"


def test_whole_numbers_that_fit_are_stacked() -> None:
    rows = pa.record_batch(
        {
            "large": pa.array([2**60, -(2**24)]),  # Powers of two are exact.
            "int": pa.array([70_000, 3], pa.int32()),
            "half": pa.array([0.5, 1], pa.float16()),
            "day": pa.array([dt.date(2026, 1, 1)] * 2),
        }
    )
    found = arrays_of(rows, ["large", "int", "half", "day"])(rows)
    assert found.dtype == np.float32
    assert found.tolist() == [[2**60, 70_000, 0.5, 20454], [-(2**24), 3, 1, 20454]]


@pytest.mark.slow
def test_the_signature_fits_what_is_given() -> None:
    import tensorflow as tf

    arrays = arrays_of(BATCH, {"a": ("i", "v"), "b": ["f", "d"]}, "t", ragged=["v"])
    arrays.learn(BATCH)
    spec, found = arrays.signature(), map_leaves(to_tensor, arrays(BATCH))
    assert spec[0]["a"][0] == tf.TensorSpec([None], tf.int64)
    assert spec[0]["a"][1] == tf.RaggedTensorSpec([None, None], tf.float32)
    assert spec[0]["b"] == tf.TensorSpec([None, 2], tf.float64)
    assert spec[1] == tf.TensorSpec([None], tf.string)
    tf.nest.assert_same_structure(spec, found, expand_composites=False)
    for one, value in zip(tf.nest.flatten(spec), tf.nest.flatten(found), strict=True):
        assert one.is_compatible_with(tf.type_spec_from_value(value))


def test_shapes_are_those_of_the_first_batch() -> None:
    arrays = arrays_of(BATCH, "v")
    arrays(BATCH)
    other = pa.record_batch({"v": pa.array([[1.0, 2.0, 3.0]], pa.list_(pa.float32()))})
    with pytest.raises(ValueError, match="has 3 values, the first one has 2"):
        arrays(other)


def test_columns_that_are_not_there() -> None:
    with pytest.raises(ConfigError, match=r"no column 'lable'. Did you mean 'label'\?"):
        ColumnSelection.among(["x", "label"], "x", "lable")
    with pytest.raises(ConfigError, match=r"no column 'wight'. Did you mean 'weight'\?"):
        ColumnSelection.among(["x", "y", "weight"], "x", "y", "wight")
    assert ColumnSelection.among(["x", "y", "w"], None, "y", "w").features == "x"
    for labels, weights in ((None, "y"), ("y", ["x"])):
        with pytest.raises(ConfigError, match=r"weight_col is .*; expected the name of a column"):
            ColumnSelection.among(["x", "y"], "x", labels, weights)
    with pytest.raises(ConfigError, match="all columns are labels: x"):
        ColumnSelection.among(["x"], None, "x")
    for wrong in (3, [], {}, [3], ("x", None)):
        with pytest.raises(ConfigError, match="expected a column's name, or a list, tuple or dict"):
            ColumnSelection.among(["x"], wrong, None)
