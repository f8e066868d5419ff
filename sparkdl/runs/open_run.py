"""Runs on the driver. A run that this driver owns and may write to."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from sparkdl.files.layout import RunPaths
from sparkdl.runs.events import (
    CommandHandled,
    Event,
    NewTrial,
    ParameterSuggested,
    RunEnded,
    TrialChanged,
    TrialsAdded,
)
from sparkdl.runs.ids_and_seeds import trial_seed
from sparkdl.runs.journal import Journal
from sparkdl.runs.large_outputs import without_large_outputs
from sparkdl.runs.owner import Owner
from sparkdl.runs.run import Run
from sparkdl.runs.states import RunState
from sparkdl.runs.summary import write_summary
from sparkdl.runs.trial import Trial
from sparkdl.secrets.masks import mask_params, mask_text

_logger = logging.getLogger("sparkdl.runs")


@dataclass(frozen=True, kw_only=True)
class OpenRun:
    """A run that this driver owns and may write to.

    Attributes:
        run: the run.
        paths: the files of the run.
        journal: the journal of the run.
        owner: the ownership of the run by this process.
        seed: the seed of the run.
        finished_before: True if the run was COMPLETE already and there is nothing to do.
        secrets: values that must not be stored.
        earlier: the events of earlier drivers, without the reports to the study.
    """

    run: Run
    paths: RunPaths
    journal: Journal
    owner: Owner
    seed: int
    finished_before: bool
    secrets: tuple[str, ...] = ()
    earlier: Sequence[Event] = ()

    def record(self, *events: Event) -> None:
        """Write events to the journal, and update the run with them.

        A store that fails now does not matter, see `Journal`.
        """
        events = tuple(self._masked(event) for event in events)
        small = [
            without_large_outputs(event, self.paths.trial(event.number))
            if isinstance(event, TrialChanged)
            else event
            for event in events
        ]
        for event, line in zip(events, self.journal.write(small), strict=True):
            self.run.apply(replace(event, time=line.time))

    def _masked(self, event: Event) -> Event:
        """Return the event with credentials masked in the texts of exceptions."""
        if isinstance(event, TrialChanged) and event.error:
            return replace(event, error=mask_text(event.error, self.secrets))
        if isinstance(event, RunEnded) and event.reason:
            return replace(event, reason=mask_text(event.reason, self.secrets))
        if isinstance(event, CommandHandled):
            refused = event.refused and mask_text(event.refused, self.secrets)
            arguments = mask_params(event.arguments, self.secrets)
            return replace(event, arguments=arguments, refused=refused)
        return event

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Mark the run FAILED and release it if the block, which prepares the run, raises."""
        try:
            yield
        except BaseException as exc:
            reason = f"{type(exc).__name__}: {exc}".split("\n")[0]
            self.close(RunEnded(state=RunState.FAILED, reason=reason))
            raise

    def close(self, end: RunEnded) -> None:
        """Record the end of the run, write its summary, and give up its ownership.

        Each of these is tried whatever becomes of the others. A driver whose run another driver has
        taken over writes nothing.
        """
        try:
            self.record(end)
            self.journal.close()
        finally:
            try:
                if not self.owner.is_taken_over:
                    write_summary(self.run)
            except OSError as exc:
                _logger.warning("the summary of run %s could not be written: %s", self.run.id, exc)
            finally:
                self.owner.release()

    def add(
        self,
        params: dict[str, Any],
        configuration: int,
        suggested: Mapping[str, tuple[Any, str]] = MappingProxyType({}),
    ) -> Trial:
        """Add a trial to the run, see `add_repeats`."""
        return self.add_repeats(params, configuration, suggested)[0]

    def add_interval(
        self, params: dict[str, Any], member: int, parent: int | None, seed: int | None = None
    ) -> Trial:
        """Add a trial that continues another one to the run.

        Args:
            params: the parameters of the trial.
            member: the member of the population that it trains.
            parent: the number of the trial from whose checkpoint it begins.
            seed: its seed; by default, that of its number.
        """
        number = len(self.run.trials)
        new = NewTrial(
            number=number,
            params=mask_params(params, self.secrets),
            seed=trial_seed(self.seed, number) if seed is None else seed,
            member=member,
            parent=parent,
        )
        self.record(TrialsAdded(trials=[new]))
        return self.run.trials[number]

    def add_repeats(
        self,
        params: dict[str, Any],
        configuration: int,
        suggested: Mapping[str, tuple[Any, str]] = MappingProxyType({}),
        count: int = 1,
        also: Sequence[Event] = (),
    ) -> list[Trial]:
        """Add trials with the same parameters to the run.

        Args:
            params: the parameters of the trials.
            configuration: the number of their configuration.
            suggested: the value and the distribution of each parameter that a function suggested,
                see `ParameterSuggested`.
            count: the number of trials.
            also: further events. All events are written together.
        """
        first = len(self.run.trials)
        numbers = range(first, first + count)
        new = [
            NewTrial(
                number=number,
                params=mask_params(params, self.secrets),
                seed=trial_seed(self.seed, number),
                configuration=configuration,
            )
            for number in numbers
        ]
        suggestions = [
            ParameterSuggested(number=number, name=name, value=value, distribution=distribution)
            for number in numbers
            for name, (value, distribution) in suggested.items()
        ]
        self.record(TrialsAdded(trials=new), *suggestions, *also)
        return self.run.trials[first:]
