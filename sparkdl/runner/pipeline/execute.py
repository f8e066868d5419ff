"""Runs on the driver. Run the request of a verb: pack the function, prepare, begin."""

import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, get_args

from sparkdl import config
from sparkdl.cluster.base import Cluster
from sparkdl.cluster.program.packaging import pack
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.files.resources import check_exists, distinct_names
from sparkdl.runner.pipeline.begin import Opener, begin
from sparkdl.runner.pipeline.continued_run import changed_sources, check_max_failed
from sparkdl.runner.pipeline.kept_code import script_of
from sparkdl.runner.pipeline.new_run import NewRun
from sparkdl.runner.pipeline.prepare import prepare
from sparkdl.runner.prepared_run import PreparedRun
from sparkdl.runner.request import Request
from sparkdl.runs import Run, provenance
from sparkdl.runs.history import read_run
from sparkdl.runs.ids_and_seeds import new_run_id
from sparkdl.runs.machine import hardware
from sparkdl.runs.opening import IfExists, RunDescription, existing_run, open_run, run_exists
from sparkdl.runs.retry_choice import parse_retry
from sparkdl.secrets.masks import mask_params


def execute(request: Request, cluster: Cluster | None = None) -> Run:
    """Run a request to its end, or in the background with `wait=False`.

    Args:
        request: the arguments of the verb.
        cluster: the cluster; by default the Spark session of the options or of the data.

    Raises:
        ConfigError, FunctionError, PreflightError, RunExistsError: before any trial was started.
        RunStoppedError, AllTrialsFailedError, TrainingFailedError: if the run was waited for and is
            not COMPLETE. The attribute `run` of the error is the run.
    """
    options = request.options
    retry = parse_retry(options.retry)
    if retry and options.if_exists != "resume":
        raise ConfigError(
            f"retry={options.retry!r} applies to a run that exists, but if_exists is "
            f"{options.if_exists!r}. Pass if_exists='resume' too, or remove retry."
        )
    if options.if_exists not in get_args(IfExists):
        raise ConfigError(
            f"if_exists is {options.if_exists!r}; expected 'error', 'resume' or 'new'."
        )
    resources = _resources_by_name(request)
    prepared = prepare(request, pack(request.target, options.preload), cluster)
    root = storage.absolute(options.root or prepared.cluster.root())
    _check_without_runs(resources, root)
    description = replace(description_of(prepared), retry=retry)
    if options.if_exists == "resume":
        path = storage.join(root, description.id)
        is_there = run_exists(path, description.permissions)
        if options.max_failed_trials is not None and is_there:
            check_max_failed(read_run(path), options, retry)
        changed = changed_sources(path, request.train, prepared.program, prepared.secrets)
        description = replace(description, changed=changed or None)
    has_changes = str(description.facts["git_commit"]).endswith(provenance.CHANGES)
    if_exists = cast(IfExists, options.if_exists)
    opener = Opener(
        open=partial(open_run, root, description, if_exists),
        look=partial(existing_run, root, description, if_exists),
        root=root,
        name=description.name,
        retry=retry,
        new=NewRun(resources=resources, has_changes=has_changes),
    )
    return begin(prepared, opener)


def _resources_by_name(request: Request) -> dict[str, Path]:
    """Return the files and folders to copy into the run directory, by the names of their copies.

    Raises:
        ConfigError: if a path does not exist, or if a folder is a repository or has a virtual
            environment.
    """
    paths = [Path(path) for path in request.options.versioned_resources]
    for path in paths:
        check_exists(path)
        if problem := _problem_of(path.resolve()):
            raise _resource_error(path, problem)
    names = distinct_names(os.path.abspath(path) for path in paths)
    return {name: Path(path) for name, path in names.items()}


def _problem_of(folder: Path) -> str | None:
    if (folder / ".git").exists():
        return "a whole repository, whose commit the run records anyway"
    if (folder / ".venv").exists():
        return "a folder with a virtual environment, whose packages the run records anyway"
    return None if folder.name else "the root of the file system"


def _check_without_runs(resources: Mapping[str, Path], root: str) -> None:
    for path in resources.values():
        if storage.is_local(root) and storage.local_path(root).resolve().is_relative_to(
            path.resolve()
        ):
            raise _resource_error(path, f"a folder that contains the runs themselves, in {root}")


def _resource_error(path: Path, problem: str) -> ConfigError:
    return ConfigError(
        f"versioned_resources contains {str(path)!r}, {problem}. Pass the files and folders in it "
        "that the run depends on."
    )


def description_of(prepared: PreparedRun) -> RunDescription:
    """Return what `run.json` in the run directory will contain."""
    request, options = prepared.request, prepared.request.options
    function = provenance.function_name(request.train) if request.train else "train"
    name = options.name or function
    return RunDescription(
        id=options.run_id or new_run_id(name),
        name=name,
        kind=request.kind,
        description=options.description,
        metric=options.metric,
        direction=cast(Literal["max", "min"], options.direction),
        params=request.params,
        count=request.search.max_configurations if request.search else None,
        seed=secrets.randbits(31) if options.seed is None else options.seed,
        secrets=prepared.secrets,
        facts=_facts(prepared, function),
        permissions=int(config.resolve("permissions", None, prepared.cluster.conf), 8),
    )


def _facts(prepared: PreparedRun, function: str) -> dict[str, Any]:
    request, cluster, plan = prepared.request, prepared.cluster, prepared.plan
    return {
        "function": function,
        "objectives": dict(request.objectives),
        "space": request.search and request.search.space_to_dict(),
        "repeats": request.search.repeats if request.search else 1,
        "plan": str(plan),
        "framework": plan.framework,
        "env": sorted(request.options.env),
        "preload": prepared.program.preload is not None,
        "num_secrets": len(request.options.secrets),
        "callbacks": [
            mask_params(callback.describe(), plan.secrets) for callback in request.options.callbacks
        ],
        "spark": {
            "master": cluster.master,
            "application": cluster.application,
            "version": cluster.version,
        },
        "request": request.to_dict(),
        "versions": provenance.versions(),
        "git_commit": provenance.git_commit(Path.cwd()),
        "folder": os.getcwd(),
        "main": script_of(request.train, prepared.program),
        "hardware": hardware(),
        **provenance.who(),
    }
