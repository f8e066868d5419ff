"""Two searches over the same data, found again, compared and annotated.

    python examples/compare.py

It prints a table of the runs that are tagged as candidates, and what differs between them:
parameters, values, seconds, environment. `compare.html` shows the runs over one another, and
`sparkdl ui` shows all of this in a browser.
"""

import argparse

from sklearn.datasets import load_digits
from sklearn.linear_model import Perceptron
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier

from sparkdl import experiment


def neighbors(num_neighbors: int, power: int) -> dict[str, float]:
    """Score a nearest-neighbor classifier, by cross-validation."""
    return scores(KNeighborsClassifier(num_neighbors, p=power))


def perceptron(alpha: float, penalty: str) -> dict[str, float]:
    """Score a linear classifier, by cross-validation."""
    return scores(Perceptron(alpha=alpha, penalty=penalty, random_state=0))


def scores(model: object) -> dict[str, float]:
    """Return the mean of the accuracies, and the worst."""
    images, labels = load_digits(return_X_y=True)
    folds = cross_val_score(model, images / 16.0, labels, cv=3)
    return {"accuracy": float(folds.mean()), "worst": float(folds.min())}


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    near = experiment.launch(
        neighbors, {"num_neighbors": [1, 3], "power": [1, 2]}, metric="accuracy", progress=False
    )
    linear = experiment.launch(
        perceptron,
        {"alpha": [1e-4, 1e-2], "penalty": ["l1", "l2"]},
        metric="accuracy",
        progress=False,
    )
    for run in (near, linear):
        run.tag("candidate")
    linear.note("a hundredth of the other's memory, and no data in the model")

    candidates = experiment.history(tags="candidate", where="best > 0.8", since="1d")
    print(candidates[["run", "best", "tags", "note", "metric.worst", "seconds"]].to_string())

    comparison = experiment.compare([near, linear])
    print(comparison)
    comparison.figure("history").write_html("compare.html")
