"""An elastic gang on two hosts, of which one falls silent: nothing closes, nothing answers."""

import functools
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkdl.cluster.gang.rendezvous import listen
from sparkdl.distribute.invitation import Endpoint, Invitation, channel
from tests.helpers.namespaces import Hosts, two_hosts
from tests.helpers.processes import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]

ROOT = Path(__file__).parents[2]
HOST_OF = (0, 0, 1, 1)


class Gang:
    """Four ranks on two hosts; the test plays their tasks and the driver."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self.folder, self.generation = hosts, folder, -1
        self.secret = secrets.token_bytes(32)
        self.ends: dict[int, socket.socket] = {}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, rank: int) -> None:
        end, theirs = channel()
        end.setblocking(True)
        me = {"rank": rank, "world_size": 4, "kind": "allreduce", "is_elastic": True}
        context = json.dumps({**me, "ring": theirs.fileno()})
        command = f"from tests.helpers.gang import run; run(*{self._arguments(rank)!r})"
        with (self.folder / f"{rank}.log").open("w") as log:
            self.processes[rank] = subprocess.Popen(
                [sys.executable, "-c", command],
                cwd=ROOT,
                env={**os.environ, "SPARKDL_CONTEXT": context},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                preexec_fn=functools.partial(self.hosts.enter, HOST_OF[rank]),
                stdout=log,
                stderr=log,
            )
        theirs.close()
        self.ends[rank] = end

    def _arguments(self, rank: int) -> tuple[str, str, str]:
        return "elastic_ring.comes_late", str(self.folder), str(rank)

    def hear(self, rank: int, timeout_s: float) -> dict[str, Any]:
        self.ends[rank].settimeout(timeout_s)
        request: dict[str, Any] = json.loads(self.ends[rank].recv(1 << 20))
        return request

    def invite(self, ranks: list[int], is_calm: bool) -> None:
        self.generation += 1
        addresses = [self.hosts.addresses[HOST_OF[rank]] for rank in ranks]
        listeners = [
            self.hosts.on(HOST_OF[rank], functools.partial(listen, address))
            for rank, address in zip(ranks, addresses, strict=True)
        ]
        endpoints = [
            Endpoint(address, listener.getsockname()[1], address)
            for address, listener in zip(addresses, listeners, strict=True)
        ]
        for place, rank in enumerate(ranks):
            invitation = Invitation(
                *(place, endpoints, self.secret, self.generation), members=ranks, is_calm=is_calm
            )
            invitation.send(self.ends[rank], listeners[place])

    def steps(self, rank: int) -> int:
        path = self.folder / f"step-{rank}"
        return int(path.read_text() or 0) if path.exists() else 0

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.log")))


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    with two_hosts() as hosts:
        made = Gang(hosts, tmp_path)
        try:
            yield made
        finally:
            for process in made.processes.values():
                process.kill()
                process.wait()
            for end in made.ends.values():
                end.close()


@pytest.mark.parametrize(
    ("is_notified", "limit_s"), [(True, 20.0), (False, 60.0)], ids=["Spark", "keep-alive"]
)
def test_the_others_go_on_without_a_host_that_fell_silent(
    gang: Gang, is_notified: bool, limit_s: float
) -> None:
    for rank in range(4):
        gang.start(rank)
    for rank in range(4):
        assert gang.hear(rank, 120)["generation"] == -1
    gang.invite([0, 1, 2, 3], is_calm=True)
    assert eventually(lambda: gang.steps(0) > 5), gang.logs()
    gang.hosts.cut()
    for rank in (2, 3):
        os.kill(gang.processes[rank].pid, signal.SIGKILL)
    time.sleep(1.0)
    if is_notified:  # Spark has started the ranks elsewhere: the tasks of the others know.
        for rank in (0, 1):
            gang.ends[rank].send(json.dumps({"what": "off", "generation": 0}).encode())
    begun = time.monotonic()
    requests = [gang.hear(rank, limit_s) for rank in (0, 1)]
    assert time.monotonic() - begun < limit_s
    assert [request["generation"] for request in requests] == [0, 0]
    reached = gang.steps(0)
    gang.invite([0, 1], is_calm=False)
    assert eventually(lambda: gang.steps(0) > reached + 5), gang.logs()
    (gang.folder / "stop").touch()
    for rank in (0, 1):
        assert gang.processes[rank].wait(120) == 0, gang.logs()
