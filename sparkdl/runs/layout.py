"""Runs anywhere. The names of all files of a run directory.

```
<root>/<run id>/run.json  owner/<n>.json  journal/<n>-<k>.jsonl  summary.json
               /environment.txt  executors.json  source/  resources/  resources.json
               /differences.json  report.html  initial/  control/  notes/  indexes/
               /trials/<number>/params.json  metrics.jsonl  log.txt  error.txt  outputs.json
                                attempts/<n>.claim  attempts/<n>.json  tensorboard/  artifacts/
                                timeline/  results/  checkpoints/<number>/  scratch/  work/
                                rows/  asks.jsonl  orders.jsonl
```

Each rank of a distributed run writes a `log-<role>-<index>.txt` in place of `log.txt`, and all
but the chief a `metrics-<role>-<index>.jsonl`. With `timeline=True` each has a
`timeline/<role>-<index>.json`. `results/<rank>.json` is what each rank of `sparkdl.horovod.run`
returned.
"""

from dataclasses import dataclass

from sparkdl import attempts, resources, storage
from sparkdl.checkpoints import FOLDER
from sparkdl.reporter import ASKS, ORDERS, TIMELINE

__all__ = ["FORMAT", "RunPaths", "TrialPaths"]

# The format of a run directory, which `run.json` names. A version of sparkdl reads one format.
FORMAT = 1


@dataclass(frozen=True)
class TrialPaths:
    """The files of one trial.

    Attributes:
        folder: path or URL of the folder of the trial.
    """

    folder: str

    @property
    def params(self) -> str:
        """The parameters and the seed. Written by the task."""
        return storage.join(self.folder, "params.json")

    @property
    def metrics(self) -> str:
        """The reports, one JSON line per `context.report`. Written by the training process."""
        return storage.join(self.folder, "metrics.jsonl")

    @property
    def log(self) -> str:
        """The output of the training process."""
        return storage.join(self.folder, "log.txt")

    @property
    def error(self) -> str:
        """The traceback, or the cause of the end of the process."""
        return storage.join(self.folder, "error.txt")

    @property
    def outputs(self) -> str:
        """The values that the training function returned. The last file that the task writes."""
        return storage.join(self.folder, "outputs.json")

    @property
    def tensorboard(self) -> str:
        """TensorBoard's event files."""
        return storage.join(self.folder, "tensorboard")

    @property
    def checkpoints(self) -> str:
        """The committed checkpoints, see `sparkdl.checkpoints`. Written by the chief."""
        return storage.join(self.folder, FOLDER)

    @property
    def data(self) -> str:
        """The datasets that were read, one JSON line each. Written by the chief."""
        return storage.join(self.folder, "data.jsonl")

    @property
    def files(self) -> str:
        """The files that were read, one JSON line for each reader. Written by the first rank."""
        return storage.join(self.folder, "files.jsonl")

    @property
    def rows(self) -> str:
        """The hashes of the rows of DataFrames; removed when the trial is COMPLETE."""
        return storage.join(self.folder, "rows")

    @property
    def artifacts(self) -> str:
        """Copies of the files that the training function returned."""
        return storage.join(self.folder, "artifacts")

    @property
    def timeline(self) -> str:
        """With `timeline=True`, one file per rank. Written by the training processes."""
        return storage.join(self.folder, TIMELINE)

    @property
    def asks(self) -> str:
        """Requests of an objective in Optuna's style. Written by the training process."""
        return storage.join(self.folder, ASKS)

    @property
    def orders(self) -> str:
        """Answers to the requests, and the command to stop. Written by the driver."""
        return storage.join(self.folder, ORDERS)

    @property
    def all_ranks(self) -> str:
        """The folder of messages between the ranks of a gang; removed at the end of the trial."""
        return storage.join(self.folder, "ranks")

    def ranks(self, attempt: int) -> str:
        """Return the folder of messages between the ranks in one attempt."""
        return storage.join(self.all_ranks, attempt)

    def told(self, attempt: int, rank: int, status: str) -> str:
        """Return the file by which a rank reports that it is `joining`, `done` or `failed`."""
        return storage.join(self.ranks(attempt), f"{rank}.{status}")

    @property
    def attempts(self) -> str:
        """The folder with one file per attempt, and with the files of lost attempts."""
        return storage.join(self.folder, attempts.FOLDER)

    def num_attempts(self) -> int:
        """Return the number of attempts that have started."""
        return 1 + attempts.newest(self.folder)

    def attempt(self, number: int) -> str:
        """Return the file that describes an attempt. Written by its task at the start."""
        return storage.join(self.attempts, f"{number}.json")

    def outcome(self, number: int) -> str:
        """Return the outcome of an attempt, for jobs whose rows Spark would return too late."""
        return storage.join(self.attempts, f"{number}.outcome.json")

    def superseded(self, number: int) -> str:
        """Return the folder to which the files of a lost attempt are moved by the next attempt."""
        return storage.join(self.attempts, str(number))


