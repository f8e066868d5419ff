"""Count the mutants that the tests notice: small changes of a module, made at random places.

A mutant is a copy of the package with one change, such as `<` for `<=`. It is killed if a test of
its module fails, or takes too long, and it survives if all pass. A survivor shows a promise that no
test holds, code that is not needed, or a change that makes no difference.

    python benchmarks/mutants.py                            # 100 mutants of all pure modules
    python benchmarks/mutants.py sparkdl/data/shard.py --mutants 30 --seed 2
    python benchmarks/mutants.py sparkdl/data/shard.py=tests/data/test_shard.py

Pure modules say so in their docstrings. The tests of a module are the examples of its docstrings,
and those in the files that are named after it or import it, or, if there are none, in the files
that import one of its users. Tests that are marked `slow` do not run, and neither do those that
take more seconds than `--slowest`.

The program prints the survivors and a table, then one JSON document. The files of the repository
are not changed. Each mutant has a process of its own, forked from one that has imported what tests
need, so that it takes about a second.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna  # noqa: F401
import pandas  # noqa: F401
import pyarrow.parquet  # noqa: F401
import pyspark.sql  # noqa: F401
import pytest
from lib.machine import machine
from lib.mutations import Mutation, mutations

_REPOSITORY = Path(__file__).parents[1]
_EXAMPLES = "tests/test_docstrings.py::test_examples_in_docstrings"
_PASSED, _FAILED, _INTERRUPTED, _TOO_LONG = 0, 1, 2, -1
_POLL_S = 0.02

Results = dict[str, list[tuple[Mutation, bool]]]


class Durations:
    """A plugin of pytest that writes the seconds of each test into a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration  # type: ignore[assignment]

    def pytest_sessionfinish(self) -> None:
        self._path.write_text(json.dumps(self._seconds))


def pure_modules() -> list[str]:
    """Return the modules whose docstrings say that they are pure."""
    paths = sorted((_REPOSITORY / "sparkdl").rglob("*.py"))
    pure = [path for path in paths if "(pure)" in path.read_text().partition("\n")[0]]
    return [path.relative_to(_REPOSITORY).as_posix() for path in pure]


def importers(module: str, folder: str) -> list[str]:
    """Return the files of a folder that import a module, those named after it first."""
    package, _, name = module.removesuffix(".py").replace("/", ".").rpartition(".")
    several = rf"from {package} import [^\n]*\b{name}\b"
    line = re.compile(
        rf"^\s*(from {package}\.{name} import|import {package}\.{name}\b|{several})", re.M
    )
    paths = sorted((_REPOSITORY / folder).rglob("*.py"))
    found = [path for path in paths if line.search(path.read_text())]
    found += [path for path in paths if path.name == f"test_{name}.py" and path not in found]
    found.sort(key=lambda path: path.name != f"test_{name}.py")
    return [path.relative_to(_REPOSITORY).as_posix() for path in found]


def tests_of(module: str) -> list[str]:
    """Return the test files of a module."""
    users = [module]
    has_examples = ">>>" in (_REPOSITORY / module).read_text()
    examples = [f"{_EXAMPLES}[{module.removesuffix('.py').replace('/', '.')}]"] * has_examples
    for _ in range(2):
        files = [file for user in users for file in importers(user, "tests")]
        if tests := [file for file in files if Path(file).name.startswith("test_")]:
            return [*dict.fromkeys(tests), *examples]
        users = [file for user in users for file in importers(user, "sparkdl")]
    raise SystemExit(f"no test imports {module}: give its tests as {module}=tests/...")


def copied(folder: Path) -> Path:
    """Return a copy of the repository, of which only package and tests are copied."""
    tree = folder / "tree"
    tree.mkdir()
    for path in _REPOSITORY.iterdir():
        if path.name in ("sparkdl", "tests"):
            shutil.copytree(path, tree / path.name)
        elif path.name not in (".git", ".hypothesis"):
            (tree / path.name).symlink_to(path)
    return tree


def run(tree: Path, arguments: Sequence[str], limit_s: float, durations: Path | None = None) -> int:
    """Run tests in a process of their own; return the status of pytest, or `_TOO_LONG`."""
    pid = os.fork()
    if pid == 0:
        try:
            _become_pytest(tree, arguments, durations)
        finally:
            os._exit(_INTERRUPTED)
    ends_at = time.monotonic() + limit_s
    while time.monotonic() < ends_at:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_POLL_S)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return _TOO_LONG


