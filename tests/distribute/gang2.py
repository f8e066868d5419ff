"""Processes that train together, without Spark: each runs one function of `programs`."""

import importlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NOTHING: Mapping[str, Any] = {}


def free_addresses(count: int) -> list[str]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


def launch(
    program: str,
    folder: Path,
    *roles: str,
    env: Mapping[str, str] = NOTHING,
    timeout_s: float = 150,
    **context: Any,
) -> list[Any]:
    """Run `programs.<program>` in one process of each role; what each returned, by rank.

    Only those of the first rank's role return; the others serve, and are killed after them.
    """
    addresses = free_addresses(len(roles))
    cluster: dict[str, list[str]] = {}
    processes: list[subprocess.Popen[bytes]] = []
    for role, address in zip(roles, addresses, strict=True):
        cluster.setdefault(role, []).append(address)
    deadline = time.monotonic() + timeout_s
    try:
        for rank, role in enumerate(roles):
            index = roles[:rank].count(role)
            me = {"rank": rank, "world_size": len(roles), "role": role, "index": index}
            me |= {"kind": "allreduce", "folder": str(folder)}
            task = {"cluster": cluster, "task": {"type": role, "index": index}}
            variables = {
                "TF_CONFIG": json.dumps(task),
                "SPARKDL_CONTEXT": json.dumps(me | context),
                "CUDA_VISIBLE_DEVICES": "",
                "TF_CPP_MIN_LOG_LEVEL": "2",
                "TF_NUM_INTRAOP_THREADS": "1",
            }
            variables |= {k: v.format(rank=rank, address=addresses[0]) for k, v in env.items()}
            processes.append(_start(program, folder, rank, variables))
        return [_result(processes[r], folder, r, deadline) for r in range(roles.count(roles[0]))]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _start(program: str, folder: Path, rank: int, variables: Mapping[str, str]) -> Any:
    command = [sys.executable, "-m", "tests.distribute.dbg", program, str(folder), str(rank)]
    env = {**os.environ, **variables}
    with (folder / f"{rank}.log").open("w") as log:
        return subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log)


def _result(process: Any, folder: Path, rank: int, deadline: float) -> Any:
    try:
        code = process.wait(timeout=max(0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        code = "nothing, for it hangs"
    log = (folder / f"{rank}.log").read_text()
    assert code == 0, f"rank {rank} ended with {code}:\n{log[-6000:]}"
    return json.loads((folder / f"{rank}.json").read_text())


if __name__ == "__main__":
    name, where, number = sys.argv[1:]
    function = getattr(importlib.import_module("tests.distribute.programs"), name)
    Path(where, f"{number}.json").write_text(json.dumps(function(Path(where))))
