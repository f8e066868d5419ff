"""The table of types, through real Spark: what each becomes, and which are refused (A22)."""

import pickle
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from sparkdl import data, experiment
from sparkdl.data.schema import arrow_type
from sparkdl.errors import ConfigError, SparkDLError, TrialFailedError
from sparkdl.host.supported_versions import parts_of
from tests.helpers.runs import quiet

pytestmark = pytest.mark.slow

ZONE = "America/New_York"


def micros(when: datetime) -> int:
    """Microseconds since 1970-01-01 UTC, exactly."""
    epoch = datetime(1970, 1, 1, tzinfo=ZoneInfo("UTC"))
    apart = when - epoch
    return (apart.days * 86400 + apart.seconds) * 1_000_000 + apart.microseconds


def local(*when: int) -> int:
    return micros(datetime(*when, tzinfo=ZoneInfo(ZONE)))  # type: ignore[arg-type, misc]


@dataclass(frozen=True)
class Kind:
    """A column: the SQL of its three values, and the tensor that they must become."""

    sql: tuple[str, str, str]
    dtype: Any
    values: Any
    ragged: bool = False
    decode: str | None = None
    fill: Any = field(default=None)


KINDS = {
    "tiny": Kind(("-128Y", "127Y", "0Y"), "int8", [-128, 127, 0]),
    "small": Kind(("-32768S", "32767S", "0S"), "int16", [-32768, 32767, 0]),
    "whole": Kind(("-2147483647 - 1", "2147483647", "0"), "int32", [-2147483648, 2147483647, 0]),
    "long": Kind(
        ("-9223372036854775807L - 1L", "9223372036854775807L", "9007199254740993L"),
        "int64",
        [-(2**63), 2**63 - 1, 2**53 + 1],
    ),
    "single": Kind(
        ("float('nan')", "float('-inf')", "float(0.1)"), "float32", [np.nan, -np.inf, 0.1]
    ),
    "double": Kind(("double('inf')", "double('nan')", "0.1D"), "float64", [np.inf, np.nan, 0.1]),
    "flag": Kind(("true", "false", "true"), "bool", [True, False, True]),
    "decimal": Kind(
        ("9999999999999.99", "cast(-0.01 as decimal(15, 2))", "cast(0 as decimal(15, 2))"),
        "float64",
        [9999999999999.99, -0.01, 0.0],
    ),
    "text": Kind(("''", "'wörld 𝄞'", "'a'"), object, [b"", "wörld 𝄞".encode(), b"a"]),
    "raw": Kind(("X''", "X'00FF00'", "X'61'"), object, [b"", b"\0\xff\0", b"a"]),
    "bytes": Kind(
        ("X'0001'", "X'FF80'", "X'7F00'"), "uint8", [[0, 1], [255, 128], [127, 0]], decode="uint8"
    ),
    "floats": Kind(
        ("X'0000803F000000C0'", "X'0000000000000000'", "X'0000803F0000803F'"),
        "float32",
        [[1.0, -2.0], [0.0, 0.0], [1.0, 1.0]],
        decode="float32",
    ),
    "day": Kind(
        ("date'1969-12-31'", "date'0001-01-01'", "date'9999-12-31'"),
        "int32",
        [(d - date(1970, 1, 1)).days for d in (date(1969, 12, 31), date.min, date.max)],
    ),
    "moment": Kind(
        (
            "timestamp'1969-12-31 19:00:00'",
            "timestamp'1900-01-01 00:00:00.000001'",
            "timestamp'2024-07-01 12:00:00'",
        ),
        "int64",
        [0, local(1900, 1, 1, 0, 0, 0, 1), local(2024, 7, 1, 12)],
    ),
    "naive": Kind(
        (
            "timestamp_ntz'1969-12-31 23:59:59.999999'",
            "timestamp_ntz'1970-01-01 00:00:00'",
            "timestamp_ntz'2024-07-01 12:00:00'",
        ),
        "int64",
        [-1, 0, micros(datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("UTC")))],
    ),
    "fixed": Kind(
        ("array(1f, 2f)", "array(3f, float('nan'))", "array(5f, 6f)"),
        "float32",
        [[1, 2], [3, np.nan], [5, 6]],
    ),
    "nested": Kind(
        (
            "array(array(1L), array(2L))",
            "array(array(3L), array(4L))",
            "array(array(5L), array(6L))",
        ),
        "int64",
        [[[1], [2]], [[3], [4]], [[5], [6]]],
    ),
    "texts": Kind(
        ("array('a', 'ö')", "array('', 'b')", "array('c', 'd')"),
        object,
        [[b"a", "ö".encode()], [b"", b"b"], [b"c", b"d"]],
    ),
    "days": Kind(
        ("array(date'1970-01-02')", "array(date'1969-12-31')", "array(date'1970-01-01')"),
        "int32",
        [[1], [-1], [0]],
    ),
    "decimals": Kind(
        ("array(1.25)", "array(-1.50)", "array(9.99)"), "float64", [[1.25], [-1.5], [9.99]]
    ),
    "flags": Kind(
        ("array(true, false)", "array(false, false)", "array(true, true)"),
        "bool",
        [[True, False], [False, False], [True, True]],
    ),
    "uneven": Kind(
        ("array(1, 2)", "cast(array() as array<int>)", "array(3)"),
        "int32",
        [[1, 2], [], [3]],
        ragged=True,
    ),
    "deep": Kind(
        (
            "array(array('a'), array('b', 'c'))",
            "array(cast(array() as array<string>))",
            "cast(array() as array<array<string>>)",
        ),
        object,
        [[[b"a"], [b"b", b"c"]], [[]], []],
        ragged=True,
    ),
    "dense": Kind(("dense", "dense", "dense"), "float32", [[0.5, 0], [1, 2], [0, 0]]),
    "sparse": Kind(("sparse", "sparse", "sparse"), "float32", [[0, 0, 3], [0, 0, 0], [1, 0, 0]]),
    "no_whole": Kind(("null", "9007199254740993L", "2L"), "int64", [-1, 2**53 + 1, 2], fill=-1),
    "no_float": Kind(("1f", "float('nan')", "null"), "float32", [1, np.nan, 0.5], fill=0.5),
    "no_text": Kind(("'a'", "null", "''"), object, [b"a", "nö".encode(), b""], fill="nö"),
    "no_flag": Kind(("null", "true", "false"), "bool", [True, True, False], fill=True),
    "no_raw": Kind(("X'61'", "null", "null"), object, [b"a", b"-", b"-"], fill=b"-"),
    "no_day": Kind(("date'1970-01-02'", "null", "null"), "int32", [1, 2, 2], fill=date(1970, 1, 3)),
    "no_moment": Kind(
        ("timestamp'1969-12-31 19:00:00'", "null", "null"),
        "int64",
        [0, 1_000_000, 1_000_000],
        fill=datetime(1970, 1, 1, 0, 0, 1, tzinfo=ZoneInfo("UTC")),
    ),
    "no_decimal": Kind(("1.25", "null", "2.50"), "float64", [1.25, 0.5, 2.5], fill=Decimal("0.5")),
    "no_number_in_it": Kind(
        ("array(1L, null)", "array(null, 2L)", "array(3L, 4L)"),
        "int64",
        [[1, -1], [-1, 2], [3, 4]],
        fill=-1,
    ),
    "strange `name.of a`column ä": Kind(("1", "2", "3"), "int32", [1, 2, 3]),
}


