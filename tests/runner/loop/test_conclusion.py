"""From the outcomes of the processes of a trial to the event of the journal."""

from typing import Any

import pytest

from sparkdl.cluster.outcome import Outcome, RankInfo, Status
from sparkdl.cluster.spark_errors import JobEnd, JobFailed
from sparkdl.runner.loop.conclusion import combine, conclude, conclude_failed_job, with_value
from sparkdl.runs import Run, Trial
from sparkdl.runs.events import TrialChanged
from sparkdl.runs.states import Failure, TrialState


def of_rank(rank: int, status: Status = Status.FAILED, **fields: Any) -> Outcome:
    who = RankInfo(rank=rank, role=f"worker {rank}", host="h")
    failure = Failure.EXCEPTION if status is Status.FAILED else None
    return Outcome(
        status=status,
        who=who,
        failure=failure,
        usage={"cpu_s": 1.0, "running_s": float(rank)},
        exception=f"of {rank}".encode(),
        **fields,
    )


def run_of(*metrics: str) -> Run:
    objectives = dict.fromkeys(metrics, "max") if len(metrics) > 1 else {}
    return Run("r", "r", "r", "launch", metrics[0] if metrics else None, objectives=objectives)


def test_note_about_outputs_reaches_the_event() -> None:
    outcome = Outcome(status=Status.RETURNED, outputs={"value": 1.0}, note="less")
    again = Outcome.from_json(outcome.to_json())
    assert conclude([again], 0, 1.0, run_of()).event.note == "less"


def test_combine_names_the_first_failure_whatever_the_clocks_of_the_hosts() -> None:
    follow_up = of_rank(0, error="UnavailableError: Connection reset by peer", ended_s=1.0)
    cause = of_rank(1, error="ValueError: mine", ended_s=9.0)
    combined = combine([follow_up, cause, of_rank(2, Status.RETURNED)])
    assert combined.error == "worker 1 (rank 1) on host h: ValueError: mine"
    assert combined.exception == b"of 1"
    assert combined.usage["cpu_s"] == 3.0
    assert combined.usage["running_s"] == 2.0


IN_A_FUNCTION = """UnknownError: Graph execution error:

Traceback (most recent call last):
  File "train.py", line 3, in step
UnknownError: 2 root error(s) found.
  (0) UNKNOWN:  PeerLostError: lost connection to rank 1: connection closed by peer. See its log.

Its log: /runs/a/log-worker-0.txt
"""
CHAINED = """RuntimeError: step 7 failed

Traceback (most recent call last):
  File "train.py", line 3, in step
sparkdl.errors.PeerLostError: lost connection to rank 1: connection closed by peer. See its log.

The above exception was the direct cause of the following exception:
"""


@pytest.mark.parametrize("error", [IN_A_FUNCTION, CHAINED], ids=["tf.function", "chained"])
def test_combine_finds_a_lost_peer_in_the_whole_traceback(error: str) -> None:
    """The clock of the host of rank 0 is behind: by the clocks, rank 0 has failed first."""
    follow_up = of_rank(0, error=error, ended_s=1.0)
    cause = of_rank(1, error="killed by SIGKILL (this process used up to 9 MiB)", ended_s=9.0)
    assert (combine([follow_up, cause]).error or "").startswith("worker 1 (rank 1)")


def test_combine_does_not_take_a_line_of_source_for_a_lost_peer() -> None:
    own = of_rank(1, error="ValueError: mine\n\n    except ConnectionResetError:\n", ended_s=1.0)
    later = of_rank(0, error="KeyError: later", ended_s=2.0)
    assert "ValueError: mine" in (combine([later, own]).error or "")


def test_combine_takes_the_earliest_of_two_failures() -> None:
    late = of_rank(0, error="KeyError: late", ended_s=2.0)
    early = of_rank(1, error="ValueError: early", ended_s=1.0)
    assert "ValueError: early" in (combine([late, early]).error or "")


def test_combine_takes_the_outputs_of_the_chief() -> None:
    ranks = [of_rank(0, Status.RETURNED), of_rank(1, Status.RETURNED, outputs={"value": 2})]
    chief = of_rank(2, Status.RETURNED, outputs={"value": 1}, is_chief=True)
    assert combine([*ranks, chief]).outputs == {"value": 1}


def test_combine_without_a_chief_is_a_lost_executor() -> None:
    combined = combine([of_rank(0, Status.STOPPED), of_rank(1, Status.RETURNED)])
    assert (combined.status, combined.failure) == (Status.FAILED, Failure.LOST)


def test_combine_prefers_the_refusal_of_an_executor() -> None:
    refused = of_rank(1, Status.REFUSED, error="no TensorFlow")
    assert combine([of_rank(0, error="ValueError: x"), refused]) is refused


@pytest.mark.parametrize(
    ("outcome", "state", "error"),
    [
        (Outcome(status=Status.RETURNED, outputs={"a": 1.0}), "COMPLETE", None),
        (Outcome(status=Status.RETURNED, outputs={"a": float("nan")}), "INVALID", "nan"),
        (Outcome(status=Status.INVALID, error="too large"), "INVALID", "InvalidTrial: too large"),
        (Outcome(status=Status.PRUNED, reported={"a": 0.5}), "PRUNED", None),
        (Outcome(status=Status.FAILED, error="E", failure=Failure.EXIT), "FAILED", "E"),
    ],
)
def test_conclude_gives_each_status_its_state(outcome: Outcome, state: str, error: Any) -> None:
    event = conclude([outcome], 0, 1.0, run_of("a")).event
    assert event.state == state
    assert (error or "") in (event.error or "")


