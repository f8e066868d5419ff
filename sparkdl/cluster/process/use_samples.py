"""Runs beside a training process. Sample the CPU, memory and GPU use of a process over time.

The samples are in memory, at most `MAX_SAMPLES` of them: where there would be more, pairs of
neighbours are joined, and samples are taken half as often. They are written to one small file now
and then, and at the end. A process that ends within the first samples leaves no file.

Only the standard library is imported here: this module is loaded before any framework.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkdl.host.nvml import Nvml

INTERVAL_S = 2.0
MAX_SAMPLES = 120
# Fewer samples tell nothing.
MIN_SAMPLES = 2
# The growth of the time from one write to the next: about 25 of them in a day.
GROWTH = 1.5
# A dead disk or driver must not delay the end of a trial for longer.
CLOSE_S = 1.0

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The use of resources since the sample before.

    Attributes:
        time: the end, in seconds since 1970.
        cpu: CPU cores in use, on average.
        memory_mb: the resident memory of the process and its children, in MiB.
        gpu: how busy the GPUs were, in percent; None without a GPU.
        gpu_memory_mb: the memory that was in use on the GPUs, in MiB.
    """

    time: float
    cpu: float
    memory_mb: float
    gpu: float | None = None
    gpu_memory_mb: float | None = None

    def joined(self, later: "Sample") -> "Sample":
        """Return one sample for this one and the next: means of CPU and GPU, maxima of memory."""
        return Sample(
            time=later.time,
            cpu=(self.cpu + later.cpu) / 2,
            memory_mb=max(self.memory_mb, later.memory_mb),
            gpu=None if self.gpu is None or later.gpu is None else (self.gpu + later.gpu) / 2,
            gpu_memory_mb=max(self.gpu_memory_mb or 0.0, later.gpu_memory_mb or 0.0) or None,
        )

    def to_json(self) -> str:
        """Return a line for the file, without what is None."""
        digits = {"time": 1, "cpu": 3, "memory_mb": 1, "gpu": 1, "gpu_memory_mb": 1}
        values = {name: round(v, digits[name]) for name, v in vars(self).items() if v is not None}
        return json.dumps(values)


@dataclass
class Samples:
    """The samples of a process, thinned where they are many.

    Attributes:
        interval_s: seconds from one sample to the next.
        kept: the samples, oldest first.
    """

    interval_s: float = INTERVAL_S
    kept: list[Sample] = field(default_factory=list)

    def add(self, sample: Sample) -> None:
        """Add a sample; join pairs if there are too many."""
        self.kept.append(sample)
        if len(self.kept) >= MAX_SAMPLES:
            pairs = zip(self.kept[::2], self.kept[1::2], strict=True)
            self.kept = [first.joined(second) for first, second in pairs]
            self.interval_s *= 2

    def write(self, file: Path) -> bool:
        """Write all samples in place of those before; return False for too few of them."""
        if len(self.kept) < MIN_SAMPLES:
            return False
        text = "".join(sample.to_json() + "\n" for sample in self.kept).encode()
        file.parent.mkdir(exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, text)
            os.ftruncate(descriptor, len(text))
        finally:
            os.close(descriptor)
        return True


def measured(pids: list[int]) -> tuple[float, float]:
    """Return the CPU seconds and the resident MiB of processes and all their descendants.

    The CPU seconds include those of children that have ended and were waited for.

    Args:
        pids: the processes; the list is extended by their descendants.
    """
    cpu_s = memory_mb = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # It has ended.
        # Fields 14 to 17 and 24 of proc(5); the third one is the first of this list.
        cpu_s += sum(map(int, fields[11:15])) / _TICKS
        memory_mb += int(fields[21]) * _PAGE_MB
        pids += _children(pid)
    return cpu_s, memory_mb


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # The kernel may have no such lists.
        for thread in os.listdir(f"/proc/{pid}/task"):
            text = Path(f"/proc/{pid}/task/{thread}/children").read_text()
            found += map(int, text.split())
    return found


class _Gpus:
    """The GPUs of a process.

    Args:
        names: indexes or UUIDs; None for all of this host.
    """

    def __init__(self, names: list[str] | None) -> None:
        self._nvml = None if names == [] else Nvml.open()
        self._devices = []
        if self._nvml:
            for name in map(str, range(self._nvml.count())) if names is None else names:
                with contextlib.suppress(ValueError):
                    self._devices.append(self._nvml.device(name))

    def use(self) -> tuple[float | None, float | None]:
        """Return how busy the GPUs are in percent, and their used memory in MiB."""
        return self._nvml.use(self._devices) if self._nvml and self._devices else (None, None)


@contextlib.contextmanager
def sampling(
    pid: int, wanted: Mapping[str, Any] | None, interval_s: float = INTERVAL_S
) -> Iterator[None]:
    """Sample a process during a block, in a thread: a disk or a driver that hangs blocks only that.

    Args:
        pid: the process.
        wanted: the `file` for the samples, and the `gpus` of the process, a list of indexes and
            UUIDs, or None for all of this host; None for no samples.
        interval_s: seconds between the first samples.
    """
    if not wanted:
        yield
        return
    stop = threading.Event()
    arguments = (pid, Path(wanted["file"]), wanted["gpus"], Samples(interval_s), stop)
    thread = threading.Thread(target=_sample_repeatedly, args=arguments, daemon=True)
    with contextlib.suppress(RuntimeError):  # The host allows no more threads.
        thread.start()
    try:
        yield
    finally:
        stop.set()
        if thread.ident is not None:
            thread.join(CLOSE_S)


def _sample_repeatedly(
    pid: int, file: Path, gpu_names: list[str] | None, samples: Samples, stop: threading.Event
) -> None:
    gpus = None
    begun_s = last_s = time.monotonic()
    write_s = 0.0
    last_cpu_s, _ = measured([pid])
    # A missing sample or file is a gap in a picture, and no harm to the trial.
    with contextlib.suppress(OSError, ValueError, IndexError):
        while not stop.wait(samples.interval_s):
            cpu_s, memory_mb = measured([pid])
            if not memory_mb:
                break  # It has just ended.
            now_s = time.monotonic()
            gpus = gpus or _Gpus(gpu_names)
            gpu, gpu_memory_mb = gpus.use()
            sample = Sample(
                time=time.time(),
                # The time of a child that nothing waits for is lost when it ends.
                cpu=max(0.0, cpu_s - last_cpu_s) / (now_s - last_s),
                memory_mb=memory_mb,
                gpu=gpu,
                gpu_memory_mb=gpu_memory_mb,
            )
            last_cpu_s, last_s = cpu_s, now_s
            samples.add(sample)
            if now_s - begun_s >= write_s and samples.write(file):
                write_s = GROWTH * (now_s - begun_s)
        samples.write(file)
