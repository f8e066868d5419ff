"""Runs in the training process. The reducers of all optimizers of a model, as one.

A model such as a generative adversarial network has several optimizers, as attributes of its own.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sparkdl.distribute.gradient_reducer import Reducer

# The attribute in which an optimizer holds its reducer.
REDUCER = "_sparkdl_reducer"


def averaging_optimizers(model: Any) -> list[Any]:
    """Return the optimizers of a model that average gradients over ranks.

    Args:
        model: a model of keras or tf_keras; the optimizers may be attributes, or in lists and dicts
            that are attributes.
    """
    by_id: dict[int, Any] = {}
    for value in [getattr(model, "optimizer", None), *vars(model).values()]:
        values = list(value.values()) if isinstance(value, dict) else value
        for each in values if isinstance(values, list | tuple) else [values]:
            if isinstance(getattr(each, REDUCER, None), Reducer):
                by_id[id(each)] = each
    return list(by_id.values())


def joint_reducer(model: Any) -> "JointReducer | None":
    """Return the reducers of a model's optimizers as one; None if no optimizer averages."""
    reducers = [getattr(optimizer, REDUCER) for optimizer in averaging_optimizers(model)]
    return JointReducer(reducers) if reducers else None


class JointReducer:
    """The reducers of a model's optimizers. In a step, each of them votes on its own.

    Args:
        reducers: the reducers; they share a ring.

    Attributes:
        ring: the ring of all ranks.
    """

    def __init__(self, reducers: Sequence[Reducer]) -> None:
        self._reducers = reducers
        self.ring = reducers[0].ring

    @property
    def evaluates_together(self) -> bool:
        """Return True if an evaluation is one of the rows of all ranks."""
        return self._reducers[0].evaluates_together

    @property
    def can_admit(self) -> bool:
        """Return True if ranks can be admitted: not between the updates of one step."""
        return len(self._reducers) == 1

    @property
    def steps(self) -> int:
        """Return the number of steps that all ranks have made in this epoch."""
        return max(reducer.steps for reducer in self._reducers)

    @property
    def is_over(self) -> bool:
        """Return True if another rank has ended this epoch."""
        return any(reducer.is_over for reducer in self._reducers)

    def is_local(self, variable: Any) -> bool:
        """Return True if each rank keeps its own values of a variable."""
        return any(reducer.is_local(variable) for reducer in self._reducers)

    @contextlib.contextmanager
    def counting_steps(self, admit: Callable[[], None] | None = None) -> Iterator[None]:
        """Begin each update inside the block with a vote, see `Reducer.counting_steps`."""
        with contextlib.ExitStack() as stack:
            for reducer in self._reducers:
                stack.enter_context(reducer.counting_steps(admit))
            yield

    def begin_epoch(self) -> None:
        """Reset `steps` to 0."""
        for reducer in self._reducers:
            reducer.begin_epoch()

    def end_epoch(self) -> None:
        """Vote that this rank makes no further step, unless another rank has done so before."""
        # All ranks call the same collectives: one vote ends the epoch of all optimizers.
        if not self.is_over:
            self._reducers[0].end_epoch()
        for reducer in self._reducers:
            reducer.is_over = False

    def ring_error(self, exc: Exception) -> Exception | None:
        """Return the error that has broken the ring, see `Reducer.ring_error`."""
        return self._reducers[0].ring_error(exc)
