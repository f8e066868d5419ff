"""Disturb many runs at once for an hour, and check that each ends as promised.

Three drivers run launches, searches, searches whose trials pause, populations, gangs, fed gangs,
elastic gangs and TensorFlowOnSpark clusters on a local root, on S3 and on a small disk. Meanwhile
processes of all kinds are killed or stopped, the disk is full for seconds, the store is down for up
to half a minute, and besides one call in 200 to it fails. The program fails if a result is wrong, a
verb does not end, a finished function runs again, or something is left behind.

    python benchmarks/soak.py --seconds 3600 --faults 1000

The program prints what it found, and JSON.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lib.machine import machine
from lib.s3_server import S3Server
from lib.soak import checks
from lib.soak.faults import Faults, Processes, alive

LIB = Path(__file__).parent / "lib" / "soak"
# A verb takes some ten seconds undisturbed. One that is not over after this time hangs.
HANGS_S = 300.0
# What a driver has started is gone so soon after its end.
GONE_S = 60.0
ONE_CALL_IN = 200


@dataclass
class Driver:
    """A driver that is started again when it was killed.

    Attributes:
        name: its name, and the number of its starts.
        process: the process.
        begun: seconds since the epoch.
    """

    name: str
    process: "subprocess.Popen[bytes]"
    begun: float


class Soak:
    """The processes and files of a soak; a context manager that ends them.

    Args:
        seed: decides verbs and faults.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._s3 = S3Server(ONE_CALL_IN, seed)
        self._folder = Path(tempfile.mkdtemp(prefix="soak-"))
        self._starts: dict[str, int] = {}
        self._roots: dict[str, str] = {}
        self._ended: list[tuple[str, float]] = []
        self.drivers: dict[str, Driver] = {}
        self.violations: list[str] = []
        self.seconds_until_gone: list[float] = []

    def __enter__(self) -> "Soak":
        self._s3.__enter__()
        self.disk = self._mount()
        self._env = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            **self._s3.env,
        }
        self._roots = {"local": str(self._folder / "runs"), "s3": f"{self._s3.bucket}/runs"}
        if self.disk:
            self._roots["disk"] = str(self.disk / "runs")
        self.faults = Faults(self._seed, self._folder / "notes.jsonl", self.disk, self._s3)
        for name in self._roots:
            self._start(name)
        return self

    def _mount(self) -> Path | None:
        disk = self._folder / "disk"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)]
        if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
            print("This user cannot mount a disk: no disk will be full.", file=sys.stderr)
            return None
        return disk

    def _start(self, root: str) -> None:
        number = self._starts[root] = self._starts.get(root, 0) + 1
        name = f"{root}-{number}"
        temporary = self._folder / name
        temporary.mkdir()
        env = {**self._env, "SOAK_DRIVER": name, "TMPDIR": str(temporary)}
        seed = str(random.Random(f"{self._seed} {name}").randrange(1 << 30))
        command = [sys.executable, LIB / "driver.py", self._folder, self._roots[root], seed]
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=self._folder, env=env, stdout=log, stderr=log, start_new_session=True
            )
        self.drivers[root] = Driver(name, process, time.time())

    # ---- while it runs

    def disturb(self) -> None:
        """Make one fault, of the first kind that has a victim."""
        pids = {driver.name: driver.process.pid for driver in self.drivers.values()}
        for _ in range(20):
            if self.faults.make(pids):
                return

    def look_after(self) -> None:
        """Start drivers again that were killed, and end those that hang."""
        for root, driver in list(self.drivers.items()):
            code = driver.process.poll()
            if code is not None:
                self._note_end(driver, code)
                self._start(root)
            elif self._silent_s(driver) > HANGS_S:
                driver.process.send_signal(signal.SIGCONT)
                driver.process.send_signal(signal.SIGUSR1)
                time.sleep(1)
                self.violations.append(f"driver {driver.name} hangs, see {driver.name}.log")
                driver.process.kill()
        self.check_ended()

    def check_ended(self) -> None:
        """Check what drivers that have ended left behind."""
        for name, at in list(self._ended):
            left = Processes(name).all()
            if not left:
                self.seconds_until_gone.append(time.time() - at)
                self._ended.remove((name, at))
                self._check_files(name)
            elif time.time() - at > GONE_S:
                self.violations.append(f"processes of {name} are left: {left}")
                self._ended.remove((name, at))

    def _note_end(self, driver: Driver, code: int) -> None:
        self._ended.append((driver.name, time.time()))
        hit = [f.kind for f in self.faults.made if f.driver == driver.name]
        if code != 0 and not {"driver", "Java of the driver"} & set(hit):
            log = (self._folder / f"{driver.name}.log").read_text()[-2000:]
            self.violations.append(f"driver {driver.name} ended with code {code}:\n{log}")

    def _silent_s(self, driver: Driver) -> float:
        lines = self.lines("begins.jsonl") + self.lines("ends.jsonl")
        times = [line["t"] for line in lines if line["driver"] == driver.name]
        return time.time() - max([driver.begun, *times])

    def _check_files(self, name: str) -> None:
        # A fork server that was killed leaves a folder, which the next one of the user removes.
        left = checks.leftovers(self._folder / name)
        killed = [f for f in self.faults.made if f.driver == name and f.kind == "fork server"]
        left = [path for path in left if not (killed and f"sparkdl-{os.getuid()}" in path)]
        self.violations.extend(f"{name} has left {path}" for path in left)

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of a file that the drivers or their programs write."""
        path = self._folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    # ---- the end

    def finish(self) -> None:
        """Let the drivers end their verbs, and wait until all they have started is gone."""
        (self._folder / "stop").touch()
        until = time.time() + HANGS_S
        while self.drivers and time.time() < until:
            for root, driver in list(self.drivers.items()):
                code = driver.process.poll()
                if code is not None:
                    self._note_end(driver, code)
                    del self.drivers[root]
            self.check_ended()
            time.sleep(0.5)
        self.violations.extend(f"driver {d.name} does not end" for d in self.drivers.values())
        while self._ended and time.time() < until + GONE_S:
            self.check_ended()
            time.sleep(0.5)

    def report(self) -> dict[str, Any]:
        """Return what happened."""
        notes, ends, faults = self.lines("notes.jsonl"), self.lines("ends.jsonl"), self.faults.made
        self.violations += checks.check_ends(ends)
        self.violations += checks.check_single_calls(notes, ends, faults)
        kinds: dict[str, int] = {}
        for fault in faults:
            kinds[fault.kind] = kinds.get(fault.kind, 0) + 1
        calls = self._s3.counts().values()
        kinds["failed call to S3"] = sum(each["failures"] for each in calls)
        return {
            "faults": kinds,
            "faults_together": sum(kinds.values()),
            "calls_to_s3": sum(each["calls"] for each in calls),
            "verbs": checks.count(ends),
            "trials_returned": sum(note["what"] == "end" for note in notes),
            "until_noticed": checks.time_to_notice(faults, notes, ends),
            "until_gone_max_s": round(max(self.seconds_until_gone, default=0.0), 1),
            "driver_rss_mb": self._memory(ends),
            "violations": self.violations,
        }

    @staticmethod
    def _memory(ends: list[dict[str, Any]]) -> dict[str, list[int]]:
        """The memory of each driver after its third and its last verb."""
        sizes: dict[str, list[int]] = {}
        for end in ends:
            sizes.setdefault(end["driver"], []).append(end["rss_mb"])
        return {
            name: [each[2], each[-1], len(each)] for name, each in sizes.items() if len(each) > 5
        }

    def keep(self, path: Path) -> None:
        """Copy the logs, the lists and the runs on local disks to a folder."""
        path.mkdir(parents=True, exist_ok=True)
        for file in [*self._folder.glob("*.log"), *self._folder.glob("*.jsonl")]:
            shutil.copy(file, path)
        lines = [json.dumps(asdict(fault)) + "\n" for fault in self.faults.made]
        (path / "faults.jsonl").write_text("".join(lines))
        for name, root in self._roots.items():
            if "://" not in root:
                subprocess.run(["cp", "-r", root, str(path / f"runs-{name}")])

    def __exit__(self, *_: object) -> None:
        for driver in self.drivers.values():
            driver.process.kill()
        for root, number in self._starts.items():
            for each in range(1, number + 1):
                for pid in Processes(f"{root}-{each}").all():
                    os.kill(pid, signal.SIGKILL) if alive(pid) else None
        self._s3.__exit__()
        if self.disk:
            subprocess.run(["umount", "--lazy", str(self.disk)], check=True)
        shutil.rmtree(self._folder, ignore_errors=True)


def main() -> int:
    """Run the soak; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--faults", type=int, default=1000, help="faults to spread over the time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for logs and lists")
    options = parser.parse_args()
    about = machine()
    chance = random.Random(options.seed)
    begun = time.time()
    with Soak(options.seed) as soak:
        next_fault = time.time() + 15  # The drivers start Spark first.
        while time.time() - begun < options.seconds:
            soak.look_after()
            if time.time() >= next_fault:
                soak.disturb()
                next_fault += chance.expovariate(options.faults / options.seconds)
            time.sleep(0.2)
        soak.finish()
        if options.keep:
            soak.keep(options.keep)
        found = {"seconds": options.seconds, "seed": options.seed, **soak.report()}
    print(json.dumps({"machine": about, **found}))
    for violation in found["violations"]:
        print(violation)
    print(f"{found['faults_together']} faults, {len(found['violations'])} broken promises")
    return int(bool(found["violations"]))


if __name__ == "__main__":
    sys.exit(main())
