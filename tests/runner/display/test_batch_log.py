"""The log of a batch job says each thing once, in the language of its user."""

import json
import shlex
import subprocess
import sys
from typing import Any

import pytest

from sparkdl.runs import Run
from sparkdl.runs.events import RunEnded, TrialChanged
from sparkdl.runs.states import RunState, TrialState
from tests.helpers.stored_runs import ended, started

BEGIN = """
import sys
from sparkdl import experiment
from sparkdl.runner.display.batch_log import summarize_at_exit
from sparkdl.runner.pipeline.continued_run import ended_before
run = experiment.load(sys.argv[1])
"""
RESUME = """
import sys
from sparkdl import experiment
from sparkdl.runner.pipeline.continued_run import ended_before
experiment.resume = lambda run, **_: ended_before(run, frozenset(), True)
from sparkdl.cli.main import main
sys.exit(main(["resume", sys.argv[1]]))
"""


def stopped(root: str, state: TrialState, error: str) -> Run:
    """A run with a COMPLETE trial and one that is not."""
    opened = started(root, "one")
    opened.record(
        TrialChanged(number=0, state=TrialState.COMPLETE, attempt=0, value=0.5),
        TrialChanged(number=1, state=state, attempt=0, error=error),
    )
    opened.close(RunEnded(state=RunState.CANCELLED, reason="Ctrl-C"))
    return opened.run


def log_of(program: str, *arguments: str) -> tuple[int, str]:
    """Run a program as a batch job; return its exit code and all that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def check_last_line(log: str, run: Run) -> None:
    content: Any = json.loads(log.strip().splitlines()[-1].removeprefix("sparkdl: "))
    assert (content["run"], content["state"]) == (run.id, str(run.state))


@pytest.mark.parametrize("shown", ["print(run)", "print(f'It has ended:\\n{run}')", ""])
def test_the_table_is_printed_once(root: str, shown: str) -> None:
    run = ended(root, "one").run
    _, log = log_of(f"{BEGIN}summarize_at_exit(run)\n{shown}", run.path)
    assert log.count("Run one: COMPLETE") == log.count("Best: trial 1") == 1
    check_last_line(log, run)


def test_a_training_that_verifies_a_run_is_no_run_of_the_program(root: str) -> None:
    run = stopped(root, TrialState.FAILED, "E: x")
    again = stopped(f"{root}/.verified/{run.id}", TrialState.FAILED, "E: y")
    program = f"{BEGIN}for path in sys.argv[1:]: summarize_at_exit(experiment.load(path))"
    _, log = log_of(program, run.path, again.path)
    check_last_line(log, run)
    assert json.loads(log.strip().splitlines()[-1].removeprefix("sparkdl: "))["runs"] == ["one"]
    assert run.path in log and again.path not in log


def test_a_table_that_was_printed_before_the_end_is_printed_again(root: str) -> None:
    run = ended(root, "one").run
    program = f"{BEGIN}summarize_at_exit(run)\nrun.reason = 'early'\nprint(run)\nrun.reason = None"
    _, log = log_of(program, run.path)
    assert log.count("Run one: COMPLETE (early)") == log.count("Run one: COMPLETE, 2 of 2") == 1


def test_the_command_resume_prints_the_table_once(root: str) -> None:
    run = ended(root, "one").run
    code, log = log_of(RESUME, run.path)
    assert (code, log.count("Best: trial 1")) == (0, 1)
    check_last_line(log, run)


def test_the_log_names_a_command_that_a_shell_takes(root: str) -> None:
    run = stopped(root, TrialState.CANCELLED, "the run was stopped")
    _, log = log_of(f"{BEGIN}summarize_at_exit(run)", run.path)
    (line,) = [line for line in log.splitlines() if line.startswith("To finish it: ")]
    assert shlex.split(line)[3:] == ["sparkdl", "resume", run.path]
    assert "or run the program again with run_id='one', if_exists='resume'" in log


def test_each_unfinished_run_of_a_program_is_told_how_to_finish(root: str) -> None:
    first = stopped(root, TrialState.CANCELLED, "the run was stopped")
    last = ended(root, "two").run
    program = f"{BEGIN}[summarize_at_exit(experiment.load(path)) for path in sys.argv[1:]]"
    _, log = log_of(program, first.path, last.path)
    assert log.count("To finish it: sparkdl resume ") == 1
    assert shlex.quote(first.path) in log
    check_last_line(log, last)


@pytest.mark.parametrize("is_command", [True, False])
def test_what_a_resume_did_not_run_is_told_once_in_the_language_of_the_user(
    root: str, is_command: bool
) -> None:
    run = stopped(root, TrialState.FAILED, "ValueError: no")
    program = f"{BEGIN}ended_before(run, frozenset(), True)"
    code, log = log_of(RESUME if is_command else program, run.path)
    assert code == 1
    words = ("--retry failed does so", "retry='failed' does so")
    assert (log.count(words[0]), log.count(words[1])) == ((1, 0) if is_command else (0, 2))
    assert log.count("Run one: CANCELLED") == 1
    assert log.count("experiment.resume(") == log.count("After correcting") > 0
    check_last_line(log, run)
