"""What an end means: pure rules, in milliseconds."""

import json
import signal
from typing import Any

import pytest

from sparkdl.cluster.environ import gang_variables
from sparkdl.cluster.outcome import End, describe_end, failure_of, is_follow_up
from sparkdl.cluster.plan import Plan, Resources, Role
from sparkdl.options import Options
from sparkdl.runner.outcome import combined
from sparkdl.runner.retries import Retries
from sparkdl.runs.states import Failure


def raised(error: str) -> End:
    return End(0, {"error": error, "traceback": ""}, 0.1, 1.0)


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (raised("ValueError: no"), Failure.EXCEPTION),
        (raised("InternalError: CUDA_ERROR_ILLEGAL_ADDRESS"), Failure.GPU),
        (raised("DistBackendError: NCCL error in: ProcessGroupNCCL.cpp"), Failure.GPU),
        (raised("ResourceExhaustedError: OOM when allocating tensor"), Failure.MEMORY),
        (raised("MemoryError: unable to allocate"), Failure.MEMORY),
        (raised("OSError: [Errno 98] Address already in use"), Failure.PORT),
        (raised("UnknownError: Could not start gRPC server"), Failure.PORT),
        (End(1, None, 0.1, 1.0), Failure.EXIT),
        (End(-signal.SIGSEGV, None, 0.1, 1.0), Failure.SIGNAL),
        (End(-signal.SIGKILL, None, 0.1, 1.0), Failure.SIGNAL),
        (End(-signal.SIGKILL, None, 0.1, 1.0, out_of_memory=True), Failure.MEMORY),
        (End(-signal.SIGKILL, None, 0.1, 1.0, timed_out=True), Failure.TIMEOUT),
    ],
)
def test_kinds_of_failure(end: End, kind: Failure) -> None:
    assert failure_of(end) is kind


def test_out_of_memory_names_the_peak_and_the_setting() -> None:
    end = End(-signal.SIGKILL, None, 0.1, 1.0, peak_memory_mb=2048.4, out_of_memory=True)
    said = describe_end(end, None)
    assert "up to 2048 MiB" in said
    assert "spark.executor.memoryOverhead" in said


def row(rank: int, ended_s: float = 0.0, **said: Any) -> dict[str, Any]:
    outcome = {"rank": rank, "role": f"worker {rank}", "host": "h", "usage": {"cpu_s": 1.0}}
    outcome |= {"ended_s": ended_s, "failure": "exception", **said}
    return {"outcome": json.dumps(outcome), "exception": f"of {rank}".encode()}


def test_the_first_to_fail_is_told_of_whatever_the_clocks_say() -> None:
    follow = "UnavailableError: Connection reset by peer"
    rows = [row(0, 1.0, error=follow), row(1, 9.0, error="ValueError: mine"), row(2, outputs={})]
    said, exception = combined(rows)
    assert said["error"] == "worker 1 (rank 1) on host h: ValueError: mine"
    assert exception == b"of 1"
    assert said["usage"]["cpu_s"] == 3.0
    assert is_follow_up(follow)
    both = [row(0, 2.0, error="KeyError: late"), row(1, 1.0, error="ValueError: early")]
    assert "ValueError: early" in combined(both)[0]["error"]


def test_budgets_are_apart() -> None:
    retries = Retries(Options(max_restarts=1, max_losses=2), is_gang=True)
    assert [retries.allow(0, Failure.SIGNAL) for _ in range(2)] == [True, False]
    assert [retries.allow(0, Failure.LOST) for _ in range(3)] == [True, True, False]
    assert [retries.allow(0, Failure.PORT) for _ in range(4)] == [True, True, True, False]
    # What is lost as soon as it starts, each time, is not a matter of luck.
    hopeless = Retries(Options(), is_gang=True)
    assert [hopeless.allow(0, Failure.LOST, lived_s=1.0) for _ in range(5)] == [True] * 4 + [False]
    assert hopeless.allow(0, Failure.LOST, lived_s=60.0)
    # A single process has no peers that a new port would help to find.
    assert not Retries(Options(), is_gang=False).allow(0, Failure.PORT)


def test_an_evaluator_is_not_in_the_world_of_the_others() -> None:
    roles = (Role("worker", 2, Resources()), Role("evaluator", 1, Resources(), needed=False))
    gang = Plan("allreduce", roles, is_gang=True).members
    endpoints = ["10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3"]
    assert gang_variables("torch", gang, endpoints, 1, (1, 2))["WORLD_SIZE"] == "2"
    assert gang_variables("jax", gang, endpoints, 1, (1, 2))["JAX_NUM_PROCESSES"] == "2"
    assert gang_variables("torch", gang, endpoints, 2, (0, 1)) == {}
    assert '"evaluator"' in gang_variables("tensorflow", gang, endpoints, 2, (0, 1))["TF_CONFIG"]
