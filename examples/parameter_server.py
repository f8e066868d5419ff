"""Asynchronous training: a coordinator hands out steps, a parameter server holds the weights.

On a laptop, with embedded Spark:     python examples/parameter_server.py
As a batch job on a cluster:          spark-submit --master <master> examples/parameter_server.py

The program needs three slots: the coordinator, one worker and one parameter server. Every fifth
epoch is committed as a checkpoint; if the parameter server is lost, all processes start again from
the last checkpoint.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sparkdl import context, distribute, experiment

BATCH_SIZE = 32
EPOCHS = 15
COMMIT_EVERY = 5


def digits() -> list[Any]:
    """Return images and labels for training, then images and labels for testing."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16.0, labels, test_size=0.25, random_state=0)
    return [parts[0], parts[2], parts[1], parts[3]]


def build_model() -> keras.Model:
    """Return a network with one hidden layer."""
    return keras.Sequential(
        [
            keras.layers.Input(shape=(64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def train() -> float:
    """Train on the coordinator; return the accuracy on unseen digits."""
    x_train, y_train, x_test, y_test = digits()
    strategy = distribute.strategy()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        keras.utils.set_random_seed(7)
        model = build_model()
        optimizer = keras.optimizers.Adam(0.002)
        optimizer.build(model.trainable_variables)
        epochs_done = tf.Variable(0, dtype=tf.int64)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def update(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    @tf.function
    def step(batches: Any) -> Any:
        return strategy.run(update, args=next(batches))

    def batches() -> tf.data.Dataset:
        rows = tf.data.Dataset.from_tensor_slices((x_train.astype("float32"), y_train))
        return rows.shuffle(len(x_train)).repeat().batch(BATCH_SIZE)

    state = tf.train.Checkpoint(model=model, optimizer=optimizer, epochs_done=epochs_done)
    if directory := context.get_checkpoint():
        state.read(str(Path(directory, "state")), options=on_the_chief()).assert_consumed()
    worker_batches = iter(coordinator.create_per_worker_dataset(batches))
    for epoch in range(int(epochs_done), EPOCHS):
        steps = range(len(x_train) // BATCH_SIZE)
        losses = [coordinator.schedule(step, args=(worker_batches,)) for _ in steps]
        coordinator.join()
        epochs_done.assign_add(1)
        loss = sum(coordinator.fetch(losses)) / len(losses)
        if epoch % COMMIT_EVERY == COMMIT_EVERY - 1:
            commit(state, epoch, loss)
        print(f"epoch {epoch}: loss {loss:.4f}")
    return float((model(x_test).numpy().argmax(axis=1) == y_test).mean())


def on_the_chief() -> tf.train.CheckpointOptions:
    """Return the option without which each parameter server uses the disk of its own host."""
    return tf.train.CheckpointOptions(experimental_io_device="/job:chief")


def commit(state: tf.train.Checkpoint, epoch: int, loss: float) -> None:
    """Commit everything that the training needs to continue."""
    with tempfile.TemporaryDirectory() as directory:
        state.write(str(Path(directory, "state")), options=on_the_chief())
        context.report({"loss": loss}, step=epoch, checkpoint=directory)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run-id", help="a run of this name is finished, not repeated")
    args = parser.parse_args()
    # Three slots for plain Python; spark-submit ignores this variable.
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", "--master local[3] pyspark-shell")
    run = experiment.parameter_server(
        train, num_workers=1, num_ps=1, name="digits", run_id=args.run_id, if_exists="resume"
    )
    print(f"accuracy {run.result:.4f} on unseen digits")
