"""The id of the executor above a task, as its process tree tells it."""

import os

from sparkdl.cluster.executor_name import this_executor

EXECUTOR = ["java", "--driver-url", "spark://x", "--executor-id", "12", "--hostname", "b"]


def test_this_executor_above_a_daemon_is_that_of_the_java_process() -> None:
    commands = {os.getpid(): ["python", "worker"], 2: ["python", "-m", "pyspark.daemon"]}
    commands[1] = EXECUTOR
    tree = {os.getpid(): 2, 2: 1}
    assert this_executor(commands.__getitem__, tree.get) == "12"


def test_this_executor_without_an_executor_above_it_is_unknown() -> None:
    assert this_executor(lambda pid: ["python"], lambda pid: pid) is None
    assert this_executor(lambda pid: ["--executor-id"], lambda pid: None) is None
