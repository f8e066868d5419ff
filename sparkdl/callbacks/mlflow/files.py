"""Runs on the driver. Copy the files of a run, of its trials and of its models to MLflow."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparkdl.callbacks.mlflow.mirror import Mirror, Mirrored
from sparkdl.files import storage
from sparkdl.files.layout import ARTIFACTS, ERROR, RunPaths, TrialPaths, is_log
from sparkdl.runs import Run, Trial
from sparkdl.runs.lineage import versions_of

# The tags that say which files are in MLflow.
FILES, MODELS = "sparkdl.files", "sparkdl.model."

# The number and the folder of a version, as tags of a version of MLflow's registry.
VERSION, PATH = "sparkdl.version", "sparkdl.path"


class Uploads:
    """Copies files to the artifacts of the runs of a mirror, each once.

    Args:
        client: the client of MLflow.
        mirror: the mirror.
        choice: the trials whose files are copied: `all`, `best` or `none`.
    """

    def __init__(self, client: Any, mirror: Mirror, choice: str) -> None:
        self._client = client
        self._mirror = mirror
        self._choice = choice

    def steps(self, run: Run) -> Iterator[None]:
        """Copy what is not in MLflow yet; yield after each trial and each file of the run.

        Files of the best trials, of the run and of its models are copied when the run has ended.
        """
        has_ended = run.state.is_final
        trials = list(run.trials) if self._choice == "all" else []
        if self._choice == "best" and has_ended:
            trials = run.pareto
        for trial in trials:
            mirrored = self._mirror.children.get(trial.number)
            # A tag of the attempt, as a trial may run again.
            if (
                mirrored
                and trial.state.is_final
                and mirrored.tags.get(FILES) != str(trial.attempts)
            ):
                self._copy_trial(mirrored, trial)
                self._mirror.set_tag(mirrored, FILES, str(trial.attempts))
                yield
        if has_ended and self._choice != "none":
            yield from self._copy_run(run)
            yield from self._copy_models(run)

    def _copy_trial(self, mirrored: Mirrored, trial: Trial) -> None:
        paths = TrialPaths(trial.path)
        names = storage.list_names(paths.folder)
        if ARTIFACTS in names:
            self._copy(mirrored, paths.artifacts, None)
        for name in names:
            if is_log(name) or name == ERROR:
                self._copy(mirrored, storage.join(paths.folder, name), None)

    def _copy_run(self, run: Run) -> Iterator[None]:
        """Copy what describes the run; not its program, which is loaded when a run is resumed."""
        mirrored = self._mirror.parent
        mark = f"{run.num_sessions} {run.state}"
        if mirrored.tags.get(FILES) == mark:
            return
        paths = RunPaths(run.path)
        for url in (paths.run, paths.environment, paths.report, paths.differences):
            if storage.exists(url):
                self._copy(mirrored, url, None)
                yield
        self._mirror.set_tag(mirrored, FILES, mark)

    # ---- models

    def _copy_models(self, run: Run) -> Iterator[None]:
        """Register the versions of models that come from the run, with their files."""
        for folder, record in versions_of(run.path).items():
            # A version of another model may name a run without a trial.
            mirrored = self._mirror.children.get(record.get("trial", -1), self._mirror.parent)
            name, number = str(record["name"]), str(record["version"])
            if f"{MODELS}{name}.{number}" not in mirrored.tags:
                self._register(run, mirrored, folder, record)
                yield

    def _register(self, run: Run, mirrored: Mirrored, folder: str, record: dict[str, Any]) -> None:
        name, number = str(record["name"]), str(record["version"])
        target = f"models/{name}/{number}"
        self._copy(mirrored, folder, target)
        versions = self._versions(name)
        if not any(tags.get(PATH) == folder for tags in versions):
            source = f"{self._client.get_run(mirrored.id).info.artifact_uri}/{target}"
            tags = {VERSION: number, PATH: folder, "sparkdl.run": run.id}
            self._client.create_model_version(
                name, source, run_id=mirrored.id, tags=tags, await_creation_for=0
            )
        self._mirror.set_tag(mirrored, f"{MODELS}{name}.{number}", folder)

    def _versions(self, name: str) -> list[dict[str, str]]:
        """Return the tags of the versions of a registered model, which is created if missing."""
        if not self._client.search_registered_models(f"name = '{name}'"):
            self._client.create_registered_model(name)
        return [
            dict(mirrored.tags) for mirrored in self._client.search_model_versions(f"name='{name}'")
        ]

    # ---- one file or folder

    def _copy(self, mirrored: Mirrored, url: str, target: str | None) -> None:
        with _local(url) as path:
            if path.is_dir():
                self._client.log_artifacts(mirrored.id, str(path), target)
            else:
                self._client.log_artifact(mirrored.id, str(path), target)


@contextmanager
def _local(url: str) -> Iterator[Path]:
    """Yield the local path of a file or folder; a remote one is copied for the block."""
    if storage.is_local(url):
        yield storage.local_path(url)
        return
    with tempfile.TemporaryDirectory(prefix="sparkdl-mlflow-") as folder:
        path = Path(folder, url.rstrip("/").rsplit("/", 1)[-1])
        storage.download(url, path)
        yield path
