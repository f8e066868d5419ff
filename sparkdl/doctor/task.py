"""Runs in a Spark task. Collect the facts of an executor."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext

from sparkdl.cluster.gpus.assignment import spark_gpus
from sparkdl.doctor.facts import collect_facts
from sparkdl.doctor.root_probe import probe_root

FACTS_SCHEMA = "facts string"


@dataclass(frozen=True, kw_only=True)
class FactsTask:
    """A task that collects the facts of its executor.

    Attributes:
        packages: the packages of the driver.
        folder: the folder for files in the root; None without access to the root.
        driver_mark: the content of the driver's file in that folder.
        hold_s: seconds for which the task holds its slot.
    """

    packages: Mapping[str, str] = field(repr=False)
    folder: str | None
    driver_mark: str | None
    hold_s: float

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row of `FACTS_SCHEMA`."""
        begun_s = time.monotonic()
        numbers = [i for batch in batches for i in batch.column(0).to_pylist()]
        root = None
        if self.folder is not None:
            root = probe_root(self.folder, f"executor-{numbers[0]}", self.driver_mark)
        facts = collect_facts(self.packages, spark_gpus(TaskContext.get()), root)
        time.sleep(max(0.0, begun_s + self.hold_s - time.monotonic()))
        yield pa.RecordBatch.from_pydict({"facts": pa.array([facts.to_json()], "string")})
