"""Runs in the training process. Passes over the rows of a rank that can begin in the middle.

A pass is one epoch. It begins with its first row, or, after a restart, where the steps of all ranks
have ended.
"""

import functools
import hashlib
import json
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from sparkdl import context
from sparkdl.context import Context
from sparkdl.data.data_state import DataState, Round
from sparkdl.data.pass_numbers import PassNumbers
from sparkdl.distribute.world import ring
from sparkdl.errors import ConfigError


class StatefulPasses(ABC):
    """The passes of one rank, one after the other, and the place in them as a state.

    Args:
        me: the context of the rank.
        batch_size: number of rows in a batch of each rank.
        max_steps: maximum number of batches in a pass; None for no maximum.
        window_rows: number of rows that are shuffled together; None keeps the order.

    Attributes:
        numbers: counts the passes.
        is_known: the order of the rows of a pass is known, so that a pass has a state.
    """

    is_known = True

    def __init__(
        self, me: Context, batch_size: int, max_steps: int | None, window_rows: int | None
    ) -> None:
        self.numbers = PassNumbers()
        self._me = me
        self._number, self._count = me.reading
        self._batch_size = batch_size
        self._max_steps = max_steps
        self._window_rows = window_rows
        self._seed = me.data_seed
        self._resumed: DataState | None = None

    @property
    def _reading(self) -> tuple[int, int]:
        """This rank's number among those that divide the rows of the next pass, and their count.

        In a gang that grows, that may differ from one pass to the next.
        """
        if not self._me.grows:
            return self._number, self._count
        ring()  # The ranks that are present are known when they have met.
        return context.current().reading

    @property
    def _rank(self) -> int:
        return self._reading[0]

    @property
    def _ranks(self) -> int:
        return self._reading[1]

    @abstractmethod
    def prepare(self) -> None:
        """Let the order of the rows of all further passes be known; all ranks call it."""

    @abstractmethod
    def _num_batches(self, state: DataState | None) -> int:
        """Return the number of batches of a whole pass, or of what the steps of a state leave."""

    @property
    @abstractmethod
    def _order_terms(self) -> list[Any]:
        """The terms that must be the same when a pass goes on, in JSON form."""

    @property
    @abstractmethod
    def _must_stay(self) -> str:
        """The subject of `_order_terms`, in words."""

    @functools.cached_property
    def _order_digest(self) -> str:
        """A digest of `_order_terms`, followed by one of NumPy's orders if rows are shuffled."""
        terms = _digest(json.dumps(self._order_terms).encode())
        return terms if self._window_rows is None else f"{terms}-{_digest(_random_orders())}"

    @property
    def _start(self) -> str:
        """The name of this start of the training, where rows arrive in another order in each."""
        return ""

    @property
    def steps_per_pass(self) -> int:
        """The number of batches of a whole pass."""
        steps = self._num_batches(None)
        return steps if self._max_steps is None else min(steps, self._max_steps)

    def num_steps(self, epoch: int | None = None) -> int:
        """Return the number of batches that this process reads in a pass.

        Args:
            epoch: number of the pass; by default the next one.
        """
        state = self._resumed_at(self.numbers.upcoming if epoch is None else epoch)
        if state is None:
            return self.steps_per_pass
        steps = self._num_batches(state)
        return steps if self._max_steps is None else min(steps, self._max_steps - state.steps)

    def steps_made(self, epoch: int) -> int:
        """Return the number of steps of a pass before the place where it goes on.

        Args:
            epoch: number of the pass.
        """
        state = self._resumed_at(epoch)
        return state.steps if state else 0

    def entropy(self, epoch: int) -> list[int]:
        """Return what the random numbers of a rank in a pass follow from.

        Args:
            epoch: number of the pass.
        """
        # The rest of a pass must not have the random numbers of its beginning again.
        return [self._seed, epoch, self._rank, *filter(None, [self.steps_made(epoch)])]

    def state(self, epoch: int, steps: int) -> DataState:
        """Return the state after some steps of a pass.

        Args:
            epoch: number of the pass.
            steps: number of batches that were used of those that this process has read.

        Raises:
            ConfigError: if the pass has fewer batches.
        """
        num_steps = self.num_steps(epoch)
        if not 0 <= steps <= num_steps:
            raise ConfigError(
                f"steps is {steps!r}; expected at most {num_steps}, the steps of epoch {epoch}."
            )
        order = self._order_digest
        if steps == num_steps:
            return DataState(epoch + 1, self._seed, order)
        state = self._resumed_at(epoch) or DataState(epoch, self._seed, order)
        return state.after(Round(self._ranks, self._batch_size, steps, self._start))

    def go_on(self, state: DataState) -> None:
        """Begin the next pass where the steps of a state have ended.

        Args:
            state: the state. If it leaves no batch of its epoch, the next epoch begins.

        Raises:
            ConfigError: if the state is that of other rows, or of rows in another order.
        """
        self._check_order(state.order)
        before = self._seed, self._resumed
        self._seed = state.seed
        self._resumed = state
        try:
            is_over = not self.num_steps(state.epoch)
        except BaseException:
            self._seed, self._resumed = before
            raise
        self.numbers.upcoming = state.epoch + is_over

    def begin_at(self, epoch: int) -> None:
        """Let the next pass be a whole one.

        Args:
            epoch: number of the pass.
        """
        self._resumed = None
        self.numbers.upcoming = epoch

    def _check_order(self, digest: str) -> None:
        (terms, _, orders), (own_terms, _, own_orders) = (
            each.partition("-") for each in (digest, self._order_digest)
        )
        if terms != own_terms:
            raise ConfigError(
                f"the state is that of other data: {self._must_stay} must be those with which the "
                "epoch began. Restore them, or begin the epoch anew, without the state."
            )
        if orders != own_orders:
            raise ConfigError(
                f"the epoch began with another version of NumPy than {np.__version__}, which "
                "shuffles rows into another order. Install that version, or begin the epoch anew, "
                "without the state."
            )

    def _resumed_at(self, number: int) -> DataState | None:
        state = self._resumed
        return state if state and state.rounds and state.epoch == number else None


def _random_orders() -> bytes:
    """Return orders that NumPy draws, which may change from one version to another (its NEP 19)."""
    random = np.random.default_rng([1, 2, 3])
    order = random.permutation(1000)
    random.shuffle(order[:500])
    return order.astype("<i8").tobytes()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
