"""Runs on the driver. Put the parts of a trial loop together."""

from collections import deque
from collections.abc import Callable, Sequence

from sparkdl.runner.display.progress import Progress
from sparkdl.runner.loop.attempt_ends import AttemptEnds
from sparkdl.runner.loop.command_inbox import CommandInbox
from sparkdl.runner.loop.executor_exclusion import ExecutorExclusion
from sparkdl.runner.loop.leaving_executors import LeavingExecutors
from sparkdl.runner.loop.observers import Observers, RunObserver
from sparkdl.runner.loop.paused_trials import PausedTrials
from sparkdl.runner.loop.retries import Retries
from sparkdl.runner.loop.run_commands import RunCommands
from sparkdl.runner.loop.stop_requests import StopRequests
from sparkdl.runner.loop.stop_rules import StopRules
from sparkdl.runner.loop.submitted import SubmittedTrials
from sparkdl.runner.loop.task_factory import TaskFactory
from sparkdl.runner.loop.trial_loop import Clock, TrialLoop
from sparkdl.runner.loop.trial_messages import TrialMessages
from sparkdl.runner.prepared_run import PreparedRun
from sparkdl.runs.opening import OpenRun
from sparkdl.runs.states import TrialState
from sparkdl.search.trial_source import TrialSource


def make_loop(
    prepared: PreparedRun,
    opened: OpenRun,
    source: TrialSource,
    progress: Progress,
    observers: Sequence[RunObserver] = (),
    others_wait: Callable[[], bool] = lambda: False,
) -> TrialLoop:
    """Return the loop of a run.

    Args:
        prepared: the request, its plan and the cluster.
        opened: the run directory.
        source: proposes trials, beyond those that the run already has.
        progress: displays the run.
        observers: further objects that follow the run.
        others_wait: returns True while one trial alone may run, see `SmokeTest`.
    """
    run = opened.run
    request = prepared.request
    waiting = deque(trial for trial in run.trials if trial.state == TrialState.WAITING)
    num_trials = len(waiting) + source.num_left
    submitted = SubmittedTrials.of(prepared, opened.paths, num_trials)
    messages = TrialMessages(source, opened.journal, prepared.plan.is_gang)
    rules = StopRules(
        request.options,
        request.search,
        objectives=run.directions,
        num_slots=prepared.plan.size,
        trials=run.trials,
        events=opened.earlier,
    )
    stops = StopRequests(rules.reached_stop)
    paused = PausedTrials(opened=opened, source=source, stops=stops, rules=rules)
    exclusion = ExecutorExclusion(prepared.cluster, opened.record, progress.say)
    retries = Retries(request.options, prepared.plan.is_gang)
    all_observers = Observers([progress, *observers])
    clock = Clock()
    ends = AttemptEnds(
        prepared=prepared,
        opened=opened,
        waiting=waiting,
        submitted=submitted,
        stops=stops,
        rules=rules,
        exclusion=exclusion,
        retries=retries,
        paused=paused,
        progress=progress,
        observers=all_observers,
        source=source,
        messages=messages,
    )
    commands = RunCommands(
        prepared=prepared,
        opened=opened,
        source=source,
        stops=stops,
        rules=rules,
        waiting=waiting,
        submitted=submitted,
        elapsed_s=clock.elapsed_s,
        say=progress.say,
    )
    return TrialLoop(
        prepared=prepared,
        opened=opened,
        tasks=TaskFactory(prepared, opened, source, num_trials),
        waiting=waiting,
        submitted=submitted,
        stops=stops,
        rules=rules,
        exclusion=exclusion,
        retries=retries,
        ends=ends,
        paused=paused,
        commands=commands,
        inbox=CommandInbox(opened, commands.perform, submitted.wake),
        leaving=LeavingExecutors(prepared.cluster, progress.say),
        progress=progress,
        observers=all_observers,
        others_wait=others_wait,
        clock=clock,
    )
