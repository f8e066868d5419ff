"""The runner of other people's programs: changed lines, notebooks, limits, whose failure it is."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "foreign_programs.py"

GOOD = """
def train():
    from theirs import root
    return root(4)
print("train gave", train())
"""

CELLS = [
    ("markdown", "# A notebook"),
    ("code", "%matplotlib inline\nimport gone\n"),
    ("code", "%%bash\nexit 1"),
    ("code", "%%local\n!pip install gone\nprint(spark)"),
    ("code", "def rows():\n    raise KeyError('rows')\nrows()"),
]

CHANGES = """
defaults: {limit_s: 60, prelude: spark = "a session"}
programs:
  - program: good.py
    source: ours, good
    import: {from theirs import root: from math import sqrt as root}
    shows: gave 2
  - program: bad.ipynb
    removed: {import gone: ""}
    fails: {by: rows, error: "KeyError: 'rows'", reason: it has none}
  - program: again.ipynb
    data:
      import gone: |
        import json
        import sys
    fails: {by: rows, error: another error, reason: it has none}
  - program: stale.py
    import: {from theirs import log: from math import log}
  - program: silent.py
    import: {from theirs import root: from math import sqrt as root}
    shows: gave 3
  - {program: endless.py, limit_s: 1}
"""


@pytest.fixture
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_programs_run_with_their_changes(
    script: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = [{"cell_type": kind, "source": [text]} for kind, text in CELLS]
    for name in ("good.py", "stale.py", "silent.py"):
        (tmp_path / name).write_text(GOOD)
    for name in ("bad.ipynb", "again.ipynb"):
        (tmp_path / name).write_text(json.dumps({"cells": cells}))
    (tmp_path / "endless.py").write_text("import time\nwhile True: time.sleep(1)\n")
    (tmp_path / "changes.yaml").write_text(CHANGES)
    arguments = [str(tmp_path), str(tmp_path / "changes.yaml"), "--out", str(tmp_path / "out")]

    assert script["main"](arguments) == 1

    lines = capsys.readouterr().out.splitlines()
    cells_of = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells_of[0][:6] == ["source", "import", "data", "removed", "other", "result"]
    rows = {row[0]: row[1:] for row in cells_of[2:]}
    assert rows["ours, good"] == ["1", "0", "0", "0", "right", ""]
    failed = "fails by rows: it has none"
    assert rows["bad.ipynb"] == ["0", "0", "1", "0", failed, "`KeyError: 'rows'`"]
    assert rows["again.ipynb"] == ["0", "2", "0", "0", "fails by us", "`KeyError: 'rows'`"]
    assert rows["stale.py"][4] == "not run"
    assert rows["silent.py"][4:] == ["fails by us", "`its output has no 'gave 3'`"]
    assert rows["endless.py"][4] == "no verdict"
    assert "limit of 1 s" in rows["endless.py"][5]

    # The table of the last results, without another run.
    assert script["main"]([*arguments, "--table"]) == 1
    assert capsys.readouterr().out.splitlines() == lines


def test_lines_keep_their_indentation(script: dict[str, Any]) -> None:
    code = "if a:\n    b(\n        c)\nelse:\n    d\n"
    new, count = script["change"](code, "b(\n    c)", "e\nf")
    assert (new, count) == ("if a:\n    e\n    f\nelse:\n    d\n", 2)
    assert script["change"](code, "else:\n    d", None)[0] == "if a:\n    b(\n        c)\n\n"
    with pytest.raises(ValueError, match="does not have the lines"):
        script["change"](code, "c", "d")
