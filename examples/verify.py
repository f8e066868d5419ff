"""Prove a run: train its best trial again, compare all results bit by bit, and write the card.

    python examples/verify.py

A difference would be told with its first step, its size, and where it may come from. The exit code
of `sparkdl verify RUN` is 0 only if nothing differs.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from sparkdl import context, experiment


def train(rate):
    """Fit a line by gradient descent; report the loss of each step, and return the weights."""
    x = np.random.normal(size=(200, 3))
    y = x @ np.array([1.0, -2.0, 0.5]) + 0.1 * np.random.normal(size=200)
    weights = np.zeros(3)
    for step in range(20):
        weights -= rate * x.T @ (x @ weights - y) / len(y)
        context.report({"loss": float(((x @ weights - y) ** 2).mean())}, step=step)
    np.save("weights.npy", weights)
    return {"weights": "weights.npy"}


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    run = experiment.launch(
        train, {"rate": [0.05, 0.2]}, name="line", metric="loss", direction="min"
    )
    verification = experiment.verify(run)
    print(verification)
    card = Path(tempfile.mkdtemp(), "line.html")
    run.card(card)
    print("The card is in", card)
