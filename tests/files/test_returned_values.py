"""Keep what a function has returned, and give it back; the verbs are in `tests/experiment`."""

import datetime
import enum
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparkdl.errors import NotKeptError
from sparkdl.files.returned_values import KeptValue, give_back, keep


class Level(enum.IntEnum):
    """An enum of the user's, which is a number."""

    HIGH = 3


def given_back(kept: KeptValue, folder: Path) -> Any:
    """Read a value as another process does."""
    return give_back(json.loads(json.dumps(kept.typed)), lambda path: str(folder / path))


@pytest.mark.parametrize(
    ("value", "outputs"),
    [
        (Level.HIGH, 3),
        (np.float32(0.5), 0.5),
        ((1, [2]), [1, [2]]),
        ({1: b"a"}, {"1": "YQ=="}),
        (np.ones((1, 2), bool), [[True, True]]),
        ((np.longdouble(0.5),), [0.5]),
        (np.array(["2026-01-01"], "M8[D]"), None),
        (np.array([1 + 2j]), None),
    ],
)
def test_ordinary_json_beside_the_value(value: Any, outputs: Any, tmp_path: Path) -> None:
    kept = keep(value, "value", tmp_path)
    back = given_back(kept, tmp_path)
    if isinstance(value, np.float32 | Level):
        value = value.item() if isinstance(value, np.float32) else value + 0
    assert repr(back) == repr((0.5,) if outputs == [0.5] else value)
    if outputs is None:
        with pytest.raises(TypeError):
            kept.plain()
    else:
        assert kept.plain() == outputs


def circle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


class Odd:
    """It looks like an array, and is none."""

    dtype = shape = None


def deep() -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(300):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "value",
    [
        *(object(), Odd(), circle(), deep(), {"a": lambda: 0}, np.array([Odd()])),
        *({datetime.date(2020, 1, 1): 1}, np.ma.masked_array([1, 2], [True, False])),
    ],
)
def test_what_is_not_kept_is_told_at_once_and_raises_when_read(value: Any, tmp_path: Path) -> None:
    kept = keep(value, "best", tmp_path)
    assert len(kept.notes) == 1 and "the returned 'best" in kept.notes[0]
    with pytest.raises(NotKeptError, match="is not kept: "):
        given_back(kept, tmp_path)


@pytest.mark.slow
def test_models_of_one_name_have_files_of_their_own(tmp_path: Path) -> None:
    import keras

    one, two = (keras.Sequential([keras.Input((n,)), keras.layers.Dense(1)]) for n in (1, 2))
    back = given_back(keep({"a": {"b": one}, "a.b": two, 1: one}, "value", tmp_path), tmp_path)
    assert [m.input_shape[1] for m in (back["a"]["b"], back["a.b"], back[1])] == [1, 2, 1]


def test_a_module_of_pytorch_is_given_back(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Local(torch.nn.Module):  # type: ignore[misc,name-defined]
        pass

    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout())
    kept = keep({"net": (net, 0.5), "rate": torch.ones(1)}, "value", tmp_path)
    assert kept.plain() == {"net": ["artifacts/value.net.0/model.pt", 0.5], "rate": [1.0]}
    back, loss = given_back(kept, tmp_path)["net"]
    assert loss == 0.5 and type(back) is type(net)
    x = torch.ones(4, 2)
    assert torch.equal(back.eval()(x), net.eval()(x))
    kept = keep(Local(), "net", tmp_path)
    assert "torch.save(model.state_dict(), 'net.pt')" in kept.notes[0]


def test_a_module_of_pytorch_runs_no_code_of_its_file(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import os

    class Evil(torch.nn.Linear):  # type: ignore[misc,name-defined]
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "hit"),)

    kept = keep(Evil(1, 1), "value", tmp_path)
    with pytest.raises(NotKeptError, match="cannot be read"):
        given_back(kept, tmp_path)
    assert not (tmp_path / "hit").exists()


def test_a_model_of_scikit_learn_is_given_back(tmp_path: Path) -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    model = linear.LogisticRegression().fit(np.array([[0.0], [1.0]]), [0, 1])
    kept = keep((model,), "value", tmp_path)
    try:
        import skops  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        with pytest.raises(NotKeptError, match=r"sklearn\]'; or save it with joblib"):
            given_back(kept, tmp_path)
        return
    (back,) = given_back(kept, tmp_path)
    np.testing.assert_array_equal(back.coef_, model.coef_)
