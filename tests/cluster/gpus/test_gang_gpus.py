"""Gangs and GPUs: shares that Spark assigned, and locks where Spark assigns none."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.cluster.gpus import locks
from sparkdl.cluster.gpus.locks import DevicesTakenError, locked_devices
from tests.helpers.runs import quiet
from tests.helpers.spark import Applications, gpu_settings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sixteen(
    applications: Applications, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """Two executors that think they have sixteen GPUs each, one a task."""
    settings = gpu_settings(16, tmp_path_factory.mktemp("gpus"))
    yield from applications.lend("local-cluster[2,4,1024]", **settings)


def pins(folder: Path) -> Any:
    def train() -> int:
        from sparkdl import context, devices

        told = {"executor": os.environ["SPARK_EXECUTOR_DIRS"], "gpus": devices.gpus()}
        (folder / f"{context.role}-{context.index}").write_text(json.dumps(told))
        return context.world_size

    return train


@pytest.mark.parametrize(
    "ranks", [2, *(pytest.param(n, marks=pytest.mark.thorough) for n in (4, 6)), 8]
)
@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_ranks_on_tasks_of_several_gpus(
    sixteen: SparkSession, root: str, tmp_path: Path, ranks: int, gpus: int
) -> None:
    run = experiment.allreduce(pins(tmp_path), num_workers=ranks, num_gpus=gpus, **quiet(root))
    told = [json.loads(path.read_text()) for path in tmp_path.glob("worker-*")]
    assert (run.result, len(told)) == (ranks, ranks)
    assert [len(one["gpus"]) for one in told] == [gpus] * ranks
    taken = [(one["executor"], device) for one in told for device in one["gpus"]]
    assert len(set(taken)) == ranks * gpus


def test_local_ranks_name_a_visible_gpu(sixteen: SparkSession, root: str, tmp_path: Path) -> None:
    """`torch.cuda.set_device(LOCAL_RANK)` and `gpus[hvd.local_rank()]` are right on each rank."""

    def train() -> None:
        import sparkdl.horovod as hvd
        from sparkdl import devices

        hvd.init()
        horovod = (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size())
        names = ("LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
        assert horovod == tuple(int(os.environ[f"HOROVOD_{name}"]) for name in names)
        local_ranks = [int(os.environ["LOCAL_RANK"]), hvd.local_rank()]
        told = {"gpus": devices.gpus(), "local_ranks": local_ranks, "horovod": horovod}
        (tmp_path / f"{hvd.rank()}").write_text(json.dumps(told))

    experiment.horovod(train, num_workers=6, num_gpus=2, **quiet(root))
    told = [json.loads((tmp_path / f"{rank}").read_text()) for rank in range(6)]
    assert all(local < len(one["gpus"]) for one in told for local in one["local_ranks"])
    assert [one["horovod"] for one in told] == [[0, 1, rank, 6] for rank in range(6)]


def test_parameter_servers_see_no_gpu(sixteen: SparkSession, root: str, tmp_path: Path) -> None:
    experiment.parameter_server(
        pins(tmp_path), num_workers=1, num_ps=1, roles="all", num_gpus=2, **quiet(root)
    )
    told = {path.name: json.loads(path.read_text())["gpus"] for path in tmp_path.glob("*-0")}
    assert {name: len(gpus) for name, gpus in told.items()} == {
        "chief-0": 2,
        "worker-0": 2,
        "ps-0": 0,
    }


def test_mirrored_takes_all_of_an_executor(
    sixteen: SparkSession, root: str, tmp_path: Path
) -> None:
    run = experiment.mirrored(pins(tmp_path), **quiet(root))
    assert run.kind == "mirrored"
    told = json.loads((tmp_path / "worker-0").read_text())
    assert len(told["gpus"]) == 16


LOCKS = """
import os, threading, time
from pathlib import Path
from pyspark.sql import SparkSession
from sparkdl import experiment

HERE = Path({here!r})

def wait_for_two(name):
    def train():
        from sparkdl import context, devices
        (HERE / f"{{name}}-{{context.rank}}").write_text(",".join(devices.gpus()))
        deadline = time.monotonic() + 200
        while len(list(HERE.glob("[ab]-0"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
    return train

def run(name, **options):
    experiment.allreduce(wait_for_two(name), name=name, root={root!r}, progress=False, **options)

if __name__ == "__main__":
    SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false").getOrCreate()
    both = [
        threading.Thread(target=run, args=(name,), kwargs=dict(num_workers=1, num_gpus=2))
        for name in "ab"
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    run("share", num_workers=2)
    for verb, options in ((experiment.allreduce, dict(num_workers=1)), (experiment.launch, {{}})):
        try:
            verb(lambda: 0, num_gpus=5, root={root!r}, progress=False, **options)
        except Exception as exc:
            assert "5 GPUs were asked for, and this host shows 4" in str(exc), exc
            print(type(exc).__name__)
"""


def test_locks_without_gpu_scheduling(root: str, tmp_path: Path) -> None:
    """Embedded Spark, four devices: two gangs at once with two each, then one that shares them."""
    program = tmp_path / "program.py"
    program.write_text(LOCKS.format(here=str(tmp_path), root=root))
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "0,1,2,3", "SPARKDL_DETECT_GPUS": "1"}
    done = subprocess.run(
        [sys.executable, str(program)], env=environ, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    told = {path.name: path.read_text().split(",") for path in tmp_path.glob("*-[01]")}
    assert sorted(told["a-0"] + told["b-0"]) == ["0", "1", "2", "3"]
    assert (told["share-0"], told["share-1"]) == (["0", "1"], ["2", "3"])
    assert done.stdout.split() == ["TrainingFailedError", "AllTrialsFailedError"]


def test_a_lock_follows_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "locks"
    folder.mkdir()
    (folder / locks._name("0")).symlink_to(victim)
    monkeypatch.setattr(locks, "FOLDER", folder)
    with pytest.raises(OSError, match=r"0\.lock"), locked_devices(["0"], 1, "me"):
        pass
    (folder / locks._name("1")).hardlink_to(victim)
    with pytest.raises(PermissionError, match="no plain file"), locked_devices(["1"], 1, "me"):
        pass
    assert victim.read_text() == "precious"


def test_a_taken_device_names_its_holder() -> None:
    with locked_devices(["98", "99"], 1, "run one, process 1") as mine:
        assert mine.names == ["98"]
        with locked_devices(["98", "99"], 1, "run two, process 2") as other:
            assert other.names == ["99"]
            with (
                pytest.raises(DevicesTakenError, match=r"2 GPUs.*0 are free.*run one, process 1"),
                locked_devices(["98", "99"], 2, "run three", timeout_s=0.2),
            ):
                pass
    with locked_devices(["98", "99"], 2, "run four", timeout_s=0.2) as both:
        assert both.names == ["98", "99"]
