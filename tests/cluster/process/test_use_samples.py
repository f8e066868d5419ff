"""Samples of CPU, memory and GPUs: right figures, a small file, and no harm."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.cluster.process.use_samples import (
    MAX_SAMPLES,
    Sample,
    Samples,
    measured,
    sampling,
)
from sparkdl.host.nvml import Nvml
from tests.helpers.runs import quiet

# A child that uses 0.2 s of CPU and ends, then another one that stays, with 64 MiB of memory.
PROGRAM = """
import os, sys, time
def work():
    while time.process_time() < 0.2:
        pass
if not (child := os.fork()):
    work()
    os._exit(0)
os.waitpid(child, 0)
if not os.fork():
    held = bytearray(os.urandom(1 << 20) * 64)
    work()
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
"""


@pytest.fixture
def busy() -> Any:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process
        process.communicate()


def test_processes_that_have_ended_and_live_count(busy: Any) -> None:
    pids = [busy.pid]
    cpu_s, memory_mb = measured(pids)
    assert len(pids) == 2
    # What `ps` tells: seconds would be too coarse for the time, so it is that of the program.
    command = ["ps", "-o", "rss=", "-p", ",".join(map(str, pids))]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert memory_mb == pytest.approx(sum(map(int, listed.split())) / 1024, rel=0.05)
    assert memory_mb > 64
    # Two children of 0.2 s, and what starting Python takes; the kernel counts hundredths.
    assert 0.38 <= cpu_s < 30


def test_a_process_that_is_gone_uses_nothing() -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    assert measured([process.pid]) == (0.0, 0.0)


def test_long_runs_have_few_samples_with_the_same_means_and_maxima(tmp_path: Path) -> None:
    samples = Samples(interval_s=1.0)
    second, cpus, memory = 0, [], []
    while second < 5 * 3600:
        # A sample is of the seconds since the one before.
        window = range(second, second := second + int(samples.interval_s))
        cpus += [(i * 37 % 101) / 50 for i in window]
        memory += [float(i * 53 % 9973) for i in window]
        cpu, most = sum(cpus[window[0] :]) / len(window), max(memory[window[0] :])
        samples.add(Sample(time=1e9 + second, cpu=cpu, memory_mb=most, gpu=cpu))
        assert len(samples.kept) < MAX_SAMPLES
    assert samples.interval_s == 256
    assert len(samples.kept) == len(cpus) / 256
    assert sum(s.cpu for s in samples.kept) / len(samples.kept) == pytest.approx(
        sum(cpus) / len(cpus)
    )
    assert max(s.memory_mb for s in samples.kept) == max(memory)
    assert [s.time - 1e9 for s in samples.kept] == [*range(256, second + 1, 256)]
    file = tmp_path / "attempts" / "0.use.jsonl"
    assert samples.write(file)
    size = file.stat().st_size
    assert size < 12_000
    samples.kept = samples.kept[:3]
    samples.write(file)
    assert [json.loads(line)["gpu"] for line in file.read_text().splitlines()] == [
        round(s.gpu or 0, 1) for s in samples.kept
    ]


def test_one_sample_makes_no_file(tmp_path: Path) -> None:
    samples = Samples(kept=[Sample(time=1.0, cpu=1.0, memory_mb=1.0)])
    assert not samples.write(tmp_path / "use.jsonl")
    assert not list(tmp_path.iterdir())


class FakeNvml:
    """NVML of a host with two GPUs; the second one does not tell how busy it is."""

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = index + 1
        return 0 if index < 2 else 6

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:
        rates._obj.gpu = 80
        return 3 if handle.value == 2 else 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory._obj.used = handle.value << 30
        return 0


def test_samples_are_written_while_a_process_runs(
    busy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library: Any = FakeNvml()
    monkeypatch.setattr(Nvml, "open", classmethod(lambda cls: cls(library)))
    file = tmp_path / "attempts" / "0.use.jsonl"
    with sampling(busy.pid, {"file": str(file), "gpus": ["0", "1", "7"]}, interval_s=0.02):
        deadline = time.monotonic() + 60
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert file.exists()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) >= 2
    assert all(line["gpu"] == 80 and line["gpu_memory_mb"] == 3 << 10 for line in lines)
    assert all(line["memory_mb"] > 64 and line["cpu"] >= 0 for line in lines)
    assert sorted(line["time"] for line in lines) == [line["time"] for line in lines]


@pytest.mark.parametrize("folder", ["gone/below", "full"])
def test_a_file_that_cannot_be_written_does_no_harm(folder: str, tmp_path: Path) -> None:
    file = Path("/dev/full") if folder == "full" else tmp_path / folder / "use.jsonl"
    with sampling(os.getpid(), {"file": str(file), "gpus": []}, interval_s=0.001):
        time.sleep(0.05)
    with sampling(os.getpid(), None):
        pass
    assert not (tmp_path / "gone").exists()


@pytest.mark.slow
def test_each_rank_has_a_line_in_the_report(spark: SparkSession, root: str) -> None:
    def train() -> float:
        import time
        from pathlib import Path

        from sparkdl import context

        attempts = Path(context.current().folder, "attempts")
        deadline = time.monotonic() + 120
        while len(list(attempts.glob("*.use-*"))) < 2 and time.monotonic() < deadline:
            sum(range(10_000))
        return 1.0

    run = experiment.allreduce(train, num_workers=2, name="uses", metric="value", **quiet(root))
    names = sorted(path.name for path in Path(run.path, "trials/0/attempts").glob("*.use*"))
    assert names == ["0.use-worker-0.jsonl", "0.use-worker-1.jsonl"]
    page = Path(run.report()).read_text()
    assert page.count('<svg class="spark"') == 4
    assert "trial 0, worker 1" in page
