"""The examples as a user runs them: plain Python, without any setting of Spark."""

import contextlib
import difflib
import fcntl
import functools
import importlib.util
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from scipy import stats

from sparkdl import models, monitoring
from sparkdl.models.watch_files import ResultFiles, folder_of
from tests.helpers.logs import PROFILE
from tests.helpers.processes import eventually
from tests.helpers.saved_models import write_saved_model
from tests.helpers.spark import JAVA_OPTIONS

EXAMPLES = Path(__file__).parents[2] / "examples"
# A DAG is a file for Airflow, see test_airflow.py.
PROGRAMS = [path for path in sorted(EXAMPLES.rglob("*.py")) if path.parent.name != "airflow"]
PROGRAM_S = 240.0
# It takes three minutes on a quiet machine, and much longer on a busy one.
CIRCLE_S = 600.0
# Embedded Spark has as many slots as there are cores.
TWO_CORES = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two workers need two slots")


def needs(package: str) -> pytest.MarkDecorator:
    """Return a mark that skips an example whose framework is not installed."""
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed")


# Those that are started as programs: one on the default master, one on the master that it chooses.
STARTED = ("allreduce.py", "parameter_server.py")


def _run(name: str, folder: Path, *arguments: str, limit_s: float = PROGRAM_S) -> str:
    """Run an example; return what it printed. Kill its processes if it takes too long."""
    outer = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK", "PYSPARK"))}
    env = {**outer, "SPARK_LOCAL_IP": "127.0.0.1", "SPARKDL_ROOT": str(folder / "runs")}
    env["SPARK_SUBMIT_OPTS"] = JAVA_OPTIONS
    command = [sys.executable, EXAMPLES / name, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=folder, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # The process and its child, Java.
            raise
    assert process.returncode == 0, err
    return out


@pytest.fixture
def run_example(
    four_executors: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., str]:
    """Runs an example in an application that is there already; returns what it printed."""

    class Shared(SparkContext):
        def __new__(cls, conf: Any = None) -> Any:
            return four_executors.sparkContext

    def run(name: str, *arguments: str) -> str:
        if name in STARTED:
            return _run(name, tmp_path)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("SPARKDL_ROOT", str(tmp_path / "runs"))
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "pyspark-shell")  # Some set it where it is not.
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        monkeypatch.setattr(pyspark, "SparkContext", Shared)
        monkeypatch.setattr(SparkSession, "stop", lambda session: None)
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "single_process.py",
        pytest.param("allreduce.py", marks=TWO_CORES),
        "parameter_server.py",
        pytest.param("dataframe.py", marks=TWO_CORES),
        pytest.param("jax_digits.py", marks=[TWO_CORES, needs("jax")]),
        pytest.param("jax_model_parallel.py", marks=[TWO_CORES, needs("jax")]),
        pytest.param("parquet.py", marks=TWO_CORES),
        "predict.py",
        "export_model.py",
        "serving.py",
        "search.py",
        pytest.param("torch_dataframe.py", marks=[TWO_CORES, needs("torch")]),
        pytest.param("torch_digits.py", marks=[TWO_CORES, needs("torch")]),
        "hops/grid_digits.py",
        pytest.param("horovod/elastic_digits.py", marks=TWO_CORES),
        pytest.param("horovod/keras_digits.py", marks=TWO_CORES),
        pytest.param("horovod/session_digits.py", marks=TWO_CORES),
        pytest.param("horovod/tape_digits.py", marks=TWO_CORES),
        pytest.param("horovod/torch_digits.py", marks=[TWO_CORES, needs("torch")]),
        "tfos/digits_spark.py",
        "tfos/digits_tensorflow.py",
        "tfos/servers_digits.py",
        "tfos/stream_digits.py",
    ],
)
@pytest.mark.filterwarnings("default")
def test_an_example_learns(name: str, run_example: Callable[[str], str], tmp_path: Path) -> None:
    printed = run_example(name)
    accuracy = re.compile(r"^accuracy (0\.\d+|1\.0+) on unseen digits$", re.MULTILINE)
    match = accuracy.search(printed)
    assert match, printed
    assert float(match[1]) > 0.93
    assert len(list(tmp_path.glob("runs/*/run.json"))) == (name != "single_process.py")


