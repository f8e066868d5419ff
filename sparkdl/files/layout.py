"""Runs anywhere. The names of all files of a run directory.

```
<root>/<run id>/run.json  owner/<n>.json  journal/<n>-<k>.jsonl  summary.json
               /environment.txt  executors.json  source/  resources/  resources.json
               /data.json  differences.json  report.html  initial/  control/  notes/  indexes/
               /preflight/  table-versions.json
               /trials/<number>/params.json  metrics.jsonl  log.txt  error.txt  outputs.json
                                attempts/<n>.claim  attempts/<n>.json  attempts/<n>.use.jsonl
                                tensorboard/  artifacts/  timeline/  results/
                                checkpoints/<number>/  scratch/  work/  printed/
                                resources/  ranks/<n>/  rows/  data.jsonl  files.jsonl
                                asks.jsonl  orders.jsonl  row-keys/
```

Each rank of a distributed run writes a `log-<role>-<index>.txt` in place of `log.txt` and a
`<n>.use-<role>-<index>.jsonl`, and all but the chief a `metrics-<role>-<index>.jsonl`. With
`timeline=True` each has a `timeline/<role>-<index>.json`. `results/<rank>.json` is what each rank
of `sparkdl.horovod.run` returned; `printed/<stream>-<rank>-<id>` has the lines for the streams of
`horovod.spark.run`.
"""

from collections.abc import Collection
from dataclasses import dataclass

from sparkdl.files import attempts, resources, storage

# The format of a run directory, which `run.json` names. A version of sparkdl reads one format.
FORMAT = 1

# A file that describes a run or a version of a model, or its notes, is smaller. In a root that
# users share, a larger one of one user would fill the memory of all who list the runs.
MAX_RECORD_BYTES = 1 << 26

# The folder, beside the runs, of trainings that verify them.
VERIFIED = ".verified"

# Files of a run directory.
RUN = "run.json"
OWNERS = "owner"
SOURCE = "source"
INDEXES = "indexes"
SUMMARY = "summary.json"
REPORT = "report.html"
TRIALS = "trials"

# Files of a trial.
METRICS = "metrics.jsonl"
LOG = "log.txt"
ERROR = "error.txt"
OUTPUTS = "outputs.json"
RESULT = "result.json"
ARTIFACTS = "artifacts"
CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"
TIMELINE = "timeline"
SCRATCH = "scratch"
WORK = "work"
RANKS = "ranks"
RESULTS = "results"
PRINTED = "printed"
ROWS = "rows"
DATA = "data.jsonl"
COLUMNS = "columns.jsonl"
FILES = "files.jsonl"
ROW_KEYS = "row-keys"
ASKS = "asks.jsonl"
ORDERS = "orders.jsonl"

# The shape of a returned value that is in `RESULT` as a whole.
EXACT = "exact"

# The files that an attempt leaves in the folder of its trial, beside those of its processes.
PER_ATTEMPT = frozenset(
    (
        *(ERROR, RESULT, ARTIFACTS, TENSORBOARD, RANKS, RESULTS, DATA, COLUMNS, FILES),
        *(ASKS, ORDERS, TIMELINE, ROW_KEYS),
    )
)


def place_of_verifications(path: str, root: str | None = None) -> str:
    """Return the folder of a run's verifications: beside the run, or below a root of the user."""
    parent, _, name = path.rstrip("/").rpartition("/")
    return storage.join(storage.absolute(root) if root else parent, VERIFIED, name)


def log_of(role: str, index: int) -> str:
    """Return the name of the log of a process of a gang."""
    return f"log-{role}-{index}.txt"


def is_log(name: str) -> bool:
    """Return True if a file of a trial is the log of a process."""
    return name.startswith("log") and name.endswith(".txt")


def process_of_log(name: str) -> str:
    """Return the process that wrote a log; empty for the only process of a trial.

    Example:
        >>> process_of_log(log_of("worker", 1)), process_of_log(LOG)
        ('worker 1', '')
    """
    return name.removeprefix("log").removesuffix(".txt").replace("-", " ").strip()


def work_of(role: str, index: int) -> str:
    """Return the name of the working directory of a process of a gang."""
    return f"{WORK}-{role}-{index}"


# The working directories of the processes whose values are those of their trial.
CHIEF_WORK = (WORK, work_of("chief", 0), work_of("worker", 0))


def scratch_of(role: str, index: int) -> str:
    """Return the scratch folder of a process of a gang, relative to the folder of the trial."""
    return f"{SCRATCH}/{role}-{index}"