def frame(spark: SparkSession) -> DataFrame:
    """All kinds side by side, three rows."""
    vectors = [
        (0, Vectors.dense([0.5, 0]), Vectors.sparse(3, [2], [3.0])),
        (1, Vectors.dense([1, 2]), Vectors.sparse(3, [], [])),
        (2, Vectors.dense([0, 0]), Vectors.dense([1.0, 0, 0])),
    ]
    schema = T.StructType(
        [
            T.StructField("at", T.IntegerType()),
            T.StructField("dense", VectorUDT()),
            T.StructField("sparse", VectorUDT()),
        ]
    )
    spark.createDataFrame(vectors, schema).createOrReplaceTempView("vectors")
    columns = [f"id AS `{'id'}`"]
    for name, kind in KINDS.items():
        case = " ".join(f"WHEN {i} THEN {sql}" for i, sql in enumerate(kind.sql))
        columns.append(f"CASE id {case} END AS `{name.replace('`', '``')}`")
    return spark.sql(f"SELECT {', '.join(columns)} FROM range(0, 3, 1, 1) JOIN vectors ON id = at")


@pytest.fixture(scope="module")
def tensors(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Any, Any]]:
    """The dtype and the values of every column, in two batches of two passes, of one run."""
    folder = tmp_path_factory.mktemp("types")
    options = {
        "ragged": [name for name, kind in KINDS.items() if kind.ragged],
        "decode": {name: kind.decode for name, kind in KINDS.items() if kind.decode},
        "fill": {name: kind.fill for name, kind in KINDS.items() if kind.fill is not None},
    }

    def train() -> int:
        from sparkdl import data

        found: dict[str, list[Any]] = {}
        rows = data.dataset(batch_size_per_worker=2, epochs=2, **options)
        specs = rows.element_spec
        for batch in rows:
            for name, tensor in batch.items():
                assert tensor.dtype == specs[name].dtype
                is_ragged = hasattr(tensor, "to_list")
                found.setdefault(name, []).extend(
                    tensor.to_list() if is_ragged else list(tensor.numpy())
                )
                assert is_ragged or specs[name].shape[1:] == tensor.shape[1:]
        kept = {name: (specs[name].dtype.as_numpy_dtype, values) for name, values in found.items()}
        Path(folder, "found").write_bytes(pickle.dumps(kept))
        return 0

    spark.conf.set("spark.sql.session.timeZone", ZONE)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "2")
    try:
        experiment.launch(train, data=frame(spark), **quiet(str(folder))).raise_for_failures()
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    found: dict[str, tuple[Any, Any]] = pickle.loads(Path(folder, "found").read_bytes())
    return found