def _become_pytest(tree: Path, arguments: Sequence[str], durations: Path | None) -> None:
    """Run pytest in this process, and end it."""
    os.setsid()
    os.chdir(tree)
    log = os.open(tree.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for name in [name for name in sys.modules if name.partition(".")[0] == "sparkdl"]:
        del sys.modules[name]  # It is from the repository, not from the copy.
    sys.path[:] = [str(tree), *(path for path in sys.path[1:] if Path(path) != _REPOSITORY)]
    os.environ["PYTHONPATH"] = str(tree)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(tree.parent)
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    plugins = [Durations(durations)] if durations else []
    os._exit(pytest.main([*options, *arguments], plugins))


def slow_tests(tree: Path, tests: Sequence[str], slowest_s: float) -> tuple[list[str], float]:
    """Run the tests of a module that has no change.

    Returns:
        The tests that take too long, and the seconds of the others.
    """
    path = tree.parent / "durations"
    if run(tree, tests, 600.0, path) != _PASSED:
        raise SystemExit(f"without a mutant: {(tree.parent / 'log').read_text()[-2000:]}")
    seconds = json.loads(path.read_text())
    slow = [test for test, spent in seconds.items() if spent > slowest_s]
    if len(slow) == len(seconds):
        raise SystemExit(f"no test takes {slowest_s} seconds or less: {tests}")
    return slow, sum(spent for test, spent in seconds.items() if test not in slow)


def try_all(
    chosen: dict[str, list[Mutation]], tests: dict[str, list[str]], slowest_s: float
) -> Results:
    """Run the tests of each mutant; return which were killed."""
    results: Results = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = copied(Path(folder))
        for module, made in chosen.items():
            path = tree / module
            original = path.read_text()
            slow, spent_s = slow_tests(tree, tests[module], slowest_s)
            arguments = [*tests[module], *(f"--deselect={test}" for test in slow)]
            sys.dont_write_bytecode = True  # A mutant may be as long as the one before.
            shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)
            path.write_text("raise ImportError('a mutant that no test may miss')")
            if run(tree, arguments, 3 * spent_s + 20) == _PASSED:
                raise SystemExit(f"{module}: its tests do not run it: {tests[module]}")
            for mutation in made:
                path.write_text(mutation.source)
                is_killed = run(tree, arguments, 3 * spent_s + 20) != _PASSED
                results.setdefault(module, []).append((mutation, is_killed))
                if not is_killed:
                    print(f"{module}:{described(mutation)}", flush=True)
            path.write_text(original)
    return results


def described(mutation: Mutation) -> str:
    """Return the line of a mutant, and what it changes."""
    return f"{mutation.line}: {mutation.before} -> {mutation.after}"


def choose(sources: dict[str, str], count: int, seed: int) -> dict[str, list[Mutation]]:
    """Return mutants at random places, by module."""
    places = [(module, made) for module in sources for made in mutations(sources[module])]
    chosen: dict[str, list[Mutation]] = {}
    numbers = random.Random(seed).sample(range(len(places)), min(count, len(places)))
    for module, mutation in (places[number] for number in sorted(numbers)):
        chosen.setdefault(module, []).append(mutation)
    return chosen


def survivors_of(path: Path, sources: dict[str, str]) -> dict[str, list[Mutation]]:
    """Return the mutants that survived an earlier run, whose output is in a file."""
    rows = json.loads("{" + path.read_text().partition("\n{")[2])["modules"]
    survived = {row["module"]: row["survivors"] for row in rows if row["module"] in sources}
    return {
        module: [made for made in mutations(sources[module]) if described(made) in lines]
        for module, lines in survived.items()
        if lines
    }


def main() -> None:
    """Make mutants, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "modules", nargs="*", help="sparkdl/x.py, or sparkdl/x.py=tests/a.py,tests/b.py"
    )
    parser.add_argument("--mutants", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--slowest", type=float, default=2.0, help="seconds of a test that still runs"
    )
    parser.add_argument(
        "--survivors", type=Path, help="output of an earlier run: make only what survived there"
    )
    arguments = parser.parse_args()
    before = machine("pytest", "hypothesis")
    given = [text.partition("=") for text in arguments.modules or pure_modules()]
    sources = {module: (_REPOSITORY / module).read_text() for module, _, _ in given}
    if arguments.survivors:
        chosen = survivors_of(arguments.survivors, sources)
    else:
        chosen = choose(sources, arguments.mutants, arguments.seed)
    tests = {
        module: files.split(",") if files else tests_of(module)
        for module, _, files in given
        if module in chosen
    }
    results = try_all(chosen, tests, arguments.slowest)
    rows: list[dict[str, Any]] = []
    for module, made in results.items():
        lines = [described(mutation) for mutation, is_killed in made if not is_killed]
        rows.append({"module": module, "mutants": len(made), "survivors": lines})
        print(f"{module:50} {len(made) - len(lines):4} of {len(made):4}")
    count = sum(row["mutants"] for row in rows)
    killed = count - sum(len(row["survivors"]) for row in rows)
    print(f"{killed} of {count} mutants were killed ({killed / count:.0%})")
    document = {"machine": before, "seed": arguments.seed, "mutants": count, "killed": killed}
    print(json.dumps({**document, "modules": rows}, indent=1))


if __name__ == "__main__":
    main()
