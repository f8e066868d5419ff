"""Runs on the driver. Goes on with a run from what its directory keeps."""

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any

from sparkdl import storage
from sparkdl.cluster.program.packaging import Program, pack
from sparkdl.errors import ConfigError, RunExistsError
from sparkdl.options import check_count
from sparkdl.runner.execute import Prepared
from sparkdl.runner.request import Request
from sparkdl.runner.signatures import check_call
from sparkdl.runs import Run, provenance
from sparkdl.runs.history import load, read_description
from sparkdl.runs.journal import read_journal
from sparkdl.runs.layout import RunPaths
from sparkdl.runs.opening import continue_run, difference, waits_again
from sparkdl.runs.redact import MASK
from sparkdl.search.files.formats import read_space
from sparkdl.search.settings import ALGORITHMS, PRUNERS, check_name
from sparkdl.search.space.spaces import Space

__all__ = ["continue_search"]

# Other than these and `num_trials`, what ends a search stays as it was.
RULES = {"stop", "patience", "max_slot_hours"}


def continue_search(
    path: str,
    train: Callable[..., Any] | None,
    changes: Mapping[str, Any],
    retry_failed: bool,
    data: Any,
    options: Mapping[str, Any],
) -> Run:
    """Finish what a run has not finished.

    Args:
        path: its directory.
        train: a corrected function, or None for the one that it has kept.
        changes: fields of its search that are not as they were.
        retry_failed: run trials that have failed again.
        data: the rows, if it had some.
        options: options that are not as they were.
    """
    description, paths = read_description(path), RunPaths(path)
    before = load(path)
    if "num_trials" in changes:
        check_count("num_trials", changes["num_trials"])
    check_name("algorithm", changes.get("algorithm"), ALGORITHMS)
    check_name("pruner", changes.get("pruner"), PRUNERS)
    changes = _checked(description, changes)
    newest = _newest(paths)
    made = before.num_configurations
    more = (changes.get("num_trials") or 0) > made or bool(RULES & changes.keys())
    if before.state == "COMPLETE" and not more and not (retry_failed and before.failed):
        return before
    request = Request.restored(description, options, {**newest, **changes}, train=train, data=data)
    if storage.exists(paths.initial):  # The copy that the run keeps.
        request = dataclasses.replace(request, init_from=paths.initial)
    secrets = tuple(request.options.env.values())
    if request.search:
        names = [name or "value" for name in request.metrics]
        request.search.check(names, request.options.timeout_s, secrets)
    _check_params(before, request, retry_failed)
    then = {**(description["request"]["search"] or {}), **newest}
    changed = _changed(then, paths, train, changes)
    program = pack(request.called) if train else Program.from_dict(provenance.read_program(paths))
    prepared = Prepared.of(request, program)
    opened = continue_run(
        path, again=more, retry_failed=retry_failed, changed=changed, secrets=secrets
    )
    if opened.finished_before:
        opened.owner.release()
        return opened.run
    return prepared.start(opened)


def _checked(description: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes without a space that is the same."""
    changes, then = dict(changes), description.get("space")
    given = changes.get("space")
    if given is None or (then == "function" and callable(given)):
        return changes
    del changes["space"]
    if isinstance(given, str):
        given = read_space(given).space
    if isinstance(given, Mapping):
        given = Space.of(given)
    now = given.kept() if isinstance(given, Space) else "function"
    if now != then:
        was, new = difference(then, now), difference(now, then)
        raise RunExistsError(
            f"run {description['id']} cannot be resumed: space was {was!r} and is now {new!r}. "
            "Leave space= out, or start a new search with learn_from=. Nothing was changed."
        )
    return changes


def _newest(paths: RunPaths) -> dict[str, Any]:
    """What earlier calls changed of the search."""
    found: dict[str, Any] = {}
    for event in read_journal(paths.journal):
        changed = event.get("changed", {})
        found |= {name: changed[name][1] for name in (*RULES, "num_trials") if name in changed}
    return found


def _check_params(before: Run, request: Request, retry_failed: bool) -> None:
    """See that the parameters of trials that will run are what they were."""
    for trial in before.trials:
        if waits_again(trial, retry_failed) and MASK in str(trial.params):
            raise ConfigError(
                f"trial {trial.number} of run {before.id} has parameters that look like "
                f"credentials, which were not kept: {trial.params}. Call the verb again with "
                f"run_id={before.id!r} and if_exists='resume'."
            )
    if request.train and request.search is None:
        check_call(request.train, before.trials[0].params)
    elif request.train and request.search and isinstance(request.search.space, Space):
        check_call(request.train, request.search.space.dimensions)


def _changed(
    then: Mapping[str, Any],
    paths: RunPaths,
    train: Callable[..., Any] | None,
    changes: Mapping[str, Any],
) -> dict[str, Any]:
    """What the journal says of this start."""
    changed: dict[str, Any] = {}
    for name in {*RULES, "num_trials"} & changes.keys():
        changed[name] = [then[name], changes[name]]
    if train:
        old = storage.join(paths.source, "function.py")
        before = storage.read(old).decode() if storage.exists(old) else ""
        lines = difflib.unified_diff(
            before.splitlines(), (provenance.source_of(train) or "").splitlines(), lineterm="", n=0
        )
        changed["train"] = [line for line in lines if not line.startswith(("---", "+++"))]
    return {"changed": changed} if changed else {}
