"""A mixed table with nulls, categories, timestamps and arrays: from Spark to a served model.

Subscribers of a service may leave. What their table needs is prepared in two places, and both stay
with the model: a PipelineModel of Spark is kept beside it, for what is computed from rows before
training, and layers of Keras look up words and scale numbers inside of it. All of it is fitted on
the rows of the training only. The model is trained in two workers, exported, applied to new rows,
and served.

On a laptop, with embedded Spark:     python examples/tabular.py
A million rows:                       python examples/tabular.py --rows 1000000
As a batch job on a cluster:          spark-submit --master <master> examples/tabular.py
"""

import argparse
import functools
import json
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.feature import Imputer, SQLTransformer
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl import experiment, models, serving

WORDS = ["plan", "country", "weekday"]
NUMBERS = ["age_known", "usage"]


# ---- the table, and what Spark prepares


def uniform(number: int) -> Column:
    """Return numbers between 0 and 1 that depend on the row only, however Spark divides them."""
    return F.pmod(F.xxhash64("id", F.lit(number)), F.lit(1_000_003)) / 1_000_003


def table(spark: SparkSession, rows: int, first: int = 0) -> DataFrame:
    """Return subscribers, some of whom have left."""
    day = F.date_add(F.to_timestamp(F.lit("2026-01-01")), (uniform(3) * 300).cast("int"))
    plan = F.when(uniform(1) < 0.4, "basic").when(uniform(1) < 0.7, "plus")
    hours = F.array(*[(uniform(10 + day) * 4).cast("float") for day in range(7)])
    people = spark.range(first, first + rows).select(
        "id",
        plan.when(uniform(1) < 0.95, "pro").alias("plan"),  # All others are null.
        F.concat(F.lit("c"), (uniform(2) ** 3 * 40).cast("int")).alias("country"),
        F.to_timestamp(day).alias("signed_up"),
        F.when(uniform(4) < 0.8, 18 + 60 * uniform(5)).alias("age"),
        hours.alias("usage"),
    )
    weekend = F.dayofweek("signed_up").isin(1, 7).cast("int")
    week = F.aggregate("usage", F.lit(0.0), lambda total, each: total + each)
    score = F.coalesce(
        F.when(F.col("plan") == "basic", 1.5).when(F.col("plan") == "pro", -1.5), F.lit(0)
    )
    score = score + weekend + (14 - week) / 3 + (45 - F.coalesce("age", F.lit(45))) / 20
    return people.withColumn("left", (uniform(6) < 1 / (1 + F.exp(-score))).cast("int"))


def preparation() -> Pipeline:
    """Return what Spark prepares: the weekday of a timestamp, and the median for unknown ages."""
    weekday = "SELECT *, date_format(signed_up, 'E') AS weekday FROM __THIS__"
    median = Imputer(inputCol="age", outputCol="age_known", strategy="median")
    return Pipeline(stages=[SQLTransformer(statement=weekday), median])


def known_values(rows: DataFrame) -> dict[str, Any]:
    """Return the words, and the means and variances of the numbers, of the rows of the training."""
    words = {
        name: [
            row[0] for row in rows.groupBy(name).count().orderBy(F.desc("count"), name).collect()
        ]
        for name in WORDS
    }
    sizes = {"age_known": None, "usage": 7}
    columns = {
        name: [F.col(name)] if size is None else [F.get(name, F.lit(i)) for i in range(size)]
        for name, size in sizes.items()
    }
    numbers = {}
    for name, parts in columns.items():
        pairs = [f(part) for f in (F.avg, F.var_pop) for part in parts]
        values = list(rows.agg(*pairs).collect()[0])
        numbers[name] = (values[: len(parts)], values[len(parts) :])
    return {"words": {n: [w for w in known if w] for n, known in words.items()}, "numbers": numbers}


# ---- the model, which carries its own preparation


