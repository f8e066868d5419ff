"""The page about tested versions agrees with the environments, and with setup.cfg."""

import configparser
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(REPOSITORY / "scripts" / "compatibility.py"))


def lower_bounds() -> dict[str, str]:
    config = configparser.ConfigParser()
    config.read(REPOSITORY / "setup.cfg")
    lines = config["options"]["install_requires"].splitlines()
    found = [re.match(r"([\w-]+) >=([\d.]+)", line) for line in lines]
    return {match[1]: match[2] for match in found if match}


def rows(page: str) -> dict[str, dict[str, str]]:
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith("| ")
    ]
    heads, _, *lines = cells
    return {line[0]: dict(zip(heads, line, strict=True)) for line in lines}


def test_page_has_a_row_for_every_environment(script: dict[str, Any]) -> None:
    page = script["PAGE"].read_text()
    assert list(rows(page)) == [each.name for each in script["ENVIRONMENTS"]]


def test_oldest_environment_has_the_lower_bounds(script: dict[str, Any]) -> None:
    row = rows(script["PAGE"].read_text())["oldest"]
    bounds = lower_bounds()
    for name in script["SHOWN"]:
        # The table is empty until the command has run.
        assert not row[name] or f"{row[name]}.".startswith(f"{bounds[name]}."), name


def test_tests_of_the_core_exist(script: dict[str, Any]) -> None:
    for name in script["CORE"] + script["LEFT_OUT"]:
        path, _, test = name.partition("::")
        text = (REPOSITORY / path).read_text()
        assert not test or f"def {test.partition('[')[0]}(" in text, name


def test_failed_tests_are_listed_on_the_page(script: dict[str, Any]) -> None:
    found = {
        "versions": dict.fromkeys(("python", *script["SHOWN"]), "1"),
        "passed": 2,
        "skipped": 0,
        "failed": ["tests.test_a::test_b"],
        "date": "2026-01-01",
    }
    earlier = f"| python-3.10 |{' 1 |' * (len(script['SHOWN']) + 5)}"
    text = script["table"]({"oldest": found}, {"python-3.10": earlier})
    assert f"\n{earlier}\n" in text
    assert "- oldest: `tests.test_a::test_b`" in text
    assert rows(text.partition("\n\n-")[0])["oldest"]["failed"] == "1"


def test_tests_that_are_left_out_are_listed_on_the_page(script: dict[str, Any]) -> None:
    page = script["PAGE"].read_text()
    for test in script["LEFT_OUT"]:
        assert f"- everywhere: `{test}`\n" in page
    for each in script["ENVIRONMENTS"]:
        for test in each.left_out:
            assert f"- {each.name}: `{test}`\n" in page
    text = script["table"]({}, {})
    assert text.partition("Left out:")[2].strip() in page
