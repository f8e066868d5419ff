"""The budgets of retries."""

from sparkdl.runner.retries import Limits, Retries
from sparkdl.runs.states import Failure


def test_each_kind_of_failure_has_a_budget_of_its_own() -> None:
    retries = Retries(Limits(max_restarts=1, max_losses=2), is_gang=True)
    assert [retries.again(0, Failure.SIGNAL) for _ in range(2)] == [True, False]
    assert [retries.again(0, Failure.LOST) for _ in range(3)] == [True, True, False]
    assert [retries.again(0, Failure.PORT) for _ in range(4)] == [True, True, True, False]


def test_attempts_that_are_lost_at_once_each_time_end_the_trial() -> None:
    hopeless = Retries(Limits(), is_gang=True)
    assert [hopeless.again(0, Failure.LOST, lived_s=1.0) for _ in range(5)] == [True] * 4 + [False]
    assert hopeless.again(0, Failure.LOST, lived_s=60.0)


def test_a_port_that_is_taken_is_retried_for_gangs_only() -> None:
    assert not Retries(Limits(), is_gang=False).again(0, Failure.PORT)
