"""Runs on the driver (pure). Differential evolution: propose individuals, select the better ones.

An individual is a list of numbers, one for each parameter: a value within the bounds, or for two
categories the index of one of them.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.search.space.dimensions import Categorical, Dimension, Float, Int

__all__ = ["Evolution", "check_bounds", "dimensions_of"]

Individual = list[float]
Params = dict[str, Any]
# Takes the parameters of the individuals of a generation, and returns a score for each.
Evaluate = Callable[[list[Params]], Sequence[float]]


def check_bounds(boundary_dict: Mapping[str, Any]) -> None:
    """Validate that there are parameters, and that each has two bounds.

    Raises:
        ConfigError: if there is no parameter, or if one has not exactly two bounds.
    """
    if not isinstance(boundary_dict, Mapping) or not boundary_dict:
        raise ConfigError(
            f"boundary_dict is {boundary_dict!r}; expected a dict with a lower and an upper bound "
            'for each parameter, such as {"dropout": [0.1, 0.9]}.'
        )
    for name, bounds in boundary_dict.items():
        if not isinstance(bounds, list | tuple) or len(bounds) != 2:
            raise ConfigError(
                f"boundary_dict[{name!r}] is {bounds!r}; expected exactly two values, the lower "
                "and the upper bound."
            )


def dimensions_of(boundary_dict: Mapping[str, Any]) -> dict[str, Dimension]:
    """Return the dimension of each parameter, by the type of its bounds.

    Two whole numbers are a range of whole numbers, two numbers a range of numbers, and any other
    two values are categories. Bounds in the wrong order are exchanged.

    Example:
        >>> bounds = {"kernel": [2, 8], "rate": [0.5, 0.1], "adam": [True, False]}
        >>> dimensions = dimensions_of(bounds)
        >>> [type(dimension).__name__ for dimension in dimensions.values()]
        ['Int', 'Float', 'Categorical']
    """
    check_bounds(boundary_dict)
    return {name: _dimension(*bounds) for name, bounds in boundary_dict.items()}


def _dimension(first: Any, second: Any) -> Dimension:
    numbers = [isinstance(v, int | float) and not isinstance(v, bool) for v in (first, second)]
    if first == second:
        return Categorical([first])
    if not all(numbers):
        return Categorical([first, second])
    low, high = sorted((first, second))
    is_whole = isinstance(first, int) and isinstance(second, int)
    return Int(low, high) if is_whole else Float(float(low), float(high))


class Evolution:
    """A population that improves from generation to generation.

    Args:
        dimensions: the dimension of each parameter.
        population: number of individuals, at least 4.
        mutation: factor of the difference of two individuals that is added to a third one.
        crossover: probability with which a parameter comes from the mutated individual.
        is_max: True if larger scores are better.
        seed: seed of the random numbers; None for a random one.

    Raises:
        ConfigError: if the population is too small.

    Example:
        >>> evolution = Evolution({"x": Float(-5.0, 5.0)}, population=8, is_max=False, seed=1)
        >>> scores = list(evolution.run(20, lambda rows: [row["x"] ** 2 for row in rows]))
        >>> min(scores[-1]) < 0.01
        True
    """

    def __init__(
        self,
        dimensions: Mapping[str, Dimension],
        population: int = 6,
        mutation: float = 0.5,
        crossover: float = 0.7,
        is_max: bool = True,
        seed: int | None = None,
    ) -> None:
        if population < 4:
            raise ConfigError(
                f"population is {population!r}; expected at least 4, because each new individual "
                "is made of three others."
            )
        self._dimensions = dimensions
        self._mutation = mutation
        self._crossover = crossover
        self._sign = 1.0 if is_max else -1.0
        self._random = random.Random(seed)
        self._population = [self._new() for _ in range(population)]

    def run(self, generations: int, evaluate: Evaluate) -> Iterator[list[float]]:
        """Evaluate the first population, and yield the scores of the population by generation.

        Args:
            generations: number of generations after the first population.
            evaluate: returns the score of each individual, NaN for one without a score.
        """
        scores = self._evaluate(self._population, evaluate)
        for _ in range(generations):
            rivals = [self._rival(number) for number in range(len(self._population))]
            for number, score in enumerate(self._evaluate(rivals, evaluate)):
                if score > scores[number]:
                    self._population[number] = rivals[number]
                    scores[number] = score
            yield [self._sign * score for score in scores]

    def _evaluate(self, individuals: list[Individual], evaluate: Evaluate) -> list[float]:
        """Return the scores, of which larger ones are better; the worst one for NaN."""
        scores = [self._sign * score for score in evaluate([self._params(i) for i in individuals])]
        return [score if score == score else float("-inf") for score in scores]

    def _new(self) -> Individual:
        return [
            self._within(dimension, self._random.uniform(*_bounds(dimension)))
            for dimension in self._dimensions.values()
        ]

    def _rival(self, number: int) -> Individual:
        """Return an individual that competes with the one of this number."""
        rivals = [one for i, one in enumerate(self._population) if i != number]
        first, second, third = self._random.sample(rivals, 3)
        rival = []
        for place, dimension in enumerate(self._dimensions.values()):
            mutated = first[place] + self._mutation * (second[place] - third[place])
            is_mutated = self._random.random() <= self._crossover
            value = self._population[number][place]
            rival.append(self._within(dimension, mutated) if is_mutated else value)
        return rival

    @staticmethod
    def _within(dimension: Dimension, value: float) -> float:
        low, high = _bounds(dimension)
        value = min(max(value, low), high)
        return float(round(value)) if isinstance(dimension, Int | Categorical) else value

    def _params(self, individual: Individual) -> Params:
        pairs = zip(self._dimensions.items(), individual, strict=True)
        return {name: _value(dimension, number) for (name, dimension), number in pairs}


def _bounds(dimension: Dimension) -> tuple[float, float]:
    if isinstance(dimension, Categorical):
        return 0.0, len(dimension.choices) - 1.0
    return float(dimension.low), float(dimension.high)


def _value(dimension: Dimension, number: float) -> Any:
    if isinstance(dimension, Categorical):
        return dimension.choices[round(number)]
    return round(number) if isinstance(dimension, Int) else number