@pytest.mark.slow
@pytest.mark.timeout(CIRCLE_S + 300)
@TWO_CORES
def test_the_circle_trains_again_and_promotes(tmp_path: Path) -> None:
    run = functools.partial(_run, "train_and_serve.py", tmp_path, limit_s=CIRCLE_S)
    printed = run("--folder", "bikes")
    assert eventually(lambda: not _left_behind(tmp_path), 30), _left_behind(tmp_path)
    table = printed[printed.index("round  step") :].splitlines()[2:]
    rows = [(row[0], row[7:16].strip(), row[25:]) for row in table]
    steps = [step for _, step, _ in rows]
    assert steps[:5] == ["prepare", "search", "train", "export", "canary"]
    assert steps[-8:] == ["search", "train", "export", "canary", "ask", "decide", "ask", "monitor"]
    results = {(number, step): text for number, step, text in rows}
    assert "learned from bikes-1-search" in results["2", "search"]
    assert results["2", "decide"].startswith("promoted: bikes/1 errs by ")
    assert results["2", "monitor"] == "no reason to train again"
    first = [text for number, step, text in rows if (number, step) == ("1", "monitor")]
    assert first[0] == "no reason to train again"
    assert first[-1].startswith("temperature has drifted in ")
    assert "ALARM bikes/1: 1 of 3 features has drifted from" in printed
    assert sum(float(row[16:23]) for row in table) < CIRCLE_S
    # A step that is started again repeats nothing.
    again = run("train", "--folder", "bikes", "--round", "2")
    assert again.strip() == results["2", "train"]

    # A canary whose forecasts are worse is rolled back. Its first day has most of the requests.
    root, log = str(tmp_path / "bikes" / "runs"), tmp_path / "bikes" / "log"
    models.alias("bikes", "canary", 1, root=root)
    records = [json.loads(line) for file in log.rglob("*.jsonl") for line in _lines(file)]
    now, day = int(time.time() * 1000), 86_400_000
    lines = [
        json.dumps({**record, "time": now + day * (number % 50 == 0)})
        for number, record in enumerate(records)
    ]
    (log / "again-1.jsonl").write_text("\n".join(lines))
    decided = run("decide", "--folder", "bikes")
    assert decided.startswith("rolled back: bikes/2 errs by ")
    assert models.get("bikes", alias="canary", root=root).version == 2


