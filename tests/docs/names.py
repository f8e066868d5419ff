"""The names that pages use without defining them, such as `run` and `df`."""

from typing import Any

from pyspark.sql import DataFrame

from sparkdl.models import ModelVersion
from sparkdl.runs import Run, Trial
from sparkdl.runs.views.comparison import Comparison
from sparkdl.tfos.TFCluster import TFCluster

__all__ = ["ELSEWHERE", "GIVEN", "MIGRATION", "MODULES"]

# The modules that programs import, by the name that they have in programs.
MODULES = {
    "sparkdl": "sparkdl",
    "context": "sparkdl.context",
    "data": "sparkdl.data",
    "devices": "sparkdl.devices",
    "distribute": "sparkdl.distribute",
    "errors": "sparkdl.errors",
    "experiment": "sparkdl.experiment",
    "models": "sparkdl.models",
    "search": "sparkdl.search",
    "serving": "sparkdl.serving",
    "tensorboard": "sparkdl.tensorboard",
}
# Other names, with their class; None stands for anything.
GIVEN: dict[str, Any] = {
    "run": Run,
    "trial": Trial,
    "version": ModelVersion,
    "comparison": Comparison,
    "df": DataFrame,
    "other": DataFrame,
    "train_df": DataFrame,
    "test_df": DataFrame,
    **dict.fromkeys(("spark", "sc", "rdd", "map_fun", "args", "path", "model", "build_model")),
    **dict.fromkeys(("my_share_of_the_rows", "train", "train_fn", "space", "params", "corrected")),
    **dict.fromkeys(("accuracy", "loss", "history", "epoch", "folder", "value", "opt")),
    **dict.fromkeys(("yaml", "functools", "os", "tf", "keras", "np", "optuna", "logging")),
    "cluster": TFCluster,
}
# Of Optuna's trial and of HopsML, and names that a page says do not exist.
ELSEWHERE = {
    *("trial.suggest_float(...)", "trial.report", "trial.should_prune"),
    *("experiment.begin", "cluster.server"),
    # A tag of MLflow.
    "sparkdl.version",
}
# Pages with a table from another system's calls to those of sparkdl: only code in the column of
# sparkdl, and blocks, are checked.
MIGRATION = {
    "docs/hopsml.md",
    "docs/horovod.md",
    "docs/databricks.md",
    "docs/maggy.md",
    "docs/ray-tune.md",
    "docs/sparktrials.md",
    "docs/tensorflowonspark.md",
}
