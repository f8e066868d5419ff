"""`sparkdl plan --json`: one document, whatever the program prints."""

import json
from pathlib import Path

import pytest

from sparkdl.cli.main import main


def test_what_a_child_of_the_program_prints_is_no_part_of_the_document(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os\nprint('from Python')\nos.system('echo from a child')\n")
    assert main(["plan", "--json", str(program)]) == 0
    printed = capfd.readouterr()
    assert json.loads(printed.out)["runs"] == []
    assert "from Python" in printed.err
    assert "from a child" in printed.err
