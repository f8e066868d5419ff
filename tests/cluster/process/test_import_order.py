"""The order in which training processes import modules: that of the program in plain Python."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparkdl.cluster.outcome import ProcessExit
from sparkdl.cluster.process.server_connection import Start
from sparkdl.cluster.process.training_process import TrainingProcess
from sparkdl.cluster.repeated_process import is_repeated
from sparkdl.files.layout import METRICS

# Stand-ins for packages with native libraries. One aborts, as torchvision does, if another one was
# imported before.
NAMES = ("pandas", "tensorflow", "torch", "torchvision")
EMPTY = (
    'def __getattr__(name):\n    if name.startswith("__"):\n        raise AttributeError(name)\n'
    "    from unittest.mock import MagicMock\n    return MagicMock()\n"
)
PACKAGES = {
    "pandas": EMPTY,
    "tensorflow": EMPTY,
    "torch": EMPTY,
    "torch/utils": EMPTY,
    "torch/utils/tensorboard": f"import tensorflow\n{EMPTY}",
    "torchvision": (
        f'import os, sys, torch\nif "tensorflow" in sys.modules:\n    os.abort()\n{EMPTY}'
    ),
}
# A module of the user.
STEPS = "import torch\nimport torchvision\n\ndef late():\n    import tensorflow\n"

# What a program imports before its function, and in it.
PROGRAMS = {
    "submodule that draws in another framework": (
        "",
        "import torch\nfrom torchvision import transforms\n"
        "from torch.utils.tensorboard import SummaryWriter",
    ),
    "two frameworks": ("", "import tensorflow\nimport pandas\nimport torch"),
    "two frameworks in the other order": ("", "import torch\nimport pandas\nimport tensorflow"),
    "package before the framework": ("", "import pandas\nimport tensorflow"),
    "globals used in another order": (
        "import torchvision\nimport pandas\nimport tensorflow",
        "tensorflow, pandas, torchvision",
    ),
    "user's module": ("", "import steps\nimport tensorflow"),
    "call of a user's module": ("import steps", "import torchvision\nsteps.late()"),
}
PROGRAM = """
import sys
{before}
def train():
    {inside}
    return [name for name in sys.modules if name in {names}]
"""
PLAIN = "import json; print(json.dumps(train()))"
STARTED = """
sys.path.append({repository!r})
from pathlib import Path
from sparkdl.cluster.plan import Plan, Role
from sparkdl.cluster.program.packaging import pack
from sparkdl.cluster.program.preloading import find_framework
from sparkdl.cluster.start_conditions import start_of
from tests.cluster.process.test_import_order import printed
packed = pack(train)
roles = (Role(name="worker", count=1),)
plan = Plan(kind="launch", roles=roles, framework=find_framework(packed.imports))
print(printed(start_of(plan, packed, "{application}"), packed, Path.cwd()))
"""
# The fork servers live as long as the parent of the processes that use them.
PARENT = """
import subprocess, sys
for script in sys.argv[1:]:
    subprocess.run([sys.executable, script], check=True)
"""


@pytest.mark.parametrize(("text", "is_expected"), [("", True), ("{}\n", False)])
def test_a_script_that_has_reported_is_not_repeated(
    text: str, is_expected: bool, tmp_path: Path
) -> None:
    end, start = ProcessExit(code=-6, importing=True), Start(application="a", preload=("torch",))
    (tmp_path / METRICS).write_text(text)
    assert is_repeated(end, start, None, tmp_path / METRICS) == is_expected


def end_of(start: Any, program: Any, folder: Path) -> ProcessExit:
    """Run a program in a training process, as a task does."""
    payload = {
        "function": program.function,
        "modules": dict(program.modules),
        "loaded": program.loaded,
        "path": sys.path,
        "cwd": str(folder),
        "environ": dict(os.environ),
        "context": {"run": "r", "params": {}, "seed": 1, "folder": str(folder)},
        "metrics": [None],
        "secrets": [],
    }
    with TrainingProcess(start, payload, folder / "log.txt") as process:
        return process.wait()


def printed(start: Any, program: Any, folder: Path) -> str:
    """Return the value of a program as JSON."""
    end = end_of(start, program, folder)
    assert end.outcome and not end.outcome.error, end
    return json.dumps(end.outcome.outputs["value"])


def test_the_order_is_that_of_plain_python(tmp_path: Path) -> None:
    """Also of two programs of one application, which have other orders of frameworks."""
    installed = tmp_path / "site-packages"
    for name, text in PACKAGES.items():
        (installed / name).mkdir(parents=True)
        (installed / name / "__init__.py").write_text(text)
    (tmp_path / "steps.py").write_text(STEPS)
    (tmp_path / "temporary").mkdir()
    repository, scripts = str(Path(__file__).parents[3]), []
    for name, (before, inside) in PROGRAMS.items():
        lines = "\n    ".join(inside.splitlines())
        application = "orders" if name.startswith("two") else name
        started = STARTED.format(repository=repository, application=application)
        for end in (PLAIN, started):
            script = tmp_path / f"program{len(scripts)}.py"
            body = PROGRAM.format(before=before, inside=lines, names=NAMES)
            script.write_text(body + end)
            scripts.append(str(script))
    environ = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    environ["PYTHONPATH"] = f"{installed}:{tmp_path}"
    command = [sys.executable, "-c", PARENT, *scripts]
    lines_of = subprocess.check_output(command, env=environ, cwd=tmp_path, text=True).splitlines()
    plain = dict(zip(PROGRAMS, lines_of[::2], strict=True))
    assert dict(zip(PROGRAMS, lines_of[1::2], strict=True)) == plain


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV, signal.SIGKILL])
@pytest.mark.parametrize("importing", [True, False])
def test_a_fault_during_an_import_is_known(
    number: signal.Signals, importing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill from outside is not the fault of an import, whatever the process does."""
    from sparkdl.cluster.program.packaging import pack
    from tests.cluster.process.test_training_process import ALONE

    (tmp_path / "faulty.py").write_text("import os, sys\nos.kill(os.getpid(), int(sys.argv[1]))\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def train() -> None:
        sys.argv[1:] = [str(int(number))]
        if importing:
            import faulty  # type: ignore[import-not-found]  # noqa: F401
        os.kill(os.getpid(), number)

    end = end_of(ALONE, pack(train), tmp_path)
    assert (end.code, end.importing) == (-number, importing and number != signal.SIGKILL)
    # The traceback of the fault is in the log.
    assert ("most recent call first" in (tmp_path / "log.txt").read_text()) == (
        number != signal.SIGKILL
    )
