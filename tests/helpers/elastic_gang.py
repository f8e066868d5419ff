"""An elastic gang without Spark: the test plays the part of the tasks."""

import json
import secrets
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sparkdl.cluster.gang.rendezvous import listen
from sparkdl.distribute.invitation import Endpoint, Invitation, channel
from tests.helpers.prefork import fork


class Gang:
    """Processes with their channels, which the test invites to one ring after the other.

    Args:
        folder: folder for logs and results.
        module: the module of tests/programs that has the programs.
        preload: the modules that the programs import.
        me: further fields of the context of each rank.
    """

    def __init__(
        self,
        folder: Path,
        module: str,
        preload: Sequence[str] = ("numpy",),
        me: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.folder, self.generation = folder, -1
        self.module, self.preload, self.me = module, preload, me
        self.secret = secrets.token_bytes(32)
        self.ends: dict[int, socket.socket] = {}
        self.processes: dict[int, Any] = {}

    def start(self, rank: int, size: int, program: str, is_late: bool = False) -> None:
        end, theirs = channel()
        end.setblocking(True)
        end.settimeout(180)
        me = {"rank": rank, "world_size": size, "kind": "allreduce", "ring": theirs.fileno()}
        me |= {"is_elastic": True, "is_late": is_late, **self.me}
        env = {"SPARKDL_CONTEXT": json.dumps(me), "CUDA_VISIBLE_DEVICES": ""}
        arguments = [f"{self.module}.{program}", str(self.folder), str(rank)]
        with (self.folder / f"{rank}.log").open("a") as log:
            process = fork(self.preload, arguments, env, log.fileno(), theirs.fileno())
            self.processes[rank] = process
        theirs.close()
        self.ends[rank] = end

    def begin(self, num_ranks: int, function: str) -> None:
        """Start all ranks, and bring them into the first ring."""
        ranks = list(range(num_ranks))
        for rank in ranks:
            self.start(rank, num_ranks, function)
        for rank in ranks:
            self.hear(rank)
        self.invite(ranks, is_calm=True)

    def hear(self, rank: int) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.ends[rank].recv(1 << 20))
        return told

    def invite(self, ranks: list[int], is_calm: bool) -> None:
        """Bring these ranks into the next ring."""
        self.generation += 1
        listeners = [listen("127.0.0.1") for _ in ranks]
        endpoints = [Endpoint("127.0.0.1", one.getsockname()[1], "a") for one in listeners]
        for place, rank in enumerate(ranks):
            invitation = Invitation(
                *(place, endpoints, self.secret, self.generation), members=ranks, is_calm=is_calm
            )
            invitation.send(self.ends[rank], listeners[place])

    def tell(self, what: str) -> None:
        for end in self.ends.values():
            end.send(json.dumps({"what": what, "generation": self.generation}).encode())

    def kill(self, rank: int) -> None:
        self.processes[rank].kill()
        self.processes[rank].wait()
        self.ends.pop(rank).close()

    def results(self) -> dict[int, Any]:
        for rank, process in self.processes.items():
            code = process.wait(timeout=180)
            assert code in (0, -signal.SIGKILL), (self.folder / f"{rank}.log").read_text()
        paths = {rank: self.folder / f"{rank}.json" for rank in self.processes}
        return {rank: json.loads(p.read_text()) for rank, p in paths.items() if p.exists()}

    def close(self) -> None:
        """End the processes that are left."""
        for process in self.processes.values():
            process.kill()
            process.wait()
        for end in self.ends.values():
            end.close()
