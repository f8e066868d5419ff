"""Measure how much CPU time commands and imports take until they have done their work.

Each command runs in a process of its own, in turns with the others; the command line reads ten
runs of 20 trials, which are made without Spark. The result is the CPU time of the process in the
best round, since wall time depends on other load on the machine, and its ratios to an empty program
and to `import optuna`, both measured in the same run.

Run it with `python benchmarks/startup.py --rounds 5`. The program prints a table, then one JSON
document, and removes its files. Each aim is reported as met or not; the exit code does not depend
on the aims.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lib.machine import machine
from lib.stored_runs import TRIALS, make_runs

RUNS = 10
EMPTY, OPTUNA = "pass", "import optuna"
VERSION, LIST, SHOW = "sparkdl --version", "sparkdl runs", "sparkdl show"
LAUNCH = "from sparkdl.experiment import launch, search"
LOAD = "from sparkdl.experiment import load"

Row = dict[str, Any]


def contenders() -> dict[str, list[str]]:
    """Return the command line of each contender."""
    script = str(Path(sys.executable).with_name("sparkdl"))
    programs = {text: [sys.executable, "-c", text] for text in (EMPTY, OPTUNA, LAUNCH, LOAD)}
    return programs | {text: [script, *text.split()[1:]] for text in (VERSION, LIST, SHOW)}


def cpu_s(command: list[str], root: str) -> float:
    """Return the CPU seconds of a command, with those of the processes that it waits for.

    Raises:
        CalledProcessError: if the command fails.
    """
    environ = {**os.environ, "SPARKDL_ROOT": root}
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return used.ru_utime + used.ru_stime


def measure(root: str, rounds: int) -> dict[str, float]:
    """Return the CPU seconds of each contender in its best round."""
    commands = contenders()
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for command in commands.values():
        cpu_s(command, root)  # Files come into the page cache, and modules are compiled.
    for _ in range(rounds):
        for name, command in commands.items():
            seconds[name].append(cpu_s(command, root))
    return {name: min(values) for name, values in seconds.items()}


def aims(best: dict[str, float]) -> list[Row]:
    """Compare the values with the aims."""
    rows = [
        {"aim": f"{VERSION} / {EMPTY}", "value": best[VERSION] / best[EMPTY], "at_most": 3.0},
        {"aim": f"{LIST}, seconds", "value": best[LIST], "at_most": 0.5},
        {"aim": f"{SHOW}, seconds", "value": best[SHOW], "at_most": 0.5},
        {"aim": f"{LAUNCH}, seconds", "value": best[LAUNCH], "at_most": 0.7},
    ]
    return [
        {**row, "value": round(row["value"], 3), "met": row["value"] <= row["at_most"]}
        for row in rows
    ]


def table(result: Row) -> str:
    """Return the result as a table to read."""
    lines = [f"{'':<48}{'CPU':>10}{'/ pass':>10}{'/ optuna':>10}"]
    for row in result["contenders"]:
        lines.append(
            f"{row['name']:<48}{row['cpu_s']:>8.3f} s"
            f"{row['to_empty']:>10.2f}{row['to_optuna']:>10.2f}"
        )
    words = {True: "met", False: "NOT MET"}
    return "\n".join(
        [*lines, "", *(f"{a['aim']}: {a['value']}, {words[a['met']]}" for a in result["aims"])]
    )


def main() -> None:
    """Read the command line, measure, print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds")
    options = parser.parse_args()
    about = machine("optuna")
    with tempfile.TemporaryDirectory(prefix="sparkdl-benchmark-") as root:
        make_runs(root, RUNS)
        best = measure(root, options.rounds)
    rows = [
        {
            "name": name,
            "cpu_s": round(value, 4),
            "to_empty": round(value / best[EMPTY], 2),
            "to_optuna": round(value / best[OPTUNA], 2),
        }
        for name, value in sorted(best.items(), key=lambda item: item[1])
    ]
    result = {
        "benchmark": "startup",
        "machine": about,
        "setting": {"runs": RUNS, "trials": TRIALS, "rounds": options.rounds},
        "contenders": rows,
        "aims": aims(best),
    }
    print(table(result))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
