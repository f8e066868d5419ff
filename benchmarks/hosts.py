"""Compare the same work on three hosts and on one host, in one run.

The hosts are Linux namespaces, as in the tests of clusters, with a standalone Spark cluster in
them; so the program needs root, and measures software, not networks. Both clusters have three
executors of one core: one on each of three hosts, or all on one host. They take turns in several
rounds:

- launch: trials that sleep 0.2 s, against as many tasks of one Spark job
- gang: from the call of `allreduce` to the first line of the function on three ranks
- ring: the mean of 100 MB over two ranks; and gloo, PyTorch's all-reduce of as many bytes by TCP
  on two of the hosts, and on one of them, with `--torch-python` only
- feed: two million narrow rows of a DataFrame into one training process

The result is the best round of each, since other load on the machine only adds time.

    python -m benchmarks.hosts --rounds 3 --torch-python <environment>/bin/python

The program starts in the folder of the repository, whose tests have the hosts. It prints a table,
then one JSON document.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from benchmarks.lib.host_work import STEPS, WARM_UP
from benchmarks.lib.machine import machine
from tests.clusters.hosts import Host
from tests.clusters.standalone import Cluster, Driver, hosts_cluster

ROOT = Path(__file__).parents[1]
WORK = "benchmarks.lib.host_work:"
COUNT = 25_000_000
GLOO = """
import sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
count, warm_up, steps = map(int, sys.argv[1:])
values, seconds = torch.ones(count), []
for _ in range(warm_up + steps):
    dist.barrier()
    begun = time.perf_counter()
    dist.all_reduce(values)
    seconds.append(time.perf_counter() - begun)
print(sorted(seconds[warm_up:])[steps // 2])
dist.barrier()
"""

Row = dict[str, Any]


def gloo(python: str, hosts: list[Host], port: int) -> Row:
    """Run an all-reduce of PyTorch with a rank on each of two hosts, or both on one."""
    processes = []
    for rank, host in enumerate(hosts):
        env = {"MASTER_ADDR": hosts[0].address, "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
        env |= {"RANK": str(rank), "GLOO_SOCKET_IFNAME": "e0", "OMP_NUM_THREADS": "1"}
        command = host.command(python, "-c", GLOO, str(COUNT), str(WARM_UP), str(STEPS))
        processes.append(
            subprocess.Popen(command, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True)
        )
    printed = [process.communicate(timeout=300)[0] for process in processes]
    return {"step_s": float(printed[0].splitlines()[-1])}  # Gloo itself prints before it.


def measure(cluster: Cluster, driver: Driver, options: argparse.Namespace, number: int) -> Row:
    """Return one round on one cluster."""
    found: Row = {
        "launch": driver.call(WORK + "launch"),
        "gang": driver.call(WORK + "gang"),
        "ring": driver.call(WORK + "ring", count=COUNT),
        "feed": driver.call(WORK + "feed", folder=str(cluster.folder)),
    }
    if options.torch_python:
        hosts = [cluster.nodes[0], cluster.nodes[-1]]
        found["gloo"] = gloo(options.torch_python, hosts, 29500 + number)
    return found


def main() -> None:
    """Measure both clusters in turns."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--torch-python", default=os.environ.get("SPARKDL_TORCH_PYTHON"))
    parser.add_argument("--folder", default=str(ROOT / "build"), help="a folder not below /tmp")
    options = parser.parse_args()
    about = machine()
    rounds: dict[str, list[Row]] = {"three hosts": [], "one host": []}
    with contextlib.ExitStack() as stack:
        os.makedirs(options.folder, exist_ok=True)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder)))
        clusters = {
            "three hosts": stack.enter_context(hosts_cluster(_new(folder, "three"))),
            "one host": stack.enter_context(hosts_cluster(_new(folder, "one"), 1, cores=3)),
        }
        one_core = {"spark__executor__cores": "1", "spark__executor__memory": "900m"}
        drivers = {name: one.start_driver(**one_core) for name, one in clusters.items()}
        for number in range(options.rounds + 1):  # The first round warms up.
            for name in list(clusters)[:: 1 if number % 2 else -1]:
                found = measure(clusters[name], drivers[name], options, number)
                say(f"round {number}, {name}: {json.dumps(found)}")
                if number:
                    rounds[name].append(found)
    print(table(rounds))
    print(json.dumps({"machine": about, "rounds": rounds}))


def _new(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def say(text: str) -> None:
    """Print progress to standard error, apart from the result."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr)


def table(rounds: dict[str, list[Row]]) -> str:
    """Return the best round of each work, and the ratios of three hosts to one."""

    def best(where: str, work: str, key: str) -> float:
        return min(float(row[work][key]) for row in rounds[where])

    def overhead(where: str) -> float:
        return min(row["launch"]["launch_s"] / row["launch"]["floor_s"] for row in rounds[where])

    def rate(where: str) -> float:
        return max(float(row["feed"]["rows_per_s"]) for row in rounds[where])

    def both(label: str, form: str, values: dict[str, float]) -> str:
        three, one = values["three hosts"], values["one host"]
        return f"{label:<34}{form.format(three):>14}{form.format(one):>14}{three / one:>9.2f}"

    places = list(rounds)
    lines = [f"{'':<34}{'three hosts':>14}{'one host':>14}{'ratio':>9}"]
    lines.append(both("30 trials / 30 tasks", "{:.2f}", {w: overhead(w) for w in places}))
    gangs = {where: best(where, "gang", "start_s") for where in places}
    lines.append(both("first line of a gang, s", "{:.2f}", gangs))
    for work in ("ring", "gloo"):
        if work in rounds[places[0]][0]:
            steps = {where: 1e3 * best(where, work, "step_s") for where in places}
            lines.append(both(f"{work}, 100 MB, 2 ranks, ms", "{:.1f}", steps))
    lines.append(both("rows a second into one process", "{:,.0f}", {w: rate(w) for w in places}))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
