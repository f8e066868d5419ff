"""A grid of real trainings: six Keras models of scikit-learn's handwritten digits, as six trials.

On a laptop, with embedded Spark:     python examples/grid_search.py
As a batch job on a cluster:          spark-submit --master <master> examples/grid_search.py

The exit code is 0 only if the run completed: a run that stops early raises an error, and
`run.raise_for_failures()` raises one if a trial has failed.
"""

import argparse

from sparkdl import context, experiment, tensorboard


def train(learning_rate: float, dropout: float) -> dict[str, float]:
    """Train a small network; return its accuracy on unseen digits."""
    import keras
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    from sparkdl.keras import Report

    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        images / 16.0, labels, test_size=0.25, random_state=0
    )
    model = keras.Sequential(
        [
            keras.layers.Input(shape=(64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    model.fit(
        x_train,
        y_train,
        batch_size=32,
        epochs=10,
        validation_data=(x_test, y_test),
        callbacks=[Report(), keras.callbacks.TensorBoard(tensorboard.logdir())],
        verbose=0,
    )
    loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
    print(f"accuracy {accuracy:.4f} on unseen digits, seed {context.seed}")
    return {"accuracy": accuracy, "loss": loss}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run-id", help="a run of this name is finished, not repeated")
    args = parser.parse_args()
    run = experiment.launch(
        train,
        {"learning_rate": [0.001, 0.005, 0.01], "dropout": [0.2, 0.5]},
        name="digits",
        run_id=args.run_id,
        if_exists="resume",
        metric="accuracy",
        direction="max",
        seed=7,
    )
    print(run)
    print(f"All curves: sparkdl tensorboard {run.path}")
    run.raise_for_failures()
