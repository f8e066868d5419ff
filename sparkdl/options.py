"""Runs on the driver (pure). The options that every verb of `experiment` takes."""

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sparkdl.errors import ConfigError, suggest

__all__ = ["Options", "check_count", "shows_fields_of", "takes_options"]

Verb = TypeVar("Verb", bound=Callable[..., Any])

# What people of other systems type, and what it is called here.
_ELSEWHERE = {
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
    **dict.fromkeys(("num_workers", "n_workers"), "workers_per_trial"),
    **dict.fromkeys(("searchspace", "search_space", "config", "param_space"), "space"),
}
_DIRECTIONS = {"max": "max", "maximize": "max", "min": "min", "minimize": "min"}

# A metric that most likely is to be small; max would pick the worst trial.
_SMALL_IS_GOOD = re.compile(
    r"(^|_)(loss|error|perplexity|latency|r?mse|mae|nll)(_|$)", re.IGNORECASE
)


@dataclass(frozen=True)
class Options:
    """The options common to all verbs.

    Attributes:
        name: what the run is called; by default the function's name.
        description: a sentence about it, kept with it.
        versioned_resources: files or folders that are copied into the run directory.
        metric: the name of the returned or reported number that counts.
        direction: `max` (also `maximize`) or `min` (`minimize`): which values are better.
            By default `max`; a metric that looks like a loss must say.
        parallelism: trials at once; by default as many as Spark has slots.
        num_gpus: GPUs per process; by default `spark.task.resource.gpu.amount`.
        num_cpus: CPU cores per process; by default `spark.task.cpus`.
        timeout_s: seconds for all trials together; then what is unfinished is CANCELLED.
        trial_timeout_s: seconds for the training function; then its trial is FAILED.
        max_failed_trials: end the run when more trials than this have failed.
        fail_fast_identical: end the run when its first so many trials all fail with one error.
        max_restarts: how often a trial is run again after its function raised or crashed.
        max_losses: how often a trial is run again after its executor was lost; None: always.
        keep_checkpoints: which of a trial's checkpoints are kept: `best+last`, `last`, `all`, or a
            number: so many of the last. The best is by `metric` and `direction`.
        seed: makes trial i's seed a function of (seed, i); by default drawn, and kept.
        env: environment variables of the training processes. Their values are never kept.
        framework: `tensorflow`, `torch` or `jax`; by default the one that the program imports.
        run_id: names the run; by default made from name, time and chance.
        if_exists: what if that run exists: `error`, `resume` (finish it) or `new` (beside it).
        wait: return when the run has ended; False returns the live Run at once.
        spark: the SparkSession; by default the active one, or a new one.
        root: the directory, or fsspec URL, that holds the runs.
        progress: show progress and the trials' output.
    """

    name: str | None = None
    description: str | None = None
    versioned_resources: Sequence[str] = ()
    metric: str | None = None
    direction: str | None = None
    parallelism: int | None = None
    num_gpus: int | None = None
    num_cpus: int | None = None
    timeout_s: float | None = None
    trial_timeout_s: float | None = None
    max_failed_trials: int | None = None
    fail_fast_identical: int | None = None
    max_restarts: int = 0
    max_losses: int | None = None
    keep_checkpoints: str | int = "best+last"
    seed: int | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    framework: str | None = None
    run_id: str | None = None
    if_exists: str = "error"
    wait: bool = True
    spark: Any = None
    root: str | None = None
    progress: bool = True

    @classmethod
    def parse(cls, given: Mapping[str, Any], verb: Callable[..., Any] | None = None) -> "Options":
        """Options from keyword arguments.

        Args:
            given: these.
            verb: what they were given to; its own arguments are suggested too.

        Raises:
            ConfigError: a name or a value is wrong; the message names the right one.

        Example:
            >>> Options.parse({"metric": "accuracy", "direction": "maximize"}).direction
            'max'
        """
        known = [f.name for f in dataclasses.fields(cls)]
        own = [*inspect.signature(verb).parameters] if verb else []
        for name in given:
            if name not in known:
                names = list(dict.fromkeys([*own, *known]))
                meant = _ELSEWHERE.get(name)
                near = f" Did you mean {meant!r}?" if meant in names else suggest(name, names)
                raise ConfigError(f"unknown option {name!r}.{near} Options are {', '.join(names)}.")
        options = cls(**given)
        options._check_numbers()
        options._check_values()
        return dataclasses.replace(options, direction=options._direction())

    def _check_numbers(self) -> None:
        least = {
            "num_gpus": 0,
            "max_failed_trials": 0,
            "max_restarts": 0,
            "max_losses": 0,
            "seed": 0,
        }
        for name in (*least, "parallelism", "num_cpus", "fail_fast_identical"):
            value, low = getattr(self, name), least.get(name, 1)
            if value is not None and (
                not isinstance(value, int) or isinstance(value, bool) or value < low
            ):
                raise ConfigError(
                    f"{name} is {value!r}; expected a whole number of at least {low}."
                )
        for name in ("timeout_s", "trial_timeout_s"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and value > 0):
                raise ConfigError(f"{name} is {value!r}; expected seconds, a number above 0.")

    def _check_values(self) -> None:
        if self.framework not in (None, "tensorflow", "torch", "jax"):
            raise ConfigError(
                f"framework is {self.framework!r}; expected 'tensorflow', 'torch' or 'jax'."
            )
        if self.metric is not None and not isinstance(self.metric, str):
            raise ConfigError(f"metric is {self.metric!r}; expected the name of one number.")
        self._check_keep()
        given: dict[Any, Any] = dict(self.env)
        for name, value in given.items():
            if not isinstance(name, str) or not isinstance(value, str):
                kind = type(value).__name__
                raise ConfigError(f"env[{name!r}] is a {kind}; expected names and values as str.")

    def _check_keep(self) -> None:
        keep: Any = self.keep_checkpoints
        is_count = isinstance(keep, int) and not isinstance(keep, bool) and keep >= 1
        if not is_count and keep not in ("best+last", "last", "all"):
            raise ConfigError(
                f"keep_checkpoints is {keep!r}; expected 'best+last', 'last', 'all', or how many "
                "of the last to keep, a whole number of at least 1."
            )

    def _direction(self) -> str:
        if self.direction is None and self.metric and _SMALL_IS_GOOD.search(self.metric):
            raise ConfigError(
                f"metric {self.metric!r} looks like one that should be small, and the default "
                "direction is 'max'. Say direction='min' or direction='max'."
            )
        direction = "max" if self.direction is None else self.direction
        if not isinstance(direction, str) or direction not in _DIRECTIONS:
            raise ConfigError(f"direction is {direction!r}; expected 'max' or 'min'.")
        return _DIRECTIONS[direction]


def shows_fields_of(kind: type) -> Callable[[Verb], Verb]:
    """Show the fields of a dataclass as a function's keyword arguments, for `help` and completion.

    The function takes them as `**` of any name.
    """

    def decorate(verb: Verb) -> Verb:
        signature = inspect.signature(verb)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        common = [
            inspect.Parameter(
                f.name, inspect.Parameter.KEYWORD_ONLY, default=_default(f), annotation=f.type
            )
            for f in dataclasses.fields(kind)
        ]
        shown = signature.replace(parameters=own + common)
        verb.__signature__ = shown  # type: ignore[attr-defined]
        return verb

    return decorate


takes_options = shows_fields_of(Options)


def _default(option: "dataclasses.Field[Any]") -> Any:
    if option.default_factory is not dataclasses.MISSING:
        return option.default_factory()
    return option.default


def check_count(name: str, value: object) -> None:
    """See that an argument is a number of things, at least one.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} is {value!r}; expected a whole number of at least 1.")
