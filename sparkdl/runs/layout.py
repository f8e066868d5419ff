"""Runs anywhere. The run directory: the name of every file in it, in one place.

```
<root>/<run id>/run.json  owner.json  journal.jsonl  environment.txt  source/  resources/
               /report.html  initial/
               /trials/<number>/params.json  metrics.jsonl  log.txt  error.txt  outputs.json
                                attempts/<n>.json  tensorboard/  artifacts/  timeline/
                                checkpoints/<number>/  scratch/  asks.jsonl  orders.jsonl
```

Each rank of a distributed run writes a `log-<role>-<index>.txt` in place of `log.txt`, and all
but the chief a `metrics-<role>-<index>.jsonl`. With `timeline=True` each has a
`timeline/<role>-<index>.json`.
"""

from dataclasses import dataclass

from sparkdl import storage
from sparkdl.checkpoints import FOLDER
from sparkdl.reporter import ASKS, ORDERS, TIMELINE

__all__ = ["RunPaths", "TrialPaths"]


@dataclass(frozen=True)
class TrialPaths:
    """The files of one trial, below its folder's path or URL."""

    folder: str

    @property
    def params(self) -> str:
        """The parameters and the seed. Written by the task."""
        return storage.join(self.folder, "params.json")

    @property
    def metrics(self) -> str:
        """One JSON line per `context.report`. Written by the training process."""
        return storage.join(self.folder, "metrics.jsonl")

    @property
    def log(self) -> str:
        """Everything that the training process printed."""
        return storage.join(self.folder, "log.txt")

    @property
    def error(self) -> str:
        """The traceback, or what ended the process. Written by the task."""
        return storage.join(self.folder, "error.txt")

    @property
    def outputs(self) -> str:
        """What the training function returned. Written by the task, last of all."""
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
        """What was read, one JSON line per dataset. Written by the chief."""
        return storage.join(self.folder, "data.jsonl")

    @property
    def artifacts(self) -> str:
        """Copies of the files that the training function returned."""
        return storage.join(self.folder, "artifacts")

    @property
    def timeline(self) -> str:
        """With `timeline=True`, a file of each rank. Written by the training processes."""
        return storage.join(self.folder, TIMELINE)

    @property
    def asks(self) -> str:
        """What an objective in Optuna's style asks the driver. Written by the training process."""
        return storage.join(self.folder, ASKS)

    @property
    def orders(self) -> str:
        """Answers, and the order to stop. Written by the driver."""
        return storage.join(self.folder, ORDERS)

    @property
    def all_ranks(self) -> str:
        """Where the ranks of a gang tell each other how it goes; gone when it has ended."""
        return storage.join(self.folder, "ranks")

    def ranks(self, attempt: int) -> str:
        """The same of one attempt."""
        return storage.join(self.all_ranks, attempt)

    def told(self, attempt: int, rank: int, what: str) -> str:
        """The file by which a rank tells the others that it is `joining`, `done` or `failed`."""
        return storage.join(self.ranks(attempt), f"{rank}.{what}")

    @property
    def attempts(self) -> str:
        """A file for each attempt, and the files of those that were lost."""
        return storage.join(self.folder, "attempts")

    def num_attempts(self) -> int:
        """How many attempts have started."""
        numbers = [name.removesuffix(".json") for name in storage.names(self.attempts)]
        return 1 + max((int(number) for number in numbers if number.isdigit()), default=-1)

    def attempt(self, number: int) -> str:
        """Who makes this attempt, written by its task when it starts."""
        return storage.join(self.attempts, f"{number}.json")

    def outcome(self, number: int) -> str:
        """What came out of this attempt, where Spark would go on reading rows for it."""
        return storage.join(self.attempts, f"{number}.outcome.json")

    def superseded(self, number: int) -> str:
        """Where the files of a lost attempt are moved when the next one starts."""
        return storage.join(self.attempts, str(number))


@dataclass(frozen=True)
class RunPaths:
    """The files of one run, below its folder's path or URL."""

    folder: str

    @property
    def run(self) -> str:
        """What was asked for: written once, when the run starts."""
        return storage.join(self.folder, "run.json")

    @property
    def owner(self) -> str:
        """The driver process that runs it now."""
        return storage.join(self.folder, "owner.json")

    @property
    def journal(self) -> str:
        """What happened, one JSON line per event. Written by the driver only."""
        return storage.join(self.folder, "journal.jsonl")

    @property
    def environment(self) -> str:
        """Installed packages, as `pip freeze` writes them."""
        return storage.join(self.folder, "environment.txt")

    @property
    def source(self) -> str:
        """The person's program: the function and the local modules it imports."""
        return storage.join(self.folder, "source")

    @property
    def program(self) -> str:
        """The function as it travels to the executors, to be resumed or reproduced."""
        return storage.join(self.source, "program.json")

    @property
    def initial(self) -> str:
        """The checkpoint that trials begin with, kept as a trial's folder would keep it."""
        return storage.join(self.folder, "initial")

    @property
    def report(self) -> str:
        """A page with what came out."""
        return storage.join(self.folder, "report.html")

    @property
    def resources(self) -> str:
        """Copies of the files that the person asked to keep with the run."""
        return storage.join(self.folder, "resources")

    @property
    def preflight(self) -> str:
        """Where tasks of the preflight show each other that they have started."""
        return storage.join(self.folder, "preflight")

    def trial(self, number: int) -> TrialPaths:
        """The files of one trial."""
        return TrialPaths(storage.join(self.folder, "trials", number))
