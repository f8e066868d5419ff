"""Runs on the driver. Run the generations of differential evolution as one search."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna

from sparkdl import experiment
from sparkdl.runs import Run
from sparkdl.search.space.spaces import Dimension, Space

__all__ = ["Generations"]


class Generations:
    """A search that is continued by one generation after the other.

    Parameters that an earlier individual had are not run again.

    Args:
        train: the training function.
        dimensions: the dimension of each parameter.
        options: the options of the search.
    """

    def __init__(
        self,
        train: Callable[..., Any],
        dimensions: Mapping[str, Dimension],
        options: Mapping[str, Any],
    ) -> None:
        self._train = train
        self._space = Space(dimensions)
        self._options = dict(options)
        self._numbers: dict[str, int] = {}
        self._run: Run | None = None

    @property
    def run(self) -> Run:
        """The run, after the first generation.

        Raises:
            ValueError: if no generation has run.
        """
        if self._run is None:
            raise ValueError("no generation has run yet")
        return self._run

    def scores(self, rows: Sequence[Mapping[str, Any]]) -> list[float]:
        """Run a generation, and return the value of each individual; NaN for one without a value.

        Args:
            rows: the parameters of each individual.
        """
        new = {key: dict(row) for row in rows if (key := json.dumps(row)) not in self._numbers}
        if new:
            self._numbers |= {key: len(self._numbers) + i for i, key in enumerate(new)}
            self._run = self._continue(list(new.values()))
        values = [self.run.trials[self._numbers[json.dumps(row)]].value for row in rows]
        return [float("nan") if value is None else value for value in values]

    def _continue(self, rows: list[dict[str, Any]]) -> Run:
        """Run the individuals that have not run yet."""
        more: dict[str, Any] = {
            "num_trials": len(self._numbers),
            "algorithm": _InOrder([self._space.sampled(row) for row in rows]),
        }
        if self._run is None:
            space = self._space.dimensions
            return experiment.search(self._train, space, **more, **self._options)
        return experiment.resume(self._run, train=self._train, **more)


class _InOrder(optuna.samplers.BaseSampler):
    """A sampler that gives each new trial the next one of a list of parameters."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = iter(rows)
        self._row_of_trial: dict[int, Mapping[str, Any]] = {}

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        return {}

    def sample_independent(self, study: Any, trial: Any, param_name: str, distribution: Any) -> Any:
        if trial.number not in self._row_of_trial:
            self._row_of_trial[trial.number] = next(self._rows)
        return self._row_of_trial[trial.number][param_name]
