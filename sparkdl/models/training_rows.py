"""Runs on the driver. The records of the rows that a version of a model was trained on.

A version is made of its trial, and of all trials from whose checkpoints that one has begun.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkdl.errors import RunDamagedError, RunNotFoundError
from sparkdl.files import storage
from sparkdl.files.jsonl import from_json
from sparkdl.files.layout import COLUMNS, DATA, FILES, TRIALS, RunPaths, TrialPaths
from sparkdl.files.model_formats import is_model_file
from sparkdl.files.resources import read_manifest
from sparkdl.models.version import ModelVersion
from sparkdl.runs.history import read_description, read_run

# Files of weights beside those of Keras.
_WEIGHTS = (
    *(".h5", ".pt", ".pth", ".pt2", ".onnx", ".safetensors", ".ckpt", ".bin", ".pkl", ".joblib"),
    *(".npz", ".npy", ".msgpack", ".pb", ".index", ".gguf", ".ubj"),
)


@dataclass
class TrainingRows:
    """Knowledge of the rows that a version was trained on.

    Attributes:
        records: the record of each dataset that a process has opened, with the URL of its digests
            under `url`.
        problems: what is not known.
    """

    records: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, version: ModelVersion) -> "TrainingRows":
        """Read the records of a version."""
        found = cls()
        if version.run is None or version.trial is None:
            found.problems.append("it was exported from a model that is of no run")
            return found
        beside = storage.join(version.path.rsplit("/", 3)[0], version.run)
        written = str(version.lineage.get("run_path") or beside)
        for path in (written, beside):
            if storage.exists(RunPaths(path).run):
                found._add_trial(path, version.trial)
                return found
        found.problems.append(f"its run {version.run} is gone")
        return found

    def _add_trial(self, path: str, number: int) -> None:
        """Add a trial, and those from which it has begun."""
        paths = RunPaths(path)
        folder = paths.trial(number).folder
        if folder in self._seen:
            return
        self._seen.add(folder)
        try:
            description, run = read_description(path), read_run(path)
        except (RunNotFoundError, RunDamagedError):
            self.problems.append(f"the run {path}, with whose weights it began, cannot be read")
            return
        trial = run.trials[number]
        self._add_attempts(f"trial {number} of run {run.id}", paths.trial(number))
        if trial.parent is not None:
            self._add_trial(path, trial.parent)
        self._add_initial(description["request"].get("init_from"))
        self._add_weights(path, description)
        if description["request"].get("elastic") and not storage.is_local(path):
            self.problems.append("a rank may have been lost before all was copied to the store")

    def _add_initial(self, url: str | None) -> None:
        """Add the trial of an initial checkpoint, such as `<run>/trials/3/checkpoints/000004`."""
        if url is None:
            return
        path, found, rest = url.rpartition(f"/{TRIALS}/")
        number = rest.split("/")[0]
        if found and number.isdigit():
            self._add_trial(path, int(number))
            return
        # The copy that a run keeps of its initial checkpoint: `<run>/initial`.
        parent = url.rstrip("/").rpartition("/")[0]
        if url.rstrip("/") == RunPaths(parent).initial and storage.exists(RunPaths(parent).run):
            self._add_initial(read_description(parent)["request"].get("init_from"))
            return
        self.problems.append(f"it began with {url}, which is of no trial that can be read")

    def _add_weights(self, path: str, description: Mapping[str, Any]) -> None:
        """Add weights of an unknown origin as problems."""
        if description.get("preload"):
            self.problems.append("the function of preload= may have loaded weights")
        for name, resource in read_manifest(path).items():
            if any(is_model_file(file) or file.endswith(_WEIGHTS) for file in resource.files):
                self.problems.append(f"the resource {name} may have weights")

    def _add_attempts(self, name: str, paths: TrialPaths) -> None:
        """Add what the attempts at a trial have recorded; the files of lost ones are elsewhere."""
        self._add_attempt(name, paths, must_have_read=True)
        for number in filter(str.isdigit, storage.list_names(paths.attempts)):
            lost = TrialPaths(paths.superseded(int(number)))
            has_read = bool({DATA, FILES, COLUMNS} & set(storage.list_names(lost.folder)))
            self._add_attempt(f"attempt {number} of {name}", lost, has_read)
            if has_read and not storage.is_local(lost.folder):
                self.problems.append(
                    f"attempt {number} of {name} was lost, perhaps before all was copied to the "
                    "store"
                )

    def _add_attempt(self, name: str, paths: TrialPaths, must_have_read: bool) -> None:
        urls = [storage.join(paths.row_keys, each) for each in storage.list_names(paths.row_keys)]
        texts = storage.read_many(url for url in urls if url.endswith(".json"))
        if not must_have_read and not texts:
            return
        if not texts:
            self.problems.append(f"{name} has recorded no rows, see row_key=")
        ranks: dict[str, set[int]] = {}
        readers: dict[str, int] = {}
        for url, text in texts.items():
            record = {**from_json(text), "url": f"{url.removesuffix('.json')}.md5"}
            data = str(record["data"])
            ranks.setdefault(data, set()).add(int(url.rsplit("/", 1)[-1].split("-")[0]))
            readers[data] = max(readers.get(data, 0), record["readers"])
            if record.get("problem"):
                self.problems.append(f"the rows of {data}: {record['problem']}")
            else:
                self.records.append(record)
        for data, count in readers.items():
            if missing := set(range(count)) - ranks[data]:
                listed = ", ".join(map(str, sorted(missing)))
                self.problems.append(f"the record of rank {listed} for {data} is missing")
