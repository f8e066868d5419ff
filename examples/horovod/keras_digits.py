"""A Keras program for Horovod, on handwritten digits.

Two things differ from the program for Horovod: the import of `hvd`, and the call of
`experiment.horovod` in place of `horovodrun -np 2 python keras_digits.py`.

    python examples/horovod/keras_digits.py
"""

import argparse

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import sparkdl.horovod.keras as hvd
from sparkdl import experiment

EPOCHS, BATCH = 15, 32


def train() -> float:
    """Train on this rank's share of the digits; return the accuracy on unseen digits."""
    hvd.init()
    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        images / 16.0, labels, test_size=0.25, random_state=0
    )
    model = keras.Sequential(
        [
            keras.layers.Input(shape=(64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    rate = 0.001 * hvd.size()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(rate))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=3),
    ]
    model.fit(
        x_train[hvd.rank() :: hvd.size()],
        y_train[hvd.rank() :: hvd.size()],
        batch_size=BATCH,
        epochs=EPOCHS,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, help="processes, each in a slot")
    args = parser.parse_args()
    accuracy = experiment.horovod(train, num_workers=args.workers).result
    print(f"accuracy {accuracy:.4f} on unseen digits")
