"""SequenceExamples: their feature lists are arrays of any length, or refused by name."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import data
from sparkdl.data.tfexample.decode import NotAnExample
from sparkdl.data.tfexample.framing import frame
from sparkdl.errors import ConfigError

LENGTHS = (3, 0, 1, 2, 2)


def feature(*values: Any) -> Any:
    import tensorflow as tf

    if values and isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if values and isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def record(context: dict[str, Any], **lists: list[Any]) -> bytes:
    import tensorflow as tf

    features = tf.train.Features(feature=context)
    steps = {name: tf.train.FeatureList(feature=each) for name, each in lists.items()}
    example = tf.train.SequenceExample(
        context=features, feature_lists=tf.train.FeatureLists(feature_list=steps)
    )
    encoded: bytes = example.SerializeToString()
    return encoded


def columns(number: int, length: int) -> dict[str, Any]:
    steps = range(length)
    return {
        "id": number,
        "ids": [300 * number + step - 1 for step in steps],
        "x": [step / 4 for step in steps],
        "word": [f"{number} {step}".encode() for step in steps],
    }


ROWS = [columns(number, length) for number, length in enumerate(LENGTHS)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    records = []
    for row in ROWS:
        lists = {name: [feature(value) for value in row[name]] for name in ("ids", "x", "word")}
        records.append(record({"id": feature(row["id"])}, **lists))
    path = tmp_path / "sequences.tfrecord"
    path.write_bytes(frame(records))
    return path


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    "schema",
    [
        None,
        {
            "id": "int64",
            "ids": ("int64", [None]),
            "x": ("float32", [None]),
            "word": ("string", [None]),
        },
    ],
    ids=["inferred", "given"],
)
def test_feature_lists_are_ragged(file: Path, schema: Any, shuffle: bool) -> None:
    rows = data.tfrecord(file, schema=schema, batch_size_per_worker=2, shuffle=shuffle)
    found = []
    for batch in rows:
        found += [
            {name: values[n].numpy().tolist() for name, values in batch.items()}
            for n in range(len(batch["id"]))
        ]
    assert sorted(found, key=lambda row: row["id"]) == ROWS
    (whole,) = data.tfrecord(file, schema=schema, batch_size_per_worker=9).as_numpy()
    assert [row.tolist() for row in whole["ids"]] == [row["ids"] for row in ROWS]


def test_lists_of_one_step_are_arrays(tmp_path: Path) -> None:
    path = tmp_path / "one.tfrecord"
    path.write_bytes(frame([record({}, ids=[feature(number)]) for number in range(3)]))
    (batch,) = data.tfrecord(path, batch_size_per_worker=9)
    assert batch.to_list() == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([feature, (1, 2)], "feature list 'l' has 2 values in a step; expected one"),
        ([feature, ()], "feature list 'l' has 0 values in a step"),
    ],
)
def test_steps_of_other_numbers_of_values_are_refused(
    tmp_path: Path, steps: Any, message: str
) -> None:
    make, values = steps
    path = tmp_path / "matrix.tfrecord"
    path.write_bytes(frame([record({}, l=[feature(1), make(*values)])]))
    with pytest.raises(NotAnExample, match=message):
        data.tfrecord(path, batch_size_per_worker=1)


def test_other_lists_that_have_no_place(tmp_path: Path, file: Path) -> None:
    import tensorflow as tf

    path = tmp_path / "mixed.tfrecord"
    path.write_bytes(frame([record({}, l=[feature(1), feature(1.5)])]))
    with pytest.raises(NotAnExample, match="feature list 'l' has steps of several kinds"):
        data.tfrecord(path, batch_size_per_worker=1)
    path.write_bytes(frame([record({"l": feature(1)}, l=[feature(2)])]))
    with pytest.raises(NotAnExample, match="'l' is a feature of the context and a feature list"):
        data.tfrecord(path, batch_size_per_worker=1)
    schema = {"ids": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True)}
    with pytest.raises(ConfigError, match=r"schema\['ids'\] is a feature of TensorFlow"):
        data.tfrecord(file, schema=schema, batch_size_per_worker=1)


@pytest.mark.slow
def test_dataframes_of_sequences(spark: SparkSession, file: Path) -> None:
    df = data.read_tfrecord(spark, file, strings=["word"])
    kinds = "struct<id:bigint,ids:array<bigint>,word:array<string>,x:array<float>>"
    assert df.schema.simpleString() == kinds
    expected = [
        (row["id"], row["ids"] or None, [w.decode() for w in row["word"]] or None, row["x"] or None)
        for row in ROWS
    ]
    found = [(r.id, r.ids or None, r.word or None, r.x or None) for r in df.collect()]
    assert found == expected


@pytest.mark.parametrize("first", ["an Example", "no lists", "empty lists"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_lists_behind_a_record_without_any_are_not_left_out(
    tmp_path: Path, first: str, shuffle: bool
) -> None:
    """With `schema=`, the first record alone tells what the files have."""
    import tensorflow as tf

    plain = tf.train.Features(feature={"id": feature(300)})
    begin = {
        "an Example": tf.train.Example(features=plain),
        "no lists": tf.train.SequenceExample(context=plain),
        "empty lists": tf.train.SequenceExample(
            context=plain, feature_lists=tf.train.FeatureLists()
        ),
    }[first].SerializeToString()
    lists = record({"id": feature(1), "y": feature(*range(300))}, ids=[feature(5), feature(6)])
    schema = {"id": "int64", "ids": ("int64", [None])}
    for number, records in enumerate(([begin] * 3, [begin, lists])):
        path = tmp_path / f"{number}.tfrecord"
        path.write_bytes(frame(records))
        rows = data.tfrecord(path, schema=schema, shuffle=shuffle, batch_size_per_worker=2)
        found = [list(ids) for batch in rows.as_numpy() for ids in batch["ids"]]
        assert [ids for ids in found if ids] == [[5, 6]] * number
        if number:
            with pytest.raises(tf.errors.InvalidArgumentError, match="has the feature lists of a"):
                list(rows)
        else:
            assert sum(len(batch["id"]) for batch in rows) == 3
