"""Runs on the driver (pure). Classify the errors with which Spark jobs end.

Tasks raise some of these errors with the texts of this module, by which the driver knows them.
"""

import re
import sys
from enum import Enum

from sparkdl.errors import PreflightError
from sparkdl.spark.python import chosen_python

# The beginning of the error of a task that could not use the run directory.
STORE_FAILED = "the run directory cannot be used"

# The end of the error of a task that does not run on an executor that is excluded.
AVOIDED = "gets no more trials of this run; Spark starts the trial elsewhere"


# The beginning of the error of a task that was to read a copy of the rows of its run.
NO_COPY = "there is no copy of the rows of this run"


class JobEnd(Enum):
    """The reason for which a Spark job brought no rows."""

    CANCELLED = "cancelled"
    LOST = "lost"
    AVOIDED = "avoided"
    NO_COPY = "no copy of the rows"
    SPARK_ENDED = "Spark ended"
    MEMORY = "memory"
    ERROR = "error"


# How Spark, py4j, the socket of a collect and Spark Connect say that the application is over.
_SPARK_ENDED = re.compile(
    r"SparkContext was shut down|stopped SparkContext|SparkContext has been shutdown"
    r"|Answer from Java side is empty|connecting to the Java server|while sending or receiving"
    r"|Application .{0,80}(was killed|has been killed|finished with)"
    r"|SESSION_CLOSED|SESSION_NOT_FOUND|SESSION_CHANGED|StatusCode\.UNAVAILABLE"
)

# Spark 3.5 closes the Python worker of a task that was cancelled some seconds ago, although the
# task has given it back meanwhile, and the next task gets the closed one.
_CLOSED_WORKER = re.compile(
    r"Socket is closed\s+at \S+Socket\.getInputStream\b.*\s+at \S+\.BasePythonRunner\.compute\b"
)


