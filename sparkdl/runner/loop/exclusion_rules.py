"""Runs on the driver (pure). Decide which executors get no more trials, as trials fail there.

An executor is suspected after a fault of its GPU, or after two failures in a row that are alike and
have happened on no other executor. The trial that raised the suspicion then runs once on another
executor. If it fails there alike, the function is at fault, and the executor is cleared; if it
passes, the executor is excluded, and the trials that failed there alike run again. As that trial
may take long, new trials avoid a suspected executor for a limited time only.
"""

import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum

from sparkdl.runs.states import Failure

# The first failure of its kind on an executor is kept back for this long: a second one may show
# that the executor is at fault, and then both trials run again.
HOLD_S = 60.0

# New trials avoid a suspected executor for this long, as Spark excludes one by default.
SUSPECT_S = 3600.0

# Kinds of failures for which an executor may be at fault. A trial that takes too long, or too much
# memory, would probably do so on any other executor.
_KINDS = (Failure.EXCEPTION, Failure.EXIT, Failure.SIGNAL, Failure.GPU)

_PLACE = re.compile(r'^\s*File "([^"]+)", line (\d+), in ', re.MULTILINE)


class Ruling(Enum):
    """The decision on a trial that has failed.

    CONCLUDE: the failure counts. HOLD: it is not known yet whether the failure counts. ELSEWHERE:
    the trial runs again on another executor.
    """

    CONCLUDE = "conclude"
    HOLD = "hold"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True)
class Excluded:
    """An executor that gets no more trials.

    Attributes:
        executor: its id.
        failure: the failure of its trials, see `signature_of`.
        trials: the numbers of the trials that failed on it, and run again.
    """

    executor: str
    failure: str
    trials: tuple[int, ...]


@dataclass
class _Suspicion:
    executor: str
    failure: str
    trials: list[int]
    until_s: float


def signature_of(failure: str | None, error: str | None) -> str | None:
    """Return the kind and the place of a failure; None if no executor may be at fault.

    Args:
        failure: the kind of the failure, see `sparkdl.runs.states.Failure`.
        error: the error with its traceback.

    Example:
        >>> trace = 'Traceback ...\\n  File "a.py", line 7, in train\\n    read()'
        >>> signature_of("exception", f"OSError: disk 3 is gone\\n\\n{trace}")
        'OSError at a.py:7'
        >>> signature_of("signal", "killed by SIGSEGV (this process used up to 31 MiB)")
        'killed by SIGSEGV'
        >>> signature_of("GPU fault", "InternalError: CUDA_ERROR_ECC_UNCORRECTABLE")
        'GPU fault'
    """
    if failure not in _KINDS:
        return None
    if failure == Failure.GPU:
        return str(Failure.GPU)
    error = error or ""
    first = error.partition("\n")[0]
    if failure != Failure.EXCEPTION:
        return first.partition(" (")[0]
    kind = first.partition(":")[0]
    places = _PLACE.findall(error)
    return f"{kind} at {places[-1][0]}:{places[-1][1]}" if places else kind