def is_of_attempt(name: str, names: Collection[str] = PER_ATTEMPT) -> bool:
    """Return True if an attempt leaves a file or folder of this name in the folder of its trial.

    Args:
        name: the name.
        names: the names of the files, beside those of the processes.
    """
    return name.startswith(("log", "metrics", WORK)) or name in names


def metrics_of(role: str, index: int, is_chief: bool) -> str:
    """Return the name of the file with the reports of a process; the driver reads the chief's."""
    return METRICS if is_chief else f"metrics-{role}-{index}.jsonl"


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
        return storage.join(self.folder, METRICS)

    @property
    def log(self) -> str:
        """The output of the training process."""
        return storage.join(self.folder, LOG)

    @property
    def error(self) -> str:
        """The traceback, or the cause of the end of the process."""
        return storage.join(self.folder, ERROR)

    @property
    def outputs(self) -> str:
        """The values that the training function returned. The last file that the task writes."""
        return storage.join(self.folder, OUTPUTS)

    @property
    def result(self) -> str:
        """The returned value as typed JSON, if `outputs` does not tell all of it."""
        return storage.join(self.folder, RESULT)

    @property
    def tensorboard(self) -> str:
        """TensorBoard's event files."""
        return storage.join(self.folder, TENSORBOARD)

    @property
    def checkpoints(self) -> str:
        """The committed checkpoints, see `sparkdl.checkpoints`. Written by the chief."""
        return storage.join(self.folder, CHECKPOINTS)

    @property
    def data(self) -> str:
        """The datasets that were read, one JSON line each. Written by the chief."""
        return storage.join(self.folder, DATA)

    @property
    def columns(self) -> str:
        """The columns that readers were told of, one JSON line each. Written by the chief."""
        return storage.join(self.folder, COLUMNS)

    @property
    def files(self) -> str:
        """The files that were read, one JSON line for each reader. Written by the first rank."""
        return storage.join(self.folder, FILES)

    @property
    def row_keys(self) -> str:
        """The digests of the keys of rows, with `row_key=`; see `data.row_keys`."""
        return storage.join(self.folder, ROW_KEYS)

    @property
    def rows(self) -> str:
        """The hashes of the rows of DataFrames; removed when the trial is COMPLETE."""
        return storage.join(self.folder, ROWS)

    @property
    def artifacts(self) -> str:
        """Copies of the files that the training function returned."""
        return storage.join(self.folder, ARTIFACTS)

    @property
    def timeline(self) -> str:
        """With `timeline=True`, one file per rank. Written by the training processes."""
        return storage.join(self.folder, TIMELINE)

    def timeline_of(self, role: str, index: int) -> str:
        """Return the timeline of a process."""
        return storage.join(self.timeline, f"{role}-{index}.json")

    @property
    def results(self) -> str:
        """The folder of the values that the ranks returned."""
        return storage.join(self.folder, RESULTS)

    def result_of(self, rank: int) -> str:
        """Return the file of the value that a rank returned. Written by the rank."""
        return storage.join(self.results, f"{rank}.json")

    @property
    def asks(self) -> str:
        """Requests of an objective in Optuna's style. Written by the training process."""
        return storage.join(self.folder, ASKS)

    @property
    def orders(self) -> str:
        """Answers to the requests, and the orders to the trial. Written by the driver."""
        return storage.join(self.folder, ORDERS)

    @property
    def all_ranks(self) -> str:
        """The folder of messages between the ranks of a gang; removed at the end of the trial."""
        return storage.join(self.folder, RANKS)

    def ranks(self, attempt: int) -> str:
        """Return the folder of messages between the ranks in one attempt."""
        return storage.join(self.all_ranks, attempt)

    def rank_status(self, attempt: int, rank: int, status: str) -> str:
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
        return storage.join(self.folder, RUN)

    @property
    def owners(self) -> str:
        """The folder of the drivers that have owned the run, see `sparkdl.runs.owner`."""
        return storage.join(self.folder, OWNERS)

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
        return storage.join(self.folder, SUMMARY)

    @property
    def environment(self) -> str:
        """The installed packages, in the format of `pip freeze`."""
        return storage.join(self.folder, "environment.txt")

    @property
    def source(self) -> str:
        """The folder of the user's program: the function and the local modules that it imports."""
        return storage.join(self.folder, SOURCE)

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
        return storage.join(self.folder, REPORT)

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
    def table_versions(self) -> str:
        """The versions of Delta tables that a verification reads in place of the newest ones."""
        return storage.join(self.folder, "table-versions.json")

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
        return TrialPaths(storage.join(self.folder, TRIALS, number))
