"""CSV text of Spark, pandas and Python: the values that were written, or a refusal."""

import csv
import io
import math
import random
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sparkdl import data
from sparkdl.data.readers import csv_text
from sparkdl.data.readers.csv_format import CsvFormat, parse_types
from sparkdl.data.readers.csv_text import rewritten, without_escapes
from sparkdl.data.readers.delimited import DelimitedSource
from sparkdl.data.shard import Range

TEXTS = [
    *("a,b", 'say "hi" ok', '5" pipe', '"', '""', 'a""b', "'", "a\tb", "é", "#c", "NA", "null"),
    *("C:\\", "C:\\dir", "C:\\dir, x", "\\\\srv, x", "\\", "\\\\", '\\"', '\\\\"', "\\n", "a\\,b"),
    *("a\nb", "a\r\nb", 'x\\"y', 'a\\""b', "NaN", "1", "007", "", None),
]


def table(path: Path, schema: Any = None, **options: Any) -> pa.Table:
    source = DelimitedSource(str(path), CsvFormat(parse_types(schema), **options), {})
    ranges = [Range(piece, 0, rows) for piece, rows in enumerate(source.sizes) if rows]
    return pa.Table.from_batches(source.read(ranges, source.columns), source.schema)


def read(path: Path, schema: Any = None, **options: Any) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = table(path, schema, **options).to_pydict()
    return columns


def or_null(text: Any) -> Any:
    """The value as Spark and pandas read it."""
    return text or None


@pytest.mark.slow
def test_text_that_spark_writes(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(number, text, str(number)) for number, text in enumerate(TEXTS)]
    folder = str(tmp_path / "t")
    df = spark.createDataFrame(rows, "i int, t string, u string").coalesce(1)
    df.write.csv(folder, header=True)
    found = read(tmp_path / "t", {"u": "string"}, escape="\\")
    oracle = spark.read.csv(folder, header=True, multiLine=True).toPandas()
    assert found["t"] == [or_null(text) for text in TEXTS]
    assert found["t"] == [or_null(text) for text in oracle["t"]]
    assert found["i"] == list(range(len(TEXTS))) and found["u"] == oracle["u"].tolist()
    with pytest.raises(ValueError, match=r"part-.*quoted text .* Pass escape='\\\\' if the back"):
        read(tmp_path / "t")
    df.write.csv(folder, header=True, mode="overwrite", escape='"')
    assert read(tmp_path / "t", escape='"')["t"] == found["t"]


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_text_that_pandas_writes(tmp_path: Path, quoting: Any) -> None:
    file = tmp_path / "t.csv"
    frame = pd.DataFrame({"i": range(len(TEXTS)), "t": TEXTS})
    frame.to_csv(file, index=False, quoting=quoting)
    found = read(file, escape='"')
    oracle = pd.read_csv(file, dtype={"t": str}, keep_default_na=False)
    assert found["t"] == [or_null(text) for text in TEXTS]
    assert found["t"] == [or_null(text) for text in oracle["t"]]
    assert found["i"] == list(range(len(TEXTS)))
    with pytest.raises(ValueError, match="escape='\"' if it is text, as in files of pandas"):
        read(file)


