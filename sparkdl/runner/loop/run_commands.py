"""Runs on the driver. Carry out the commands of users, in the thread of the run's loop."""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from sparkdl.errors import ControlError, suggest
from sparkdl.files import storage
from sparkdl.options import Options, check_count
from sparkdl.runner.loop.stop_requests import StopRequests
from sparkdl.runner.loop.stop_rules import StopRules
from sparkdl.runner.loop.submitted import SubmittedTrials
from sparkdl.runner.plain_commands import check_no_credentials
from sparkdl.runner.prepared_run import PreparedRun
from sparkdl.runner.signatures import check_call
from sparkdl.runs import RunState, Trial
from sparkdl.runs.commands import ACTIONS, GivenCommand, command_url
from sparkdl.runs.events import CommandHandled
from sparkdl.runs.handle import SETTINGS
from sparkdl.runs.opening import OpenRun
from sparkdl.search.settings import SearchSettings
from sparkdl.search.trial_source import RequestRefused, TrialSource


class RunCommands:
    """Carry out commands: `perform` changes the parts of the loop, and records an event.

    Args:
        prepared: the request and the cluster.
        opened: the run.
        source: proposes the trials of a search.
        stops: ends trials and the run.
        rules: the limits of the run.
        waiting: the trials that wait for a slot.
        submitted: the trials that Spark has.
        elapsed_s: returns the seconds since the first trial was submitted.
        say: shows a line to the user.

    Attributes:
        is_paused: no trial is started.
    """

    def __init__(
        self,
        *,
        prepared: PreparedRun,
        opened: OpenRun,
        source: TrialSource,
        stops: StopRequests,
        rules: StopRules,
        waiting: deque[Trial],
        submitted: SubmittedTrials,
        elapsed_s: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self._request = prepared.request
        self._concurrency = prepared.concurrency
        self._opened = opened
        self._run = opened.run
        self._source = source
        self._stops = stops
        self._rules = rules
        self._waiting = waiting
        self._submitted = submitted
        self._elapsed_s = elapsed_s
        self._say = say
        self._options = prepared.request.options
        self._search = prepared.request.search
        self.is_paused = False

    def perform(self, user_command: GivenCommand, event: CommandHandled) -> None:
        """Carry out a command and record it.

        Args:
            user_command: the command.
            event: the event of the command.

        Raises:
            SparkDLError: the reason for which the command is refused; nothing has changed then.
        """
        command = user_command.command
        if command.action not in ACTIONS:
            raise ControlError(f"{command.action!r} is not a command of this version of sparkdl.")
        if self._stops.run and command.action != "cancel":
            raise ControlError(f"the run is being stopped: {self._stops.run[1]}.")
        match command.action:
            case "enqueue":
                event = self._enqueue(user_command, event)
            case "cancel":
                self._cancel(user_command, command.arguments.get("trial"))
            case "set":
                self._set(command.arguments)
            case "pause":
                self.is_paused = True
                self._submitted.recall(0)
            case "unpause":
                self.is_paused = False
        if event.number is None:  # `enqueue` writes the event together with its trials.
            self._opened.record(event)
        if user_command.id is not None:
            self._say(f"{user_command.by}: {command}")

    def _cancel(self, user_command: GivenCommand, number: int | None) -> None:
        if number is None:
            by = "" if user_command.id is None else f" by {user_command.by}"
            self._stops.end_run(RunState.CANCELLED, f"cancelled{by}")
            return
        trials = self._run.trials
        if not isinstance(number, int) or not 0 <= number < len(trials):
            raise ControlError(f"there is no trial {number!r}, but 0 to {len(trials) - 1}.")
        # A command of this process was given before the trial has ended.
        if trials[number].state.is_final and user_command.id is not None:
            raise ControlError(f"trial {number} has ended, {trials[number].state}.")
        self._stops.cancelled.add(number)

    # ---- limits

    def _set(self, changes: Mapping[str, Any]) -> None:
        """Change limits: all of them, or none if one is invalid."""
        if unknown := changes.keys() - set(SETTINGS):
            raise ControlError(f"{', '.join(unknown)} cannot be set; {', '.join(SETTINGS)} can.")
        search_changes = {n: value for n, value in changes.items() if n in ("num_trials", "stop")}
        search = self._changed_search(search_changes)
        options = self._changed_options(changes)
        if search is not None:
            names = [name or "value" for name in self._request.metrics]
            search.check(names, options.timeout_s, self._opened.secrets)
        self._options, self._search = options, search
        if "num_trials" in changes:
            self._source.limit(changes["num_trials"])
        if "parallelism" in changes:
            self._concurrency.change(changes["parallelism"], ahead=search is None)
            self._submitted.recall(self._concurrency.limit)
        reached = self._rules.change(options, search, self._run.trials)
        if "stop" in changes and reached:
            self._stops.end_run(*reached)

    def _changed_search(self, changes: Mapping[str, Any]) -> SearchSettings | None:
        if not changes or self._search is None:
            if changes:
                raise ControlError(
                    f"only a search has {' and '.join(changes)}, and the run is a "
                    f"{self._run.kind}. enqueue() adds a trial."
                )
            return self._search
        num_trials, num_now = changes.get("num_trials"), self._run.num_configurations
        if num_trials is not None and check_count("num_trials", num_trials) < num_now:
            raise ControlError(
                f"num_trials={num_trials} is below {num_now}, the number of configurations that "
                "the search has already. cancel() ends trials."
            )
        return replace(self._search, **changes)

    def _changed_options(self, changes: Mapping[str, Any]) -> Options:
        names = ("parallelism", "timeout_s")
        values = {name: changes[name] for name in names if name in changes}
        Options.parse(values)  # Validates them.
        elapsed_s = self._elapsed_s()
        if values.get("timeout_s", elapsed_s) < elapsed_s:
            raise ControlError(
                f"timeout_s={values['timeout_s']:g} is over: the first trial started "
                f"{elapsed_s:.0f} s ago. cancel() ends the run."
            )
        return replace(self._options, **values)

    # ---- trials

    def _enqueue(self, user_command: GivenCommand, event: CommandHandled) -> CommandHandled:
        """Add a trial, and return the event, which was recorded together with the trial."""
        params = user_command.command.arguments.get("params")
        if not isinstance(params, dict):
            raise ControlError("the command has no params.")
        try:
            check_no_credentials(params, self._opened.secrets)
        except ControlError:
            if user_command.id is not None:  # The journal has the command with masked values.
                with suppress(OSError):
                    storage.remove(command_url(self._opened.paths, user_command.id))
            raise
        if self._search is None:
            self._check_launch(params)
            number = len(self._run.trials)
            event = replace(event, number=number)
            self._waiting.extend(self._opened.add_repeats(params, number, also=[event]))
            return event
        self._search.check_params(params)
        try:
            trials, event = self._source.enqueue(params, event)
        except (RequestRefused, ValueError) as exc:
            raise ControlError(str(exc)) from exc
        self._waiting.extend(trials)
        return event

    def _check_launch(self, params: Mapping[str, Any]) -> None:
        """Validate the parameters of a trial that is added to a launch.

        Raises:
            ControlError, FunctionError: if the run cannot have the trial.
        """
        if self._run.is_distributed:
            raise ControlError(f"the run is a {self._run.kind}, which is one trial.")
        if self._request.train is not None:
            check_call(self._request.train, params, "params")
            return
        # Of the function of a resumed run, only what its trials call is known.
        names_of_run = list(
            dict.fromkeys(name for trial in self._run.trials for name in trial.params)
        )
        for name in params:
            if name not in names_of_run:
                raise ControlError(
                    f"params contains {name!r}, which no trial of the run has; they have "
                    f"{', '.join(names_of_run) or 'no parameters'}.{suggest(name, names_of_run)}"
                )
