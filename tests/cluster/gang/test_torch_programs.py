"""Programs of PyTorch and of the tools around it, as they are, in two ranks."""

import functools
import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sparkdl import experiment
from tests.helpers.runs import quiet
from tests.programs.torch_programs import FEATURES, PROGRAMS, rows, sharded_steps

pytestmark = pytest.mark.slow

TOOLS = {"fsdp": "torch"}
# The step after which rank 1 is killed, and the first report of the restart. Lightning reports two
# epochs of four steps.
KILLED = {"lightning": (6, 1), "transformers": (3, 3)}


def with_torchrun(name: str, folder: Path) -> list[str]:
    """Return the digests of the weights that the program ends with in PyTorch's own launcher."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    words = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    words += [f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-backend=c10d", "-m"]
    environ = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    nodes = [
        subprocess.Popen([*words, "tests.programs.torch_programs", name, folder], env=environ)
        for _ in range(2)
    ]
    assert [node.wait() for node in nodes] == [0, 0]
    return [(folder / f"weights-{rank}.txt").read_text() for rank in range(2)]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_with_torchrun(name: str, root: str, tmp_path: Path) -> None:
    """Also if a rank is killed on the way, where the tool has a callback for checkpoints."""
    if importlib.util.find_spec(TOOLS.get(name, name)) is None:
        pytest.skip(f"needs {TOOLS.get(name, name)}; scripts/torch.sh runs it")
    killed_after, first = KILLED.get(name, (None, 0))
    options = {"env": {"KILLED_AFTER": f"{killed_after}"}, "max_restarts": 1}
    run = experiment.allreduce(PROGRAMS[name], num_workers=2, **options, **quiet(root))
    folder = Path(run.trials[0].path)
    if killed_after:
        assert run.trials[0].attempts == 2
        reported = (folder / "metrics.jsonl").read_text().splitlines()
        assert json.loads(reported[0])["step"] == first and json.loads(reported[0])["metrics"]
    weights = [(folder / f"weights-{rank}.txt").read_text() for rank in range(2)]
    assert weights == with_torchrun(name, tmp_path)
    assert weights[0] == weights[1] == run.result


@pytest.mark.usefixtures("three_executors")
def test_a_sharded_model_goes_on_with_any_number_of_ranks(root: str) -> None:
    """FSDP2: the losses after a kill, and on three ranks, are those of one undisturbed process."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, y = (part[:60] for part in rows())
    expected = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        expected.append(float(loss.detach()))
    killed = functools.partial(sharded_steps, killed_at=3)
    run = experiment.allreduce(
        killed, num_workers=2, max_restarts=1, keep_checkpoints=3, **quiet(root)
    )
    assert run.trials[0].attempts == 2
    assert run.result == pytest.approx(expected[4:], rel=1e-4)  # The kept steps are not repeated.
    start = next(c for c in run.trials[0].checkpoints if c.step == 3)
    again = functools.partial(sharded_steps, start=start.url)
    more = experiment.allreduce(again, num_workers=3, **quiet(root))
    assert more.result == pytest.approx(expected[start.step + 1 :], rel=1e-4)
