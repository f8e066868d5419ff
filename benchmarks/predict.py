"""Compare `experiment.predict` with `pyspark.ml.functions.predict_batch_udf`, in one run.

A small dense Keras model is applied to a DataFrame in Parquet files, and the result is discarded
(Spark's `noop` format), on embedded Spark with two slots. For each width of the rows, the
contenders take turns:

- predict: `experiment.predict`
- predict_batch_udf: the same model file, loaded once per Python worker by the function that its
  documentation shows, with `model.predict_on_batch` and the same batch size
- read: the same rows through a `mapInArrow` that returns them unchanged; the floor

Rows are 20 float columns, or one array column of 784 floats. The result is the best round of a
contender, since other load on the machine only adds time. CPU seconds are those of Spark's JVM and
of its Python workers.

    python benchmarks/predict.py --rounds 5

The program prints a table, then one JSON document, and removes its files. Each aim is reported as
met or not; the exit code does not depend on the aims.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Set before Spark and TensorFlow are loaded: the benchmark needs no other host and no GPU.
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# Threads of each Python worker; `experiment.predict` sets these variables itself.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from lib.floor import session
from lib.machine import machine
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import array
from pyspark.sql.types import ArrayType, FloatType

from sparkdl import experiment

# Width of the rows, number of rows, width of the model's layer, True for columns.
SETTINGS = {
    "20 columns": (20, 2_000_000, 64, True),
    "784 values": (784, 100_000, 128, False),
}
FILES = 8
OUTPUTS = 10
BATCH = 1024

Row = dict[str, Any]


# ---- the measured programs


def write_rows(folder: Path, width: int, rows: int, in_columns: bool) -> None:
    """Write the rows as Parquet files."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(FILES):
        values = random.random((rows // FILES, width), dtype=np.float32)
        columns: dict[str, Any] = {"id": np.arange(len(values)) + number * len(values)}
        if in_columns:
            columns |= {f"x{i}": values[:, i].copy() for i in range(width)}
        else:
            ends = pa.array(np.arange(len(values) + 1, dtype=np.int32) * width)
            columns["x"] = pa.ListArray.from_arrays(ends, pa.array(values.reshape(-1)))
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")


def save_model(path: Path, width: int, hidden: int) -> None:
    """Save a network with one hidden layer."""
    import keras

    layers = [keras.layers.Input((width,)), keras.layers.Dense(hidden, activation="relu")]
    keras.Sequential([*layers, keras.layers.Dense(OUTPUTS)]).save(path)


def passed_on(df: DataFrame) -> DataFrame:
    """Return the rows unchanged, through Python: the floor."""

    # An inner function is pickled by value: the Python workers cannot import this module.
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    return df.mapInArrow(task, df.schema)


def by_udf(df: DataFrame, model: str, width: int, in_columns: bool) -> DataFrame:
    """Add the predictions as the documentation of `predict_batch_udf` shows it."""

    def make() -> Callable[..., Any]:
        import keras

        loaded = keras.saving.load_model(model, compile=False)
        return lambda inputs: loaded.predict_on_batch(inputs)

    predict = predict_batch_udf(
        make,
        return_type=ArrayType(FloatType()),
        batch_size=BATCH,
        input_tensor_shapes=[[width]],
    )
    features = array(*(f"x{i}" for i in range(width))) if in_columns else df["x"]
    return df.withColumn("prediction", predict(features))


def contenders(df: DataFrame, model: str, width: int, in_columns: bool) -> dict[str, DataFrame]:
    """Return a lazy DataFrame for each contender. Workers keep their models over all rounds."""
    names: Any = [f"x{i}" for i in range(width)] if in_columns else "x"
    return {
        "read": passed_on(df),
        "predict": experiment.predict(model, df, feature_cols=names, batch_size=BATCH),
        "predict_batch_udf": by_udf(df, model, width, in_columns),
    }


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its descendants, see proc(5)."""
    total, parents = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            total[int(entry.name)] = sum(map(int, fields[11:15]))

    def is_below(pid: int) -> bool:
        while pid and pid != os.getpid():
            pid = parents.get(pid, 0)
        return bool(pid)

    return sum(ticks for pid, ticks in total.items() if is_below(pid)) / os.sysconf("SC_CLK_TCK")


def time_one(frame: DataFrame) -> Row:
    """Compute all rows; return wall and CPU seconds."""
    cpu, begun = cpu_seconds(), time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return {"wall_s": time.perf_counter() - begun, "cpu_s": cpu_seconds() - cpu}


def check_equal(frames: dict[str, DataFrame]) -> None:
    """Assert that both contenders compute the same numbers."""
    predictions = []
    for name in ("predict", "predict_batch_udf"):
        rows = frames[name].filter("id < 1000").orderBy("id").select("prediction").collect()
        predictions.append(np.array([row.prediction for row in rows]))
    np.testing.assert_allclose(*predictions, rtol=1e-4, atol=1e-4)


def measure_one(spark: SparkSession, folder: Path, name: str, rounds: int) -> Row:
    """Measure all contenders on rows of one width."""
    width, rows, hidden, in_columns = SETTINGS[name]
    place = folder / str(width)
    write_rows(place, width, rows, in_columns)
    save_model(folder / f"{width}.keras", width, hidden)
    df = spark.read.parquet(str(place))
    frames = contenders(df, str(folder / f"{width}.keras"), width, in_columns)
    check_equal(frames)
    times: dict[str, list[Row]] = {name: [] for name in frames}
    for number in range(-1, rounds):  # The first round warms up.
        say(f"{name}, round {number + 1} of {rounds}")
        order = list(frames) if number % 2 else list(reversed(frames))
        for contender in order:
            measured = time_one(frames[contender])
            if number >= 0:
                times[contender].append(measured)
    return {
        "rows_of": name,
        "rows": rows,
        "contenders": [row(n, t, rows) for n, t in times.items()],
    }


# ---- reporting


def say(text: str) -> None:
    """Print progress to standard error, apart from the result."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr)


def row(name: str, times: list[Row], rows: int) -> Row:
    """Return the numbers of a contender, with the rates of its best round."""
    wall, cpu = (min(turn[key] for turn in times) for key in ("wall_s", "cpu_s"))
    return {
        "name": name,
        "wall_s": [round(turn["wall_s"], 3) for turn in times],
        "cpu_s": [round(turn["cpu_s"], 3) for turn in times],
        "rows_per_s": round(rows / wall),
        "rows_per_cpu_s": round(rows / cpu),
    }


def aims(settings: list[Row]) -> list[Row]:
    """Compare with the aims: not slower than the peer, in wall and in CPU time."""
    compared = []
    for setting in settings:
        by_name = {row["name"]: row for row in setting["contenders"]}
        for key in ("rows_per_s", "rows_per_cpu_s"):
            ratio = by_name["predict"][key] / by_name["predict_batch_udf"][key]
            aim = f"{setting['rows_of']}: {key}, predict / predict_batch_udf"
            compared.append(
                {"aim": aim, "value": round(ratio, 3), "at_least": 1, "met": ratio >= 1}
            )
    return compared


def table(result: Row) -> str:
    """Return the result as a table to read."""
    lines = []
    for setting in result["settings"]:
        lines += [f"{setting['rows']} rows of {setting['rows_of']}"]
        lines += [f"{'':<20}{'rows/s':>12}{'rows/CPU s':>12}{'best wall':>12}"]
        lines += [
            f"{contender['name']:<20}{contender['rows_per_s']:>12}{contender['rows_per_cpu_s']:>12}"
            f"{min(contender['wall_s']):>10.2f} s"
            for contender in setting["contenders"]
        ]
        lines += [""]
    lines += [
        f"{a['aim']} = {a['value']}: {'met' if a['met'] else 'NOT MET'}" for a in result["aims"]
    ]
    return "\n".join(lines)


def measure(rounds: int) -> Row:
    """Measure everything; return the JSON document."""
    about = machine("pyarrow", "numpy")
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as folder:
        spark = session("predict")
        try:
            settings = [measure_one(spark, Path(folder), name, rounds) for name in SETTINGS]
        finally:
            spark.stop()
    return {
        "benchmark": "predict",
        "machine": about,
        "setting": {"rounds": rounds, "batch": BATCH, "files": FILES},
        "settings": settings,
        "aims": aims(settings),
    }


def main() -> None:
    """Read the command line, measure, print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds")
    result = measure(parser.parse_args().rounds)
    print(table(result))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