@pytest.mark.slow
def test_the_drift_of_a_round_is_acknowledged_after_a_kill(
    four_executors: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    circle = runpy.run_path(str(EXAMPLES / "train_and_serve.py"))
    place = circle["Place"](tmp_path)
    prepared = write_saved_model(tmp_path / "prepared")
    version = models.export(prepared, "bikes", profile=PROFILE, root=place.root)
    files = ResultFiles(folder_of(version))
    files.write_windows(4, [])
    files.write_finished()

    class Killed(BaseException):
        """The end of the process."""

    def kill(*_: Any, **__: Any) -> None:
        raise Killed

    # Before the first version is served, there is no drift; no labels are needed.
    circle["prepare"](place, "1")
    assert files.last_acknowledged()[0] == -1
    models.alias("bikes", "stable", 1, root=place.root)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(monitoring, "acknowledge", kill)
        circle["prepare"](place, "2")
    circle["prepare"](place, "2")
    assert files.last_acknowledged()[0] == 4


@pytest.mark.slow
def test_a_canary_that_was_rolled_back_is_not_the_canary_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    circle = runpy.run_path(str(EXAMPLES / "train_and_serve.py"))
    canary, place = circle["canary"], circle["Place"](tmp_path)
    prepared = write_saved_model(tmp_path / "prepared")
    versions = [models.export(prepared, "bikes", root=place.root) for _ in range(2)]
    round_of = lambda place, name: versions[int(name) - 1]  # noqa: E731
    monkeypatch.setitem(canary.__globals__, "version_of", round_of)
    for _ in range(2):
        assert canary(place, "1") == "all requests to bikes/1"
    for _ in range(2):
        assert canary(place, "2") == "30 % of the requests to bikes/2"
    models.alias("bikes", "canary", 1, root=place.root)
    assert canary(place, "2") == "all requests to bikes/1"
    moves = models.alias_history("bikes", "canary", root=place.root)
    assert [move.version for move in moves] == [1, 2, 1]


def _left_behind(folder: Path) -> list[str]:
    """The processes that an example in a folder has left behind."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"SPARKDL_ROOT={folder}/".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
    return found


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resume.py"])
@pytest.mark.filterwarnings("default")
def test_resume_runs_only_the_failed_trial_again(
    name: str, run_example: Callable[[str], str]
) -> None:
    printed = run_example(name)
    counts = re.findall(r"^Run neighbors-\S+: COMPLETE, (\d) of 3 trials complete", printed, re.M)
    assert counts == ["2", "3"], printed
    assert "attempts of each trial: [1, 1, 2]" in printed


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("tabular.py", marks=TWO_CORES)])
@pytest.mark.filterwarnings("default")
def test_a_table_is_prepared_alike_in_training_predictions_and_server(
    name: str, run_example: Callable[..., str]
) -> None:
    printed = run_example(name, "--rows", "6000", "--epochs", "4")
    trained, new = re.findall(r"^auc (0\.\d+) in training, (0\.\d+) of new rows$", printed, re.M)[0]
    assert 0.75 < float(trained) < 0.9
    assert float(new) == pytest.approx(float(trained), abs=0.06)
    (difference,) = re.findall(r"^the server's answers differ by at most (\S+)$", printed, re.M)
    assert float(difference) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["callbacks.py"])
@pytest.mark.filterwarnings("default")
def test_a_run_is_followed(
    name: str, run_example: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("WEBHOOK_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(variable, raising=False)
    printed = run_example(name)
    assert re.search(r"^best so far: trial 1 with {'strength': 1\.0}: 0\.9", printed, re.M), printed
    assert re.search(r"^digits-\S+ has ended: 2 of 2 trials complete$", printed, re.M)
    accuracy = re.search(r"^accuracy (0\.\d+) on unseen digits$", printed, re.M)
    assert accuracy and float(accuracy[1]) > 0.93


@pytest.mark.slow
@pytest.mark.parametrize("name", ["compare.py"])
@pytest.mark.filterwarnings("default")
def test_runs_are_found_again_and_compared(
    name: str, run_example: Callable[[str], str], tmp_path: Path
) -> None:
    printed = run_example(name)
    assert len(re.findall(r"^\d +(neighbors|perceptron)-\S+ .*\[candidate\]", printed, re.M)) == 2
    assert "a hundredth of the other's memory" in printed
    assert re.search(r"^result +state +COMPLETE +COMPLETE$", printed, re.M)
    assert re.search(r"^parameters +num_neighbors .*\n +power .*\n +alpha ", printed, re.M)
    assert "Best value so far" in (tmp_path / "compare.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["growing.py"])
@pytest.mark.filterwarnings("default")
def test_training_lasts_beside_a_search(name: str, run_example: Callable[..., str]) -> None:
    # A busy machine may leave no time to grow, which test_growing_gangs waits for.
    printed = run_example(name, "--seconds", "30")
    assert re.search(r"^best number of neighbors: \d+$", printed, re.M), printed
    accuracy = re.search(r"^accuracy (\d\.\d+), with these workers:$", printed, re.M)
    assert accuracy and float(accuracy[1]) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tfos/linear_regression.py"])
@pytest.mark.filterwarnings("default")
def test_a_pipeline_finds_its_weights(name: str, run_example: Callable[..., str]) -> None:
    # In four partitions the rows come in another order: ten epochs end a little too far away.
    printed = run_example(name, "--epochs", "20")
    found = re.search(r"^weights (\S+) and (\S+);", printed, re.MULTILINE)
    assert found, printed
    assert float(found[1]) == pytest.approx(3.14, abs=0.02)
    assert float(found[2]) == pytest.approx(1.618, abs=0.02)


def test_bounds_of_the_evaluation_are_those_of_scipy() -> None:
    example = runpy.run_path(str(EXAMPLES / "text_evaluation.py"))
    for right, total in ((0, 5), (5, 5), (3, 7), (160, 200)):
        expected = stats.binomtest(right, total).proportion_ci(0.95, "wilson")
        assert example["wilson"](right, total) == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
@needs("transformers")
@pytest.mark.filterwarnings("default")
def test_models_are_evaluated_in_a_grid(run_example: Callable[..., str]) -> None:
    printed = run_example("text_evaluation.py")
    rows = re.findall(r"^ *(\w+) +(\w+)  accuracy ([\d.]+) \[([\d.]+), ([\d.]+)\]$", printed, re.M)
    assert len(rows) == 9
    assert all(float(low) <= float(share) <= float(high) for *_, share, low, high in rows)
    shares = {(model, task): float(share) for model, task, share, *_ in rows}
    assert shares["long", "repeat"] > shares["random", "repeat"]


@pytest.mark.slow
@needs("peft")
@TWO_CORES
@pytest.mark.filterwarnings("default")
def test_adapters_are_searched_and_the_best_one_labels(run_example: Callable[..., str]) -> None:
    printed = run_example("text_lora.py")
    (best,) = re.findall(r"^Best: trial \d, accuracy ([\d.]+)", printed, re.M)
    (labelled,) = re.findall(r"^accuracy ([\d.]+) on unseen texts$", printed, re.M)
    assert float(best) > 0.9
    assert float(labelled) == pytest.approx(float(best), abs=1e-4)


@pytest.mark.slow
@needs("transformers")
@pytest.mark.filterwarnings("default")
def test_texts_are_embedded_and_continued(four_executors: SparkSession, tmp_path: Path) -> None:
    """As transformers does, one text after the other, without padding."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    example, folder = runpy.run_path(str(EXAMPLES / "text_embeddings.py")), str(tmp_path)
    example["make_model"](folder)
    df = example["texts"](four_executors, 40)
    found = example["scored"](df, folder).collect()
    texts = {row.id: row.text for row in df.collect()}
    assert sorted(row.id for row in found) == sorted(texts)[:-1]  # The last one is too long.
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    for row in found:
        tokens = tokenizer(texts[row.id], return_tensors="pt")
        states = model(**tokens, output_hidden_states=True).hidden_states[-1][0]
        expected = states.mean(0).detach().numpy()
        np.testing.assert_allclose(row.embedding, expected, rtol=1e-3, atol=1e-4)
        new = model.generate(**tokens, max_new_tokens=example["NEW_TOKENS"], do_sample=False)
        kept = new[0, tokens["input_ids"].shape[1] :]
        assert row.continued == tokenizer.decode(kept, skip_special_tokens=True)


@pytest.mark.slow
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_an_example_explains_its_arguments(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for framework in ("jax", "torch"):
        if path.stem.startswith(framework):
            pytest.importorskip(framework)
    monkeypatch.setattr(sys, "argv", [path.name, "--help"])
    monkeypatch.syspath_prepend(str(path.parent))  # As Python does.
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(path), run_name="__main__")
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {path.name} [-h]")


@pytest.mark.slow
def test_an_example_is_submitted_and_its_second_start_repeats_nothing(tmp_path: Path) -> None:
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]"]
    command = [*submit, str(EXAMPLES / "callbacks.py"), "--run-id", "nightly"]
    env = {**os.environ, "SPARKDL_ROOT": str(tmp_path / "runs")}
    for _ in range(2):
        done = subprocess.run(
            command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=PROGRAM_S
        )
        assert done.returncode == 0, done.stderr
        last = done.stdout.strip().split("\n")[-1]
        line = json.loads(last.removeprefix("sparkdl: "))
        assert (line["run"], line["counts"], line["exit_code"]) == ("nightly", {"COMPLETE": 2}, 0)
        assert line["best"]["value"] > 0.93
    assert "Nothing was run" in done.stdout


