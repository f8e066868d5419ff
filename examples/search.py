"""A search over a small Keras network for handwritten digits; bad trials are stopped early.

On a laptop, with embedded Spark:     python examples/search.py
As a batch job on a cluster:          spark-submit --master <master> examples/search.py
"""

import argparse

from sparkdl import experiment, search


def train(learning_rate: float, units: int, dropout: float) -> float:
    """Train and report each epoch; return the accuracy on unseen digits."""
    import keras
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    from sparkdl.keras import Report

    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images / 16.0, labels, test_size=450, random_state=0)
    x_train, x_test, y_train, y_test = split
    model = keras.Sequential(
        [
            keras.layers.Input(shape=(64,)),
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    optimizer = keras.optimizers.Adam(learning_rate)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    # The pruner decides by the val_accuracy of each epoch.
    report = Report("val_accuracy")
    unseen = (x_test, y_test)
    model.fit(x_train, y_train, epochs=16, validation_data=unseen, verbose=0, callbacks=[report])
    return model.evaluate(x_test, y_test, verbose=0)[1]


SPACE = {
    "learning_rate": search.Float(1e-5, 1e-1, log=True),
    "units": search.Int(16, 128, log=True),
    "dropout": search.Float(0.0, 0.6),
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run-id", help="a run of this name is finished, not repeated")
    parser.add_argument("--trials", type=int, default=12)
    args = parser.parse_args()
    run = experiment.search(
        train,
        SPACE,
        num_trials=args.trials,
        run_id=args.run_id,
        if_exists="resume",
        pruner="asha",
        metric="val_accuracy",
        seed=7,
    )
    print(run)
    print(f"accuracy {run.best.value:.4f} on unseen digits")
    print(f"Look at {run.path}/report.html")
