"""Runs anywhere. Call a model, of any framework, on arrays of any number of rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl.inference.tensor_spec import TensorSpec

Array = Any  # np.ndarray, whose first axis counts the rows, or `RaggedRows`.


@dataclass(frozen=True)
class TracedModel:
    """A model as one function of arrays.

    Attributes:
        outputs: the outputs of the model.
        function: takes one array per input and returns one array per output.
        num_rows: the number of rows that the function takes at once; None for any number.
        row_errors: the errors of a function that are due to the values of a row.
    """

    outputs: tuple[TensorSpec, ...]
    function: Callable[[Sequence[Array]], Sequence[Array]]
    num_rows: int | None = None
    row_errors: tuple[type[Exception], ...] = (ValueError,)

    def __call__(self, arrays: Sequence[Array]) -> dict[str, Array]:
        """Return the array of each output, by its name.

        Fewer rows than a model takes at once are filled up with the last one.

        Args:
            arrays: one array for each input, of at most `num_rows` rows.

        Raises:
            RuntimeError: if an output has another number of rows than the inputs.
        """
        rows = len(arrays[0])
        num_taken = self.num_rows or rows
        if num_taken > rows:
            arrays = [np.concatenate([a, np.repeat(a[-1:], num_taken - rows, 0)]) for a in arrays]
        pairs = zip(self.outputs, self.function(arrays), strict=True)
        outputs = {spec.name: output for spec, output in pairs}
        for name, output in outputs.items():
            if len(output) != num_taken:
                raise RuntimeError(
                    f"the model's output {name!r} has {len(output)} rows for {num_taken} rows "
                    "of input; expected one row of output for each row of input."
                )
        if num_taken > rows:
            outputs = {name: output[:rows] for name, output in outputs.items()}
        return outputs
