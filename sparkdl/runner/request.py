"""Runs on the driver. What a verb was asked for, as a value; its kept form is in `run.json`."""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkdl import storage
from sparkdl.cluster.plan import Resources, Role
from sparkdl.cluster.topology import ElasticTopology, GangTopology, SingleTopology, Topology
from sparkdl.errors import ConfigError
from sparkdl.options import Options
from sparkdl.runs import Run, Trial
from sparkdl.runs.history import load
from sparkdl.runs.layout import RunPaths
from sparkdl.search.settings import Search
from sparkdl.search.space.spaces import Space

__all__ = ["Request"]

# Options that are a matter of this call, not of the run; values of `env` are never kept.
_NOT_KEPT = (
    *("spark", "root", "wait", "progress", "env", "run_id", "if_exists"),
    *("versioned_resources", "description", "name", "metric", "direction"),
)


@dataclass(frozen=True)
class Request:
    """What a verb was asked for.

    Attributes:
        kind: the verb.
        roles: the processes of one trial.
        train: the person's function; None for the one that the run has kept.
        options: what every verb takes.
        params: what `train` is called with in each trial; None where a search finds that.
        search: what is searched; None for a run whose trials are known.
        is_gang: the processes of a trial know of each other.
        elastic: a gang goes on without a process that is lost.
        data: the DataFrames whose rows the processes get.
        objectives: of several metrics, the direction of each.
        init_from: the trial whose checkpoint the trials begin with.
        learn_from: runs whose trials the sampler is told of.
        timeline: record where the time of collectives goes.
        is_distributed: the run is one trial of a distributed verb.
        given_topology: the form of a trial on the cluster; None for that of its verb.
        detect_gpus: use GPUs that Spark does not schedule; None follows the setting.
        meets_by_files: the ranks meet by files, and need a secret with their task.
        ends_by_order: the driver orders the end of the gang.
        is_resumable: the run can be resumed.
    """

    kind: str
    roles: tuple[Role, ...]
    train: Callable[..., Any] | None
    options: Options
    params: list[dict[str, Any]] | None = None
    search: Search | None = None
    is_gang: bool = False
    data: Any = None
    objectives: Mapping[str, str] = field(default_factory=dict)
    init_from: Trial | str | os.PathLike[str] | None = None
    learn_from: Sequence[Run] = ()
    elastic: bool = False
    timeline: bool = False
    is_distributed: bool = False
    given_topology: Topology | None = None
    detect_gpus: bool | None = None
    meets_by_files: bool = False
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
    def called(self) -> Callable[..., Any]:
        """What is called in the training process."""
        if self.train is None:
            raise ValueError("the function of this request is the one that its run has kept")
        if self.search is None or self.search.space is not None:
            return self.train
        from sparkdl.search.objective import call_objective

        prunes = self.search.pruner is not None
        return functools.partial(call_objective, self.train, prunes, self.metrics)

    @property
    def metrics(self) -> list[str | None]:
        """The names of the numbers that count."""
        return [*self.objectives] or [self.options.metric]

    @property
    def initial(self) -> str | None:
        """The folder of the trial, or the checkpoint, that trials begin with."""
        given = self.init_from
        if given is None:
            return None
        return storage.absolute(given.path if isinstance(given, Trial) else given)

    def kept(self) -> dict[str, Any]:
        """As JSON can hold it."""
        options = {
            f.name: getattr(self.options, f.name)
            for f in dataclasses.fields(Options)
            if f.name not in _NOT_KEPT
        }
        return {
            "roles": [dataclasses.asdict(role) for role in self.roles],
            "is_gang": self.is_gang,
            "is_distributed": self.is_distributed,
            "is_resumable": self.is_resumable,
            "elastic": self.elastic,
            "options": options,
            "search": self.search and self.search.kept(),
            "reads_rows": self.data is not None,
            "learn_from": [run.path for run in self.learn_from],
            "init_from": self.initial,
            "timeline": self.timeline,
        }

    @classmethod
    def restored(
        cls,
        description: Mapping[str, Any],
        given: Mapping[str, Any],
        changes: Mapping[str, Any],
        **fields: Any,
    ) -> "Request":
        """From what `run.json` says of a run.

        Args:
            description: what it says.
            given: options of this call.
            changes: fields of the search that are not as they were.
            fields: the function and the rows, which are not kept.

        Raises:
            ConfigError: something that is needed was not kept.
        """
        kept = description["request"]
        _check_kept(description, given, changes, fields)
        named = {name: description[name] for name in ("name", "metric", "direction")}
        roles = tuple(
            Role(**{**role, "resources": Resources(**role["resources"])}) for role in kept["roles"]
        )
        return cls(
            description["kind"],
            roles,
            options=Options.parse({**kept["options"], **named, **given}),
            search=_search(kept["search"], changes),
            is_gang=kept["is_gang"],
            is_distributed=kept["is_distributed"],
            elastic=kept.get("elastic", False),
            objectives=description.get("objectives", {}),
            init_from=kept["init_from"],
            learn_from=[load(path) for path in kept["learn_from"] if _is_there(path)],
            timeline=kept.get("timeline", False),
            **fields,
        )


def _is_there(path: str) -> bool:
    return storage.exists(RunPaths(path).run)


def _check_kept(
    description: Mapping[str, Any],
    given: Mapping[str, Any],
    changes: Mapping[str, Any],
    fields: Mapping[str, Any],
) -> None:
    kept, run = description["request"], description["id"]
    if "is_resumable" not in kept:
        raise ConfigError(
            f"run {run} was written by an earlier version of sparkdl, which cannot be resumed by "
            "this one. experiment.load reads it; start a new run to continue."
        )
    if not kept["is_resumable"]:
        raise ConfigError(
            f"run {run} is a TensorFlowOnSpark cluster and cannot be resumed: its data feed ended "
            "with the driver. Run the program again."
        )
    fixed = {"seed", *_NOT_KEPT} - {"spark", "wait", "progress", "env"}
    if differ := sorted(fixed & given.keys()):
        raise ConfigError(
            f"{', '.join(differ)} of run {run} cannot be another than it was. Leave that out, or "
            "start a new run."
        )
    missing = set(description["env"]) - set(given.get("env", {}))
    if missing:
        raise ConfigError(
            f"run {run} was given env={{{', '.join(sorted(missing))}}}, whose values are never "
            "kept. Pass env= with them."
        )
    if kept["reads_rows"] and fields.get("data") is None:
        raise ConfigError(f"run {run} was given data=, which is not kept. Pass data= with it.")
    if not kept["search"] and changes:
        raise ConfigError(
            f"run {run} is a {description['kind']}, and {', '.join(changes)} is for a search. "
            "Leave that out."
        )
    if kept["search"] and kept["search"]["style"] == "function" and "space" not in changes:
        raise ConfigError(
            f"run {run} has a function for its space, which is not kept. Pass space= with it."
        )
    for name in ("algorithm", "pruner") if kept["search"] else ():
        if (kept["search"][name] or "").endswith("object") and changes.get(name) is None:
            raise ConfigError(
                f"run {run} has a {kept['search'][name]} for its {name}, which is not kept. Pass "
                f"{name}= with one like it."
            )


def _search(kept: Mapping[str, Any] | None, changes: Mapping[str, Any]) -> Search | None:
    if kept is None:
        return None
    fields = {**kept, **changes}
    del fields["style"]
    if isinstance(fields["space"], Mapping):
        fields["space"] = Space.restored(fields["space"])
    return Search(**fields)