@pytest.mark.acceptance("A22")
@pytest.mark.parametrize("name", KINDS)
def test_a_supported_type_arrives_exactly(name: str, tensors: dict[str, tuple[Any, Any]]) -> None:
    kind, (dtype, values) = KINDS[name], tensors[name]
    order = [int(i) for i in tensors["id"][1]]
    assert sorted(order[:3]) == [0, 1, 2]
    assert order[3:] == order[:3]
    assert np.dtype(dtype) == np.dtype(kind.dtype)
    for place, row in enumerate(order):
        if kind.ragged or kind.dtype is object:
            got = values[place].tolist() if hasattr(values[place], "tolist") else values[place]
            assert got == kind.values[row]
        else:
            want = np.asarray(kind.values[row], kind.dtype)
            got = values[place]
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            np.testing.assert_array_equal(got, want)


def test_every_type_that_the_table_names_is_tried(spark: SparkSession) -> None:
    from sparkdl.data import schema

    tried: set[str] = set()
    for spark_field in frame(spark).schema.fields:
        kind = spark_field.dataType
        while isinstance(kind, T.ArrayType):
            kind = kind.elementType
        tried.add(kind.typeName())
    assert tried | {"char", "varchar"} >= set(schema._SPARK)
    assert arrow_type(T.CharType(3)) == arrow_type(T.VarcharType(3)) == arrow_type(T.StringType())


def train_on_all() -> int:
    from sparkdl import data

    return sum(1 for _ in data.dataset(batch_size_per_worker=8))


def jobs(spark: SparkSession) -> int:
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))


