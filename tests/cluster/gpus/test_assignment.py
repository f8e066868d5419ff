"""GPU scheduling with GPUs that only Spark believes in: two on each of two executors."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import devices, experiment
from sparkdl.errors import SlotsError
from sparkdl.host.cuda_visibility import share
from sparkdl.runs.states import Failure
from tests.helpers.spark import Applications, gpu_settings

pytestmark = pytest.mark.slow


def test_shares_are_exact_and_disjoint() -> None:
    for ranks in (2, 4, 6, 8):
        for gpus in (1, 2, 4):
            devices = [str(i) for i in range(ranks * gpus)]
            shares = [share(devices, rank, ranks) for rank in range(ranks)]
            assert [len(one) for one in shares] == [gpus] * ranks
            assert [device for one in shares for device in one] == devices


@pytest.fixture(scope="module")
def gpu_session(
    applications: Applications, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """Each executor thinks that it has the GPUs 0 and 1, and gives each task one of them."""
    settings = gpu_settings(2, tmp_path_factory.mktemp("gpus"))
    yield from applications.lend("local-cluster[2,2,1024]", **settings)


def pins(run: Any) -> list[tuple[int, str]]:
    return [(trial.outputs["host"], trial.outputs["visible"]) for trial in run.trials]


def test_four_at_once_see_four_gpus(gpu_session: SparkSession, root: str, tmp_path: Path) -> None:
    def train(x: int) -> dict[str, Any]:
        (tmp_path / f"{x}").touch()
        deadline = time.monotonic() + 200
        while len(list(tmp_path.glob("[0-9]"))) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        executor = json.loads(next(Path(folder).glob(f"*/trials/{x}/attempts/0.json")).read_text())
        daemon = Path(f"/proc/{executor['pid']}/stat").read_text().rsplit(")", 1)[1].split()[1]
        visible = os.environ["CUDA_VISIBLE_DEVICES"]
        return {"host": int(daemon), "visible": visible, "count": devices.get_num_gpus()}

    folder = root
    run = experiment.launch(train, {"x": [0, 1, 2, 3]}, root=root, progress=False)
    assert len(list(tmp_path.glob("[0-9]"))) == 4
    assert len(set(pins(run))) == 4, pins(run)
    assert sorted(visible for _, visible in pins(run)) == ["0", "0", "1", "1"]
    assert {trial.outputs["count"] for trial in run.trials} == {1}


def test_two_gpus_each(gpu_session: SparkSession, root: str) -> None:
    def train(x: int) -> dict[str, Any]:
        return {"host": x, "visible": os.environ["CUDA_VISIBLE_DEVICES"]}

    run = experiment.launch(train, {"x": [0, 1, 2]}, root=root, progress=False, num_gpus=2)
    assert {visible for _, visible in pins(run)} == {"0,1"}


def test_trials_share_a_gpu(gpu_session: SparkSession, root: str, tmp_path: Path) -> None:
    def train(x: int) -> dict[str, Any]:
        (tmp_path / f"{x}").touch()
        deadline = time.monotonic() + 200
        while len(list(tmp_path.glob("[0-9]"))) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        growth = os.environ["TF_FORCE_GPU_ALLOW_GROWTH"], os.environ["SHARED"]
        return {"visible": os.environ["CUDA_VISIBLE_DEVICES"], "growth": growth}

    options: dict[str, Any] = {"num_gpus": 0.5, "env": {"SHARED": "yes"}}
    run = experiment.launch(train, {"x": [0, 1, 2, 3]}, root=root, progress=False, **options)
    assert len(list(tmp_path.glob("[0-9]"))) == 4
    # Spark fills one GPU of an executor before it gives a task another one.
    assert [trial.outputs["visible"] for trial in run.trials] == ["0"] * 4
    assert run.trials[0].outputs["growth"] == ["true", "yes"]


def test_ranks_of_a_gang_share_no_gpu(gpu_session: SparkSession, root: str) -> None:
    with pytest.raises(SlotsError, match=r"num_gpus=0\.5.*whole number"):
        experiment.allreduce(lambda: 0, num_workers=2, num_gpus=0.5, root=root, progress=False)
    assert list(Path(root).iterdir()) == []


def test_no_gpus_wanted(gpu_session: SparkSession, root: str) -> None:
    def train() -> dict[str, Any]:
        return {"host": 0, "visible": os.environ["CUDA_VISIBLE_DEVICES"]}

    run = experiment.launch(train, root=root, progress=False, num_gpus=0)
    assert pins(run) == [(0, "")]


@pytest.mark.acceptance("A7")
def test_more_gpus_than_an_executor_has_are_refused(gpu_session: SparkSession, root: str) -> None:
    began = time.monotonic()
    with pytest.raises(SlotsError, match=r"num_gpus=3.*has 2 GPUs.*gpu\.amount=3"):
        experiment.launch(lambda: 0, root=root, progress=False, num_gpus=3)
    assert time.monotonic() - began < 30
    assert list(Path(root).iterdir()) == []


@pytest.fixture
def session_of_two_visible_gpus(
    applications: Applications, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """An executor that sees the GPUs 1 and 2, and whose discovery script prints 1 and 2."""
    settings = gpu_settings(2, tmp_path_factory.mktemp("gpus"), ["1", "2"])
    settings["spark__executorEnv__CUDA_VISIBLE_DEVICES"] = "1,2"
    yield from applications.lend("local-cluster[1,2,1024]", **settings)


def test_two_trials_never_get_the_same_visible_gpu(
    session_of_two_visible_gpus: SparkSession, root: str
) -> None:
    def train(x: int) -> dict[str, Any]:
        deadline = time.monotonic() + 200
        # The other task has the other address, also if it does not get so far as to train.
        while not list(Path(folder).glob(f"*/trials/{1 - x}/attempts/0.json")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return {"visible": os.environ["CUDA_VISIBLE_DEVICES"]}

    folder = root
    run = experiment.launch(train, {"x": [0, 1]}, root=root, progress=False)
    trained, refused = sorted(run.trials, key=lambda trial: str(trial.state))
    assert trained.outputs == {"visible": "2"}
    assert refused.failure == Failure.GPU
    assert "the GPUs 2, " in refused.error and "CUDA_VISIBLE_DEVICES='1,2'" in refused.error
