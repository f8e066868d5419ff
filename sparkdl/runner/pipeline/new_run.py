"""Runs on the driver. Keep the facts and files of a new run, and compare it with its ancestor."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkdl.files import resources, storage
from sparkdl.files.jsonl import from_json, to_json
from sparkdl.files.layout import RunPaths
from sparkdl.runner.pipeline.fingerprint import fingerprints
from sparkdl.runner.pipeline.kept_code import keep_code
from sparkdl.runner.prepared_run import PreparedRun
from sparkdl.runs import provenance
from sparkdl.runs.differences import (
    Difference,
    Differences,
    compare_executors,
    compare_fingerprints,
    read_environment,
    read_executors,
    write_differences,
)
from sparkdl.runs.machine import packages_in


@dataclass(frozen=True, kw_only=True)
class Ancestor:
    """The run that a new run reproduces.

    Attributes:
        path: its directory.
        differences: what differs from it, as far as the driver can tell.
        versions: the version of each Delta table that is read in place of the newest one.
    """

    path: str
    differences: Differences
    versions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class NewRun:
    """The facts and files that a new run keeps beside its program and its trials.

    Attributes:
        resources: the files and folders to copy, by the names of their copies.
        sources: the places where these come from, for copies of an earlier run.
        has_changes: the user's repository has changes that are not committed.
        ancestor: the run that the new one reproduces; None for any other.
    """

    resources: Mapping[str, Path] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    has_changes: bool = False
    ancestor: Ancestor | None = None

    def keep_code(self, prepared: PreparedRun, paths: RunPaths) -> None:
        """Write the texts of the user's code; a reproduced run has those of its ancestor."""
        train = prepared.request.train
        if train is not None:
            keep_code(paths, train, prepared.program, self.has_changes, prepared.secrets)
        elif self.ancestor:
            with resources.local_copy(RunPaths(self.ancestor.path).source) as source:
                storage.copy(source, paths.source)

    def keep(self, prepared: PreparedRun, paths: RunPaths) -> None:
        """Write the packages of the driver, the resources, and the fingerprint of the data."""
        storage.write(paths.environment, provenance.environment())
        resources.keep(paths.folder, self.resources, self.sources)
        if self.ancestor and self.ancestor.versions:
            storage.write(paths.table_versions, to_json(self.ancestor.versions, indent=1))
        if prepared.data:
            counts = prepared.request.options.fingerprint
            prints = fingerprints(prepared.data, counts)
            storage.write(paths.data_fingerprints, to_json(prints, indent=1))

    def compare(
        self, paths: RunPaths, executors: list[dict[str, Any]], say: Callable[[str], None]
    ) -> None:
        """Write what is known of the executors; for a reproduced run also all that differs.

        Args:
            paths: the new run.
            executors: the facts of its executors.
            say: shows a line.
        """
        if executors:
            storage.write(paths.executors, to_json(executors, indent=1))
        if self.ancestor is None:
            return
        old = self.ancestor.path
        packages = packages_in(provenance.environment())
        before = read_environment(old), read_executors(old)
        more = Differences(compare_executors(before, (packages, executors)))
        known = [one for one in self.ancestor.differences if not _is_package(one)]
        more = Differences([*more, *_data_differences(old, paths.folder)])
        new = [one for one in more if one not in self.ancestor.differences]
        write_differences(paths.folder, [*known, *more])
        if new:
            say(f"It differs also on the executors or in the data:\n{Differences(new)}")


def _is_package(one: Difference) -> bool:
    return one.subject == "Python" or one.subject.startswith("package ")


def _data_differences(before: str, now: str) -> list[Difference]:
    prints = []
    for path in (before, now):
        try:
            prints.append(from_json(storage.read(RunPaths(path).data_fingerprints)))
        except FileNotFoundError:
            return []
    return list(compare_fingerprints(*prints))
