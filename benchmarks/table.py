"""Write the table of docs/benchmarks.md from the newest results in benchmarks/results.

    python benchmarks/table.py

A benchmark without a file is left out, and so is a peer that did not run.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).parents[1]
_PAGE = _REPOSITORY / "docs/benchmarks.md"
_BEGIN, _END = "<!-- results -->\n", "<!-- end of results -->\n"
_TITLES = ("work", "system", "measured", "cost / sparkdl", "load", "date")
_LIMITS = ("floor", "ceiling", "pyarrow")  # They do a part of the work only.
_STARTS = {"first_line_s": "to the first line", "return_s": "to the return"}

Document = dict[str, Any]
Row = tuple[str, ...]


def newest(benchmark: str, folder: Path) -> tuple[Document, str] | None:
    """Return the newest result of a benchmark, and its date."""
    files = sorted(folder.glob(f"{benchmark}-2*.json"))
    if not files:
        return None
    date = "-".join(files[-1].stem.split("-")[1:4])
    return json.loads(files[-1].read_text()), date


def trials(result: Document) -> Iterator[Row]:
    """Return the rows of `trial_overhead.py`: the time relative to plain Spark tasks."""
    own = next(row["median_ratio"] for row in result["contenders"] if row["name"] == "sparkdl")
    for row in (row for row in result["contenders"] if row["seconds"]):
        ratio = row["median_ratio"]
        yield "40 trials of 0.2 s", row["name"], f"{ratio:.2f} of the floor", f"{ratio / own:.2f}"


def starts(result: Document) -> Iterator[Row]:
    """Return the rows of `start.py`: seconds of a call."""
    for key, until in _STARTS.items():
        for row in result["contenders"]:
            seconds, times = row[f"median_{key}"], row[f"times_{key}"]
            yield f"start of 2 ranks, {until}", row["name"], f"{seconds:.2f} s", f"{times:.2f}"


def feeds(result: Document) -> Iterator[Row]:
    """Return the rows of `feed.py`: rows per second."""
    rows = [row for row in result["contenders"] if "rows_per_s" in row]
    own = {row["shape"]: row["rows_per_s"] for row in rows if row["name"] == "sparkdl"}
    for row in rows:
        rate, shape = row["rows_per_s"], row["shape"]
        yield (
            f"rows from Spark, {shape}",
            row["name"],
            f"{rate:,} rows/s",
            f"{own[shape] / rate:.2f}",
        )


def files(result: Document) -> Iterator[Row]:
    """Return the rows of `parquet.py`: rows per CPU second."""
    rows = result["contenders"]
    own = {row["rows"]: row["cpu"] for row in rows if row["name"] == "sparkdl"}
    for row in rows:
        rate, work = row["cpu"], f"Parquet, {row['rows']}"
        yield work, row["name"], f"{rate:,} rows per CPU s", f"{own[row['rows']] / rate:.2f}"


BENCHMARKS = {"trial_overhead": trials, "start": starts, "feed": feeds, "parquet": files}


def table(folder: Path) -> str:
    """Return the table in Markdown; the ratio of a peer that is ahead of sparkdl is bold."""
    rows: list[Row] = [_TITLES, ("---",) * len(_TITLES)]
    for benchmark, rows_of in BENCHMARKS.items():
        if found := newest(benchmark, folder):
            result, date = found
            load = f"{result['machine']['load_before']:.0f}"
            for work, system, measured, ratio in rows_of(result):
                is_ahead = float(ratio) < 1 and system not in _LIMITS
                shown = f"**{ratio}**" if is_ahead else ratio
                rows.append((work, system, measured, shown, load, date))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def page_with(page: str, rows: str) -> str:
    """Return the text of the page with another table."""
    before, rest = page.split(_BEGIN)
    return f"{before}{_BEGIN}\n{rows}\n{_END}{rest.split(_END)[1]}"


if __name__ == "__main__":
    _PAGE.write_text(page_with(_PAGE.read_text(), table(_REPOSITORY / "benchmarks/results")))
