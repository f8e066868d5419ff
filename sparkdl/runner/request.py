"""Runs on the driver. The arguments of a verb as a value, and their form in `run.json`."""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkdl.cluster.plan import Resources, Role
from sparkdl.cluster.topology import ElasticTopology, GangTopology, SingleTopology, Topology
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.files.layout import RunPaths
from sparkdl.options import Options
from sparkdl.runs import Run, Trial
from sparkdl.runs.history import load
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Space

# Options that belong to a call rather than to the run, that `run.json` has elsewhere, or that must
# not be written, such as the values of `env`.
_NOT_WRITTEN = (
    "spark",
    "root",
    "wait",
    "progress",
    "logs",
    "tensorboard",
    "callbacks",
    "expect",
    "env",
    "preload",
    "secrets",
    "run_id",
    "if_exists",
    "retry",
    "versioned_resources",
    "description",
    "name",
    "metric",
    "direction",
)

# Options that a resumed run may get with another value although they are not written.
_PER_CALL = {
    *("spark", "wait", "progress", "logs", "tensorboard", "callbacks", "env", "secrets", "retry"),
    "preload",
}


@dataclass(frozen=True)
class Request:
    """The arguments of a verb.

    Attributes:
        kind: the name of the verb.
        roles: the processes of one trial.
        train: the user's function; None for the function in the directory of a resumed run.
        options: the options that every verb takes.
        params: the parameters of each trial; None if a search proposes them.
        search: the settings of a search; None for a run whose trials are known.
        is_gang: the processes of a trial run at the same time and communicate.
        elastic: a gang continues without a process that is lost.
        moves_slow_ranks: a slow process of an elastic gang moves to a spare slot.
        data: the DataFrames whose rows the processes read.
        objectives: the direction of each metric of a search with several metrics.
        init_from: the trial whose checkpoint the trials begin with.
        learn_from: runs whose results the sampler knows from the beginning.
        timeline: record the time that collectives take.
        is_distributed: the run is one trial of a distributed verb.
        given_topology: the form of a trial on the cluster; None for that of its verb.
        detect_gpus: use GPUs that Spark does not schedule; None follows the setting.
        ends_by_order: the driver orders the end of the gang.
        is_resumable: the run can be resumed.
    """

    kind: str
    roles: tuple[Role, ...]
    train: Callable[..., Any] | None
    options: Options
    params: list[dict[str, Any]] | None = None
    search: SearchSettings | None = None
    is_gang: bool = False
    data: Any = None
    objectives: Mapping[str, str] = field(default_factory=dict)
    init_from: Trial | str | os.PathLike[str] | None = None
    learn_from: Sequence[Run] = ()
    elastic: bool = False
    moves_slow_ranks: bool = False
    timeline: bool = False
    is_distributed: bool = False
    given_topology: Topology | None = None
    detect_gpus: bool | None = None
    ends_by_order: bool = False
    is_resumable: bool = True

    @property
    def topology(self) -> Topology:
        """The form of a trial on the cluster."""
        if self.given_topology:
            return self.given_topology
        if self.elastic:
            return ElasticTopology()
        return GangTopology() if self.is_gang else SingleTopology()

    @property
    def target(self) -> Callable[..., Any]:
        """The function that the training process calls: the user's, or a wrapper around it."""
        if self.train is None:
            raise ValueError("the function of a resumed run is in its directory, not here")
        if self.search is None or self.search.space is not None:
            return self.train
        from sparkdl.search.objective import call_objective

        prunes = self.search.pruner is not None
        return functools.partial(call_objective, self.train, prunes, self.metrics)

    @property
    def metrics(self) -> list[str | None]:
        """The names of the metrics; None for the only number that a trial returns."""
        return [*self.objectives] or [self.options.metric]

    @property
    def initial(self) -> str | None:
        """The folder of the trial, or of the checkpoint, that trials begin with."""
        source = self.init_from
        if source is None:
            return None
        return storage.absolute(source.path if isinstance(source, Trial) else source)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form of the request."""
        options = {
            f.name: getattr(self.options, f.name)
            for f in dataclasses.fields(Options)
            if f.name not in _NOT_WRITTEN
        }
        return {
            "roles": [dataclasses.asdict(role) for role in self.roles],
            "is_gang": self.is_gang,
            "is_distributed": self.is_distributed,
            "is_resumable": self.is_resumable,
            "elastic": self.elastic,
            "moves_slow_ranks": self.moves_slow_ranks,
            "options": options,
            "search": self.search and self.search.to_dict(),
            "reads_rows": self.data is not None,
            "learn_from": [run.path for run in self.learn_from],
            "init_from": self.initial,
            "timeline": self.timeline,
        }

    @classmethod
    def from_dict(
        cls,
        description: Mapping[str, Any],
        options: Mapping[str, Any],
        changes: Mapping[str, Any],
        **fields: Any,
    ) -> "Request":
        """Return the request that `run.json` describes, with changes.

        Args:
            description: the contents of `run.json`.
            options: the options of this call.
            changes: fields of the search that have new values.
            fields: the function and the data, which `run.json` does not contain.

        Raises:
            ConfigError: if something is needed that `run.json` does not contain.
        """
        written = description["request"]
        _check_resumable(description)
        _check_options(description, options)
        _check_data(description, fields)
        _check_search(description, changes)
        named = {name: description[name] for name in ("name", "metric", "direction")}
        roles = tuple(
            Role(**{**role, "resources": Resources(**role["resources"])})
            for role in written["roles"]
        )
        return cls(
            description["kind"],
            roles,
            options=Options.parse({**written["options"], **named, **options}),
            search=_search_with(written["search"], changes),
            is_gang=written["is_gang"],
            is_distributed=written["is_distributed"],
            elastic=written.get("elastic", False),
            moves_slow_ranks=written.get("moves_slow_ranks", False),
            objectives=description.get("objectives", {}),
            init_from=written["init_from"],
            learn_from=[load(path) for path in written["learn_from"] if _is_run(path)],
            timeline=written.get("timeline", False),
            **fields,
        )


def _is_run(path: str) -> bool:
    return storage.exists(RunPaths(path).run)


def _check_resumable(description: Mapping[str, Any]) -> None:
    run, written = description["id"], description["request"]
    if "is_resumable" not in written:
        raise ConfigError(
            f"run {run} was written by an earlier version of sparkdl and cannot be resumed by this "
            "one. experiment.load reads it; start a new run to continue."
        )
    if not written["is_resumable"]:
        raise ConfigError(
            f"run {run} ({description['kind']}) cannot be resumed: what it did was called, or fed "
            "with rows, by its program, which has ended. Run its program again."
        )


def _check_options(description: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    run = description["id"]
    fixed = {"seed", "trial_value", *_NOT_WRITTEN} - _PER_CALL
    if changed := sorted(fixed & options.keys()):
        raise ConfigError(
            f"{', '.join(changed)} of run {run} cannot be changed. Remove the argument, or start "
            "a new run."
        )
    if missing := set(description["env"]) - set(options.get("env", {})):
        raise ConfigError(
            f"run {run} had env={{{', '.join(sorted(missing))}}}, whose values are never kept. "
            "Pass env= with these values."
        )
    if description.get("num_secrets") and not options.get("secrets"):
        raise ConfigError(
            f"run {run} had secrets= with {description['num_secrets']} values, which are never "
            "kept. Pass secrets= again, so that they are masked."
        )


def _check_data(description: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    if description["request"]["reads_rows"] and fields.get("data") is None:
        raise ConfigError(
            f"run {description['id']} had data=, which is not kept. Pass data= with the same rows."
        )


def _check_search(description: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    run, search = description["id"], description["request"]["search"]
    if not search:
        if changes:
            raise ConfigError(
                f"run {run} is a {description['kind']}, and {', '.join(changes)} belongs to a "
                "search. Remove the argument."
            )
        return
    for name in ("algorithm", "pruner"):
        value = search[name]
        if isinstance(value, str) and value.endswith("object") and changes.get(name) is None:
            raise ConfigError(
                f"the {name} of run {run} is a {value}, which is not kept. Pass {name}= "
                "with an object of the same kind."
            )


def _search_with(
    stored_fields: Mapping[str, Any] | None, changes: Mapping[str, Any]
) -> SearchSettings | None:
    if stored_fields is None:
        return None
    fields = {**stored_fields, **changes}
    del fields["style"]
    if isinstance(fields["space"], Mapping):
        fields["space"] = Space.from_dict(fields["space"])
    return SearchSettings(**fields)
