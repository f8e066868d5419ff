"""An elastic program for Horovod, on handwritten digits: training continues when a rank is lost.

python examples/horovod/elastic_digits.py
"""

import argparse

import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import sparkdl.horovod.tensorflow as hvd
from sparkdl import experiment

EPOCHS, BATCHES, BATCH = 12, 20, 32


def train() -> float:
    """Train on this rank's share of the digits; return the accuracy on unseen digits."""
    hvd.init()
    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        images / 16.0, labels, test_size=0.25, random_state=0
    )
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input(shape=(64,)),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf.keras.optimizers.Adam(0.002)

    @tf.function
    def training_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss_value = loss(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss_value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss_value

    @hvd.elastic.run
    def train_elastic(state: hvd.elastic.TensorFlowKerasState) -> None:
        # Called again when the ranks have changed: each rank then takes its share of the rows.
        x_mine, y_mine = (part[hvd.rank() :: hvd.size()] for part in (x_train, y_train))
        rows = tf.data.Dataset.from_tensor_slices((x_mine.astype("float32"), y_mine))
        batches = iter(rows.repeat().shuffle(1000).batch(BATCH))
        for state.epoch in range(state.epoch, EPOCHS):  # noqa: B020
            for state.batch in range(state.batch, BATCHES):  # noqa: B020
                loss_value = training_step(*next(batches))
                if state.batch % 5 == 0:
                    state.commit()
            state.batch = 0
            if hvd.rank() == 0:
                print(f"epoch {state.epoch}: loss {loss_value:.4f} on {hvd.size()} ranks")

    train_elastic(hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=0, batch=0))
    right = tf.argmax(model(x_test.astype("float32")), axis=1).numpy() == y_test
    return float(right.mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, help="processes, each in a slot")
    args = parser.parse_args()
    accuracy = experiment.horovod(train, num_workers=args.workers, elastic=True).result
    print(f"accuracy {accuracy:.4f} on unseen digits")
