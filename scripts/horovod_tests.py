"""Run Horovod's own tests with sparkdl under Horovod's name, and compare with Horovod itself.

The tests are in the source of Horovod 0.28.1 and are not part of this project:

    pip download --no-deps --no-binary :all: horovod==0.28.1 -d build/horovod
    tar -xzf build/horovod/horovod-0.28.1.tar.gz -C build/horovod
    pip install --target build/horovod/packages mock parameterized psutil
    git clone --depth 1 --branch v0.28.1 https://github.com/horovod/horovod build/horovod/tests

    python scripts/horovod_tests.py build/horovod/tests/test -np 2 test_tensorflow

Tests with `torch` in their name need PyTorch, and run without TensorFlow.

With `--oracle FOLDER/bin`, the `horovodrun` of that environment runs the tests too, and the table
shows where the two differ. `docs/horovod-tests.md` has the results and how that environment was
made.
"""

import argparse
import functools
import importlib
import importlib.abc
import importlib.util
import os
import subprocess
import sys
import types
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ORDER = ("failed", "passed", "skipped")


class Aliases(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import `sparkdl.horovod` in place of `horovod`, and small stand-ins for its inner modules.

    Args:
        inner: the names in the stand-ins, by module.
    """

    def __init__(self, inner):
        self.inner = inner

    def find_spec(self, name, path=None, target=None):
        is_alias = name == "horovod" or name.startswith("horovod.")
        return importlib.util.spec_from_loader(name, self) if is_alias else None

    def create_module(self, spec):
        inner = self.inner.get(spec.name)
        if inner is None:
            return importlib.import_module(f"sparkdl.{spec.name}")
        module = types.ModuleType(spec.name)
        vars(module).update(inner, __path__=[])
        return module

    def exec_module(self, module):
        pass


def _inner_modules():
    """Return what tests import from inside Horovod, by module."""
    from packaging.version import parse

    def is_at_least(version, other):
        return parse(version) >= parse(other)

    def rank_and_size():
        return int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])

    return {
        "horovod.common": {},
        "horovod.common.util": {"is_version_greater_equal_than": is_at_least},
        "horovod.runner": {},
        "horovod.runner.common": {},
        "horovod.runner.common.util": {"secret": None},
        "horovod.runner.common.util.env": {"get_env_rank_and_size": rank_and_size},
        "horovod.runner.util": {},
        "horovod.runner.util.threads": {"in_thread": None},
    }


def _prepare(framework):
    """Add inner names of Horovod by which its tests look at the state; return those of modules."""
    from sparkdl.horovod.process_sets import get_process_set_ids_and_ranks

    # A name in an import statement would be imported before the fork, for both frameworks.
    hvd = importlib.import_module(f"sparkdl.horovod.{framework}")
    basics = types.SimpleNamespace(_get_process_set_ids_and_ranks=get_process_set_ids_and_ranks)
    hvd.mpi_ops = types.SimpleNamespace(_basics=basics)
    inner = _inner_modules()
    if framework == "torch":
        inner["horovod.torch.mpi_ops"] = {"synchronize": hvd.synchronize}
        hvd.shutdown = lambda: None  # After each test, and ranks meet once.
        # The tests try all optimizers with vectors. This one takes matrices only, and came later.
        muon = getattr(importlib.import_module("torch").optim, "Muon", None)
        if muon:
            muon.__module__ = "muon"
    else:
        is_eager = importlib.import_module("tensorflow").executing_eagerly
        hvd._executing_eagerly = is_eager
        inner["horovod.tensorflow.util"] = {"_executing_eagerly": is_eager}
    return inner


def framework_of(tests):
    """Return the framework of a file of tests."""
    return "torch" if "torch" in Path(tests).stem else "tensorflow"


def run_tests(tests: str, packages: str, out: str, words: Sequence[str]) -> int:
    """Run tests on one rank; write their results as JUnit's XML."""
    import pytest

    from sparkdl import context

    sys.path[:0] = [packages, str(Path(tests).parents[1] / "utils")]
    sys.meta_path.insert(0, Aliases(_prepare(framework_of(tests))))
    os.chdir(Path(tests).parent)
    report = Path(out, f"{Path(tests).stem}.{context.current().rank}.xml")
    words = ["-q", "-p", "no:cacheprovider", "--tb=short", f"--junitxml={report}", *words]
    return int(pytest.main([*words, tests]))


def run_ours(tests: Path, out: Path, arguments: argparse.Namespace) -> None:
    """Run one file of tests in ranks of sparkdl."""
    from sparkdl import experiment

    packages = str(Path(arguments.packages).resolve())
    words = ["-k", arguments.only] if arguments.only else []
    try:
        experiment.horovod(
            functools.partial(run_tests, str(tests), packages, str(out), words),
            num_workers=arguments.np,
            env=variables(),
            framework=framework_of(tests),
            trial_timeout_s=arguments.timeout,
            root=str(out / "runs"),
            name=tests.stem,
            progress=False,
        )
    except Exception as exc:  # noqa: BLE001 The table shows it.
        print(f"{tests.stem}: {str(exc).splitlines()[0]}", flush=True)


def run_oracle(tests: Path, out: Path, arguments: argparse.Namespace) -> None:
    """Run one file of tests with Horovod itself."""
    folder = Path(arguments.oracle).resolve()
    report = f"--junitxml={out}/{tests.stem}.$HOROVOD_RANK.xml"
    only = f"-k '{arguments.only}'" if arguments.only else ""
    command = f"python -m pytest -q -p no:cacheprovider {report} {only} {tests.name}"
    environ = {**os.environ, **variables(), "PATH": f"{folder}:{os.environ['PATH']}"}
    environ["PYTHONPATH"] = str(tests.parents[1] / "utils")
    words = ["--gloo", "-np", str(arguments.np), "--network-interfaces", "lo"]
    with (out / f"{tests.stem}.log").open("w") as log:
        subprocess.run(
            ["timeout", str(arguments.timeout), "horovodrun", *words, "bash", "-c", command],
            cwd=tests.parent,
            env=environ,
            stdout=log,
            stderr=log,
            check=False,
        )


def variables() -> dict[str, str]:
    """Return the environment of the tests: no GPU, and Keras 2, for which they were written."""
    return {
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_USE_LEGACY_KERAS": os.environ.get("TF_USE_LEGACY_KERAS", "1"),
    }


def results(out: Path, name: str) -> dict[str, str]:
    """Return the result of each test: the worst of all ranks."""
    found: dict[str, str] = {}
    for report in sorted(out.glob(f"{name}.*.xml")):
        for case in ElementTree.parse(report).iter("testcase"):
            tags = {child.tag for child in case}
            result = "failed" if tags & {"failure", "error"} else "passed"
            result = "skipped" if "skipped" in tags else result
            test = case.get("name", "")
            found[test] = min(result, found.get(test, result), key=ORDER.index)
    return found


def main() -> int:
    """Run the files, and print a table; return 1 if a test passes with Horovod only."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tests", type=Path, help="the folder `test` of Horovod's source")
    parser.add_argument("names", nargs="+", help="test_tensorflow and so on, of `parallel`")
    parser.add_argument("-np", type=int, default=2, help="number of ranks")
    parser.add_argument("--oracle", metavar="BIN", help="the programs of Horovod's environment")
    parser.add_argument("--packages", default="build/horovod/packages", help="mock and so on")
    parser.add_argument("--only", metavar="EXPRESSION", help="as -k of pytest")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for each file")
    parser.add_argument("--out", type=Path, default=Path("build/horovod/results"))
    arguments = parser.parse_args()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", f"--master local[{arguments.np}] pyspark-shell")
    different = []
    print("| file | test | Horovod | sparkdl |\n|---|---|---|---|")
    for name in arguments.names:
        tests = (arguments.tests / "parallel" / f"{name}.py").resolve()
        folders = [
            (arguments.out / f"{who}-{arguments.np}").resolve() for who in ("oracle", "ours")
        ]
        for folder, run in zip(folders, (run_oracle, run_ours), strict=True):
            folder.mkdir(parents=True, exist_ok=True)
            if run is run_ours or arguments.oracle:
                for report in folder.glob(f"{name}.*.xml"):
                    report.unlink()
                run(tests, folder, arguments)
        theirs, ours = (results(folder, name) for folder in folders)
        for test in {**theirs, **ours}:
            row = theirs.get(test, "-"), ours.get(test, "-")
            print(f"| {name} | {test} | {row[0]} | {row[1]} |")
            if row[0] == "passed" and row[1] != "passed":
                different.append(f"{name}::{test} ({row[1]})")
        print(
            f"{name}: {dict(Counter(theirs.values()))}, {dict(Counter(ours.values()))}", flush=True
        )
    print("passed with Horovod only:", *(different or ["none"]), sep="\n- ")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
