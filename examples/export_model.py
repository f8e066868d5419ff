"""From a search to a model that others find: export the best trial, name it, and use it.

Two models of scikit-learn's handwritten digits are trained as two trials. The better one becomes
the next version of the model "digits" in the model registry, with the profile of the DataFrame that
it was trained with, unless an earlier version is better. The alias "stable" then names the best
version, which adds a column of predictions to a DataFrame of unseen digits.

On a laptop, with embedded Spark:     python examples/export_model.py
As a batch job on a cluster:          spark-submit --master <master> examples/export_model.py
"""

import argparse
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl import experiment, models


def load_split() -> list[Any]:
    """Return x_train, x_test, y_train and y_test; an image is a row of 64 numbers from 0 to 1."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    split: list[Any] = train_test_split(images / 16.0, labels, test_size=0.25, random_state=0)
    return split


def train(hidden: int) -> dict[str, Any]:
    """Train a small network; return its accuracy and its file."""
    import keras

    from sparkdl.keras import save

    x_train, x_test, y_train, y_test = load_split()
    layers = [
        keras.layers.Input(shape=(64,), name="image"),
        keras.layers.Dense(hidden, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]
    model = keras.Sequential(layers)
    model.compile("adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(x_train, y_train, epochs=20, verbose=0)
    accuracy = model.evaluate(x_test, y_test, verbose=0)[1]
    return {"accuracy": accuracy, "model": save(model, "digits.keras")}


def dataframe(spark: SparkSession, images: Any, labels: Any) -> DataFrame:
    """Return images and labels as a DataFrame."""
    rows = [(image.tolist(), int(label)) for image, label in zip(images, labels, strict=True)]
    return spark.createDataFrame(rows, "image array<float>, label int")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run-id", help="a run of this name is finished, not repeated")
    args = parser.parse_args()
    spark = SparkSession.builder.appName("digits").getOrCreate()
    run = experiment.launch(
        train,
        {"hidden": [32, 128]},
        name="digits",
        run_id=args.run_id,
        if_exists="resume",
        metric="accuracy",
        seed=7,
    )
    run.raise_for_failures()

    x_train, x_test, y_train, y_test = load_split()
    exported = models.export(
        run.best,
        "digits",
        profile=dataframe(spark, x_train, y_train),
        if_better="accuracy",
    )
    print(exported or "an earlier version is better")
    models.alias("digits", "stable", models.best("digits", "accuracy").version)
    print(models.compare("digits"))

    stable = models.get("digits", alias="stable")
    predicted = experiment.predict(
        stable,
        dataframe(spark, x_test, y_test),
        feature_cols="image",
        prediction_col="probabilities",
    )
    digit = F.array_position("probabilities", F.array_max("probabilities")) - 1
    right = (digit == F.col("label")).cast("double")
    accuracy = predicted.agg(F.avg(right)).collect()[0][0]
    print(f"accuracy {accuracy:.4f} on unseen digits")
    spark.stop()
