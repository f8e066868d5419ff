"""Versions that are promoted and rolled back."""

from pathlib import Path
from typing import Any

import pytest

from sparkdl import models
from sparkdl.cli.main import main
from sparkdl.errors import ModelNotFoundError
from tests.helpers.saved_models import write_saved_model


@pytest.fixture
def digits(root: str, tmp_path: Path) -> str:
    """Three versions of `digits`; `stable` is the first one."""
    model = write_saved_model(tmp_path / "saved")
    for alias in ("stable", None, "canary"):
        models.export(model, "digits", root=root, alias=alias)
    return root


def stable(root: str) -> int:
    return models.get("digits", alias="stable", root=root).version


def test_promote_moves_an_alias_to_the_version_of_another(digits: str) -> None:
    assert models.promote("digits", root=digits).aliases == ("canary", "stable")
    assert stable(digits) == 3
    assert models.promote("digits", "stable", "old", root=digits).version == 3
    with pytest.raises(ModelNotFoundError, match="no alias 'none'"):
        models.promote("digits", "none", root=digits)


def test_roll_back_goes_back_move_by_move(digits: str) -> None:
    for number in (2, 3):
        models.alias("digits", "stable", number, root=digits)
    assert [models.roll_back("digits", root=digits).version for _ in range(2)] == [2, 1]
    with pytest.raises(ModelNotFoundError, match="has named no other version"):
        models.roll_back("digits", root=digits)
    models.promote("digits", root=digits)
    assert models.roll_back("digits", root=digits).version == stable(digits) == 1
    with pytest.raises(ModelNotFoundError, match="no alias 'none'"):
        models.roll_back("digits", "none", root=digits)


@pytest.mark.parametrize(
    ("moves", "expected"),
    [((2, 1), [2, 1]), ((2, 1, 3), [1, 2, 1]), ((2, None, 3), [2, 1]), ((None, 1, 2), [1])],
)
def test_a_move_to_an_earlier_version_is_taken_back_like_any_other(
    digits: str, moves: tuple[int | None, ...], expected: list[int]
) -> None:
    for number in moves:
        models.alias("digits", "stable", number, root=digits)
    assert [models.roll_back("digits", root=digits).version for _ in expected] == expected
    with pytest.raises(ModelNotFoundError, match="has named no other version"):
        models.roll_back("digits", root=digits)


def test_an_alias_that_was_removed_is_rolled_back_to_its_version(digits: str) -> None:
    models.alias("digits", "stable", None, root=digits)
    assert models.roll_back("digits", root=digits).version == 1


def test_the_commands_print_the_version(digits: str, capsys: Any) -> None:
    assert main(["models", "promote", "digits", "--root", digits]) == 0
    assert "digits/3" in capsys.readouterr().out
    assert main(["models", "roll-back", "digits", "--root", digits, "--json"]) == 0
    assert '"version": 1' in capsys.readouterr().out
    assert main(["models", "roll-back", "digits", "--alias", "canary", "--root", digits]) == 2
    assert "has named no other version" in capsys.readouterr().err