class JobFailed(Exception):
    """A Spark job ended without its rows. Users never see this exception itself."""

    def __init__(self, end: JobEnd, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.end = end
        self.rank = rank  # Of the gang, if Spark tells which task was lost.


def job_failed(exc: BaseException, has_ended: bool = False) -> JobFailed:
    """Classify an exception of Spark.

    Args:
        exc: the exception.
        has_ended: the Spark application is known to be over, whatever the exception says.

    Raises:
        PreflightError: if the executors lack sparkdl or run another Python.

    Example:
        >>> job_failed(RuntimeError("[SPARK_JOB_CANCELLED] Job 3 cancelled")).end
        <JobEnd.CANCELLED: 'cancelled'>
        >>> job_failed(RuntimeError("ExecutorLostFailure (executor 1 exited ...)")).end
        <JobEnd.LOST: 'lost'>
        >>> job_failed(RuntimeError("Job 5 cancelled because SparkContext was shut down")).end
        <JobEnd.SPARK_ENDED: 'Spark ended'>
        >>> failed = job_failed(RuntimeError(": a.B.Exception: exceeding physical memory limits."))
        >>> failed.end, str(failed)
        (<JobEnd.MEMORY: 'memory'>, '... its memory: exceeding physical memory limits. Raise ...')
    """
    text = str(exc)
    if refusal := _refusal(text):
        raise refusal from exc
    if is_spark_ended(exc):
        return JobFailed(JobEnd.SPARK_ENDED, _reason_of_end(text) or type(exc).__name__)
    if has_ended:
        return JobFailed(JobEnd.SPARK_ENDED, "the SparkContext was stopped")
    if re.search(r"SPARK_JOB_CANCELLED|OPERATION_CANCELED|part of cancelled job", text):
        return JobFailed(JobEnd.CANCELLED, "its Spark job was cancelled")
    if NO_COPY in text:
        return JobFailed(JobEnd.NO_COPY, NO_COPY)
    if re.search(f"{AVOIDED}|cannot run anywhere due to node and executor excludeOnFailure", text):
        return JobFailed(JobEnd.AVOIDED, "Spark has no executor that is not excluded")
    if shortage := _shortage(text):
        return shortage
    if re.search(r"ExecutorLostFailure|worker exited unexpectedly|Executor .* lost", text):
        return _lost_executor(text)
    if match := re.search(rf"{STORE_FAILED}: [^\n]*", text):
        return JobFailed(JobEnd.LOST, match[0])
    if re.search(r"\bFetchFailed|FetchFailedException", text):
        return JobFailed(JobEnd.LOST, "an executor with a part of its rows was lost")
    if _CLOSED_WORKER.search(text):
        return JobFailed(JobEnd.LOST, "Spark had closed the Python worker of one of its tasks")
    return JobFailed(JobEnd.ERROR, _with_summary(text))


def _shortage(text: str) -> JobFailed | None:
    """Return the error of a job for which the cluster has too little; None for any other text.

    Example:
        >>> print(_shortage("(TID 5) (10.0.0.3 executor 1): java...: No space left on device"))
        the disk of host 10.0.0.3, on which Spark keeps its own files, is full: No space left on \
device. Free space there, or let spark.local.dir name another disk
    """
    if match := re.search(
        r"[^\n]*(exceeding \w* ?memory limits|OOMKilled|container OOM)[^\n]*", text
    ):
        why = _without_exception(match[0].strip()).rstrip(".")
        return JobFailed(
            JobEnd.MEMORY,
            f"the cluster ended its executor for its memory: {why}. "
            "Raise spark.executor.memoryOverhead",
        )
    if match := re.search(r"\(([^()\s]+) executor \S+\): [^\n]*No space left on device", text):
        return JobFailed(
            JobEnd.ERROR,
            f"the disk of host {match[1]}, on which Spark keeps its own files, is full: No space "
            "left on device. Free space there, or let spark.local.dir name another disk",
        )
    if "SPARK-24819" in text:
        return JobFailed(
            JobEnd.LOST,
            "executors were lost, and Spark has fewer slots left than the gang has processes",
        )
    if "Master removed our application" in text:
        return JobFailed(
            JobEnd.LOST,
            "its executors were lost, and Spark's master has ended the application because new "
            "ones failed too (spark.deploy.maxExecutorRetries). The logs of the executors are in "
            "the work folders of Spark's workers",
        )
    return None


def _lost_executor(text: str) -> JobFailed:
    """Return the error of a job whose executor was lost, with what Spark says of its place.

    Example:
        >>> print(_lost_executor("(TID 5) (10.0.0.3 executor 1): ExecutorLostFailure (...)"))
        its executor on host 10.0.0.3 was lost
        >>> _lost_executor("barrier task ResultTask(4, 2) finished unsuccessfully. Exec...").rank
        2
    """
    place = re.search(r"\(([^()\s]+) executor [^()\s]+\): ExecutorLostFailure", text)
    task = re.search(r"barrier task \w+\(\d+, (\d+)\)", text)
    where = f" on host {place[1]}" if place else ""
    return JobFailed(
        JobEnd.LOST, f"its executor{where} was lost", int(task[1]) if task and not place else None
    )


def is_spark_ended(exc: BaseException) -> bool:
    """Return True if an error means that the Spark application is over.

    Example:
        >>> is_spark_ended(ConnectionRefusedError("[Errno 111] Connection refused"))
        True
    """
    if isinstance(exc, ConnectionError) or type(exc).__name__ == "Py4JNetworkError":
        return True
    text = str(exc)
    # A SparkContext that was stopped has no Java objects: pyspark's methods then find None.
    if isinstance(exc, AttributeError) and "'NoneType' object has no attribute" in text:
        return True
    # An exception of Python code on an executor may have any text.
    return "Traceback (most recent" not in text and _SPARK_ENDED.search(text) is not None


def _refusal(text: str) -> PreflightError | None:
    """Return the error of executors that cannot run sparkdl at all; None for any other text."""
    if re.search(r"No module named 'sparkdl['.]", text):
        return PreflightError(
            "the executors cannot import sparkdl, or find an archived Databricks package of the "
            "same name in its place. Install this one there (the same version as on the driver), "
            f"or ship an environment with --archives. {chosen_python()}"
        )
    if "PYTHON_VERSION_MISMATCH" in text:
        return PreflightError(
            "the executors run another Python than the driver. Set PYSPARK_PYTHON to the driver's "
            f"version, {sys.version.split()[0]}, before the Spark session starts."
        )
    return None


def _reason_of_end(text: str) -> str:
    """Return the line that tells why Spark has ended, without the name of its Java exception.

    Example:
        >>> text = "An error ...\\n: org.apache.spark.SparkException: SparkContext was shut down"
        >>> _reason_of_end(text)
        'SparkContext was shut down'
    """
    lines = text.strip().split("\n")
    return _without_exception(next(filter(_SPARK_ENDED.search, lines), lines[0]))


def _without_exception(line: str) -> str:
    """Return a line without the name of a Java exception before it."""
    return re.sub(r"^(: )?([\w.]+(Exception|Error): )?", "", line)


def _with_summary(text: str) -> str:
    """Return Spark's message, preceded by the line of the exception that caused it.

    It is not one of the training function, but of what Spark computes, such as `data=`.

    Example:
        >>> text = "Traceback (most recent call last):\\n  File ...\\nValueError: no"
        >>> _with_summary(text).split("\\n")[0]
        'a task of Spark failed: ValueError: no'
        >>> text = "An error occurred while calling o1.collect.\\n: a.B: ...\\nCaused by: a.C: no"
        >>> _with_summary(text).split("\\n")[0]
        'a task of Spark failed: a.C: no'
    """
    trace = r"Traceback \(most recent call last\):\n(?:[ \t][^\n]*\n)+(\S[^\n]*)"
    # The last traceback of a chain is that of the exception that was raised.
    raised = re.findall(trace, text)
    if not raised and text.startswith("An error occurred while calling"):
        # Py4j's own error, to which Spark 3.5 leaves many an exception of Java.
        raised = re.findall(r"^(?:Caused by|): ([^\n]*)", text, re.MULTILINE)
    if not raised:
        return text
    return f"a task of Spark failed: {raised[-1]}\n{text}"
