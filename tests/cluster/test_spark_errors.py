"""The errors with which jobs of Spark end, in Spark's own words."""

import pytest
from py4j.protocol import Py4JNetworkError

from sparkdl.cluster.spark_errors import AVOIDED, JobEnd, job_failed

JAVA = "An error occurred while calling o71.collectToPython.\n: org.apache.spark.SparkException: "
STAGE = f"{JAVA}Job aborted due to stage failure: "
FRAME = "\n\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages\n"


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (RuntimeError(f"{JAVA}Job 5 cancelled because SparkContext was shut down"), "SPARK_ENDED"),
        (RuntimeError("Cannot call methods on a stopped SparkContext."), "SPARK_ENDED"),
        (AttributeError("'NoneType' object has no attribute 'setLocalProperty'"), "SPARK_ENDED"),
        (Py4JNetworkError("Error while sending or receiving"), "SPARK_ENDED"),
        (ConnectionRefusedError(111, "Connection refused"), "SPARK_ENDED"),
        (RuntimeError("[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid."), "SPARK_ENDED"),
        (
            RuntimeError("[SPARK_JOB_CANCELLED] Job 3 cancelled part of cancelled job tag"),
            "CANCELLED",
        ),
        (
            RuntimeError(
                f"{STAGE}ResultStage 3 (mapInArrow) has failed the maximum allowable number of "
                "times: 4. Most recent failure reason:\n"
                "org.apache.spark.shuffle.FetchFailedException: Connection reset by peer"
            ),
            "LOST",
        ),
        (RuntimeError(f"{STAGE}ExecutorLostFailure (executor 1 exited)"), "LOST"),
        (
            RuntimeError(
                f"{STAGE}org.apache.spark.api.python.PythonException: Traceback (most recent call "
                'last):\n  File "t.py", line 1, in t\nRuntimeError: the run directory cannot be '
                "used: worker 0: [Errno 5] Input/output error"
            ),
            "LOST",
        ),
        (  # As Spark 3.5.9 said it to a gang after a cancelled job.
            RuntimeError(
                f"{STAGE}Could not recover from a failed barrier ResultStage. Most recent failure "
                "reason: Stage failed because barrier task ResultTask(16, 2) finished "
                "unsuccessfully.\njava.net.SocketException: Socket is closed\n"
                "\tat java.base/java.net.Socket.getInputStream(Unknown Source)\n"
                "\tat org.apache.spark.api.python.BasePythonRunner.compute(PythonRunner.scala:209)"
            ),
            "LOST",
        ),
        (
            RuntimeError(
                f"{STAGE}java.net.SocketException: Socket is closed\n"
                "\tat java.base/java.net.Socket.getInputStream(Unknown Source)\n"
                "\tat com.example.Source.read(Source.java:20)"
            ),
            "ERROR",
        ),
        (RuntimeError(f"{STAGE}Task not serializable"), "ERROR"),
        (
            RuntimeError(
                f"{STAGE}org.apache.spark.api.python.PythonException: Traceback (most recent call "
                'last):\n  File "u.py", line 1, in u\nValueError: SparkContext was shut down'
            ),
            "ERROR",
        ),
    ],
)
def test_error_of_spark_has_its_kind(error: Exception, end: str) -> None:
    assert job_failed(error).end is JobEnd[end]


def test_an_exception_of_java_is_told_by_its_cause() -> None:
    """As `pyspark` 3.5.9 raises it for `raise_error`."""
    boom = "java.lang.RuntimeException: boom 0"
    lost = "Lost task 0.0 in stage 0.0 (TID 0) (localhost executor driver)"
    text = f"{STAGE}{lost}: {boom}\n\nDriver stacktrace:{FRAME}Caused by: {boom}{FRAME}"
    first = str(job_failed(RuntimeError(text))).splitlines()[0]
    assert first == f"a task of Spark failed: {boom}"


def test_end_of_spark_is_told_in_one_line() -> None:
    error = RuntimeError("Job 5 cancelled because SparkContext was shut down\n\tat org.apache")
    assert str(job_failed(error)) == "Job 5 cancelled because SparkContext was shut down"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[SPARK-24819]: Barrier execution mode does not allow run a barrier stage that "
            "requires more slots than the total number of slots in the cluster currently.",
            "Spark has fewer slots left than the gang has processes",
        ),
        (
            "Job aborted due to stage failure: Master removed our application: FAILED",
            "Spark's master has ended the application because new ones failed too",
        ),
    ],
)
def test_executors_that_are_gone_for_good_are_told_in_a_sentence(text: str, message: str) -> None:
    failed = job_failed(RuntimeError(text + FRAME))
    assert failed.end is JobEnd.LOST
    assert message in str(failed)
    assert "org.apache.spark" not in str(failed)


def test_full_disk_of_a_host_is_told_with_the_host() -> None:
    text = (
        "Job aborted due to stage failure: Task 2 in stage 6.0 failed 4 times, most recent "
        "failure: Lost task 2.3 in stage 6.0 (TID 17) (10.152.73.3 executor 0): "
        "java.io.IOException: No space left on device"
    )
    failed = job_failed(RuntimeError(text + FRAME))
    assert failed.end is JobEnd.ERROR
    assert str(failed).startswith("the disk of host 10.152.73.3, on which Spark keeps its own")
    assert "\n" not in str(failed)


def test_error_of_a_job_whose_spark_has_ended_is_no_loss() -> None:
    """The workers of a Spark that stops are killed before it says that it stops."""
    error = RuntimeError(f"{STAGE}Task 0 failed: Python worker exited unexpectedly (crashed)")
    assert job_failed(error).end is JobEnd.LOST
    assert job_failed(error, has_ended=True).end is JobEnd.SPARK_ENDED


@pytest.mark.parametrize(
    "text",
    [
        f"sparkdl.cluster.trial_task.AvoidedExecutorError: executor 1 on host a {AVOIDED}",
        "Aborting TaskSet 3.0 because task 0 (partition 0)\n"
        "cannot run anywhere due to node and executor excludeOnFailure.",
    ],
)
def test_job_whose_executors_are_all_excluded_can_run_on_any_of_them(text: str) -> None:
    assert job_failed(RuntimeError(text)).end is JobEnd.AVOIDED
