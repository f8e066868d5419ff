"""The table of docs/benchmarks.md is the one of the files in benchmarks/results."""

import runpy
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_page_has_the_newest_results() -> None:
    script = runpy.run_path(str(REPOSITORY / "benchmarks/table.py"))
    page = (REPOSITORY / "docs/benchmarks.md").read_text()
    rows = script["table"](REPOSITORY / "benchmarks/results")
    assert script["page_with"](page, rows) == page, "run `python benchmarks/table.py`"
