"""Compare `experiment.predict` with `pyspark.ml.functions.predict_batch_udf`, in one run.

A small dense Keras model is applied to a DataFrame in Parquet files, and the result is discarded
(Spark's `noop` format), on embedded Spark with two slots. For each width of the rows, the
contenders take turns:

- predict: `experiment.predict`
- function: `experiment.predict` with a function, which computes the same network with NumPy
- predict_batch_udf: the same model file, loaded once per Python worker by the function that its
  documentation shows, with `model.predict_on_batch` and the same batch size
- read: the same rows through a `mapInArrow` that returns them unchanged; the floor
- returned: a `mapInArrow` that adds arrays of zeros as long as the model's outputs; the floor of
  anything that returns outputs

Rows are 3 float columns (10 million rows), 20 float columns, or one array column of 784 floats.
The result is the best round of a contender, since other load on the machine only adds time. CPU
seconds are those of Spark's JVM and of its Python workers. Memory is that of the largest Python
worker, seen twice a second: its growth compares the maximum of the second half of a round with that
of the first half. The contenders share the workers, as the jobs of an application do.

    python benchmarks/predict.py --rounds 5
    python benchmarks/predict.py --rounds 3 --rows "3 columns"

The program prints a table, then one JSON document, and removes its files. Each aim is reported as
met or not; the exit code does not depend on the aims.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
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
from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

from sparkdl import experiment

# Width of the rows, number of rows, width of the model's layer, True for columns.
SETTINGS = {
    "3 columns": (3, 10_000_000, 8, True),
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


def with_zeros(df: DataFrame) -> DataFrame:
    """Return the rows with arrays that nothing computes: the floor with outputs."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ends = pa.array(np.arange(batch.num_rows + 1, dtype=np.int32) * OUTPUTS)
            values = pa.array(np.zeros(batch.num_rows * OUTPUTS, np.float32))
            columns = [*batch.columns, pa.ListArray.from_arrays(ends, values)]
            yield pa.RecordBatch.from_arrays(columns, [*batch.schema.names, "prediction"])

    schema = StructType([*df.schema.fields, StructField("prediction", ArrayType(FloatType()))])
    return df.mapInArrow(task, schema)


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


def by_function(df: DataFrame, model: str, names: Any) -> DataFrame:
    """Add the predictions of the same network, computed with NumPy."""

    class Network:
        def __init__(self) -> None:
            import keras

            weights = keras.saving.load_model(model, compile=False).get_weights()
            self.first, self.bias, self.last, self.last_bias = weights

        def __call__(self, x: Any) -> Any:
            return np.maximum(x @ self.first + self.bias, 0) @ self.last + self.last_bias

    return experiment.predict(
        Network, df, feature_cols=names, outputs="array<float>", batch_size=BATCH
    )


def contenders(df: DataFrame, model: str, width: int, in_columns: bool) -> dict[str, DataFrame]:
    """Return a lazy DataFrame for each contender. Workers keep their models over all rounds."""
    names: Any = [f"x{i}" for i in range(width)] if in_columns else "x"
    return {
        "read": passed_on(df),
        "returned": with_zeros(df),
        "predict": experiment.predict(model, df, feature_cols=names, batch_size=BATCH),
        "function": by_function(df, model, names),
        "predict_batch_udf": by_udf(df, model, width, in_columns),
    }


def descendants() -> dict[int, list[str]]:
    """Return the fields of proc(5), from the third on, of this process and its descendants."""
    fields, parents = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(found[1])
            fields[int(entry.name)] = found

    def is_below(pid: int) -> bool:
        while pid and pid != os.getpid():
            pid = parents.get(pid, 0)
        return bool(pid)

    return {pid: found for pid, found in fields.items() if is_below(pid)}


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its descendants, see proc(5)."""
    ticks = sum(sum(map(int, found[11:15])) for found in descendants().values())
    return ticks / os.sysconf("SC_CLK_TCK")


def largest_worker_mb() -> float:
    """Return the resident memory of the largest Python worker of Spark."""
    sizes = [0.0]
    for pid, found in descendants().items():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"pyspark.daemon" in command:
            sizes.append(int(found[21]) * os.sysconf("SC_PAGE_SIZE") / 1e6)
    return max(sizes)


def time_one(frame: DataFrame) -> Row:
    """Compute all rows; return wall and CPU seconds, and the memory of the workers over time."""
    seen: list[float] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            seen.append(largest_worker_mb())

    watcher = threading.Thread(target=watch)
    cpu, begun = cpu_seconds(), time.perf_counter()
    watcher.start()
    frame.write.format("noop").mode("overwrite").save()
    wall, used = time.perf_counter() - begun, cpu_seconds() - cpu
    done.set()
    watcher.join()
    half = len(seen) // 2
    halves = [max(part, default=0.0) for part in (seen[:half], seen[half:])]
    return {"wall_s": wall, "cpu_s": used, "worker_mb": halves}


def check_equal(frames: dict[str, DataFrame]) -> None:
    """Assert that all contenders compute the same numbers."""
    predictions = []
    for name in ("predict", "function", "predict_batch_udf"):
        rows = frames[name].filter("id < 1000").orderBy("id").select("prediction").collect()
        predictions.append(np.array([row.prediction for row in rows]))
    for found in predictions[1:]:
        np.testing.assert_allclose(predictions[0], found, rtol=1e-4, atol=1e-4)


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
    # All models are loaded: the check has computed rows with each.
    for number in range(rounds):
        say(f"{name}, round {number + 1} of {rounds}")
        order = list(frames) if number % 2 else list(reversed(frames))
        for contender in order:
            times[contender].append(time_one(frames[contender]))
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
        "worker_mb": [[round(half) for half in turn["worker_mb"]] for turn in times],
    }


def aims(settings: list[Row]) -> list[Row]:
    """Compare with the aims: not slower than the peer, in wall and in CPU time."""
    compared = []
    for setting in settings:
        by_name = {row["name"]: row for row in setting["contenders"]}
        growth = max(after / before for before, after in by_name["predict"]["worker_mb"])
        aim = f"{setting['rows_of']}: memory of a worker, second half of a round / first half"
        compared.append(
            {"aim": aim, "value": round(growth, 3), "at_most": 1.05, "met": growth <= 1.05}
        )
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


def measure(rounds: int, names: list[str]) -> Row:
    """Measure everything; return the JSON document."""
    about = machine("pyarrow", "numpy")
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as folder:
        spark = session("predict")
        try:
            settings = [measure_one(spark, Path(folder), name, rounds) for name in names]
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
    parser.add_argument("--rows", choices=SETTINGS, help="only rows of this kind")
    given = parser.parse_args()
    result = measure(given.rounds, [given.rows] if given.rows else list(SETTINGS))
    print(table(result))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
