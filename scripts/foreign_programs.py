"""Run programs that other people wrote, with a few of their lines changed, and print a table.

The programs, .py or .ipynb, are in a folder outside this project, and so is the file of their
changes, in YAML:

    defaults:                      # of all programs; each may have its own
      limit_s: 300
      env: {TF_USE_LEGACY_KERAS: "1"}
      prelude: spark = __import__("pyspark").sql.SparkSession.builder.getOrCreate()
    programs:
      - program: hops/grid.ipynb   # the path in the folder
        source: hops-examples release-2.2, grid_search
        import:                    # old lines: new ones; also under data, removed and other
          from hops import hdfs: from sparkdl.hops import hdfs
        removed:                   # lines of an API that another package has dropped
          model.fit_generator(rows): model.fit(rows)
        shows: "accuracy: 0.[5-9]" # the program is right if its output has this, too
      - program: hops/hive.ipynb
        fails: {by: hive, error: "No module named 'pyhive'", reason: it needs a server of Hive}

    python scripts/foreign_programs.py FOLDER CHANGES --only 'hops/*'
    python scripts/foreign_programs.py FOLDER CHANGES --table   # of the last results

Lines are compared without their indentation; new lines get that of the old ones. A program runs
in a process of its own, whose group ends with it, with its own working directory and SPARKDL_ROOT.
`files` names folders, beside the file of changes, whose content is copied into the working
directory first, `args` the arguments of the program, `python` another interpreter. Lines of a
notebook that are not Python (`%matplotlib`, `!pip`, `%%bash`) are left out; `prelude` comes before
notebooks only, for the names that theirs have from the start.

A program that fails does so by us, except where `fails` names another package, or `by: sparkdl` a
documented refusal, and `error` is found in its output. There is no verdict on one that its limit
has ended. The exit code is 1 if one fails by us, was not run, or has no verdict.
"""

import argparse
import fnmatch
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

KINDS = ("import", "data", "removed", "other")
RIGHT, BY_US, NOT_RUN, ENDED = "right", "fails by us", "not run", "no verdict"
LIMIT_S = 300.0


@dataclass(frozen=True)
class Program:
    """A program, and what to change in it; see the head of this file."""

    program: str
    source: str = ""
    changes: dict[str, dict[str, str]] = field(default_factory=dict)
    limit_s: float = LIMIT_S
    env: dict[str, str] = field(default_factory=dict)
    prelude: str = ""
    args: tuple[str, ...] = ()
    python: str = sys.executable
    files: tuple[str, ...] = ()
    shows: str = ""
    fails: dict[str, str] = field(default_factory=dict)


def read_table(path: Path) -> list[Program]:
    """Return the programs of a file of changes."""
    table = yaml.safe_load(path.read_text())
    defaults = table.get("defaults", {})
    programs = []
    for entry in table["programs"]:
        values = {**defaults, **entry, "env": {**defaults.get("env", {}), **entry.get("env", {})}}
        changes = {kind: values.pop(kind) for kind in KINDS if kind in values}
        for name in ("args", "files"):
            given = values.get(name, ())
            values[name] = (given,) if isinstance(given, str) else tuple(map(str, given))
        values["files"] = tuple(str(path.parent / folder) for folder in values["files"])
        programs.append(Program(**values, changes=changes))
    return programs