def network(known: dict[str, Any]) -> Any:
    """Return a model of the columns: words are looked up, and numbers scaled, inside of it."""
    import keras

    inputs, parts = {}, []
    for name, words in known["words"].items():
        inputs[name] = keras.layers.Input((), name=name, dtype="string")
        # The first place is for null, and for words that the training has not seen.
        look_up = keras.layers.StringLookup(vocabulary=words, output_mode="one_hot")
        parts.append(look_up(inputs[name]))
    for name, (means, variances) in known["numbers"].items():
        is_array = len(means) > 1
        inputs[name] = keras.layers.Input((len(means),) if is_array else (), name=name)
        scale = keras.layers.Normalization(mean=means, variance=variances)
        parts.append(scale(keras.layers.Reshape((len(means),))(inputs[name])))
    x = keras.layers.Concatenate()(parts)
    for _ in range(2):
        x = keras.layers.Dense(32, activation="relu")(x)
    return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(x))


def train(known: dict[str, Any], batch_size: int, epochs: int) -> dict[str, Any]:
    """Train in one of several workers; return the area under the ROC curve of unseen rows."""
    import keras

    from sparkdl import data, distribute
    from sparkdl.keras import save

    columns = {"feature_cols": {name: name for name in WORDS + NUMBERS}, "label_cols": "left"}
    options = {"global_batch_size": batch_size, "fill": {"plan": ""}, **columns}
    model = network(known)
    optimizer = distribute.optimizer(keras.optimizers.Adam(0.003))
    model.compile(optimizer, "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    done = model.fit(
        data.dataset("train", shuffle=True, **options),
        validation_data=data.dataset("validation", **options),
        epochs=epochs,
        verbose=0,
    )
    return {"auc": done.history["val_auc"][-1], "model": save(model, "subscribers.keras")}


# ---- new rows


def ask(url: str, rows: list[dict[str, Any]]) -> list[float]:
    """Return the answers of the server; a null is the empty word, as in training."""
    body = json.dumps({"instances": rows}).encode()
    with urllib.request.urlopen(f"{url}/v1/models/subscribers:predict", body) as answer:
        return [row[0] for row in json.load(answer)["predictions"]]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    spark = SparkSession.builder.appName("subscribers").getOrCreate()

    # The rows are divided first: what is fitted sees the rows of the training only.
    people = table(spark, args.rows)
    is_train = uniform(7) < 0.8
    prepared = preparation().fit(people.where(is_train))
    rows = prepared.transform(people.where(is_train)).persist()
    unseen = prepared.transform(people.where(~is_train))
    run = experiment.allreduce(
        functools.partial(train, known_values(rows), max(64, args.rows // 500 * 2), args.epochs),
        num_workers=2,
        data={"train": rows, "validation": unseen},
        name="subscribers",
        metric="auc",
        seed=7,
    )
    with tempfile.TemporaryDirectory() as folder:
        prepared.write().overwrite().save(Path(folder, "prepared").as_uri())
        files = {"preparation": Path(folder, "prepared")}
        print(models.export(run, "subscribers", files=files))

    # Another day, in another program: the version has all that it needs.
    version = models.get("subscribers")
    arrived = table(spark, args.rows // 4, first=args.rows)
    ready = PipelineModel.load(version.file("preparation")).transform(arrived)
    scored = experiment.predict(version, ready).withColumn(
        "prediction", F.col("prediction").cast("double")
    )
    auc = BinaryClassificationEvaluator(rawPredictionCol="prediction", labelCol="left")
    print(f"auc {run.result['auc']:.4f} in training, {auc.evaluate(scored):.4f} of new rows")
    some = scored.orderBy("id").limit(50).collect()
    with serving.start("subscribers", port=0) as server:
        columns = [{name: row[name] for name in WORDS + NUMBERS} for row in some]
        answers = ask(server.url, [{**row, "plan": row["plan"] or ""} for row in columns])
    differences = [abs(a - row.prediction) for a, row in zip(answers, some, strict=True)]
    print(f"the server's answers differ by at most {max(differences):.1e}")
    spark.stop()
