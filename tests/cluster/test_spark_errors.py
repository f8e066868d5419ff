"""The errors with which Spark jobs end, as plain sentences."""

import pytest

from sparkdl.cluster.spark_errors import JobEnd, job_failed

JAVA = "\n\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages\n"


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
    failed = job_failed(RuntimeError(text + JAVA))
    assert failed.end is JobEnd.LOST
    assert message in str(failed)
    assert "org.apache.spark" not in str(failed)