def code_of(path: Path, prelude: str = "") -> str:
    """Return the Python of a program; of a notebook the cells with code, one after the other."""
    if path.suffix != ".ipynb":
        return path.read_text()
    cells = json.loads(path.read_text())["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return "\n\n".join([prelude, *map(_python_of_cell, texts)]) + "\n"


def _python_of_cell(text: str) -> str:
    first, _, rest = text.lstrip().partition("\n")
    if first.startswith("%%"):
        # `%%local` runs on the driver, which is where everything else runs here.
        is_python = first.split()[0] in ("%%local", "%%time", "%%capture")
        return _python_of_cell(rest) if is_python else ""
    return re.sub(r"(?m)^[ \t]*[%!?].*$", "", text)


def change(code: str, old: str, new: str | None) -> tuple[str, int]:
    """Return code in which whole lines are replaced wherever they are, and how many lines differ.

    Raises:
        ValueError: if the code does not have the old lines.
    """
    olds = textwrap.dedent(old).strip("\n").split("\n")
    news = textwrap.dedent(new).strip("\n").split("\n") if new else []
    patterns = [rf"{re.escape(line.rstrip())}[ \t]*" for line in olds]
    pattern = "\n(?P=indent)".join(patterns)
    found = re.compile(rf"^(?P<indent>[ \t]*){pattern}$", re.MULTILINE)
    code, count = found.subn(
        lambda match: "\n".join(match["indent"] + line if line else "" for line in news), code
    )
    if not count:
        raise ValueError(f"the program does not have the lines {old!r}")
    differing = max(sum(line not in news for line in olds), sum(line not in olds for line in news))
    return code, count * differing


def changed(code: str, program: Program) -> tuple[str, dict[str, int]]:
    """Return the changed code of a program, and the number of changed lines by kind."""
    lines = dict.fromkeys(KINDS, 0)
    for kind, changes in program.changes.items():
        for old, new in changes.items():
            code, count = change(code, old, new)
            lines[kind] += count
    return code, lines


def run(program: Program, folder: Path, out: Path) -> dict[str, Any]:
    """Run a program with its changes, and return its row of the table."""
    row = {"program": program.program, "source": program.source or program.program, "seconds": 0}
    row["lines"] = dict.fromkeys(KINDS, 0)
    here = out / re.sub(r"[^\w.-]", "_", program.program)
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir(parents=True)
    for files in program.files:
        shutil.copytree(files, here, dirs_exist_ok=True)
    try:
        code, row["lines"] = changed(code_of(folder / program.program, program.prelude), program)
    except (OSError, ValueError) as exc:
        return {**row, "result": NOT_RUN, "error": str(exc)}
    # Under its own name, a program called keras.py would be found by `import keras`.
    script = here / f"program_{Path(program.program).stem}.py"
    script.write_text(code)
    begin = time.monotonic()
    code_of_exit = execute(program, script, here)
    row["seconds"] = round(time.monotonic() - begin)
    log = (here / "log.txt").read_text(errors="replace")
    error = "" if code_of_exit == 0 else last_error(log)
    if code_of_exit is None:
        error = f"its limit of {program.limit_s:g} s ended it; its last line: {error}"
    elif not error and not re.search(program.shows, log):
        error = f"its output has no {program.shows!r}"
    elif code_of_exit and not error:
        error = f"ended with code {code_of_exit}"
    result = ENDED if code_of_exit is None else verdict(program, error, log)
    return {**row, "result": result, "error": error}


def execute(program: Program, script: Path, here: Path) -> int | None:
    """Run a script, and return its exit code; None if its limit ended it."""
    env = {**os.environ, "SPARKDL_ROOT": str(here / "runs"), "PYTHONUNBUFFERED": "1"}
    env.update({name: str(value) for name, value in program.env.items()})
    # Python puts the folder of the script, not the working directory, on its path.
    with (here / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [program.python, script.name, *program.args],
            cwd=here,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(program.limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            # Executors of a local cluster and data services may outlive the program.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def last_error(log: str) -> str:
    """Return the line of the last exception in a log, else its last line."""
    lines = [line for line in log.splitlines() if line.strip()]
    begins = [i for i, line in enumerate(lines) if line.startswith("Traceback (most recent call")]
    after = lines[begins[-1] + 1 :] if begins else []
    return next((line for line in after if line[0] not in " \t|"), lines[-1] if lines else "")


def verdict(program: Program, error: str, log: str) -> str:
    """Return the result of a program: right, or by what it fails, and why."""
    if not error:
        return RIGHT
    fails = program.fails
    if fails and re.search(fails["error"], f"{log}\n{error}"):
        verb = "refused" if fails["by"] == "sparkdl" else "fails"
        return f"{verb} by {fails['by']}: {fails['reason']}"
    return BY_US


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a table of Markdown."""
    heads = ("source", *KINDS, "result", "last line of the error")
    cells = [
        [row["source"], *map(str, row["lines"].values()), row["result"], _short(row["error"])]
        for row in rows
    ]
    lines = [heads, ["---"] * len(heads), *cells]
    return "\n".join(
        "| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines
    )


def _short(error: str, width: int = 160) -> str:
    text = error if len(error) <= width else f"{error[:width]}..."
    return f"`{text.replace('`', ' ')}`" if text else ""


def main(arguments: list[str] | None = None) -> int:
    """Run the programs, and return 1 if one of them fails by us."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("changes", type=Path, help="the file of changes")
    parser.add_argument("--out", type=Path, default=Path("build/programs"))
    parser.add_argument("--only", default="*", help="a pattern of the programs to run")
    parser.add_argument("--table", action="store_true", help="run nothing; print the last results")
    given = parser.parse_args(arguments)
    out, rows = given.out.resolve(), []
    for program in read_table(given.changes):
        kept = out / (re.sub(r"[^\w.-]", "_", program.program) + ".json")
        if not given.table and fnmatch.fnmatch(program.program, given.only):
            row = run(program, given.folder.resolve(), out)
            kept.write_text(json.dumps(row))
            print(
                f"{row['seconds']:5d} s  {row['program']}: {row['result']}  {row['error']}",
                file=sys.stderr,
            )
        if kept.exists():
            rows.append(json.loads(kept.read_text()))
    print(table(rows))
    return int(any(row["result"] in (BY_US, NOT_RUN, ENDED) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
