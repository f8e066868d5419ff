"""The keys of the rows that readers open are recorded. Pandas and hashlib tell which ones."""

import datetime
import hashlib
import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl import context, data
from sparkdl.context import Context
from sparkdl.data.row_keys import DIGEST_BYTES, digests, key_columns, kind_of
from sparkdl.errors import ConfigError


def digest_of(*values: Any) -> bytes:
    texts = [value if isinstance(value, bytes) else str(value).encode() for value in values]
    whole = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return hashlib.md5(whole).digest()


def recorded(folder: Path) -> list[tuple[dict[str, Any], set[bytes]]]:
    """The records of a trial, each with its digests."""
    records = []
    for path in sorted(Path(folder, "row-keys").glob("*.json")):
        content = path.with_suffix(".md5").read_bytes()
        places = range(0, len(content), DIGEST_BYTES)
        found = {content[place : place + DIGEST_BYTES] for place in places}
        records.append((json.loads(path.read_text()), found))
    return records


def expected(ids: Iterable[Any]) -> set[bytes]:
    return {digest_of(value) for value in ids}


@pytest.fixture
def frame(tmp_path: Path) -> pd.DataFrame:
    rows = pd.DataFrame({"id": range(1000, 1200), "x": [float(i % 7) for i in range(200)]})
    rows["name"] = [f"n{i}" for i in range(200)]
    pq.write_table(pa.Table.from_pandas(rows), tmp_path / "rows.parquet", row_group_size=60)
    return rows


def reading(tmp_path: Path, **fields: Any) -> Any:
    return context.acting_as(Context(folder=str(tmp_path), row_key=["id"], **fields))


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint64(), pa.dictionary(pa.int32(), pa.int16())])
def test_equal_integers_have_equal_digests(kind: pa.DataType) -> None:
    values = (
        pa.array([1, 2, 7], pa.int16()).cast(kind)
        if not pa.types.is_dictionary(kind)
        else (pa.array([1, 2, 7], pa.int16()).dictionary_encode())
    )
    assert kind_of(values.type) == "integer"
    assert digests([values]) == b"".join(map(digest_of, [1, 2, 7]))


def test_values_of_several_columns_do_not_run_together() -> None:
    first, second = pa.array(["ab", "a"]), pa.array(["c", "bc"])
    assert digests([first, second]) == digest_of("ab", "c") + digest_of("a", "bc")
    day = datetime.date(2026, 11, 3)
    assert digests([pa.array([day])]) == digests([pa.array([day]).cast(pa.date64())])
    assert digests([pa.array([None, ""], pa.string())])[:16] != digest_of("")


@pytest.mark.parametrize(
    "kind", [pa.float32(), pa.timestamp("us"), pa.bool_(), pa.list_(pa.int8())]
)
def test_types_without_a_unique_text_are_no_keys(kind: pa.DataType) -> None:
    assert kind_of(kind) is None


@pytest.mark.parametrize("key", [3, [], [1], "", ["a", "a"], {"a": 1}])
def test_a_key_is_a_name_or_names(key: Any) -> None:
    with pytest.raises(ConfigError, match="row_key is"):
        key_columns(key)


def test_a_reader_records_the_rows_that_its_conditions_choose(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    path = str(tmp_path / "rows.parquet")
    options = {"batch_size_per_worker": 32, "feature_cols": "x"}
    with reading(tmp_path / "trial"):
        (tmp_path / "trial").mkdir()
        data.parquet(path, **options)
        data.parquet(path, filter=[("x", ">", 3)], **options)
        data.parquet(path, where={"name": ["n7", "n9"]}, **options)
        data.parquet(path, split=("id", 0.0, 0.5), **options)
        data.parquet(path, split=("id", 0.5, 1.0), **options)
    records = recorded(tmp_path / "trial")
    assert all(facts["columns"] == ["id"] for facts, _ in records)
    assert all(facts["kinds"] == ["integer"] for facts, _ in records)
    found = [keys for _, keys in records]
    assert found[0] == expected(frame.id)
    assert found[1] == expected(frame[frame.x > 3].id)
    assert found[2] == expected(frame[frame.name.isin(["n7", "n9"])].id)
    assert found[3] | found[4] == expected(frame.id) and not found[3] & found[4]


def test_without_a_key_and_outside_a_run_nothing_is_recorded(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    path = str(tmp_path / "rows.parquet")
    data.parquet(path, batch_size_per_worker=32, feature_cols="x")
    with context.acting_as(Context(folder=str(tmp_path))):
        data.parquet(path, batch_size_per_worker=32, feature_cols="x")
    assert not (tmp_path / "row-keys").exists()


def test_a_dataset_without_the_key_is_recorded_as_not_known(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "other.parquet")
    with context.acting_as(Context(folder=str(tmp_path), row_key=["id", "x"])):
        for name in ("other.parquet", "rows.parquet"):
            data.parquet(str(tmp_path / name), batch_size_per_worker=1, feature_cols="x")
    problems = [facts["problem"] for facts, _ in recorded(tmp_path)]
    assert "it has no column 'id'" in problems[0]
    assert "column 'x' is double" in problems[1]
