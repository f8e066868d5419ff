"""maggy's search space: what it takes, what it refuses, and the dimensions it stands for."""

import json
from typing import Any

import pytest

from sparkdl.maggy import Searchspace
from sparkdl.maggy.searchspace import dimensions_of

PARAMS: dict[str, Any] = {
    "rate": ("DOUBLE", [0, 2]),
    "kernel": ("integer", [2, 8]),
    "batch": ("DISCRETE", [16, 32]),
    "optimizer": ("CATEGORICAL", ["adam", "sgd", "rmsprop"]),
}


def test_a_space_tells_names_types_and_values() -> None:
    space = Searchspace(**PARAMS)
    types = {"rate": "DOUBLE", "kernel": "INTEGER", "batch": "DISCRETE"}
    assert space.names() == {**types, "optimizer": "CATEGORICAL"}
    assert space.kernel == space.get("kernel") == [2, 8]  # type: ignore[attr-defined]
    assert (space.get("pool"), space.get("pool", 3)) == (None, 3)
    assert space.keys() == [*PARAMS]
    assert space.values()[0] == ("DOUBLE", [0, 2])
    assert [item["name"] for item in space] == [item["name"] for item in space.items()]
    assert next(iter(space)) == {"name": "rate", "type": "DOUBLE", "values": [0, 2]}
    assert "rate" in space
    assert "pool" not in space
    assert Searchspace(**space.to_dict()).to_dict() == space.to_dict()
    assert json.loads(str(space)) == json.loads(space.json())
    assert json.loads(str(space))["kernel"] == ["INTEGER", [2, 8]]


def test_a_space_stands_for_dimensions() -> None:
    found = {name: dim.to_dict() for name, dim in dimensions_of(Searchspace(**PARAMS)).items()}
    assert found == {
        "rate": {"type": "Float", "low": 0.0, "high": 2.0},
        "kernel": {"type": "Int", "low": 2, "high": 8},
        "batch": {"type": "Categorical", "choices": [16, 32]},
        "optimizer": {"type": "Categorical", "choices": ["adam", "sgd", "rmsprop"]},
    }
    for row in Searchspace(**PARAMS).get_random_parameter_values(20):
        assert 0 <= row["rate"] <= 2
        assert row["kernel"] in range(2, 9)
        assert row["batch"] in (16, 32)


def test_values_become_numbers_and_back() -> None:
    space = Searchspace(**{name: PARAMS[name] for name in ("rate", "kernel", "optimizer")})
    values = [0.5, 5, "sgd"]
    assert space.transform(values) == [0.25, 0.5, 1]
    assert space.transform(values, normalize_categorical=True) == [0.25, 0.5, 0.5]
    assert space.inverse_transform([0.25, 0.5, 1]) == values
    assert space.inverse_transform([0.25, 0.5, 0.5], normalize_categorical=True) == values
    assert space.list_to_dict(values) == {"rate": 0.5, "kernel": 5, "optimizer": "sgd"}
    assert space.dict_to_list({"rate": 0.5}) == [0.5]
    with pytest.raises(ValueError, match="expected one for each of rate, kernel"):
        space.list_to_dict([1])
    with pytest.raises(NotImplementedError, match="a hyperparameter is DISCRETE"):
        Searchspace(batch=PARAMS["batch"]).transform([16])


@pytest.mark.parametrize(
    ("name", "value", "kind", "message"),
    [
        ("kernel", ("INTEGER", [1, 2]), ValueError, "Hyperparameter name is reserved: kernel"),
        ("get", ("INTEGER", [1, 2]), ValueError, "Hyperparameter name is reserved: get"),
        ("x", ("DOUBLE", [1, 5], "more"), ValueError, "has to be of length two"),
        ("x", ("FLOAT", [1, 5]), ValueError, "Hyperparameter type is not of type DOUBLE"),
        ("x", ("DOUBLE", []), ValueError, "feasible region list cannot be empty"),
        ("x", ("DOUBLE", [1, 5, 5]), AssertionError, "For DOUBLE or INTEGER type"),
        ("x", ("INTEGER", [4, 1]), AssertionError, "Lower bound 4 must be less"),
        ("x", ("INTEGER", [1.5, 5]), ValueError, "type INTEGER need to be integer:"),
        ("x", ("DOUBLE", ["low", 5]), ValueError, "type DOUBLE need to be integer or float:"),
        ("x", 5, ValueError, "Value is not an appropriate tuple: x is 5"),
    ],
)
def test_a_hyperparameter_that_is_invalid(
    name: str, value: Any, kind: type[Exception], message: str
) -> None:
    space = Searchspace(kernel=("INTEGER", [2, 8]))
    with pytest.raises(kind, match=message):
        space.add(name, value)
    assert space.keys() == ["kernel"]
