"""A model of scikit-learn's handwritten digits: trained on Spark, then applied to a DataFrame.

Three models are trained as three trials. The best model adds a column of probabilities to a
DataFrame of unseen digits, a function of NumPy arrays makes digits of them, and Spark compares the
digits with the labels.

On a laptop, with embedded Spark:     python examples/predict.py
As a batch job on a cluster:          spark-submit --master <master> examples/predict.py
"""

import argparse
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkdl import experiment


def load_split() -> list[Any]:
    """Return x_train, x_test, y_train and y_test; an image is a row of 64 numbers from 0 to 1."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    split: list[Any] = train_test_split(images / 16.0, labels, test_size=0.25, random_state=0)
    return split


def train(learning_rate: float) -> dict[str, Any]:
    """Train a small network; return its accuracy and its file."""
    import keras

    from sparkdl.keras import Report, save

    x_train, x_test, y_train, y_test = load_split()
    layers = [
        keras.layers.Input(shape=(64,)),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]
    model = keras.Sequential(layers)
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    model.fit(x_train, y_train, epochs=15, callbacks=[Report("accuracy")], verbose=0)
    accuracy = model.evaluate(x_test, y_test, verbose=0)[1]
    return {"accuracy": accuracy, "model": save(model, "digits.keras")}


def digits(spark: SparkSession) -> DataFrame:
    """Return the unseen digits with their labels."""
    _, x_test, _, y_test = load_split()
    rows = [(i, x.tolist(), int(y)) for i, (x, y) in enumerate(zip(x_test, y_test, strict=True))]
    return spark.createDataFrame(rows, "id int, image array<float>, label int")


def most_likely(probabilities: Any) -> Any:
    """Return the digit with the largest probability for each row."""
    return probabilities.argmax(axis=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run-id", help="a run of this name is finished, not repeated")
    args = parser.parse_args()
    spark = SparkSession.builder.appName("digits").getOrCreate()
    run = experiment.launch(
        train,
        {"learning_rate": [0.001, 0.003, 0.01]},
        name="digits",
        run_id=args.run_id,
        if_exists="resume",
        metric="accuracy",
        seed=7,
    )
    run.raise_for_failures()

    predicted = experiment.predict(
        run, digits(spark), feature_cols="image", prediction_col="probabilities"
    )
    scored = experiment.predict(
        most_likely,
        predicted,
        feature_cols="probabilities",
        prediction_col="digit",
        outputs="int",
    )
    scored.select("id", "label", "digit").show(5)
    right = (F.col("digit") == F.col("label")).cast("double")
    accuracy = scored.agg(F.avg(right)).collect()[0][0]
    print(f"accuracy {accuracy:.4f} on unseen digits")
    spark.stop()
