"""Runs on the driver. Run again what a run has run, as a new run that names its ancestor."""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from sparkdl.cluster.base import Cluster
from sparkdl.cluster.plan import Role
from sparkdl.cluster.program.packaging import Program
from sparkdl.data.readers.delta_log import newest_version
from sparkdl.data.readers.file_records import compare_files
from sparkdl.data.readers.paths import find
from sparkdl.errors import ConfigError
from sparkdl.files import resources, storage
from sparkdl.files.layout import RunPaths
from sparkdl.options import Options
from sparkdl.runner.again.resume import with_earlier_changes
from sparkdl.runner.pipeline.begin import Opener, begin
from sparkdl.runner.pipeline.execute import description_of
from sparkdl.runner.pipeline.kept_code import changed_code, changed_repository
from sparkdl.runner.pipeline.kept_program import program_of, restore_space
from sparkdl.runner.pipeline.new_run import Ancestor, NewRun
from sparkdl.runner.pipeline.prepare import prepare
from sparkdl.runner.prepared_run import PreparedRun
from sparkdl.runner.request import Request
from sparkdl.runner.signatures import check_call
from sparkdl.runs import Run, Trial, TrialState, provenance
from sparkdl.runs.differences import (
    Difference,
    Differences,
    compare,
    compare_executors,
    read_environment,
)
from sparkdl.runs.events import TrialChanged
from sparkdl.runs.history import read_description, read_run
from sparkdl.runs.machine import hardware, packages_in
from sparkdl.runs.opening import OpenRun, RunDescription, existing_run, open_run
from sparkdl.search.settings import SearchSettings
from sparkdl.secrets.masks import MASK
from sparkdl.secrets.names import known_secrets

# Options of a new run that a resumed run may not change.
_OWN = ("name", "description", "run_id", "root")

# Options for all trials of a run together, and what they are without a limit.
_OF_ALL_TRIALS = {
    **dict.fromkeys(("parallelism", "timeout_s", "max_failed_trials", "fail_fast_identical")),
    "smoke": False,
}

# The proposals of these algorithms do not depend on the trials before.
_ORDERED = ("grid",)


def reproduce_run(
    path: str,
    train: Callable[..., Any] | None,
    changes: Mapping[str, Any],
    data: Any,
    options: Mapping[str, Any],
    cluster: Cluster | None = None,
    only: "OnlyTrial | None" = None,
) -> Run:
    """Run again what a run has run.

    Args:
        path: the directory of the run.
        train: the function, or None for the function that the run has kept.
        changes: objects of the search that were not kept.
        data: the DataFrames, for a run that had some.
        options: options of the new run.
        cluster: the cluster; by default the Spark session of the options or of the data.
        only: run one trial alone; None for all.
    """
    run, paths = read_run(path), RunPaths(path)
    description = with_earlier_changes(read_description(path), paths)
    if only:
        description = only.alone(description)
    request = _request_of(description, run, train, changes, data, options, only)
    secrets = known_secrets(request.options.env, request.options.secrets)
    number = only.number if only else 0
    differences = Differences(_differences(path, description, request, secrets, only))
    if request.options.progress:
        what = f"Verifying trial {number} of" if only else "Reproducing"
        print(f"{what} run {run.id}. What differs from it:\n{differences}", flush=True)
    program = program_of(request, paths, description.get("preload", False))
    if train and run.trials and not request.search:
        check_call(train, run.trials[number].params)
    prepared = prepare(request, program, cluster)
    root = storage.absolute(request.options.root or os.path.dirname(path.rstrip("/")))
    new_description = _description(prepared, description, path, train)
    manifest = resources.read_manifest(path)
    with resources.local_copy(paths.resources) if manifest else nullcontext(Path()) as folder:
        resources.check(folder, manifest, path)
        opener = Opener(
            open=partial(_open, root, new_description, number),
            look=partial(existing_run, root, new_description, "error"),
            root=root,
            name=new_description.name,
            new=NewRun(
                resources={name: folder / name for name in manifest},
                sources={name: resource.source for name, resource in manifest.items()},
                has_changes=train is not None,
                ancestor=Ancestor(
                    path=path, differences=differences, versions=only.versions if only else {}
                ),
            ),
        )
        return begin(prepared, opener)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnlyTrial:
    """A trial that is run again alone, in its place among the trials of its run.

    Attributes:
        number: the number of the trial.
        num_workers: another number of workers of a gang; None for the number before.
        init_from: the trial from whose checkpoint it begins; None for that of its run, if any.
        versions: the version of each Delta table that is read in place of the newest one.
    """

    number: int
    num_workers: int | None = None
    init_from: Trial | None = None
    versions: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def alone(self, description: Mapping[str, Any]) -> dict[str, Any]:
        """Return the description of its run without the search, and the limits of the run."""
        request = dict(description["request"])
        request["options"] = {**request["options"], **_OF_ALL_TRIALS}
        request |= {"search": None, "learn_from": []}
        return {**description, "request": request, "space": None, "repeats": 1}

    def roles(self, roles: Sequence[Role]) -> tuple[Role, ...]:
        """Return the roles with the number of workers."""
        if self.num_workers is None:
            return tuple(roles)
        return tuple(
            dataclasses.replace(role, count=self.num_workers) if role.name == "worker" else role
            for role in roles
        )