class Exclusion:
    """The executors that get no more trials, and those that are suspected.

    A trial runs again at most once because of an executor. The last executor is never suspected.

    Args:
        executor_ids: returns the ids of the executors that the application has now.
        is_needed: returns True if a certain executor must stay, whatever happens on it.
        clock: returns seconds that never go back.
        suspect_s: seconds for which new trials avoid a suspected executor.

    Attributes:
        excluded: the executors that get no more trials, in the order of the decisions.

    Example:
        >>> exclusion = Exclusion(lambda: {"1", "2", "3"})
        >>> exclusion.failed(0, "1", "GPU fault")
        <Ruling.ELSEWHERE: 'elsewhere'>
        >>> exclusion.note_success(0, "2")
        >>> exclusion.excluded
        [Excluded(executor='1', failure='GPU fault', trials=(0,))]
    """

    def __init__(
        self,
        executor_ids: Callable[[], Collection[str]],
        is_needed: Callable[[str], bool] = lambda executor: False,
        clock: Callable[[], float] = time.monotonic,
        suspect_s: float = SUSPECT_S,
    ) -> None:
        self._executor_ids = executor_ids
        self._is_needed = is_needed
        self._clock = clock
        self._suspect_s = suspect_s
        # The executors on which each kind of failure has happened.
        self._failed_executors: dict[str, set[str]] = defaultdict(set)
        # The kind of the last failure of each executor, until a trial passes there.
        self._last: dict[str, str] = {}
        self._suspicions: dict[int, _Suspicion] = {}
        self._held_attempts: dict[int, tuple[str, str, float]] = {}
        self._decided: dict[int, bool] = {}
        self._repeated_trials: set[int] = set()
        self.excluded: list[Excluded] = []

    @property
    def avoided(self) -> tuple[str, ...]:
        """The ids of the executors that new trials do not run on."""
        return self._blamed_at(self._clock())

    @property
    def blamed(self) -> tuple[str, ...]:
        """The ids of the executors that are excluded or suspected."""
        return self._blamed_at(-math.inf)

    def _blamed_at(self, now_s: float) -> tuple[str, ...]:
        suspected = (s.executor for s in self._suspicions.values() if now_s < s.until_s)
        return tuple(dict.fromkeys([*(e.executor for e in self.excluded), *suspected]))

    def note_success(self, number: int, executor: str) -> None:
        """Note that a trial has ended without a failure."""
        if suspicion := self._suspicions.pop(number, None):
            if executor == suspicion.executor:
                self._clear(suspicion)
            else:
                self._confirm(suspicion)
        self._last.pop(executor, None)
        self._release(lambda place, _: place == executor)

    def failed(self, number: int, executor: str, failure: str) -> Ruling:
        """Decide on a trial that has failed.

        Args:
            number: the number of the trial.
            executor: the id of its executor.
            failure: see `signature_of`.
        """
        if suspicion := self._suspicions.pop(number, None):
            other = failure != suspicion.failure and executor != suspicion.executor
            if other and suspicion.failure == Failure.GPU:
                self._confirm(suspicion)
            else:
                self._clear(suspicion)
        self._failed_executors[failure].add(executor)
        # What has happened on an executor that is known to be at fault says nothing about others.
        if (
            self._failed_executors[failure]
            - {known.executor for known in self.excluded}
            - {executor}
        ):
            self._blame_function(failure)
            return Ruling.CONCLUDE
        return self._judge(number, executor, failure)

    def _judge(self, number: int, executor: str, failure: str) -> Ruling:
        """Decide on a failure that has happened on one executor only."""
        before, self._last[executor] = self._last.get(executor), failure
        if number in self._repeated_trials:
            return Ruling.CONCLUDE
        for known in self.excluded:
            if (known.executor, known.failure) == (executor, failure):
                self._repeated_trials.add(number)
                return Ruling.ELSEWHERE
        if executor in self.blamed:
            suspected = [s for s in self._suspicions.values() if s.executor == executor]
            if not any(s.failure == failure for s in suspected):
                return Ruling.CONCLUDE
            self._hold(number, executor, failure)
            return Ruling.HOLD
        others = {*self._executor_ids()} - {executor, *self.blamed}
        if not others or self._is_needed(executor):
            return Ruling.CONCLUDE
        if failure == Failure.GPU or before == failure:
            until_s = self._clock() + self._suspect_s
            self._suspicions[number] = _Suspicion(executor, failure, [number], until_s)
            self._repeated_trials.add(number)
            return Ruling.ELSEWHERE
        self._release(lambda place, _: place == executor)
        self._hold(number, executor, failure)
        return Ruling.HOLD

    def _hold(self, number: int, executor: str, failure: str) -> None:
        self._held_attempts[number] = executor, failure, self._clock() + HOLD_S

    def abandon(self, number: int) -> None:
        """Forget what waits for a trial, or for its failure to count, as the trial was ended."""
        self._held_attempts.pop(number, None)
        if suspicion := self._suspicions.pop(number, None):
            self._clear(suspicion)

    def take_decisions(self, is_last: bool = False) -> dict[int, bool]:
        """Return the held trials on which a decision was taken since the last call.

        Args:
            is_last: no other trial runs or waits, so that nothing more will be learnt.

        Returns:
            The number of each trial, with True if it runs again on another executor, and False if
            its failure counts.
        """
        suspected = {(s.executor, s.failure) for s in self._suspicions.values()}
        for number, (executor, failure, until_s) in list(self._held_attempts.items()):
            is_over = is_last or self._clock() >= until_s
            if is_over and (executor, failure) not in suspected:
                self._decide(number, False)
        take_decisions, self._decided = self._decided, {}
        return take_decisions

    def _decide(self, number: int, runs_again: bool) -> None:
        del self._held_attempts[number]
        self._decided[number] = runs_again
        if runs_again:
            self._repeated_trials.add(number)

    def _release(self, is_meant: Callable[[str, str], bool]) -> None:
        """Let the failures of held trials count, unless a suspicion is about them."""
        suspected = {(s.executor, s.failure) for s in self._suspicions.values()}
        for number, (executor, failure, _) in list(self._held_attempts.items()):
            if is_meant(executor, failure) and (executor, failure) not in suspected:
                self._decide(number, False)

    def _blame_function(self, failure: str) -> None:
        """Clear all executors of a failure that has happened on two of them."""
        for number, suspicion in list(self._suspicions.items()):
            if suspicion.failure == failure:
                del self._suspicions[number]
        self._release(lambda _, kind: kind == failure)

    def _clear(self, suspicion: _Suspicion) -> None:
        self._last.pop(suspicion.executor, None)
        meant = suspicion.executor, suspicion.failure
        self._release(lambda *held: held == meant)

    def _confirm(self, suspicion: _Suspicion) -> None:
        meant = suspicion.executor, suspicion.failure
        numbers = [number for number, held in self._held_attempts.items() if held[:2] == meant]
        for number in numbers:
            self._decide(number, True)
        trials = tuple(sorted([*numbers, *suspicion.trials]))
        self.excluded.append(Excluded(suspicion.executor, suspicion.failure, trials))
