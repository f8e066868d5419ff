"""Count what a `launch` of two trials runs through before its first trial is submitted.

The numbers are those of the main thread on the driver, from the call of the verb until the first
trial is handed to Spark: the modules of sparkdl that are entered, the calls of their functions, and
the changes from one module to another. They do not depend on the speed of the machine, but for the
looks at files while the executors are checked: those are counted apart.

Run it with `python benchmarks/front_door.py`; with `--where` it also prints the modules and the
functions with most calls. The program prints a table, then one JSON document, and exits with 1 if
an aim is missed.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import sparkdl
from sparkdl import experiment
from sparkdl.runner.loop.submitted import SubmittedTrials
from sparkdl.runs import Run

PACKAGE = str(Path(sparkdl.__file__).parent)

AIMS = {"modules": 45, "calls": 1500, "changes": 600}


class FirstSubmit(Exception):
    """Ends the count."""


class Count:
    """The modules, calls and changes of module that `sys.setprofile` reports."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.changes: Counter[tuple[str, str]] = Counter()
        self.polls = 0
        self.is_over = False
        self._stack: list[str] = [""]

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if self.is_over or event not in ("call", "return"):
            return
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE) or code.co_name.startswith("<"):
            return
        module = code.co_filename.removeprefix(PACKAGE + "/").removesuffix(".py")
        if event == "return":
            if len(self._stack) > 1:
                self._stack.pop()
            return
        if frame.f_code is SubmittedTrials.submit.__code__:
            self.is_over = True
            return
        self.calls[module, code.co_qualname] += 1
        if module != self._stack[-1]:
            self.changes[self._stack[-1], module] += 1
        self._stack.append(module)

    @property
    def numbers(self) -> dict[str, int]:
        """The modules, the calls, and the changes there and back."""
        return {
            "modules": len({module for module, _ in self.calls}),
            "calls": sum(self.calls.values()),
            "changes": 2 * sum(self.changes.values()),
        }


def train(x: int) -> float:
    """Return at once."""
    return float(x)


def count_launch(root: str) -> tuple[Count, Run]:
    """Return the count of a launch in an embedded Spark that runs already."""
    count = Count()
    sys.setprofile(count)
    try:
        run = experiment.launch(train, {"x": [1, 2]}, metric="a", root=root, progress=False)
    finally:
        sys.setprofile(None)
    return count, run


def main() -> int:
    """Print the table and the JSON document."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--where", action="store_true", help="also print where the calls are")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        experiment.launch(train, {"x": [1]}, root=root, progress=False)  # Imports, and Spark.
        count, _ = count_launch(root)
    numbers = count.numbers
    for name, number in numbers.items():
        print(f"{name:10}{number:8}  at most {AIMS[name]}")
    if arguments.where:
        for (module, function), n in count.calls.most_common(40):
            print(f"{n:6}  {module}.{function}")
        modules = Counter()
        for (module, _), n in count.calls.items():
            modules[module] += n
        print(*(f"{n:6}  {module}" for module, n in modules.most_common()), sep="\n")
        print(*(f"{n:6}  {a} -> {b}" for (a, b), n in count.changes.most_common(60)), sep="\n")
    print(json.dumps({"benchmark": "front_door", **numbers, "aims": AIMS}))
    return 0 if all(numbers[name] <= aim for name, aim in AIMS.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
