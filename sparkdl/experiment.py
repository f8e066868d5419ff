"""Where it runs: D. The verbs a person types.

```python
from sparkdl import experiment

run = experiment.launch(train, {"learning_rate": [0.001, 0.01], "dropout": [0.5, 0.6]},
                        metric="accuracy")
print(run)
```
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession

from sparkdl import config, storage
from sparkdl.cluster.plan import Resources, Role
from sparkdl.cluster.spark import Cluster
from sparkdl.errors import ConfigError
from sparkdl.options import Options, takes_options
from sparkdl.runs import Run
from sparkdl.runs import history as _history
from sparkdl.search.execute import execute
from sparkdl.search.grid import check_call, combine_values

__all__ = ["history", "launch", "load"]


@takes_options
def launch(
    train: Callable[..., Any] | Any,
    args: Mapping[str, Sequence[Any]] | Callable[..., Any] | None = None,
    more: Mapping[str, Sequence[Any]] | None = None,
    *,
    combine: str = "product",
    **options: Any,
) -> Run:
    """Run a training function once for every combination of parameters, one per Spark slot.

    Each trial runs in a fresh process. What it prints, reports, returns and writes is kept in the
    run directory. `launch(spark, train, args)` is accepted too.

    Args:
        train: a function that takes its parameters by name and returns a number, a dict of
            numbers and file paths, or None. An exception makes its trial FAILED, not the run.
        args: a list of values for each parameter; None for a single trial without any.
        more: `args`, where the first argument is the SparkSession.
        combine: `product` runs every combination, `zip` the first values together, and so on.
        **options: see `sparkdl.options.Options`.

    Returns:
        The run: `run.best`, `run.to_pandas()`, `print(run)`.

    Raises:
        ConfigError, FunctionError: an argument is wrong. Nothing was started.
        PreflightError: the cluster cannot run it. No trial was started.
        RunExistsError: `run_id` exists, or is being run.
        AllTrialsFailedError: no trial completed; its cause is the first one's own exception.

    Example:
        >>> def train(learning_rate, dropout=0.5):
        ...     return {"accuracy": 1 - learning_rate * dropout}
        >>> run = launch(train, {"learning_rate": [0.1, 0.2]}, metric="accuracy", progress=False)
        >>> run.best.params
        {'learning_rate': 0.1}
    """
    parsed = Options.parse(options)
    if _is_session(train):
        parsed = Options.parse({**options, "spark": train})
        train, values = args, more
    elif more is not None:
        raise ConfigError("launch takes (train, args) or (spark, train, args); got three others.")
    else:
        values = args  # type: ignore[assignment]
    params = combine_values(values, combine)
    check_call(train, params[0])
    role = Role("worker", 1, Resources(parsed.num_cpus, parsed.num_gpus))
    return execute("launch", (role,), train, params, parsed)


def load(run_or_path: Run | str | os.PathLike[str]) -> Run:
    """Read a run from its directory: its trials, their values, errors and metrics.

    Args:
        run_or_path: the directory of a run, or a run to read anew.

    Raises:
        RunNotFoundError: there is no run there.

    Example:
        >>> run = launch(lambda: 1.0, progress=False)
        >>> load(run.path).state == "COMPLETE"
        True
    """
    path = run_or_path.path if isinstance(run_or_path, Run) else run_or_path
    return _history.load(os.fspath(path))


def history(root: str | os.PathLike[str] | None = None) -> pd.DataFrame:
    """The runs below a root, newest first, a row each.

    Args:
        root: where runs are kept; by default where `launch` puts them.

    Example:
        >>> run = launch(lambda: 1.0, name="one", progress=False)
        >>> run.id in set(history()["run"])
        True
    """
    if root is None and (active := SparkSession.getActiveSession()):
        root = Cluster(active).root()
    return _history.history(storage.absolute(config.resolve("root", root) or "runs"))


def _is_session(value: object) -> bool:
    """Whether this is a SparkSession, of Spark classic or Spark Connect."""
    return any(base.__name__ == "SparkSession" for base in type(value).__mro__)