ROUND = "prepare search train export canary"


@pytest.fixture
def cron(tmp_path: Path) -> Any:
    """Calls the script with a command that notes its calls in place of Python and of sparkdl."""
    stand_in, bikes = tmp_path / "bin" / "sparkdl", tmp_path / "bikes"
    for folder in (stand_in.parent, bikes / "runs" / "models" / "bikes", bikes / "log"):
        folder.mkdir(parents=True)

    def call(codes: dict[str, int]) -> tuple[int, list[str], set[str]]:
        cases = "".join(f"*' {name} '*) exit {number};; " for name, number in codes.items())
        note = f'echo "$*" >> "{tmp_path}/calls"; case " $* " in {cases} *) exit 0;; esac'
        stand_in.write_text(f"#!/bin/sh\n{note}\n")
        stand_in.chmod(0o755)
        (tmp_path / "calls").write_text("")
        # As cron has it.
        env = {"PATH": "/usr/bin:/bin", "SPARKDL_FOLDER": str(bikes)}
        env["SPARKDL_PYTHON"] = str(stand_in)
        code = subprocess.run([EXAMPLES / "cron" / "hourly.sh"], env=env).returncode
        lines = (tmp_path / "calls").read_text().splitlines()
        done = [next(w for w in line.split() if not w.endswith(".py")) for line in lines]
        rounds = {line.split("--round ")[1].split()[0] for line in lines if "--round" in line}
        return code, done, rounds - {"none"}

    return call


