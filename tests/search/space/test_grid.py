"""Combining lists of values into the parameters of trials."""

from typing import Any

import numpy as np
import pytest

from sparkdl.errors import ConfigError, FunctionError
from sparkdl.runner.signatures import check_call
from sparkdl.search.space.dimensions import Float
from sparkdl.search.space.grid import combine_values


def test_combine_values_product_and_zip() -> None:
    values = {"a": [1, 2, 3], "b": ["x", "y"]}
    assert len(combine_values(values)) == 6
    assert combine_values({"a": [1, 2], "b": [3, 4]}, "zip") == [{"a": 1, "b": 3}, {"a": 2, "b": 4}]
    assert combine_values(None) == combine_values({}) == [{}]


def test_combine_values_keeps_types_and_converts_numpy_scalars() -> None:
    values = [1, 1.5, "a/b", True, None, [1, 2], (3, 4), {"k": [1]}, np.float64(0.5), np.int32(7)]
    got = [params["v"] for params in combine_values({"v": values})]
    assert got == [1, 1.5, "a/b", True, None, [1, 2], (3, 4), {"k": [1]}, 0.5, 7]
    assert [type(v) for v in got[-2:]] == [float, int]
    assert combine_values({"v": np.array([0.5, 1.0])}) == [{"v": 0.5}, {"v": 1.0}]


def test_combine_values_keeps_duplicates() -> None:
    assert combine_values({"v": [1, 1]}) == [{"v": 1}, {"v": 1}]


@pytest.mark.parametrize(
    ("values", "combine", "message"),
    [
        ({"lr": []}, "product", r"args\['lr'\] is empty"),
        ({"lr": 0.1}, "product", r"Write \[0.1\]"),
        ({"lr": "adam"}, "product", r"Write \['adam'\]"),
        ({"lr": {0.1, 0.2}}, "product", r"expected a list of values\. Pass list\(\.\.\.\) of it"),
        ({"lr": (x for x in [0.1])}, "product", r"generator; .* Pass list\(\.\.\.\) of it"),
        ({"lr": Float(0, 1)}, "product", r"Call experiment\.search to search over a range"),
        ({"a": [1], "b": [1, 2]}, "zip", r"\{'a': 1, 'b': 2\}"),
        ([1, 2], "product", "expected a dict of lists"),
        ({"a": [1]}, "random", "combine is 'random'"),
        ({"a": [object()]}, "product", "look the name up"),
        ({"learning rate": [1]}, "product", "'learning rate' is not a parameter name"),
    ],
)
def test_invalid_values_name_the_parameter_and_the_fix(
    values: Any, combine: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        combine_values(values, combine)


def test_check_call_validates_the_names_of_parameters() -> None:
    def train(learning_rate: float, *, dropout: float = 0.5) -> None: ...

    check_call(train, ["learning_rate"])
    check_call(lambda **kwargs: 0, ["anything"])
    check_call(max, ["anything"])
    with pytest.raises(FunctionError, match=r"'learnin_rate'.*Did you mean 'learning_rate'"):
        check_call(train, ["learnin_rate"])
    with pytest.raises(FunctionError, match="needs 'learning_rate'"):
        check_call(train, ["dropout"])
    with pytest.raises(FunctionError, match="expected a function"):
        check_call(3, [])  # type: ignore[arg-type]
