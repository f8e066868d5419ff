"""A trial is trained again; a difference is planted for each cause that a verification names."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkdl.cluster.plan import Role
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.files.layout import RunPaths
from sparkdl.runner.again.resume import resume_run
from sparkdl.runner.again.verify import VerifyRequest, verify_run
from sparkdl.runner.pipeline.execute import execute
from sparkdl.runs import Run
from sparkdl.runs.history import read_description
from sparkdl.runs.verification.verification import Verification, read_verifications
from sparkdl.search import Float
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Space
from tests.helpers.in_memory_cluster import Attempt, InMemoryCluster, Outcome, raised, returned
from tests.helpers.loops import request_of

pytestmark = pytest.mark.usefixtures("quick_polls")


@pytest.fixture(autouse=True)
def _outside_any_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


Program = Callable[[Attempt], Outcome]


def training(loss: float = 0.5, weight: bytes = b"w", step: int = 2, **returns: Any) -> Program:
    """A program with four reports, of which those from a step on have another loss, and a file."""

    def run(attempt: Attempt) -> Outcome:
        for number in range(4):
            attempt.report(number, loss=1.0 if number < step else loss, epoch_s=2.0)
        storage.write(storage.join(attempt.paths.folder, "artifacts/model/w.bin"), weight)
        return returned(loss=loss, model="artifacts/model/w.bin", **returns)

    return run


def start(root: str, program: Program | None = None, num_trials: int = 1, **options: Any) -> Run:
    request = request_of(num_trials, root=root, metric="loss", direction="min", **options)
    return execute(request, InMemoryCluster(program or training()))


def verify(
    run: Run, *programs: Program, executor: dict[str, Any] | None = None, **arguments: Any
) -> Verification:
    """Verify a run; the programs are those of the trainings, the last one of all further ones."""
    left = list(programs or [training()])
    cluster = InMemoryCluster(lambda a: (left.pop(0) if len(left) > 1 else left[0])(a))
    cluster.executor |= executor or {}
    names = ("number", "train", "data", "ignored", "repeats", "num_workers")
    own = {name: arguments.pop(name) for name in names if name in arguments}
    options = {"progress": False, **arguments}
    return verify_run(run.path, VerifyRequest(options=options, **own), cluster)


def kinds(verification: Verification) -> list[str]:
    return list(dict.fromkeys(str(cause.kind) for cause in verification.causes))


def change(path: str, **changes: Any) -> None:
    """Change the description of a run, as if it had been made elsewhere."""
    content = read_description(path)
    storage.write(RunPaths(path).run, json.dumps({**content, **changes}))


def files_of(folder: str) -> dict[str, bytes]:
    paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_an_equal_training_is_a_proof_and_the_run_is_not_touched(root: str) -> None:
    run = start(root, num_trials=3)
    before = files_of(run.path)
    seen = []

    def look(attempt: Attempt) -> Outcome:
        trial = attempt.task.trial
        seen.append((trial.number, trial.params, trial.seed))
        return training()(attempt)

    verification = verify(run, look, number=2)
    assert verification.verdict == "equal" and verification.is_equal
    # Alone, once, and in its place.
    trial = run.trials[2]
    assert seen == [(2, trial.params, trial.seed)]
    assert files_of(run.path) == before
    compared = verification.compared
    assert (compared.num_steps, compared.metrics) == (4, ["loss", "epoch_s"])
    assert (compared.returned, compared.files) == (["loss", "model"], ["artifacts/model/w.bin"])
    assert "bit-equal" in str(verification) and "4 steps of loss, epoch_s" in str(verification)
    # The result is beside the run, the equal training is gone, and neither is in the history.
    assert [str(one) for one in read_verifications(run.path)] == [str(verification)]
    assert not any(Path(path).exists() for path in verification.trainings)
    assert {n for n in storage.list_names(root) if n[0] != "."} == {"run"}


def test_the_first_step_and_the_size_of_a_difference_are_told(root: str) -> None:
    run = start(root)
    verification = verify(run, training(loss=0.75, weight=b"v"))
    found = {one.what: one for one in verification.mismatches}
    assert list(found) == ["metric loss", "returned loss", "file artifacts/model/w.bin, line 1"]
    loss = found["metric loss"]
    assert (loss.step, loss.before, loss.now) == (2, "0.5", "0.75")
    assert (loss.num_differing, loss.num_compared) == (2, 4)
    assert loss.largest == 0.25 and loss.relative == pytest.approx(1 / 3)
    assert "first differs at step 2: 0.5 before, 0.75 now, 2 of 4 steps" in str(verification)
    assert all(Path(path, "run.json").exists() for path in verification.trainings)
    assert len(verification.trainings) == 2
    read = read_verifications(run.path)
    assert [each.to_dict() for each in read] == [verification.to_dict()]


def test_the_last_bit_counts_and_so_do_missing_steps_and_files(root: str) -> None:
    run = start(root)
    verification = verify(run, training(loss=0.5000000000000001))
    assert [one.what for one in verification.mismatches] == ["metric loss", "returned loss"]

    def short(attempt: Attempt) -> Outcome:
        attempt.report(0, loss=1.0, epoch_s=2.0)
        return returned(loss=0.5)

    what = {one.what: (one.before, one.now) for one in verify(run, short).mismatches}
    assert what["metric loss"] == ("1.0", "absent")
    assert what["returned model"] == ("'artifacts/model/w.bin'", "absent")
    assert what["file artifacts/model/w.bin"] == ("1 bytes", "absent")


# ---- each cause


def test_nothing_that_differs_is_an_unknown_cause(root: str) -> None:
    verification = verify(start(root), training(loss=0.75))
    assert kinds(verification) == ["not recorded"]
    assert "two trainings here are equal" in verification.causes[0].text
    assert (
        "here are equal" not in verify(start(root + "/2"), training(0.75), repeats=1).causes[0].text
    )


def test_two_trainings_that_differ_are_not_deterministic(root: str) -> None:
    run = start(root)
    change(run.path, framework="tensorflow")
    verification = verify(run, training(loss=0.6), training(loss=0.7))
    assert kinds(verification) == ["not deterministic"]
    assert "metric loss" in verification.causes[0].text
    assert "enable_op_determinism" in verification.causes[0].text
    # What varies need not be all that differs.
    both = verify(run, training(0.6, b"v"), training(0.7, b"v"))
    assert kinds(both) == ["not deterministic"]


def test_a_saved_model_is_no_proof_and_can_be_ignored(root: str) -> None:
    contents = iter(range(100))

    def saving(attempt: Attempt) -> Outcome:
        folder = storage.join(attempt.paths.folder, "artifacts/model")
        storage.write(storage.join(folder, "saved_model.pb"), f"\0{next(contents)}")
        storage.write(storage.join(folder, "variables/variables.index"), "same")
        return returned(loss=0.5, model="artifacts/model")

    run = start(root, saving)
    (cause,) = verify(run, saving).causes
    assert cause.kind == "not deterministic" and "SavedModel" in cause.text
    ignoring = verify(run, saving, ignored=["model"])
    assert ignoring.is_equal and "no weights and no files" in str(ignoring)


def test_a_clock_is_named_and_can_be_ignored(root: str) -> None:
    seconds = iter(range(100))

    def timed(attempt: Attempt) -> Outcome:
        attempt.report(0, loss=1.0, epoch_s=float(next(seconds)))
        return returned(loss=1.0)

    run = start(root, timed)
    verification = verify(run, timed)
    assert verification.verdict == "different"
    assert kinds(verification) == ["wall clock"]
    assert "ignore=['epoch_s']" in verification.causes[0].text
    ignoring = verify(run, timed, ignored=["epoch_s"])
    assert ignoring.is_equal and "Ignored: epoch_s" in str(ignoring)
    # A metric with the name of a time that two trainings share is no clock.
    constant = verify(run, lambda a: (a.report(0, loss=1.0, epoch_s=-1.0), returned(loss=1.0))[1])
    assert kinds(constant) == ["not recorded"]


def test_other_packages_are_a_cause(root: str) -> None:
    run = start(root)
    paths = RunPaths(run.path)
    lines = storage.read(paths.environment).decode().splitlines()
    kept = [line for line in lines if not line.startswith("numpy==")]
    storage.write(paths.environment, "\n".join([*kept, "numpy==0.9"]))
    verification = verify(run, training(loss=0.75))
    assert kinds(verification) == ["packages"]
    assert (
        "package numpy" in verification.causes[0].text
        and "0.9 before" in verification.causes[0].text
    )


def test_other_hardware_is_a_cause(root: str) -> None:
    run = start(root)
    verification = verify(run, training(loss=0.75), executor={"gpus": ["A100"]})
    assert kinds(verification) == ["hardware"]
    assert str(verification.causes[0]) == "hardware: GPUs (executors): none before, A100 now"


def test_another_function_is_a_cause(root: str) -> None:
    run = start(root)
    verification = verify(run, training(loss=0.75), train=lambda x: 2 * x)
    assert kinds(verification) == ["code"]
    (code,) = [one for one in verification.differences if one.subject == "code function.py"]
    assert any("lambda x: 2 * x" in line for line in code.lines)


def test_another_commit_is_a_cause(root: str) -> None:
    run = start(root)
    change(run.path, git_commit="1234567")
    verification = verify(run, training(loss=0.75))
    assert kinds(verification) == ["code"]


def test_the_function_of_a_later_resume_is_a_cause(root: str) -> None:
    good = training()
    run = start(root, lambda a: raised("no") if a.number else good(a), num_trials=2)
    cluster = InMemoryCluster(training())
    options = {"progress": False}
    resume_run(run.path, lambda x: x, {}, frozenset({"failed"}), None, options, cluster)
    verification = verify(run, training(loss=0.75), number=0)
    assert kinds(verification) == ["code"]
    assert "resumed later" in verification.causes[0].text
    # The trial that was tried again had this function.
    assert kinds(verify(run, training(loss=0.75), number=1)) == ["restart"]


def test_other_files_are_a_cause(root: str) -> None:
    record = {"paths": ["/data"], "num_files": 1, "num_bytes": 5, "names": "a", "marks": "m"}

    def reading(loss: float, **changed: Any) -> Program:
        def run(attempt: Attempt) -> Outcome:
            line = json.dumps({**record, **changed}).encode() + b"\n"
            storage.append(attempt.paths.files, line)
            return training(loss)(attempt)

        return run

    run = start(root, reading(0.5))
    verification = verify(run, reading(0.75, marks="later", num_bytes=6))
    assert kinds(verification) == ["data"]
    assert "files of /data" in verification.causes[0].text


def test_other_options_are_a_cause(root: str) -> None:
    run = start(root, keep_checkpoints="all")
    verification = verify(run, training(loss=0.75), keep_checkpoints="best+last")
    assert kinds(verification) == ["options"]
    with_values = start(f"{root}/2", env={"MODE": "fast"})
    verification = verify(with_values, training(loss=0.75), env={"MODE": "slow"})
    assert kinds(verification) == ["options"]
    assert "MODE" in verification.causes[0].text


def test_a_restart_is_a_cause(root: str) -> None:
    attempts = iter([raised("crash"), None])
    run = start(root, lambda a: next(attempts) or training()(a), max_restarts=1)
    assert run.trials[0].attempts == 2
    verification = verify(run, training(loss=0.75))
    assert kinds(verification) == ["restart"]


def test_another_number_of_ranks_is_a_cause(root: str) -> None:
    roles = [Role(name="worker", count=2, in_ring=True)]

    def start_gang(program: Program) -> Run:
        request = request_of(
            root=root, kind="allreduce", roles=roles, metric="loss", direction="min"
        )
        return execute(replace(request, params=[{}]), InMemoryCluster(program))

    run = start_gang(training())
    assert verify(run).is_equal
    sizes = []

    def one(attempt: Attempt) -> Outcome:
        sizes.append(attempt.task.plan.size)
        return training(loss=0.75)(attempt)

    verification = verify(run, one, num_workers=1)
    assert sizes == [1, 1]
    assert kinds(verification) == ["number of ranks"]
    assert "2 before, 1 now" in verification.causes[0].text
    change(run.path, request={**read_description(run.path)["request"], "elastic": True})
    assert "number of ranks" in kinds(verify(run, training(loss=0.75), repeats=1))


def test_a_training_that_fails_is_different(root: str) -> None:
    run = start(root)
    verification = verify(run, lambda attempt: raised("ValueError: no such file"))
    (state,) = [one for one in verification.mismatches if one.what == "state"]
    assert (state.before, state.now) == ("COMPLETE", "FAILED: ValueError: no such file")


def test_a_trial_without_results_proves_nothing(root: str) -> None:
    request = request_of(root=root)
    run = execute(request, InMemoryCluster(lambda attempt: returned()))
    verification = verify(run, lambda attempt: returned())
    assert verification.verdict == "unknown" and not verification.is_equal


def test_a_trial_of_a_search_is_trained_alone_whatever_its_sampler(root: str) -> None:
    space = Space.of({"x": Float(0.0, 1.0)})
    search = SearchSettings(space=space, algorithm="tpe", num_trials=5, pruner="median")
    request = request_of(search=search, root=root, metric="loss", direction="min")

    def program(attempt: Attempt) -> Outcome:
        seen.append((attempt.number, attempt.task.trial.params, attempt.task.trial.seed))
        return returned(loss=attempt.task.trial.params["x"])

    seen: list[Any] = []
    run = execute(request, InMemoryCluster(program))
    best = run.best
    seen.clear()
    # Of an object that was not kept, no trial needs anything.
    written = read_description(run.path)["request"]
    change(run.path, request={**written, "search": {**written["search"], "algorithm": "X object"}})
    assert verify(run, program).is_equal
    assert seen == [(best.number, best.params, best.seed)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"number": 9}, "trial is 9; expected the number of a trial"),
        ({"number": True}, "trial is True"),
        ({"number": 1}, "trial 1 of run run is FAILED"),
        ({"number": 0, "wait": False}, "wait=False is given"),
        ({"number": 0, "repeats": 3}, "repeats is 3"),
        ({"number": 0, "num_workers": 2}, "num_workers is 2"),
        ({"number": 0, "seed": 3}, "seed of run run cannot be changed"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(
    root: str, arguments: dict[str, Any], message: str
) -> None:
    good = training()
    run = start(root, lambda a: raised("no") if a.number else good(a), num_trials=2)
    with pytest.raises(ConfigError, match=message):
        verify(run, **arguments)
    assert not Path(root, ".verified").exists()