@pytest.mark.parametrize(
    ("codes", "calls", "code"),
    [
        ({}, "decide monitor", 0),
        ({"decide": 99, "monitor": 1}, "decide", 0),
        ({"monitor": 1}, f"decide monitor {ROUND}", 0),
        ({"monitor": 1, "export": 99}, "decide monitor prepare search train export", 0),
        ({"monitor": 1, "search": 7}, "decide monitor prepare search", 7),
        ({"monitor": 2}, "decide monitor", 2),
        ({"decide": 1}, "decide", 1),
    ],
)
def test_the_script_for_cron_trains_only_after_drift(
    codes: dict[str, int], calls: str, code: int, cron: Any, tmp_path: Path
) -> None:
    assert cron(codes)[:2] == (code, calls.split())
    # Another call goes on.
    with (tmp_path / "bikes" / "hourly.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert cron(codes) == (0, [], set())


def test_the_script_for_cron_finishes_a_round_before_it_looks_again(
    cron: Any, tmp_path: Path
) -> None:
    code, _, first = cron({"monitor": 1, "train": 137})
    assert code == 137
    assert cron({"monitor": 1}) == (0, ROUND.split(), first)
    assert cron({}) == (0, ["decide", "monitor"], set())


def test_the_script_for_cron_trains_the_first_version(cron: Any, tmp_path: Path) -> None:
    (tmp_path / "bikes" / "runs" / "models" / "bikes").rmdir()
    (tmp_path / "bikes" / "log").rmdir()
    assert cron({})[:2] == (0, ROUND.split())
    (tmp_path / "bikes" / "runs" / "models" / "bikes").mkdir()
    assert cron({}) == (0, ["decide"], set())


def test_four_lines_distribute_a_program() -> None:
    single, distributed = (
        (EXAMPLES / name).read_text().splitlines() for name in ("single_process.py", "allreduce.py")
    )
    changes = [line for line in difflib.ndiff(single, distributed) if line[2:].strip()]
    added = [line[2:].strip() for line in changes if line.startswith("+ ")]
    assert added == [
        "from sparkdl import distribute, experiment",
        "with distribute.strategy().scope():",
        "model = build_model()",
        "accuracy = experiment.allreduce(train, num_workers=2).result",
    ]
    assert sum(line.startswith("- ") for line in changes) == 2