def test_text_that_all_programs_read_equally_needs_no_option(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    texts = [t for t in TEXTS if not t or "\\" not in t or not set(t) & set('",\n')]
    pd.DataFrame({"t": texts, "i": 1}).to_csv(file, index=False)
    expected = [or_null(text) for text in texts]
    assert (
        read(file)["t"] == read(file, escape='"')["t"] == read(file, escape="\\")["t"] == expected
    )
    file.write_text('t\n"C:\\dir, x"\n')
    assert read(file) == {"t": ["C:\\dir, x"]}


@pytest.mark.parametrize("name", ["csv.gz", "csv"])
def test_escapes_in_a_later_file_of_a_folder(tmp_path: Path, name: str) -> None:
    import gzip

    for number, text in enumerate(['1,"a"\n', '2,"b\\"c"\n']):
        data = f"i,t\n{text}".encode()
        (tmp_path / f"{number}.{name}").write_bytes(
            gzip.compress(data) if name == "csv.gz" else data
        )
    assert read(tmp_path, escape="\\") == {"i": [1, 2], "t": ["a", 'b"c']}
    with pytest.raises(ValueError, match=rf"1\.{name}: the quoted text 'b"):
        read(tmp_path)


def doubled(text: str) -> str:
    """Rewrite a text character by character."""
    parts: list[str] = []
    position, begins, is_quoted = 0, True, False
    while position < len(text):
        pair = text[position : position + 2]
        if is_quoted and pair in ("\\\\", '\\"', '""'):
            parts.append("\\" if pair == "\\\\" else '""')
            position += 2
            continue
        if pair[0] == '"' and (is_quoted or begins):
            is_quoted = not is_quoted
            begins = False
        elif not is_quoted:
            begins = pair[0] in ",\n"
        parts.append(pair[0])
        position += 1
    return "".join(parts)


def test_texts_are_rewritten_at_any_place(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = random.Random(0)
    for _ in range(2000):
        monkeypatch.setattr(csv_text, "CHUNK_BYTES", chosen.choice([1, 2, 3, 100]))
        text = "".join(chosen.choices('a,"\\\n"', k=chosen.randrange(25)))
        found = rewritten(io.BytesIO(text.encode()), ",", '"', "\\").read().decode()
        assert found == doubled(text), text
        if '\\"' in text or "\\\\" in text:
            with pytest.raises(csv_text.HasEscapes):
                without_escapes(io.BytesIO(text.encode()), '"', "\\").read()
        else:
            assert without_escapes(io.BytesIO(text.encode()), '"', "\\").read().decode() == text


@pytest.mark.slow
def test_numbers_that_spark_writes(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(1.5, 1, "1"), (math.nan, None, None), (None, 2**53 + 1, "x"), (-math.inf, 3, "NA")]
    folder = str(tmp_path / "t")
    df = spark.createDataFrame(rows, "f double, i bigint, t string").coalesce(1)
    df.write.csv(folder, header=True)
    expected = [list(column) for column in zip(*rows, strict=True)]
    assert repr(list(read(tmp_path / "t").values())) == repr(expected)
    inferred = spark.read.csv(folder, header=True, inferSchema=True).collect()
    assert repr([tuple(row) for row in inferred]) == repr(rows)


def test_null_value(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text('i,t\nNA,"NA"\n1,\n"",x\n')
    assert read(file, null_value="NA") == {"i": [None, 1, None], "t": [None, None, "x"]}
    assert read(file) == {"i": ["NA", "1", None], "t": ["NA", None, "x"]}


@pytest.mark.parametrize("line", ["", '""'])
def test_a_line_of_one_null_is_a_row(tmp_path: Path, line: str) -> None:
    file = tmp_path / "t.csv"
    file.write_text(f"i\n1\n{line}\n3\n")
    assert read(file) == {"i": [1, None, 3]}
    file.write_text("i,j\n1,2\n\n3,4\n")
    assert read(file) == {"i": [1, 3], "j": [2, 4]}


def test_whole_numbers_beyond_int64(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    numbers = [2**64 - 1, 2**64 - 2, None]
    file.write_text("id,x\n" + "".join(f"{'' if n is None else n},1.5\n" for n in numbers))
    with pytest.raises(ValueError, match=r"t\.csv: column 'id' .*schema={'id': 'string'}"):
        read(file)
    assert read(file, {"id": "uint64"})["id"] == numbers
    assert read(file, {"id": "string"})["id"] == [None if n is None else str(n) for n in numbers]
    assert read(file, {"id": "float64"})["id"] == [2.0**64, 2.0**64, None]
    file.write_text("id,x\n1,1\n" * 1 + f"{2**63},2\n")
    with pytest.raises(ValueError, match="column 'id' has whole numbers"):
        read(file)
    # Among other floats, in a later block, and in a later file of a folder.
    large = 2**53 + 1
    for text in (
        f"id,x\n{2**64 - 1},1\n2.5,2\n",
        f"id,x\nNaN,1\n{large},2\n",
        "id,x\n0.5,1\n" + "1e300,1\n" * (1 << 19) + f"{large},2\n",
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"t\.csv: column 'id' has whole numbers that float64"):
            read(file)
        assert read(file, {"id": "float64"})["id"][-1] in (2.5, 2.0**53)
    file.write_text("id,x\n0.5,1\n1e17,1\n100000000000000000,1\n")
    assert read(file)["id"] == [0.5, 1e17, 1e17]
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.csv").write_text("id,x\n1.5,1\n")
    (folder / "b.csv").write_text(f"id,x\n{large},1\n")
    with pytest.raises(ValueError, match=r"b\.csv: column 'id' has whole numbers that float64"):
        read(folder)
    file.write_text("x,id\n" + "1,1\n" * (1 << 20) + f"1,{2**63}\n")
    with pytest.raises(ValueError, match=r"In column 'id': .*'9223372036854775808'.* see schema="):
        read(file)


def test_a_column_that_is_not_read_is_not_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes(f"id,t,x\n{2**64 - 1},".encode() + "ü".encode("latin-1") + b",1\n")
    rows = data.csv(file, feature_cols="x", batch_size_per_worker=1).as_numpy()
    assert [batch.tolist() for batch in rows] == [[1]]
    for name in ("id", "t"):
        with pytest.raises(ValueError, match=f"t.csv: column '{name}' has "):
            data.csv(file, feature_cols=name, batch_size_per_worker=1).as_numpy()


def test_encodings(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    for encoding in ("latin-1", "utf-16", "utf-8-sig", "utf-8"):
        file.write_text('naïve,i\n"ü, ß",1\n', encoding=encoding)
        assert read(file, encoding=encoding) == {"naïve": ["ü, ß"], "i": [1]}
    file.write_text("a,b\nü,1\n", encoding="latin-1")
    with pytest.raises(ValueError, match=r"t\.csv: column 'a' has text .* encoding='latin-1'"):
        read(file)
    with pytest.raises(ValueError, match=r"t\.csv: .*column 'a'.* see encoding="):
        read(file, {"a": "string"})
    assert read(file, {"a": "binary"})["a"] == [b"\xfc"]
    file.write_text("ü,b\n1,1\n", encoding="latin-1")
    with pytest.raises(ValueError, match=r"t\.csv: .* see encoding="):
        read(file)


def test_comments_and_quotes(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("# by hand\na;b\n'1;\n#';2\n#3;4\n5;6#")
    found = read(file, sep=";", quote="'", comment="#")
    assert found == {"a": ["1;\n#", "5"], "b": ["2", "6#"]}
    file.write_text('a,b\n"1,2"\n')
    assert read(file, quote="") == {"a": ['"1'], "b": ['2"']}


NULLS = ("NA", "null", "-")


@pytest.mark.parametrize("texts", ["NA", NULLS, list(NULLS), []])
def test_several_texts_are_nulls_as_in_pandas(texts: Any, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("i,t\n1,NA\nNA,null\n3,-\n,NaN\n")
    wanted = [texts] if isinstance(texts, str) else list(texts)
    oracle = pd.read_csv(file, na_values=["", *wanted], keep_default_na=False, dtype=str)
    found = read(file, {"i": "string", "t": "string"}, null_value=texts)
    assert found == {name: [or_null(v) if v == v else None for v in oracle[name]] for name in "it"}


def test_a_text_that_may_be_a_null_tells_of_null_value(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("x\n1\nNA\n")
    with pytest.raises(ValueError, match="pass nullValue="):
        read(file, {"x": "int64"})
    assert read(file, {"x": "int64"}, null_value=["NA"]) == {"x": [1, None]}
    batches = data.csv(file, nullValue=["NA", "-"], fill={"x": 7}, batch_size_per_worker=2)
    assert [batch.tolist() for batch in batches.as_numpy()] == [[1, 7]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sep": ""}, "sep is ''; expected one character"),
        ({"quote": "''"}, "quote is \"''\"; expected one character"),
        ({"escape": ""}, "escape is ''"),
        ({"comment": "//"}, "comment is '//'"),
        ({"encoding": "utf9"}, "encoding is 'utf9'; expected the name"),
        ({"null_value": None}, "nullValue is None; expected a text"),
        ({"null_value": ["NA", 9]}, r"nullValue is \['NA', 9\]; expected a text, or a list"),
    ],
)
def test_options_that_are_wrong(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CsvFormat(**options)
