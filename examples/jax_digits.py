"""Two workers train a small network written in JAX; sparkdl averages the gradients.

python examples/jax_digits.py
spark-submit --master <master> examples/jax_digits.py
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from sparkdl import context, distribute, experiment

EPOCHS, BATCH_SIZE, LEARNING_RATE = 20, 16, 0.1


def initial_weights() -> list[jax.Array]:
    """Return the weights of a network with one hidden layer, equal on all ranks."""
    random = np.random.default_rng(7)
    sizes = [(64, 64), (64,), (64, 10), (10,)]
    return [jnp.asarray(random.normal(0.0, 0.1, size), jnp.float32) for size in sizes]


def predict(weights: list[jax.Array], images: jax.Array) -> jax.Array:
    """Return the logits of images."""
    hidden, hidden_bias, output, output_bias = weights
    return jax.nn.relu(images @ hidden + hidden_bias) @ output + output_bias


def loss(weights: list[jax.Array], images: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean cross-entropy."""
    likelihoods = jax.nn.log_softmax(predict(weights, images))
    return -jnp.take_along_axis(likelihoods, labels[:, None], axis=1).mean()


def train() -> float:
    """Train on this rank's share of the digits; return the accuracy on unseen digits."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32")
    x_train, x_test, y_train, y_test = train_test_split(images, labels, random_state=0)
    # Shares of equal size, so that all ranks take the same number of steps.
    num_rows = len(x_train) // context.world_size
    mine = slice(context.rank * num_rows, (context.rank + 1) * num_rows)
    x_train, y_train = x_train[mine], y_train[mine]

    weights = initial_weights()
    gradient = jax.jit(jax.grad(loss))
    random = np.random.default_rng(context.rank)
    for epoch in range(EPOCHS):
        order = random.permutation(num_rows)
        for start in range(0, num_rows - BATCH_SIZE + 1, BATCH_SIZE):
            rows = order[start : start + BATCH_SIZE]
            gradients = gradient(weights, x_train[rows], y_train[rows])
            means = [distribute.allreduce(part) for part in gradients]
            weights = [w - LEARNING_RATE * mean for w, mean in zip(weights, means, strict=True)]
        if context.is_chief:
            context.report({"loss": float(loss(weights, x_train, y_train))}, step=epoch)
    return float((predict(weights, x_test).argmax(axis=1) == y_test).mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, help="processes, each in a slot")
    args = parser.parse_args()
    run = experiment.allreduce(train, num_workers=args.workers, framework="jax")
    print(f"accuracy {run.result:.4f} on unseen digits")