REFUSED = {
    "struct": ("struct(1 AS a, 'b' AS b)", "struct<a:int,b:string>"),
    "map": ("map('a', 1)", "map<string,int>"),
    "void": ("null", "void"),
    "days": ("interval '1' day", "interval day"),
    "months": ("interval '1' month", "interval month"),
    "calendar": ("make_interval(1, 2, 0, 3)", "interval"),
    "wide": ("cast(1 AS decimal(38, 18))", "decimal(38,18)"),
    "wider": ("cast(1 AS decimal(16, 0))", "decimal(16,0)"),
    "variant": ("parse_json('[1]')", "variant"),
    "structs": ("array(struct(1 AS a))", "array<struct<a:int>>"),
    "maps": ("array(map('a', 1))", "array<map<string,int>>"),
    "voids": ("array()", "array<void>"),
    "wides": ("array(cast(1 AS decimal(38, 18)))", "array<decimal(38,18)>"),
    "time": ("time'12:00:00'", "time"),
}
# The first Spark with a type.
FIRST = {"variant": "4.0", "time": "4.1"}


@pytest.mark.acceptance("A22")
@pytest.mark.parametrize("name", REFUSED)
def test_an_unsupported_type_is_refused_before_any_job(
    name: str, spark: SparkSession, root: str
) -> None:
    sql, kind = REFUSED[name]
    first = FIRST.get(name, "3.5")
    if parts_of(spark.version)[:2] < parts_of(first):
        pytest.skip(f"the type {kind} came with Spark {first}")
    spark.conf.set("spark.sql.timeType.enabled", "true")
    df = spark.sql(f"SELECT 1 AS fine, {sql} AS `wrong`")
    before = jobs(spark)
    with pytest.raises(ConfigError) as caught:
        experiment.launch(train_on_all, data=df, **quiet(root))
    assert jobs(spark) == before
    assert "'wrong'" in str(caught.value)
    assert kind in str(caught.value)
    assert "'fine'" not in str(caught.value)
    assert list(Path(root).iterdir()) == []


@pytest.mark.acceptance("A22")
def test_vectors_inside_arrays_are_refused(spark: SparkSession, root: str) -> None:
    schema = T.StructType([T.StructField("wrong", T.ArrayType(VectorUDT()))])
    df = spark.createDataFrame([([Vectors.dense([1.0, 2.0])],)], schema)
    before = jobs(spark)
    with pytest.raises(ConfigError, match="'wrong'"):
        experiment.launch(train_on_all, data=df, **quiet(root))
    assert jobs(spark) == before


@pytest.mark.acceptance("A22")
def test_all_wrong_columns_are_named_at_once_with_their_data(
    spark: SparkSession, root: str
) -> None:
    good = spark.range(1)
    bad = spark.sql("SELECT map('a', 1) AS first, 1 AS fine, struct(1) AS second")
    before = jobs(spark)
    with pytest.raises(ConfigError, match=r"'validation'") as caught:
        experiment.allreduce(
            train_on_all, num_workers=2, data={"train": good, "validation": bad}, **quiet(root)
        )
    assert "'first'" in str(caught.value)
    assert "'second'" in str(caught.value)
    spark.range(1).collect()
    assert jobs(spark) == before + 1, "the count of jobs counts"


def test_what_is_no_data_is_refused_before_any_job(spark: SparkSession, root: str) -> None:
    one = spark.range(1)
    stream = spark.readStream.format("rate").load()
    before = jobs(spark)
    for given, says in [
        ([1, 2], "list"),
        (pd.DataFrame({"x": [1]}), "createDataFrame"),
        ({}, "no DataFrame"),
        ({"train": None}, "NoneType"),
        ({"": one}, "named ''"),
        ({"a b": one}, "named 'a b'"),
        ({1: one}, "named 1"),
        (one.selectExpr("id", "id"), "two columns 'id'"),
        (one.select(), "no column"),
        (stream, "streaming"),
    ]:
        with pytest.raises(ConfigError, match=says):
            experiment.launch(train_on_all, data=given, **quiet(root))
    assert jobs(spark) == before
    assert list(Path(root).iterdir()) == []


