"""The outcome of a training process: kinds of failures, texts, and JSON."""

import signal

import pytest

from sparkdl.cluster.outcome import (
    Outcome,
    ProcessExit,
    RankInfo,
    Status,
    classify_failure,
    describe_exit,
    is_follow_up,
)
from sparkdl.runs.states import Failure


def raised(error: str) -> ProcessExit:
    return ProcessExit(code=0, outcome=Outcome(status=Status.FAILED, error=error))


@pytest.mark.parametrize(
    ("end", "failure"),
    [
        (raised("ValueError: no"), Failure.EXCEPTION),
        (raised("InternalError: CUDA_ERROR_ILLEGAL_ADDRESS"), Failure.GPU),
        (raised("DistBackendError: NCCL error in: ProcessGroupNCCL.cpp"), Failure.GPU),
        (raised("RuntimeError: GPU is lost. Reboot the system to recover this GPU"), Failure.GPU),
        (raised("RuntimeError: Xid 79: GPU has fallen off the bus"), Failure.GPU),
        (raised("ResourceExhaustedError: OOM when allocating tensor"), Failure.MEMORY),
        (raised("MemoryError: unable to allocate"), Failure.MEMORY),
        (raised("OSError: [Errno 98] Address already in use"), Failure.PORT),
        (raised("UnknownError: Could not start gRPC server"), Failure.PORT),
        (ProcessExit(code=1), Failure.EXIT),
        (ProcessExit(code=-signal.SIGSEGV), Failure.SIGNAL),
        (ProcessExit(code=-signal.SIGKILL), Failure.SIGNAL),
        (ProcessExit(code=-signal.SIGKILL, out_of_memory=True), Failure.MEMORY),
        (ProcessExit(code=-signal.SIGKILL, timed_out=True), Failure.TIMEOUT),
    ],
)
def test_classify_failure(end: ProcessExit, failure: Failure) -> None:
    assert classify_failure(end) is failure


def test_describe_exit_out_of_memory_names_the_peak_and_the_setting() -> None:
    end = ProcessExit(code=-signal.SIGKILL, peak_memory_mb=2048.4, out_of_memory=True)
    text = describe_exit(end, None)
    assert "up to 2048 MiB" in text
    assert "spark.executor.memoryOverhead" in text


@pytest.mark.parametrize("status", list(Status))
def test_json_round_trip_keeps_every_field(status: Status) -> None:
    outcome = Outcome(
        status=status,
        outputs={"accuracy": 0.5, "path": "artifacts/a", "nested": {"n": [1, None]}},
        is_chief=True,
        error="ValueError: ü \ud800",
        traceback="line 1\nline 2",
        failure=Failure.EXCEPTION,
        exception=bytes(range(256)),
        usage={"cpu_s": 1.5},
        reported={"loss": float("inf")},
        attempt=3,
        who=RankInfo(rank=1, role="worker 1", host="b"),
        ended_s=12.5,
    )
    assert Outcome.from_json(outcome.to_json()) == outcome
    assert outcome.without_exception().exception is None


@pytest.mark.parametrize("status", list(Status))
def test_failures_are_what_the_training_function_did_not_return_from(status: Status) -> None:
    expected = status in ("failed", "invalid", "pruned")
    assert Outcome(status=status).is_failure is expected


def test_is_follow_up_only_of_errors_about_lost_peers() -> None:
    assert is_follow_up("UnavailableError: Connection reset by peer")
    assert not is_follow_up("ValueError: mine")
