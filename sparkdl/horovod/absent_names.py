"""Runs anywhere. Names of Horovod that are imported late, or that sparkdl does not have."""

import functools

from sparkdl.host import missing_names

__all__ = ["LIGHTNING_TRAINER", "ROWS_BY_SPARK", "absent_names"]

# What to write in place of modules that store rows in files, and of Lightning's estimator.
ROWS_BY_SPARK = (
    "Spark sends the rows to the ranks, without files: call fit(df) of "
    "sparkdl.horovod.spark.keras.KerasEstimator, or experiment.horovod(train, "
    "num_workers=..., data=df) and data.dataset(...) in the function."
)
LIGHTNING_TRAINER = (
    "Call Trainer.fit in a function and call "
    'experiment.allreduce(train, num_workers=..., data=df, framework="torch"); '
    "experiment.predict(run, df, feature_cols=...) predicts."
)

absent_names = functools.partial(missing_names.absent_names, page="docs/horovod.md")
