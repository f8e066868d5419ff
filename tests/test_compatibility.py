"""The page about tested versions agrees with the environments, and with setup.cfg."""

import configparser
import re
import runpy
import socket
import sys
from collections.abc import Callable
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
    frameworks = config["options.extras_require"]["tensorflow"]
    lines = [*config["options"]["install_requires"].splitlines(), *frameworks.splitlines()]
    found = [re.match(r"([\w-]+) >=([\d.]+)", line) for line in lines]
    return {match[1]: match[2] for match in found if match}


def rows(page: str) -> dict[str, dict[str, str]]:
    """The rows of the table that the script writes, by environment."""
    written = page.partition("<!-- end of results -->")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in written.splitlines()
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


def test_classifiers_name_the_versions_of_python_that_are_allowed() -> None:
    config = configparser.ConfigParser()
    config.read(REPOSITORY / "setup.cfg")
    low, high = re.findall(r"3\.(\d+)", config["options"]["python_requires"])
    named = re.findall(r"Python :: 3\.(\d+)", config["metadata"]["classifiers"])
    assert [int(minor) for minor in named] == list(range(int(low), int(high)))


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


@pytest.fixture
def smoke_once(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., int]:
    """Return the command of CI with other settings; its test gives 3."""

    def run(**settings: Any) -> int:
        for name, value in {"BUILD": tmp_path, **settings}.items():
            monkeypatch.setitem(script["smoke_once"].__globals__, name, value)
        found: int = script["smoke_once"]()
        assert not [path for path in tmp_path.iterdir() if path.is_dir()]
        return found

    # The command sets it.
    monkeypatch.setenv("UV_CACHE_DIR", "")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    return run


def test_the_smoke_test_is_left_out_on_a_full_disk(
    smoke_once: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert smoke_once(SMOKE_GB=1e9) == 0
    assert "SKIPPED, as" in capfd.readouterr().err


def test_the_smoke_test_is_left_out_if_a_download_fails(
    smoke_once: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{closed.getsockname()[1]}/simple")
        assert smoke_once(SMOKE_GB=0) == 0
    assert "SKIPPED, as its packages were not installed" in capfd.readouterr().err


def test_bounds_that_contradict_each_other_fail_the_smoke_test(
    smoke_once: Callable[..., int], script: dict[str, Any]
) -> None:
    def contradict(keep: bool) -> None:
        command = [script["uv"](), "pip", "install", "--dry-run", "--python", sys.executable]
        script["run_installer"](*command, "pip==1", "pip==2")

    with pytest.raises(script["InstallError"], match="pip==1"):
        smoke_once(SMOKE_GB=0, smoke=contradict)
