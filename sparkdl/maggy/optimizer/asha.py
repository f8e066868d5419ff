"""Runs on the driver. Asynchronous successive halving with a budget, as maggy has it."""

from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.maggy.optimizer.optimizers import AbstractOptimizer
from sparkdl.maggy.searchspace import Searchspace, dimensions_of
from sparkdl.search.space.dimensions import Int

__all__ = ["BUDGET", "Asha"]

BUDGET = "budget"


class Asha(AbstractOptimizer):
    """Trials with a small budget, the best of which run again with a larger one.

    A trial gets its budget, such as the number of epochs, as the hyperparameter `budget`: first
    `resource_min`, then `resource_min * reduction_factor` and so on, up to `resource_max`. The
    search ends with the first trial of the largest budget.

    Args:
        reduction_factor: one of this number of trials gets the next budget.
        resource_min: the smallest budget.
        resource_max: the largest budget.

    Raises:
        ConfigError: if an argument is invalid.

    Example:
        >>> Asha(reduction_factor=3, resource_min=1, resource_max=10).budgets
        [1, 3, 9]
    """

    algorithm = "asha"

    def __init__(
        self, reduction_factor: int = 2, resource_min: int = 1, resource_max: int = 4
    ) -> None:
        super().__init__()
        least = {"reduction_factor": 2, "resource_min": 1, "resource_max": 2}
        given = dict(zip(least, (reduction_factor, resource_min, resource_max), strict=True))
        for name, value in given.items():
            if not isinstance(value, int) or value < least[name]:
                raise ConfigError(
                    f"{name} of Asha is {value!r}; expected a whole number of at least "
                    f"{least[name]}."
                )
        if resource_min >= resource_max:
            raise ConfigError(
                f"resource_min of Asha is {resource_min}, and resource_max {resource_max}; "
                "expected a larger resource_max."
            )
        self.reduction_factor = reduction_factor
        self.resource_min = resource_min
        self.resource_max = resource_max

    @property
    def budgets(self) -> list[int]:
        """The budgets, smallest first."""
        budgets = [self.resource_min]
        while (budget := budgets[-1] * self.reduction_factor) <= self.resource_max:
            budgets.append(budget)
        return budgets

    def search(self, space: Searchspace, num_trials: int) -> dict[str, Any]:
        """See `AbstractOptimizer`; `num_trials` is that of the smallest budget, at most."""
        # A search without Optuna does not wait for its import.
        from sparkdl.maggy.optimizer.asha_sampler import AshaSampler

        least = self.reduction_factor ** (len(self.budgets) - 1)
        if num_trials < least:
            raise ConfigError(
                f"num_trials is {num_trials}; expected at least {least}, of which one gets the "
                f"largest of the budgets {self.budgets}."
            )
        if BUDGET in space:
            raise ConfigError(
                f"the search space has {BUDGET!r}, which optimizer='asha' gives its trials. Rename "
                "it."
            )
        counts = [num_trials // self.reduction_factor**i for i in range(len(self.budgets))]
        return {
            "space": {**dimensions_of(space), BUDGET: Int(self.budgets[0], self.budgets[-1])},
            "algorithm": AshaSampler(self.budgets, self.reduction_factor),
            "num_trials": sum(counts),
        }
