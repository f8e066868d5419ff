"""Write the table of docs/benchmarks.md from the newest results in benchmarks/results.

    python benchmarks/table.py                  # write the table again
    python benchmarks/table.py --measure        # measure first, which takes 20 minutes
    python benchmarks/table.py --measure --quick --results /tmp/try  # see that all of it runs

`--measure` runs the benchmarks of the table one after the other, the most important first. Each
writes its result, and the table, as soon as it ends. A benchmark that fails or takes too long is
left out with a message, and so is a peer that does not run or has no environment. `--results` names
another folder for results and table; the page then stays as it is.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.peer import add_option, python_of

_REPOSITORY = Path(__file__).parents[1]
_PAGE, _RESULTS = _REPOSITORY / "docs/benchmarks.md", _REPOSITORY / "benchmarks/results"
_BEGIN, _END = "<!-- results -->\n", "<!-- end of results -->\n"
_TITLES = ("work", "system", "measured", "cost / sparkdl", "load", "date")
# They do a part of the work only, or, with one process, share no work.
_LIMITS = ("floor", "floor with outputs", "ceiling", "pyarrow", "tf.data alone", "one process")
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
        shown = {"as_numpy": "sparkdl, NumPy"}.get(row["name"], row["name"])
        yield work, shown, f"{rate:,} rows per CPU s", f"{own[row['rows']] / rate:.2f}"


def steps(result: Document) -> Iterator[Row]:
    """Return the rows of `ring.py`: milliseconds of a step, and of a mean of 100 MB."""
    for params, ms in result["steps_ms"].items():
        for name, value in ms.items():
            shown = {"ring, Unix": "sparkdl", "no communication": "floor"}.get(name, name)
            work, ratio = f"step of {int(params):,} parameters, 2 ranks", value / ms["ring, Unix"]
            yield work, shown, f"{value:.2f} ms", f"{ratio:.2f}"
    for name, value in result["reduction_ms"].items():
        kind, ranks = name.split(", ")
        own, shown = result["reduction_ms"][f"Unix, {ranks}"], {"Unix": "sparkdl"}.get(kind, kind)
        yield f"mean of 100 MB, {ranks}", shown, f"{value:.0f} ms", f"{value / own:.2f}"


def predictions(result: Document) -> Iterator[Row]:
    """Return the rows of `predict.py`: rows per second."""
    names = {"read": "floor", "returned": "floor with outputs"}
    names |= {"predict": "sparkdl", "function": "sparkdl, NumPy"}
    for setting in result["settings"]:
        rates = {row["name"]: row["rows_per_s"] for row in setting["contenders"]}
        work = f"prediction of {setting['rows']:,} rows, {setting['rows_of']}"
        for name, rate in rates.items():
            ratio = f"{rates['predict'] / rate:.2f}"
            yield work, names.get(name, name), f"{rate:,} rows/s", ratio


@dataclass(frozen=True)
class Benchmark:
    """A benchmark of the table.

    Attributes:
        rows: returns the rows of the table from a result.
        options: the command line for the table.
        quick: the command line that only shows that the benchmark runs.
        limit_s: maximum seconds.
        has_peers: it has an option for the environments of peers.
    """

    rows: Callable[[Document], Iterator[Row]]
    options: Sequence[str]
    quick: Sequence[str]
    limit_s: int
    has_peers: bool = True


# The most important first.
BENCHMARKS = {
    "trial_overhead": Benchmark(trials, ("--rounds", "2"), ("--rounds", "1"), 600),
    "start": Benchmark(starts, ("--rounds", "2"), ("--rounds", "1"), 420),
    "feed": Benchmark(feeds, ("--rounds", "1"), ("--rounds", "1", "--quick"), 480),
    "ring": Benchmark(
        steps,
        ("--rounds", "1", "--parts", "steps", "reductions"),
        ("--rounds", "1", "--parts", "steps", "--params", "6e3"),
        420,
    ),
    "parquet": Benchmark(
        files, ("--rounds", "2"), ("--rounds", "1", "--quick"), 300, has_peers=False
    ),
    "predict": Benchmark(
        predictions,
        ("--rounds", "3", "--rows", "3 columns"),
        ("--rounds", "1", "--rows", "784 values"),
        420,
        has_peers=False,
    ),
}


def measure(name: str, options: argparse.Namespace, left_s: float) -> str:
    """Run a benchmark; return the JSON document that it prints.

    Args:
        name: name of the benchmark.
        options: the command line.
        left_s: maximum seconds for all further benchmarks.

    Raises:
        RuntimeError: if it fails, or takes too long.
    """
    benchmark = BENCHMARKS[name]
    limit_s = max(min(benchmark.limit_s, left_s), 1)
    arguments = [*(benchmark.quick if options.quick else benchmark.options)]
    if name == "ring":
        torch = python_of(options.peers, "torch")
        arguments += ["--torch-python", torch] if torch else []
    elif benchmark.has_peers:
        arguments += ["--peers", str(options.peers)]
    command = [sys.executable, str(_REPOSITORY / f"benchmarks/{name}.py"), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        printed, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as exc:
        raise RuntimeError(f"took more than {limit_s:.0f} s") from exc
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode:
        raise RuntimeError(f"ended with code {process.returncode}")
    _, found, document = printed.partition("\n{")  # After the table to read.
    if not found:
        raise RuntimeError("printed no result")
    return "{" + document


def measure_all(options: argparse.Namespace) -> None:
    """Run the benchmarks; each result is written when its benchmark ends."""
    options.results.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + options.minutes * 60
    for name in options.benchmarks:
        begun = time.monotonic()
        try:
            document = measure(name, options, end - begun)
        except RuntimeError as exc:
            print(f"{name} is left out: it {exc}", file=sys.stderr)
            continue
        finally:
            print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
        machine = f"{json.loads(document)['machine']['cores']}cores"
        path = options.results / f"{name}-{time.strftime('%Y-%m-%d')}-{machine}.json"
        path.write_text(document)
        write(options.results)


def table(folder: Path) -> str:
    """Return the table in Markdown; the ratio of a peer that is ahead of sparkdl is bold."""
    rows: list[Row] = [_TITLES, ("---",) * len(_TITLES)]
    for name, benchmark in BENCHMARKS.items():
        if found := newest(name, folder):
            result, date = found
            load = f"{result['machine']['load_before']:.0f}"
            for work, system, measured, ratio in benchmark.rows(result):
                is_peer = system not in _LIMITS and not system.startswith("sparkdl")
                is_ahead = is_peer and float(ratio) < 1
                shown = f"**{ratio}**" if is_ahead else ratio
                rows.append((work, system, measured, shown, load, date))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def page_with(page: str, rows: str) -> str:
    """Return the text of the page with another table."""
    before, rest = page.split(_BEGIN)
    return f"{before}{_BEGIN}\n{rows}\n{_END}{rest.split(_END)[1]}"


def write(results: Path) -> None:
    """Write the table of a folder of results: into the page, or beside results of a trial."""
    if results == _RESULTS:
        _PAGE.write_text(page_with(_PAGE.read_text(), table(results)))
    else:
        (results / "table.md").write_text(table(results))


def main() -> None:
    """Read the command line, measure if asked to, write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="fail if the page has another table")
    parser.add_argument("--measure", action="store_true", help="measure before")
    parser.add_argument("--quick", action="store_true", help="measure as little as possible")
    parser.add_argument("--minutes", type=float, default=22, help="maximum time of all benchmarks")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="folder of the results")
    parser.add_argument("--benchmarks", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS))
    add_option(parser)
    options = parser.parse_args()
    if options.quick and options.results == _RESULTS:
        parser.error("--quick measures too little for the page; pass --results FOLDER too")
    if options.check:
        page = _PAGE.read_text()
        if page_with(page, table(_RESULTS)) != page:
            sys.exit(f"{_PAGE} has another table: run `python benchmarks/table.py`")
        return
    if options.measure:
        measure_all(options)
    write(options.results)


if __name__ == "__main__":
    main()