def test_conclude_one_invalid_metric_of_two_is_invalid() -> None:
    outcome = Outcome(status=Status.RETURNED, outputs={"a": 1.0, "b": float("inf")})
    assert conclude([outcome], 0, 1.0, run_of("a", "b")).event.state == "INVALID"


def test_conclude_counts_the_time_in_the_queue() -> None:
    outcome = Outcome(status=Status.RETURNED, usage={"starting_s": 1.0, "running_s": 2.0})
    assert conclude([outcome], 0, 10.0, run_of()).event.usage == {
        "starting_s": 1.0,
        "running_s": 2.0,
        "queued_s": 7.0,
    }


def test_conclude_a_refusal_is_fatal_for_the_run() -> None:
    conclusion = conclude([Outcome(status=Status.REFUSED, error="old Python")], 3, 1.0, run_of())
    assert "trial 3: old Python" in str(conclusion.fatal)
    assert conclusion.event.state == "CANCELLED"


@pytest.mark.parametrize(
    ("end", "failure", "may_retry"),
    [
        (JobEnd.LOST, "lost executor", True),
        (JobEnd.MEMORY, "out of memory", True),
        (JobEnd.ERROR, "exception", False),
    ],
)
def test_conclude_failed_job(end: JobEnd, failure: str, may_retry: bool) -> None:
    conclusion = conclude_failed_job(JobFailed(end, "gone with key-1"), 0, 2, ["key-1"], None)
    assert conclusion.event.failure == failure
    assert conclusion.event.attempt == 2
    assert conclusion.may_retry is may_retry
    assert "key-1" not in (conclusion.event.error or "")


def test_conclude_failed_job_that_was_cancelled_tells_who_did_it() -> None:
    failed = JobFailed(JobEnd.CANCELLED, "cancelled")
    assert "outside this run" in (conclude_failed_job(failed, 0, 0, (), None).event.error or "")
    assert conclude_failed_job(failed, 0, 0, (), None).is_outside
    ours = TrialChanged(number=0, state=TrialState.PRUNED)
    assert conclude_failed_job(failed, 0, 0, (), ours).event.state == "PRUNED"


def test_the_notes_of_all_ranks_reach_the_journal() -> None:
    ranks = [
        of_rank(0, Status.RETURNED, is_chief=True, note="a is missing"),
        of_rank(1, Status.RETURNED),
        of_rank(2, Status.RETURNED, note="b is missing"),
    ]
    assert conclude(ranks, 0, 1.0, run_of()).event.note == "a is missing; b is missing"
    assert conclude(ranks[1:2], 0, 1.0, run_of()).event.note is None


def test_conclude_failed_job_of_a_spark_that_has_ended_can_be_resumed() -> None:
    failed = JobFailed(JobEnd.SPARK_ENDED, "SparkContext was shut down")
    conclusion = conclude_failed_job(failed, 0, 0, (), None)
    assert conclusion.event.state == "CANCELLED"
    assert (conclusion.event.error or "").startswith("the run was stopped: Spark has ended")
    assert conclusion.spark_ended == "Spark has ended: SparkContext was shut down"


@pytest.mark.parametrize(("returned", "kind"), [([0.5, 0.25], "a list"), ("done", "text")])
def test_a_list_or_text_in_place_of_a_number_is_noted_where_trials_are_compared(
    returned: object, kind: str
) -> None:
    outcome = Outcome(status=Status.RETURNED, outputs={"value": returned}, shape="value")
    run = run_of()
    event = conclude([outcome], 0, 1.0, run).event
    assert (event.state, event.note) == ("COMPLETE", None)
    run.trials += [Trial(0, {}, ""), Trial(1, {}, "")]
    event = conclude([outcome], 0, 1.0, run).event
    assert (event.state, event.value) == ("COMPLETE", None)
    assert f"the returned 'value' is {kind}, which is kept in trial.outputs" in (event.note or "")


@pytest.mark.parametrize(("reported", "value"), [({}, 0.5), ({"score": 0.75}, 0.75)])
def test_a_trial_that_paused_at_its_last_report_keeps_its_value(
    reported: dict[str, float], value: float
) -> None:
    run = run_of("score")
    run.trials += [Trial(0, {}, "", state=TrialState.PAUSED, metrics={"score": 0.5})]
    outcome = Outcome(status=Status.RETURNED, reported=reported)
    assert conclude([outcome], 0, 1.0, run).event.value == value


@pytest.mark.parametrize(
    ("how", "direction", "value"), [("last", "max", 0.5), ("best", "max", 0.9), ("best", "min", 0)]
)
def test_the_value_is_the_last_or_the_best_of_all_that_are_numbers(
    monkeypatch: pytest.MonkeyPatch, how: str, direction: str, value: float
) -> None:
    trial = Trial(0, {}, "", direction=direction)
    reports = [0.9, 0.0, float("nan"), float("inf"), float("-inf")]
    monkeypatch.setattr(Trial, "reported_values", lambda self: reports)
    last = conclude([Outcome(status=Status.RETURNED, outputs={"value": 0.5})], 0, 1.0, run_of())
    assert with_value(last, trial, how).event.value == value
    bad = conclude([Outcome(status=Status.FAILED, failure=Failure.EXIT)], 0, 1.0, run_of())
    assert with_value(bad, trial, how).event.value is None
