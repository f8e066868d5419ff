"""From a search to a model server that a client asks over HTTP.

Two models of scikit-learn's handwritten digits are trained as two trials. The better one is
exported as a version of the model "digits", and served in this process. A client without sparkdl
sends unseen digits to it, as it would to TensorFlow Serving.

On a laptop, with embedded Spark:     python examples/serving.py
As a batch job on a cluster:          spark-submit --master <master> examples/serving.py
"""

import argparse
import json
import urllib.request
from typing import Any

from sparkdl import experiment, models, serving


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


def ask(url: str, images: list[list[float]]) -> list[list[float]]:
    """Return the probabilities of the digits of some images."""
    body = json.dumps({"instances": images}).encode()
    with urllib.request.urlopen(f"{url}/v1/models/digits:predict", body) as answer:
        probabilities: list[list[float]] = json.load(answer)["predictions"]
        return probabilities


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0, help="port of the server; 0: a free one")
    args = parser.parse_args()
    run = experiment.launch(train, {"hidden": [32, 128]}, name="digits", metric="accuracy", seed=7)
    run.raise_for_failures()
    print(models.export(run.best, "digits", alias="stable"))

    _, x_test, _, y_test = load_split()
    with serving.start("digits", alias="stable", port=args.port, batching=True) as server:
        print(server)
        probabilities = ask(server.url, x_test.tolist())
    right = sum(
        row.index(max(row)) == label for row, label in zip(probabilities, y_test, strict=True)
    )
    print(f"accuracy {right / len(y_test):.4f} on unseen digits")
