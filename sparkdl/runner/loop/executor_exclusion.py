"""Runs on the driver. Keep trials away from executors on which they fail, and record which."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sparkdl.cluster.base import Cluster
from sparkdl.cluster.spark_settings import duration_s, excludes_executors
from sparkdl.runner.harmless import tolerated
from sparkdl.runner.loop.exclusion_rules import SUSPECT_S, Excluded, Exclusion, Ruling, signature_of
from sparkdl.runner.loop.submitted import SubmittedTrial
from sparkdl.runs.events import Event, ExecutorExcluded, TrialChanged
from sparkdl.runs.states import TrialState

_PASSED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.INVALID)


@dataclass(frozen=True)
class EndedAttempt:
    """The end of an attempt at a trial.

    Attributes:
        submitted: the trial as it was handed to Spark.
        event: the event for the journal, if the failure counts.
        failure: the kind of the failure, by which the user's budgets are counted.
    """

    submitted: SubmittedTrial
    event: TrialChanged
    failure: str


class ExecutorExclusion:
    """The executors of a run that are excluded or suspected, and the trials that wait for that.

    Nothing is excluded without `spark.excludeOnFailure.enabled`, nor in runs of gangs: Spark starts
    no barrier stage again, and the executors of ranks are not known.

    Args:
        cluster: the cluster.
        record: writes an event to the journal.
        say: shows a line to the user.
    """

    def __init__(
        self,
        cluster: Cluster,
        record: Callable[[Event], object],
        say: Callable[[str], None],
    ) -> None:
        self._is_on = excludes_executors(cluster.conf)
        self._cluster = cluster
        limit = cluster.conf("spark.excludeOnFailure.timeout") if self._is_on else None
        suspect_s = duration_s(limit) if limit else SUSPECT_S
        self._exclusion = Exclusion(self._present, self._is_needed, suspect_s=suspect_s)
        self._record = record
        self._say = say
        self._held_attempts: dict[int, EndedAttempt] = {}
        self._hosts: dict[str, str] = {}
        self._anywhere: set[int] = set()
        self._num_recorded = 0

    def __len__(self) -> int:
        """Return the number of trials whose failure may not count."""
        return len(self._held_attempts)

    def avoided(self, number: int) -> tuple[str, ...]:
        """Return the ids of the executors that must not run a trial."""
        return () if number in self._anywhere else self._exclusion.avoided

    def run_anywhere(self, number: int) -> bool:
        """Let a trial run on any executor, as Spark has no other one; return False if it may."""
        if number in self._anywhere:
            return False
        self._anywhere.add(number)
        self._exclusion.abandon(number)
        return True

    def _present(self) -> frozenset[str]:
        return self._cluster.executor_ids or frozenset()

    def _is_needed(self, executor: str) -> bool:
        """Return True if Spark might exclude the only host that is left.

        Spark excludes a host with two executors that are excluded
        (spark.excludeOnFailure.application.maxFailedExecutorsPerNode).
        """
        hosts = {self._hosts[other] for other in self._present() if other in self._hosts}
        avoided = {self._hosts[other] for other in self._exclusion.blamed}
        return self._hosts[executor] in avoided and hosts <= avoided

    def rule(self, attempt: EndedAttempt) -> Ruling:
        """Decide where the trial of an attempt that has ended may run, and record exclusions."""
        submitted, event = attempt.submitted, attempt.event
        number, executor = submitted.trial.number, submitted.executor
        if not self._is_on or executor is None:
            return Ruling.CONCLUDE
        self._hosts[executor] = submitted.host
        failure = signature_of(event.failure, event.error)
        ruling = Ruling.CONCLUDE
        if event.state in _PASSED:
            self._exclusion.note_success(number, executor)
        elif event.state == TrialState.FAILED and failure:
            ruling = self._exclusion.failed(number, executor, failure)
        else:  # It was cancelled or lost, or took too long, and shows nothing about executors.
            self._exclusion.abandon(number)
        self._record_exclusions()
        if ruling is Ruling.ELSEWHERE:
            where = f"executor {executor} on host {submitted.host}"
            self._say(f"[trial {number}] {failure} on {where}; it is run again on another one")
        return ruling

    def hold(self, attempt: EndedAttempt) -> None:
        """Keep an attempt until it is known whether its executor is at fault."""
        self._held_attempts[attempt.submitted.trial.number] = attempt

    def take_decided(
        self, numbers_to_end: Iterable[int], is_last: bool
    ) -> Iterator[tuple[EndedAttempt, Ruling]]:
        """Yield the held attempts on which a decision was taken, each once.

        Args:
            numbers_to_end: the numbers of the trials that were ordered to end.
            is_last: the run ends, or no other trial runs or may be started.
        """
        for number in numbers_to_end:
            self._exclusion.abandon(number)
            if attempt := self._held_attempts.pop(number, None):
                yield attempt, Ruling.CONCLUDE
        for number, runs_again in self._exclusion.take_decisions(is_last).items():
            if attempt := self._held_attempts.pop(number, None):
                yield attempt, Ruling.ELSEWHERE if runs_again else Ruling.CONCLUDE
        while is_last and self._held_attempts:
            yield self._held_attempts.popitem()[1], Ruling.CONCLUDE

    def _record_exclusions(self) -> None:
        for excluded in self._exclusion.excluded[self._num_recorded :]:
            self._num_recorded += 1
            event = self._event_of(excluded)
            with tolerated("record that an executor is excluded"):
                self._record(event)
            where = f"executor {event.executor} on host {event.host}"
            self._say(f"{where} gets no more trials: {event.reason}")

    def _event_of(self, excluded: Excluded) -> ExecutorExcluded:
        numbers = ", ".join(map(str, excluded.trials))
        trials = f"trial {numbers}" if len(excluded.trials) == 1 else f"trials {numbers}"
        reason = f"{excluded.failure} in {trials}, and not on another executor"
        return ExecutorExcluded(
            executor=excluded.executor,
            host=self._hosts[excluded.executor],
            reason=reason,
            trials=list(excluded.trials),
        )
