"""A small network learns scikit-learn's handwritten digits.

`single_process.py` is an ordinary Keras program. `allreduce.py` is the same program, trained by two
workers at once on Spark; `diff single_process.py allreduce.py` shows the four lines that differ.

    python examples/single_process.py
    python examples/allreduce.py
    spark-submit --master <master> examples/allreduce.py
"""

import argparse

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def build_model() -> keras.Model:
    """Return a compiled network with one hidden layer."""
    model = keras.Sequential(
        [
            keras.layers.Input(shape=(64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def train() -> float:
    """Train the network; return its accuracy on unseen digits."""
    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        images / 16.0, labels, test_size=0.25, random_state=0
    )
    keras.utils.set_random_seed(7)
    model = build_model()
    model.fit(x_train, y_train, batch_size=32, epochs=15, verbose=2)
    _, accuracy = model.evaluate(x_test, y_test, batch_size=32, verbose=0)
    return accuracy


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    accuracy = train()
    print(f"accuracy {accuracy:.4f} on unseen digits")
