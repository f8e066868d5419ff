"""Processes that train together, without Spark: each runs one function of a module beside this."""

import importlib
import json
import secrets
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sparkdl.cluster.gang.rendezvous import listen
from sparkdl.distribute.invitation import Endpoint, Invitation, channel
from tests.helpers.ports import held_port
from tests.helpers.prefork import Forked, fork

NOTHING: Mapping[str, Any] = {}


def launch(
    program: str,
    folder: Path,
    *roles: str,
    env: Mapping[str, str] = NOTHING,
    timeout_s: float = 600,
    nodes: str = "aaaaaaaa",
    codes: Sequence[int] = (0,),
    preload: Sequence[str] = (),
    **context: Any,
) -> list[Any]:
    """Run `<module>.<function>` in one process of each role; what each returned, by rank.

    Only those of the first rank's role return; the others serve, and are killed after them. Ranks
    with the same letter in `nodes` are as on one host; those that end with a code of `codes` have
    None as value if they wrote none. `preload` has the modules that the program imports; by
    default those of its framework.
    """
    ports = ExitStack()
    addresses = [f"127.0.0.1:{ports.enter_context(held_port())}" for _ in roles]
    cluster: dict[str, list[str]] = {}
    processes: list[Forked] = []
    channels = invitations(roles.count("worker"), nodes)
    for role, address in zip(roles, addresses, strict=True):
        cluster.setdefault(role, []).append(address)
    deadline = time.monotonic() + timeout_s
    try:
        for rank, role in enumerate(roles):
            index = roles[:rank].count(role)
            me = {"rank": rank, "world_size": len(roles), "role": role, "index": index}
            driven = "none" if role != "chief" else "parameter_server"
            strategy = driven if "ps" in roles else "multi_worker"
            strategy = "local" if role == "evaluator" else strategy
            me |= {"kind": "allreduce", "folder": str(folder), "strategy": strategy}
            if role == "worker":
                me["ring"] = channels[index].fileno()
            task = {"cluster": cluster, "task": {"type": role, "index": index}}
            variables = {
                "TF_CONFIG": json.dumps(task),
                "SPARKDL_CONTEXT": json.dumps(me | context),
                "CUDA_VISIBLE_DEVICES": "",
                "TF_CPP_MIN_LOG_LEVEL": "2",
                "TF_NUM_INTRAOP_THREADS": "1",
            }
            variables |= {k: v.format(rank=rank, address=addresses[0]) for k, v in env.items()}
            processes.append(_start(program, folder, rank, variables, me.get("ring"), preload))
        those = range(roles.count(roles[0]))
        return [_result(processes[r], folder, r, deadline, codes) for r in those]
    finally:
        for channel in channels:
            channel.close()
        for process in processes:
            process.kill()
            process.wait()
        ports.close()


def invitations(count: int, nodes: str, **more: Any) -> list[socket.socket]:
    """For each worker the socket by which it joins the ring; `nodes` has a letter for its host."""
    listeners = [listen("127.0.0.1") for _ in range(count)]
    endpoints = [
        Endpoint("127.0.0.1", one.getsockname()[1], node)
        for one, node in zip(listeners, nodes, strict=False)
    ]
    secret, channels = secrets.token_bytes(32), [channel() for _ in range(count)]
    for rank, listener in enumerate(listeners):
        with channels[rank][0] as end:
            Invitation(rank, endpoints, secret, **more).send(end, listener)
    return [theirs for _, theirs in channels]


def _start(
    program: str,
    folder: Path,
    rank: int,
    variables: Mapping[str, str],
    channel: int | None,
    preload: Sequence[str],
) -> Forked:
    if not preload:
        # TensorFlow and PyTorch may not fit together in one process.
        preload = ["torch"] if program.startswith("horovod_torch.") else ["tensorflow", "keras"]
    if "TF_USE_LEGACY_KERAS" in variables:
        preload = [*preload, "tf_keras"]
    with (folder / f"{rank}.log").open("w") as log:
        return fork(preload, [program, str(folder), str(rank)], variables, log.fileno(), channel)


def _result(process: Any, folder: Path, rank: int, deadline: float, codes: Sequence[int]) -> Any:
    try:
        code = process.wait(timeout=max(0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        code = "nothing, for it hangs"
    log = (folder / f"{rank}.log").read_text()
    assert code in codes, f"rank {rank} ended with {code}:\n{log[-6000:]}"
    told = folder / f"{rank}.json"
    return json.loads(told.read_text()) if told.exists() else None


def run(program: str, folder: str, number: str) -> None:
    """Run `<module>.<function>` of tests/programs; write what it returns to a file."""
    module, _, name = program.rpartition(".")
    function = getattr(importlib.import_module(f"tests.programs.{module}"), name)
    Path(folder, f"{number}.json").write_text(json.dumps(function(Path(folder))))