@dataclass(frozen=True)
class RunPaths:
    """The files of one run.

    Attributes:
        folder: path or URL of the run directory.
    """

    folder: str

    @property
    def run(self) -> str:
        """The description of the run. Written once, when the run starts."""
        return storage.join(self.folder, "run.json")

    @property
    def owners(self) -> str:
        """The folder of the drivers that have owned the run, see `sparkdl.runs.owner`."""
        return storage.join(self.folder, "owner")

    @property
    def journal(self) -> str:
        """The folder of the journal, see `sparkdl.runs.journal`. Written only by the owner."""
        return storage.join(self.folder, "journal")

    @property
    def control(self) -> str:
        """The folder of the commands of other processes, one file each, written once."""
        return storage.join(self.folder, "control")

    @property
    def summary(self) -> str:
        """The results in short, for lists of runs. Written by the owner when the run ends."""
        return storage.join(self.folder, "summary.json")

    @property
    def environment(self) -> str:
        """The installed packages, in the format of `pip freeze`."""
        return storage.join(self.folder, "environment.txt")

    @property
    def source(self) -> str:
        """The folder of the user's program: the function and the local modules that it imports."""
        return storage.join(self.folder, "source")

    @property
    def program(self) -> str:
        """The program in the form in which it is sent to the executors. Used to resume the run."""
        return storage.join(self.source, "program.json")

    @property
    def initial(self) -> str:
        """The folder of the initial checkpoint, laid out like the folder of a trial."""
        return storage.join(self.folder, "initial")

    @property
    def notes(self) -> str:
        """The folder of tags and notes, see `sparkdl.runs.annotations`. Written by anyone."""
        return storage.join(self.folder, "notes")

    @property
    def report(self) -> str:
        """The report, an HTML page."""
        return storage.join(self.folder, "report.html")

    @property
    def space(self) -> str:
        """The space of a search that is a function, in the form of `program`."""
        return storage.join(self.source, "space.json")

    @property
    def resources(self) -> str:
        """The copies of `versioned_resources`; their hashes are beside them, in a `.json`."""
        return storage.join(self.folder, resources.FOLDER)

    @property
    def executors(self) -> str:
        """The hardware of the executors, and the packages that differ from the driver's."""
        return storage.join(self.folder, "executors.json")

    @property
    def main(self) -> str:
        """The script that defines the function, if no module that travels with it does."""
        return storage.join(self.source, "main.py")

    @property
    def cells(self) -> str:
        """The cells of the notebook that were run before the run started."""
        return storage.join(self.source, "cells.py")

    @property
    def changes(self) -> str:
        """The changes of the user's repository that were not committed, as a diff."""
        return storage.join(self.source, "changes.diff")

    @property
    def data_fingerprints(self) -> str:
        """The schemas of `data=`; with `fingerprint=True` also the number of rows and a hash."""
        return storage.join(self.folder, "data.json")

    @property
    def differences(self) -> str:
        """The differences of a reproduced run from the run that it reproduces."""
        return storage.join(self.folder, "differences.json")

    @property
    def preflight(self) -> str:
        """The folder in which tasks of the preflight report that they have started."""
        return storage.join(self.folder, "preflight")

    def trial(self, number: int) -> TrialPaths:
        """Return the files of one trial."""
        return TrialPaths(storage.join(self.folder, "trials", number))
