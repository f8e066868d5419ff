"""A HopsML program: a grid search over networks of scikit-learn's handwritten digits.

Only its import lines differ from a program for hops-util-py.

    python examples/hops/grid_digits.py
    spark-submit --master <master> examples/hops/grid_digits.py
"""

import argparse

from sparkdl.hops import experiment, hdfs


def train(learning_rate: float, units: int) -> dict[str, float]:
    """Train a small network; return its accuracy and its loss on unseen digits."""
    import keras
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    from sparkdl.hops import tensorboard

    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        images / 16.0, labels, test_size=0.25, random_state=0
    )
    model = keras.Sequential(
        [
            keras.layers.Input(shape=(64,)),
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    optimizer = keras.optimizers.Adam(learning_rate)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [keras.callbacks.TensorBoard(log_dir=tensorboard.logdir())]
    model.fit(x_train, y_train, batch_size=32, epochs=15, verbose=0, callbacks=callbacks)
    loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
    return {"accuracy": accuracy, "loss": loss}


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    grid = {"learning_rate": [0.001, 0.003], "units": [64]}
    path, params, values = experiment.grid_search(
        train,
        grid,
        direction=experiment.Direction.MAX,
        name="digits grid",
        local_logdir=True,
        optimization_key="accuracy",
    )
    print(f"The best learning rate is {params['learning_rate']}, its log has")
    print(f"{len(hdfs.load(values['log']))} bytes in {path}")
    print(f"accuracy {values['accuracy']:.4f} on unseen digits")