@pytest.mark.parametrize(
    ("sql", "options", "says"),
    [
        ("IF(id = 7, null, id) AS x", {}, r"'x' has 1 nulls.*fill=\{'x'"),
        ("IF(id = 7, null, array(id)) AS x", {"fill": {"x": 0}}, r"'x' has 1 nulls"),
        ("array_repeat(id, IF(id = 7, 2, 1)) AS x", {}, r"'x': an array has 2.*ragged=\['x'\]"),
        (
            "repeat('a', IF(id = 7, 3, 4)) AS x",
            {"decode": {"x": "uint8"}},
            "'x'.*expected a binary",
        ),
        (
            "cast(repeat('a', IF(id = 7, 3, 4)) AS binary) AS x",
            {"decode": {"x": "uint8"}},
            "'x': a value has 3 bytes; expected 4",
        ),
        ("id AS x", {"ragged": ["x"]}, "ragged names column 'x'.*not an array"),
        ("id AS x", {"feature_cols": "y"}, "no column 'y'"),
        ("id AS x", {"label_cols": "x"}, "all columns are labels"),
        (
            "id AS x; 'a' AS y",
            {"feature_cols": ["x", "y"]},
            "strings cannot be stacked with numbers",
        ),
        ("id AS x", {"fill": {"y": 1}}, "'y'"),
        ("id AS x", {"ragged": ["y"]}, "'y'"),
        ("id AS x", {"decode": {"y": "uint8"}}, "'y'"),
    ],
)
def test_rows_that_do_not_fit_are_an_error_that_names_the_column(
    spark: SparkSession, sql: str, options: dict[str, Any], says: str
) -> None:
    df = spark.range(0, 10, 1, 1).selectExpr(*sql.split("; "))
    with data.local(df), pytest.raises(Exception, match=says) as caught:
        for _ in data.dataset(batch_size_per_worker=4, **options):
            pass
    assert not isinstance(caught.value, KeyError | IndexError)


def test_a_null_in_a_run_is_the_persons_error(spark: SparkSession, root: str) -> None:
    df = spark.range(0, 100, 1, 3).selectExpr("IF(id = 77, null, id) AS x")
    with pytest.raises((SparkDLError, TrialFailedError), match=r"'x' has 1 nulls"):
        experiment.launch(train_on_all, data=df, **quiet(root))


def test_a_number_of_a_vector_that_is_too_large_is_named(spark: SparkSession, root: str) -> None:
    df = spark.createDataFrame([(Vectors.dense([0.5, float("inf")]),)] * 3, ["v"])
    experiment.launch(train_on_all, data=df, **quiet(root))
    wrong = df.union(spark.createDataFrame([(Vectors.sparse(2, [0], [1e300]),)], ["v"]))
    with pytest.raises(Exception, match=r"column 'v': vectors become float32.* 1\.0E300"):
        experiment.launch(train_on_all, data=wrong, **quiet(root))


def test_strings_with_wide_offsets(spark: SparkSession, root: str, tmp_path: Path) -> None:
    def train() -> int:
        from sparkdl import data

        batch = next(iter(data.dataset(batch_size_per_worker=8)))
        found = {name: sorted(t.numpy().tolist()) for name, t in batch.items()}
        Path(tmp_path, "found").write_bytes(pickle.dumps(found))
        return 0

    df = spark.sql("SELECT * FROM VALUES ('hello', X'0102'), ('wörld', X'03') AS t(a, b)")
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        experiment.launch(train, data=df, **quiet(root))
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    found = pickle.loads(Path(tmp_path, "found").read_bytes())
    assert found == {"a": [b"hello", "wörld".encode()], "b": [b"\1\2", b"\3"]}
