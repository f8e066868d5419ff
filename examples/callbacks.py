"""Follow a run from outside: print each new best trial, post to a chat, mirror in MLflow.

Support vector machines are trained on scikit-learn's handwritten digits. A callback prints the best
trial so far. With a URL in WEBHOOK_URL, the end of the run is posted there; with the address of a
tracking server in MLFLOW_TRACKING_URI, the run is mirrored in MLflow while it goes on. Neither can
slow down or fail the run.

On a laptop, with embedded Spark:     python examples/callbacks.py
As a batch job on a cluster:          spark-submit --master <master> examples/callbacks.py
"""

import argparse
import os

from sparkdl import experiment
from sparkdl.callbacks import Callback, MLflow, Webhook
from sparkdl.runs import Run, Trial


class Announce(Callback):
    """Print each new best trial, and a line at the end."""

    def on_best(self, run: Run, trial: Trial) -> None:
        """Print the parameters and the value of the trial."""
        print(f"best so far: trial {trial.number} with {trial.params}: {trial.value:.4f}")

    def on_run_end(self, run: Run) -> None:
        """Print the number of trials in each state."""
        print(f"{run.id} has ended: {run.counts_text()}")


def train(strength: float) -> dict[str, float]:
    """Train a support vector machine; return its accuracy on unseen digits."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.svm import SVC

    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        images / 16.0, labels, test_size=0.25, random_state=0
    )
    return {"accuracy": SVC(C=strength).fit(x_train, y_train).score(x_test, y_test)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run-id", help="a run of this name is finished, not repeated")
    args = parser.parse_args()
    callbacks: list[Callback] = [Announce()]
    if url := os.environ.get("WEBHOOK_URL"):
        callbacks.append(Webhook(url, events=["run_end"]))
    if "MLFLOW_TRACKING_URI" in os.environ:
        callbacks.append(MLflow(experiment="digits"))
    run = experiment.launch(
        train,
        {"strength": [0.001, 1.0]},
        name="digits",
        run_id=args.run_id,
        if_exists="resume",
        metric="accuracy",
        callbacks=callbacks,
    )
    print(f"accuracy {run.best.value:.4f} on unseen digits")
