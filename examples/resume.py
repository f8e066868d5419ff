"""A grid in which one trial fails, and the same run finished with a corrected function.

    python examples/resume.py

It prints the table of the run twice, first with 2 of 3 trials complete, then with 3 of 3, and
`attempts of each trial: [1, 1, 2]`: only the failed trial ran again. `experiment.resume` also
continues a run that Ctrl-C interrupted or whose driver was killed.
"""

import argparse

from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier

from sparkdl import experiment


def score(neighbors: int, scale: float) -> float:
    """Return the accuracy of a nearest-neighbor classifier, by cross-validation."""
    images, labels = load_digits(return_X_y=True)
    model = KNeighborsClassifier(neighbors)
    return float(cross_val_score(model, images / scale, labels, cv=3).mean())


def train(neighbors: int, pixels: str) -> float:
    """Score one combination; fails where `pixels` is "binary"."""
    scale = {"raw": 1.0, "scaled": 16.0}[pixels]
    return score(neighbors, scale)


def corrected(neighbors: int, pixels: str) -> float:
    """Score one combination."""
    scale = {"raw": 1.0, "scaled": 16.0, "binary": 8.0}[pixels]
    return score(neighbors, scale)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    values = {"neighbors": [1, 3, 5], "pixels": ["raw", "scaled", "binary"]}
    run = experiment.launch(train, values, combine="zip", name="neighbors")
    print(run)

    run = experiment.resume(run.path, train=corrected, retry="failed")
    print(run)
    print("attempts of each trial:", [trial.attempts for trial in run.trials])