def _open(root: str, description: RunDescription, first: int) -> OpenRun:
    """Open a new run, whose trials before the first one that runs are cancelled."""
    opened = open_run(root, description, "error")
    opened.record(
        *(
            TrialChanged(number=number, state=TrialState.CANCELLED, error="not run again")
            for number in range(first)
        )
    )
    return opened


def _kept_program(paths: RunPaths) -> Program:
    return Program.from_dict(provenance.read_program(paths.program))


def _request_of(
    description: Mapping[str, Any],
    run: Run,
    train: Callable[..., Any] | None,
    changes: Mapping[str, Any],
    data: Any,
    options: Mapping[str, Any],
    only: OnlyTrial | None,
) -> Request:
    """Return the request of a run with its seed, its parameters and new options."""
    paths, changes = RunPaths(run.path), dict(changes)
    own = {name: options[name] for name in _OWN if name in options}
    others = {name: value for name, value in options.items() if name not in own}
    if description.get("space") == "function" and "space" not in changes:
        changes["space"] = restore_space(paths)
    request = Request.from_dict(description, others, changes, train=train, data=data)
    request = dataclasses.replace(
        request,
        options=dataclasses.replace(
            request.options, **{"seed": description["seed"], "run_id": None, **own}
        ),
        init_from=paths.initial if storage.exists(paths.initial) else request.init_from,
    )
    trials = run.trials[: only.number + 1] if only else run.trials
    _check_params(run, trials[-1:] if only else trials)
    if only:
        request = dataclasses.replace(
            request,
            roles=only.roles(request.roles),
            init_from=only.init_from or request.init_from,
        )
    if request.search is None:
        return dataclasses.replace(request, params=[trial.params for trial in trials])
    return dataclasses.replace(request, search=_with_configurations(request.search, run))


def _check_params(run: Run, trials: Sequence[Trial]) -> None:
    for trial in trials:
        if MASK in str(trial.params):
            raise ConfigError(
                f"trial {trial.number} of run {run.id} has parameters that look like credentials, "
                f"which were not kept: {trial.params}. Call the verb itself with the same "
                "arguments."
            )


def _with_configurations(search: SearchSettings, run: Run) -> SearchSettings:
    """Return the settings of a search that tries the configurations of a run in their order.

    With several trials at once, the proposals of a sampler depend on which trial ends first.
    """
    if search.style != "space" or search.is_scheduled or search.algorithm in _ORDERED:
        return search
    firsts = {trial.configuration: trial.params for trial in reversed(run.trials)}
    configurations = [params for _, params in sorted(firsts.items()) if params]
    return dataclasses.replace(search, initial_params=configurations)


def _description(
    prepared: PreparedRun,
    before: Mapping[str, Any],
    path: str,
    train: Callable[..., Any] | None,
) -> RunDescription:
    """Return what `run.json` will contain; kept code has the place of the earlier run."""
    description = description_of(prepared)
    facts = {**description.facts, "reproduces": {"id": before["id"], "path": path}}
    if train is None:
        names = ("function", "git_commit", "folder", "main")
        facts |= {name: before.get(name) for name in names}
    return dataclasses.replace(description, facts=facts)


# ---- what differs before anything is started


def _differences(
    path: str,
    description: Mapping[str, Any],
    request: Request,
    secrets: tuple[str, ...],
    only: OnlyTrial | None,
) -> Iterator[Difference]:
    packages = packages_in(provenance.environment())
    now = {**provenance.versions(), "git_commit": provenance.git_commit(Path.cwd())}
    yield from compare_executors((read_environment(path), []), (packages, []))
    yield from compare(description["versions"], now, {"sparkdl": "sparkdl"}, "driver")
    subjects = {"cpu": "CPU", "cores": "CPU cores", "gpus": "GPUs"}
    yield from compare(description.get("hardware", {}), hardware(), subjects, "driver")
    yield from compare(description, now, {"git_commit": "git commit of the working directory"})
    yield from changed_repository(path, description, secrets)
    program = None
    with suppress(ConfigError):
        program = _kept_program(RunPaths(path))
    yield from changed_code(path, description, program, secrets)
    yield from _changed_options(description, request)
    yield from _changed_resources(path)
    trial = RunPaths(path).trial(only.number if only else 0)
    yield from (
        Difference(subject=f"files of {paths}", before=before, now=after)
        for paths, before, after in compare_files(trial.files, find, newest_version)
        if only is None or paths not in only.versions
    )
    counts = [_num_ranks(roles) for roles in (description["request"]["roles"], request.roles)]
    if counts[0] != counts[1]:
        yield Difference(subject="number of ranks", before=str(counts[0]), now=str(counts[1]))


def _num_ranks(roles: Sequence[Any]) -> int:
    return sum(role["count"] if isinstance(role, Mapping) else role.count for role in roles)


def _changed_options(description: Mapping[str, Any], request: Request) -> Iterator[Difference]:
    names = [field.name for field in dataclasses.fields(Options) if field.name != "seed"]
    before = {name: description["request"]["options"].get(name) for name in names}
    now = request.to_dict()["options"]
    yield from compare(before, now, {name: f"option {name}" for name in names if name in now})


def _changed_resources(path: str) -> Iterator[Difference]:
    """Yield the resources whose originals have changed since; the new run gets the kept copies."""
    for name, resource in resources.read_manifest(path).items():
        source = Path(resource.source)
        if source.exists() and resources.hashes(source, name) != dict(resource.files):
            yield Difference(
                subject=f"resource {name} (the run uses the kept copy)",
                before="the kept copy",
                now=f"other content in {source}",
            )
