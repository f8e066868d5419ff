"""Runs on the driver. Train a trial again, and tell whether its results are the same."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.options import Options
from sparkdl.runner.again.verify import VerifyRequest, verify_run
from sparkdl.runs import Run, Trial
from sparkdl.runs.verification.verification import Verification


def verify(
    run_or_path: Run | Trial | str | os.PathLike[str],
    *,
    trial: int | None = None,
    train: Callable[..., Any] | None = None,
    data: Any = None,
    ignore: Sequence[str] = (),
    repeats: int = 2,
    num_workers: int | None = None,
    **options: Any,
) -> Verification:
    """Train a trial again from what its run has kept, and tell whether the results are bit-equal.

    The results are the reported metrics of each step, of all ranks, the returned values, and the
    files: returned files, checkpoints and models. The new training has the kept function, the
    parameters, the seed, the resources and the versions of Delta tables of the trial. It is a run
    in a place of its own, `<root>/.verified/<run id>`, where the result is written, too; the run
    itself is not touched. The training function is loaded from the run directory, so verify only
    runs whose directory you trust as you would trust a program.

    Where results differ, the trial is trained once more: two new trainings that differ from one
    another show that the program is not determined by its seed. Other causes that are named are
    what differs between the trainings, as far as a run records it: code, data, packages, hardware,
    the number of ranks, options, restarts.

    Args:
        run_or_path: a run, its directory or its id below the root; or a trial.
        trial: the number of the trial; by default the best one.
        train: the training function, if the run has not kept it.
        data: the same data, if the run had `data=`.
        ignore: names of metrics and returned values that are not compared, such as the seconds of
            an epoch.
        repeats: 1 to train only once, also where results differ.
        num_workers: another number of workers of a gang, where the cluster is too small for that of
            the run. It changes results.
        **options: the fields of `sparkdl.options.Options` that differ, as of `reproduce`; `root` is
            the folder below which `.verified` is made.

    Returns:
        The verification: `verdict` is `equal`, `different` or `unknown`, which is the verdict for
        a trial that has kept no results. `print` shows the first step and the size of each
        difference, and the causes.

    Raises:
        RunNotFoundError: if there is no such run.
        ConfigError: if the trial is not COMPLETE, or an argument is missing that was not kept.
            Nothing was started.
        RunStoppedError: if the new training was stopped before its end.

    Example:
        >>> from sparkdl import experiment
        >>> def train(x):
        ...     import random
        ...     return {"loss": x * random.random()}
        >>> run = experiment.launch(train, {"x": [1, 2]}, progress=False)
        >>> verify(run, trial=1, progress=False).verdict == "equal"
        True
        >>> import time
        >>> clock = experiment.launch(lambda: {"epoch_s": time.time()}, progress=False)
        >>> verification = verify(clock, progress=False)
        >>> verification.is_equal, [str(cause.kind) for cause in verification.causes]
        (False, ['wall clock'])
    """
    from sparkdl.experiment.saved_runs import path_of

    Options.parse(options, verify)
    if isinstance(run_or_path, Trial):
        if trial is not None:
            raise ConfigError("trial= is given beside a trial. Leave one of them out.")
        trial = run_or_path.number
        run_or_path = run_or_path.path.rpartition("/trials/")[0]
    if isinstance(ignore, str):
        raise ConfigError(f"ignore is {ignore!r}; expected a list of names, such as [{ignore!r}].")
    request = VerifyRequest(
        number=trial,
        train=train,
        data=data,
        ignored=tuple(ignore),
        repeats=repeats,
        num_workers=num_workers,
        options=options,
    )
    return verify_run(storage.absolute(path_of(run_or_path)), request)
