"""Runs anywhere (pure). Define and validate the options that every verb of `experiment` takes."""

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Number
from typing import Any, TypeVar

from sparkdl.errors import ConfigError, named_type, suggest
from sparkdl.training.metric_names import direction_of_name, likely_name

__all__ = [
    "Options",
    "check_count",
    "check_direction",
    "plain_number",
    "suggest_synonym",
    "takes_options",
    "with_keywords_of",
]

Verb = TypeVar("Verb", bound=Callable[..., Any])

# Names of options in other libraries, with the name of the same option in sparkdl.
_SYNONYMS = {
    **dict.fromkeys(
        ("mode", "goal", "minimize", "maximize", "optimization_key_direction"), "direction"
    ),
    **dict.fromkeys(("objective", "optimization_key", "objective_metric"), "metric"),
    **dict.fromkeys(
        ("n_jobs", "max_concurrent", "max_concurrent_trials", "num_parallel"), "parallelism"
    ),
    **dict.fromkeys(("timeout", "time_budget_s", "max_time"), "timeout_s"),
    **dict.fromkeys(("gpus", "n_gpus", "num_gpus_per_trial", "gpus_per_trial"), "num_gpus"),
    **dict.fromkeys(("cpus", "n_cpus", "cpus_per_trial"), "num_cpus"),
    **dict.fromkeys(
        ("logdir", "log_dir", "local_logdir", "run_dir", "output_dir", "storage_path"), "root"
    ),
    **dict.fromkeys(("scope", "reduction_strategy"), "trial_value"),
    **dict.fromkeys(("random_state", "random_seed"), "seed"),
    **dict.fromkeys(("verbose", "show_progress"), "progress"),
    **dict.fromkeys(
        ("max_to_keep", "num_to_keep", "save_total_limit", "keep_checkpoints_num"),
        "keep_checkpoints",
    ),
    **dict.fromkeys(("max_failures", "max_retries", "retries"), "max_restarts"),
    **dict.fromkeys(
        ("n_trials", "num_samples", "max_evals", "max_trials", "num_iterations"), "num_trials"
    ),
    **dict.fromkeys(("sampler", "algo", "search_alg", "optimizer", "tuner"), "algorithm"),
    **dict.fromkeys(("scheduler", "early_stopping", "es_policy"), "pruner"),
    **dict.fromkeys(("points_to_evaluate", "enqueue"), "initial_params"),
    **dict.fromkeys(("constraint", "parameter_constraints"), "constraints"),
    **dict.fromkeys(("num_workers", "n_workers"), "workers_per_trial"),
    **dict.fromkeys(("searchspace", "search_space", "config", "param_space"), "space"),
}
_DIRECTIONS = {"max": "max", "maximize": "max", "min": "min", "minimize": "min"}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options common to all verbs.

    Attributes:
        name: name of the run; by default the name of the training function.
        description: a sentence about the run, stored with it.
        versioned_resources: paths of files or folders to copy into the run directory, with their
            hashes. `context.resource("config.yaml")` is the path of a copy in the training process.
            No folder may contain the runs, a repository or a virtual environment.
        metric: name of the returned or reported number by which trials are compared. By default
            the only number, unless its name tells another direction than that of the run.
        direction: `max` (or `maximize`) if larger values of the metric are better, `min` (or
            `minimize`) if smaller ones are. By default `max`; required if smaller values are better
            by the name of the metric, such as `val_loss`, and for a search also if the name does
            not tell.
        trial_value: the value of a trial: `last`, the number that it returned or, without one,
            reported last; or `best`, the best one that it returned or reported. `trial.checkpoint`
            has the weights of that value, if a checkpoint was reported with the value.
        parallelism: largest number of trials at the same time; by default the number of slots.
        num_gpus: number of GPUs per process; by default `spark.task.resource.gpu.amount`. A number
            below 1, such as 0.5, lets trials share a GPU where Spark schedules GPUs.
        num_cpus: number of CPU cores per process; by default `spark.task.cpus`.
        timeout_s: time limit for all trials together, in seconds; trials that have not ended by
            then are CANCELLED.
        trial_timeout_s: time limit for each call of the training function, in seconds; a trial
            that exceeds the limit is FAILED.
        start_timeout_s: seconds within which a gang must start, and the function of a trial; by
            default the setting `SPARKDL_START_TIMEOUT_S`.
        max_failed_trials: end the run when more than this number of trials have failed.
        fail_fast_identical: end the run when the first trials, as many as this number, have all
            failed with the same error.
        max_restarts: number of times a trial is restarted after its function raised or crashed.
        max_losses: number of times a trial is restarted after its executor was lost; None for no
            limit.
        keep_checkpoints: the checkpoints of each trial to keep: `best+last`, `last`, `all`, or the
            number of most recent ones. The best checkpoint is chosen by `metric` and `direction`.
        seed: seed of the run; the seed of trial i is a function of (seed, i). By default a random
            seed, which is stored with the run.
        env: environment variables of the training processes. The values are never stored; those
            that look like credentials are masked in all that is stored or shown.
        secrets: further values to mask, such as a password that the program reads from a file.
            They are never stored.
        framework: `tensorflow`, `torch` or `jax`, which is imported before the trials start; by
            default the framework that the program imports.
        preload: a function without arguments, such as one that loads a base model, which each
            executor calls once, before its first trial. `context.preloaded` is the result, whose
            memory the processes share until one writes to it. The function must leave no threads
            and no CUDA context. The memory is free half a minute after the last trial there.
        run_id: id of the run; by default made from the name, the time and a random part.
        if_exists: action if a run with this id exists: `error`, `resume` (finish that run) or
            `new` (start another run beside it).
        retry: ended trials that run again when a run is resumed: `failed`, `invalid`, `cancelled`,
            or a list of the numbers of trials. A COMPLETE trial never runs again.
        wait: return when the run has ended; False returns the running Run immediately.
        spark: the SparkSession; by default the active session, or a new one.
        root: the directory or fsspec URL that holds the runs.
        fingerprint: count the rows of `data=` and hash them, which costs a pass over the rows, so
            that `experiment.reproduce` can tell other data.
        row_key: name of the column, or a list of names, whose values identify a row, such as
            `"customer"`. Each trial keeps a digest of the key of each row that it opens, of `data=`
            and of files, so that `models.affected` tells which models have seen a row.
        expect: what the rows of `data=` are compared with before the first trial, see
            `monitoring.Expectation`. A resumed run does not compare them again.
        smoke: run the first trial before the others, until it has ended or reported the metric. If
            it fails, the run ends.
        tensorboard: start TensorBoard for the run on this host and show its address, see
            `Run.tensorboard`. It ends when the Run is not in use any more, and with the program.
        progress: show the progress and the output of the trials.
        logs: the output to show: `all` shows what every trial prints; `best` the output of a trial
            that has ended as the best so far; `none` no output. By default `all` up to 20 trials,
            and `best` for more trials or with `wait=False`.
        callbacks: objects that follow the run on the driver, such as `callbacks.Webhook(url)` or
            `callbacks.MLflow(uri)`, see `sparkdl.callbacks.Callback`.
    """

    name: str | None = None
    description: str | None = None
    versioned_resources: Sequence[str] = ()
    metric: str | None = None
    direction: str | None = None
    trial_value: str = "last"
    parallelism: int | None = None
    num_gpus: float | None = None
    num_cpus: int | None = None
    timeout_s: float | None = None
    trial_timeout_s: float | None = None
    start_timeout_s: float | None = None
    max_failed_trials: int | None = None
    fail_fast_identical: int | None = None
    max_restarts: int = 0
    max_losses: int | None = None
    keep_checkpoints: str | int = "best+last"
    seed: int | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: Sequence[str] = field(default=(), repr=False)
    framework: str | None = None
    preload: Callable[[], Any] | None = field(default=None, repr=False)
    run_id: str | None = None
    if_exists: str = "error"
    retry: Any = None
    wait: bool = True
    spark: Any = None
    root: str | None = None
    fingerprint: bool = False
    row_key: str | Sequence[str] | None = None
    expect: Any = None
    smoke: bool = False
    tensorboard: bool = False
    progress: bool = True
    logs: str | None = None
    callbacks: Sequence[Any] = ()

    @classmethod
    def parse(cls, given: Mapping[str, Any], verb: Callable[..., Any] | None = None) -> "Options":
        """Create options from keyword arguments and validate them.

        Args:
            given: the keyword arguments.
            verb: the function that received them; an unknown name may be close to one of its own
                arguments.

        Raises:
            ConfigError: if a name is unknown or a value is invalid; the message names the valid
                ones.

        Example:
            >>> Options.parse({"metric": "accuracy", "direction": "maximize"}).direction
            'max'
        """
        known = [f.name for f in dataclasses.fields(cls)]
        own = [*inspect.signature(verb).parameters] if verb else []
        for name in given:
            if name not in known:
                names = list(dict.fromkeys([*own, *known]))
                hint = suggest_synonym(name, names, _SYNONYMS)
                raise ConfigError(f"unknown option {name!r}.{hint} Options are {', '.join(names)}.")
        options = cls(**{name: plain_number(value) for name, value in given.items()})
        options._check_numbers()
        options._check_values()
        return dataclasses.replace(options, direction=options._direction())

    def _check_numbers(self) -> None:
        least = {
            "max_failed_trials": 0,
            "max_restarts": 0,
            "max_losses": 0,
            "seed": 0,
            "parallelism": 1,
            "num_cpus": 1,
            "fail_fast_identical": 1,
        }
        for name, minimum in least.items():
            value = getattr(self, name)
            if value is not None:
                check_count(name, value, minimum)
        if self.num_gpus is not None and not _is_gpu_count(self.num_gpus):
            raise ConfigError(
                f"num_gpus is {self.num_gpus!r}; expected a whole number of at least 0, or a "
                "number between 0 and 1 for trials that share a GPU."
            )
        for name in ("timeout_s", "trial_timeout_s", "start_timeout_s"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and value > 0):
                raise ConfigError(f"{name} is {value!r}; expected seconds, a number above 0.")

    def _check_values(self) -> None:
        if self.framework not in (None, "tensorflow", "torch", "jax"):
            raise ConfigError(
                f"framework is {self.framework!r}; expected 'tensorflow', 'torch' or 'jax'."
            )
        if self.preload is not None:
            _check_preload(self.preload)
        if self.metric is not None and not isinstance(self.metric, str):
            raise ConfigError(f"metric is {self.metric!r}; expected the name of one number.")
        if self.trial_value not in ("last", "best"):
            raise ConfigError(f"trial_value is {self.trial_value!r}; expected 'last' or 'best'.")
        if self.logs not in (None, "all", "best", "none"):
            raise ConfigError(f"logs is {self.logs!r}; expected 'all', 'best' or 'none'.")
        self._check_keep_checkpoints()
        env: dict[Any, Any] = dict(self.env)
        for name, value in env.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise ConfigError(
                    f"env[{name!r}] is {named_type(value)}; expected names and values as str."
                )
        self._check_secrets()

    def _check_secrets(self) -> None:
        secrets: Any = self.secrets
        if isinstance(secrets, str) or not isinstance(secrets, Sequence):
            raise ConfigError(f"secrets is {named_type(secrets)}; expected a list of str.")
        for number, secret in enumerate(secrets):
            if not isinstance(secret, str) or len(secret) < 4:
                raise ConfigError(
                    f"secrets[{number}] is no str of at least 4 characters; a shorter one occurs "
                    "by chance in any text."
                )

    def _check_keep_checkpoints(self) -> None:
        keep: Any = self.keep_checkpoints
        if not _is_count(keep, 1) and keep not in ("best+last", "last", "all"):
            raise ConfigError(
                f"keep_checkpoints is {keep!r}; expected 'best+last', 'last', 'all', or the number "
                "of most recent checkpoints to keep, a whole number of at least 1."
            )

    def _direction(self) -> str:
        if self.direction is None and self.metric and direction_of_name(self.metric) == "min":
            raise ConfigError(
                f"metric {self.metric!r} looks like a value to minimize, but the default direction "
                "is 'max'. Pass direction='min' or direction='max'."
            )
        direction = "max" if self.direction is None else self.direction
        if not isinstance(direction, str) or direction not in _DIRECTIONS:
            raise ConfigError(f"direction is {direction!r}; expected 'max' or 'min'.")
        return _DIRECTIONS[direction]


def _check_preload(preload: Any) -> None:
    if not callable(preload):
        raise ConfigError(
            f"preload is {named_type(preload)}; expected a function without arguments, which "
            "runs on the executors and returns the object."
        )
    try:
        inspect.signature(preload).bind()
    except TypeError as exc:
        raise ConfigError(
            f"preload is {preload!r}, which cannot be called without arguments ({exc}). Pass "
            "functools.partial with the arguments."
        ) from None
    except ValueError:
        pass  # A function written in C may have no signature.


def check_direction(metric: str | None, direction: str | None) -> None:
    """Validate that a search is told which values are better, where the name does not tell.

    `value` is the name of the only number of a trial, where the user has named none.

    Raises:
        ConfigError: if the direction is missing.
    """
    is_told = direction is not None or metric in (None, "value")
    if isinstance(metric, str) and not is_told and direction_of_name(metric) is None:
        near = likely_name(metric)
        remedy = f"Did you mean {near!r}? Otherwise pass" if near else "Pass"
        raise ConfigError(
            f"the name of metric {metric!r} does not tell whether larger or smaller values are "
            f"better. {remedy} direction='max' or direction='min'."
        )


def with_keywords_of(dataclass_type: type) -> Callable[[Verb], Verb]:
    """Decorate a function to show the fields of a dataclass as its keyword arguments.

    The function receives the fields as its `**` argument. `help` and completion list them one by
    one.
    """

    def decorate(verb: Verb) -> Verb:
        signature = inspect.signature(verb)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        common = [
            inspect.Parameter(
                f.name, inspect.Parameter.KEYWORD_ONLY, default=_default(f), annotation=f.type
            )
            for f in dataclasses.fields(dataclass_type)
        ]
        shown = signature.replace(parameters=own + common)
        verb.__signature__ = shown  # type: ignore[attr-defined]
        return verb

    return decorate


takes_options = with_keywords_of(Options)


def _default(option: "dataclasses.Field[Any]") -> Any:
    if option.default_factory is not dataclasses.MISSING:
        return option.default_factory()
    return option.default


def suggest_synonym(name: str, known: Collection[str], synonyms: Mapping[str, str]) -> str:
    """Return a hint at the known name that was probably meant, or an empty string.

    Args:
        name: the unknown name.
        known: the valid names.
        synonyms: names used by other libraries, with the name that sparkdl uses. A synonym takes
            precedence over a similar spelling.

    Example:
        >>> suggest_synonym("n_jobs", ["parallelism"], {"n_jobs": "parallelism"})
        " Did you mean 'parallelism'?"
        >>> suggest_synonym("paralelism", ["parallelism"], {})
        " Did you mean 'parallelism'?"
    """
    synonym = synonyms.get(name)
    return f" Did you mean {synonym!r}?" if synonym in known else suggest(name, known)


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return an argument as an int after validating that it is a whole number.

    Args:
        name: name of the argument, for the message.
        value: the argument.
        least: the smallest valid value.

    Raises:
        ConfigError: if the value is not a whole number, or is smaller than `least`.
    """
    if not _is_count(value, least):
        raise ConfigError(f"{name} is {value!r}; expected a whole number of at least {least}.")
    return int(value)


def _is_count(value: Any, least: int) -> bool:
    # The whole numbers of NumPy are integral, too.
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least


def _is_gpu_count(value: Any) -> bool:
    return _is_count(value, 0) or (isinstance(value, float) and 0 < value < 1)


def plain_number(value: Any) -> Any:
    """Return a scalar of NumPy as the number of Python, and any other value unchanged."""
    return value.item() if isinstance(value, Number) and hasattr(value, "item") else value
