"""The decisions on executors that are at fault, without Spark."""

from sparkdl.runner.loop.exclusion_rules import HOLD_S, SUSPECT_S, Exclusion, Ruling, signature_of

CONCLUDE, HOLD, ELSEWHERE = Ruling.CONCLUDE, Ruling.HOLD, Ruling.ELSEWHERE
DISK = "OSError at a.py:7"
GPU = "GPU fault"


class Clock:
    """A clock that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def three(clock: Clock | None = None) -> Exclusion:
    return Exclusion(lambda: {"1", "2", "3"}, clock=clock or Clock())


def test_two_failures_alike_that_pass_elsewhere_exclude_and_run_both_again() -> None:
    exclusion = three()
    assert exclusion.failed(0, "1", DISK) is HOLD
    assert exclusion.failed(1, "1", DISK) is ELSEWHERE
    assert exclusion.avoided == ("1",)
    assert exclusion.failed(2, "1", DISK) is HOLD
    assert exclusion.take_decisions() == {}
    exclusion.note_success(1, "2")
    assert exclusion.take_decisions() == {0: True, 2: True}
    assert [e.trials for e in exclusion.excluded] == [(0, 1, 2)]
    assert exclusion.avoided == ("1",)
    # A trial that had started there before runs again too.
    assert exclusion.failed(3, "1", DISK) is ELSEWHERE
    assert exclusion.failed(4, "1", "ValueError at a.py:9") is CONCLUDE


def test_two_failures_alike_that_fail_elsewhere_too_are_those_of_the_function() -> None:
    exclusion = three()
    assert exclusion.failed(0, "1", DISK) is HOLD
    assert exclusion.failed(1, "1", DISK) is ELSEWHERE
    assert exclusion.failed(1, "2", DISK) is CONCLUDE
    assert exclusion.take_decisions() == {0: False}
    assert exclusion.avoided == ()
    assert not exclusion.excluded
    # It is known now that the function fails like that.
    assert exclusion.failed(2, "3", DISK) is CONCLUDE
    assert exclusion.failed(3, "3", DISK) is CONCLUDE


def test_failures_with_a_success_between_them_exclude_nothing() -> None:
    exclusion = three()
    assert exclusion.failed(0, "1", DISK) is HOLD
    exclusion.note_success(1, "1")
    assert exclusion.take_decisions() == {0: False}
    assert exclusion.failed(2, "1", DISK) is HOLD
    assert exclusion.failed(3, "1", "ValueError at a.py:9") is HOLD
    assert exclusion.take_decisions() == {2: False}
    assert exclusion.avoided == ()


def test_first_failure_counts_after_a_while_and_at_the_end_of_the_run() -> None:
    clock = Clock()
    exclusion = three(clock)
    assert exclusion.failed(0, "1", DISK) is HOLD
    assert exclusion.take_decisions() == {}
    clock.now = HOLD_S
    assert exclusion.take_decisions() == {0: False}
    assert exclusion.failed(1, "2", "ValueError at a.py:9") is HOLD
    assert exclusion.take_decisions(is_last=True) == {1: False}


def test_gpu_fault_that_passes_elsewhere_excludes_at_once() -> None:
    exclusion = three()
    assert exclusion.failed(0, "1", GPU) is ELSEWHERE
    assert exclusion.avoided == ("1",)
    assert exclusion.failed(0, "2", DISK) is CONCLUDE  # It got past the fault.
    assert [e.executor for e in exclusion.excluded] == ["1"]


def test_gpu_faults_of_a_second_executor_are_found_after_the_first_one() -> None:
    exclusion = Exclusion(lambda: {"1", "2", "3", "4"})
    assert exclusion.failed(0, "1", GPU) is ELSEWHERE
    exclusion.note_success(0, "3")
    assert exclusion.failed(1, "2", GPU) is ELSEWHERE
    exclusion.note_success(1, "3")
    assert exclusion.avoided == ("1", "2")


def test_gpu_fault_on_two_executors_is_that_of_the_function() -> None:
    exclusion = three()
    assert exclusion.failed(0, "1", GPU) is ELSEWHERE
    assert exclusion.failed(0, "2", GPU) is CONCLUDE
    assert exclusion.avoided == ()


def test_last_executor_is_never_suspected() -> None:
    exclusion = Exclusion(lambda: {"1", "2"})
    assert exclusion.failed(0, "1", GPU) is ELSEWHERE
    exclusion.note_success(0, "2")
    assert exclusion.failed(1, "2", GPU) is CONCLUDE
    needed = Exclusion(lambda: {"1", "2", "3"}, lambda executor: executor == "1")
    assert needed.failed(0, "1", GPU) is CONCLUDE
    alone = Exclusion(lambda: {"1"})
    assert alone.failed(0, "1", GPU) is CONCLUDE
    assert alone.failed(1, "1", DISK) is CONCLUDE


def test_executors_that_are_gone_do_not_count() -> None:
    present = {"1", "2"}
    exclusion = Exclusion(lambda: present)
    assert exclusion.failed(0, "1", GPU) is ELSEWHERE
    exclusion.note_success(0, "2")
    present.remove("1")
    assert exclusion.failed(1, "2", GPU) is CONCLUDE
    present.add("3")  # It has replaced the first one.
    assert exclusion.failed(2, "2", GPU) is ELSEWHERE


def test_suspicion_without_an_answer_is_dropped() -> None:
    exclusion = three()
    assert exclusion.failed(0, "1", DISK) is HOLD
    assert exclusion.failed(1, "1", DISK) is ELSEWHERE
    exclusion.abandon(1)
    assert exclusion.take_decisions() == {0: False}
    assert exclusion.avoided == ()


def test_suspected_executor_is_avoided_for_a_while_and_judged_by_the_end_of_the_trial() -> None:
    clock = Clock()
    exclusion = three(clock)
    assert exclusion.failed(0, "1", DISK) is HOLD
    assert exclusion.failed(1, "1", DISK) is ELSEWHERE
    clock.now = SUSPECT_S - 1
    assert exclusion.avoided == ("1",)
    clock.now = SUSPECT_S
    assert exclusion.avoided == ()
    assert exclusion.blamed == ("1",)
    assert exclusion.failed(2, "1", DISK) is HOLD
    assert exclusion.failed(3, "1", "ValueError at a.py:9") is CONCLUDE
    clock.now += HOLD_S
    assert exclusion.take_decisions() == {}
    exclusion.note_success(1, "2")
    assert exclusion.take_decisions() == {0: True, 2: True}
    assert [e.trials for e in exclusion.excluded] == [(0, 1, 2)]
    assert exclusion.avoided == ("1",)


def test_trial_runs_again_only_once_because_of_executors() -> None:
    exclusion = Exclusion(lambda: {"1", "2", "3", "4", "5"})
    assert exclusion.failed(0, "1", GPU) is ELSEWHERE
    exclusion.note_success(0, "2")
    assert exclusion.failed(0, "3", GPU) is CONCLUDE


def test_signature_of_a_failure_for_which_no_executor_is_at_fault_is_none() -> None:
    assert signature_of("timeout", "ended after ...") is None
    assert signature_of("out of memory", "MemoryError") is None
    assert signature_of("lost executor", "its executor was lost") is None
    assert signature_of(None, None) is None
    trace = 'Traceback\n  File "a.py", line 3, in f\n  File "b.py", line 5, in g\n'
    assert signature_of("exception", f"KeyError: 'x'\n\n{trace}") == "KeyError at b.py:5"
