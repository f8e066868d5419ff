"""Runs on the driver. Keep the user's code around the function, and compare kept code with files.

A run executes the function as it was packed. Beside the packed form, it keeps the texts in which
the user reads and changes the code: the script or the cells, the modules, the changes that were not
committed.
"""

import difflib
import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sparkdl.cluster.program.local_modules import find, is_installed
from sparkdl.cluster.program.packaging import Program
from sparkdl.files import storage
from sparkdl.files.layout import RunPaths
from sparkdl.runs.differences import Difference
from sparkdl.runs.provenance import CHANGES
from sparkdl.secrets.masks import mask_text

# The script, the cells and the diff are each kept up to this size.
MAX_BYTES = 1 << 20
GIT_S = 10.0


def script_of(function: Callable[..., Any] | None, program: Program) -> str | None:
    """Return the file that defines a function, unless that is a module that travels with it.

    Args:
        function: the training function.
        program: the packed function.
    """
    if function is None:
        return None
    with suppress(TypeError):
        path = inspect.getsourcefile(inspect.unwrap(getattr(function, "func", function)))
        travels = {source.path for source in program.modules.values()}
        if path and path not in travels and Path(path).is_file() and not is_installed(path):
            return os.path.abspath(path)
    return None


def keep_code(
    paths: RunPaths,
    function: Callable[..., Any],
    program: Program,
    has_changes: bool,
    secrets: tuple[str, ...],
) -> None:
    """Write the user's script, the cells of the notebook, and the uncommitted changes.

    Args:
        paths: the run directory.
        function: the training function.
        program: the packed function.
        has_changes: the user's repository has changes that are not committed.
        secrets: values that must not be stored.
    """
    script = script_of(function, program)
    texts = {
        paths.main: _read(Path(script)) if script else None,
        paths.cells: _cells(),
        paths.changes: _changes(Path.cwd()) if has_changes else None,
    }
    for url, text in texts.items():
        if text:
            storage.write(url, mask_text(text, secrets, is_code=True))


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(MAX_BYTES).decode(errors="replace")


def _cells() -> str | None:
    """Return the cells that IPython has run in this process, the newest ones if they are long."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    cells = shell.history_manager.input_hist_raw if shell else []
    texts = [f"# %% [{number}]\n{cell.rstrip()}\n" for number, cell in enumerate(cells) if cell]
    return "\n".join(texts)[-MAX_BYTES:] or None


def _changes(folder: Path, commit: str = "HEAD") -> str | None:
    """Return the changes of tracked files since a commit, cut after `MAX_BYTES`.

    None if the folder is in no repository, or the repository lacks the commit.
    """
    command = ["git", "-C", str(folder), "diff", "--no-color", "--no-ext-diff", "--no-textconv"]
    try:
        process = subprocess.Popen(
            [*command, commit], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return None
    timer = threading.Timer(GIT_S, process.kill)
    timer.start()
    text = b""
    with process:
        if process.stdout:
            text = process.stdout.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            process.kill()
    timer.cancel()
    if process.returncode > 0:
        return None
    cut = f"\n(cut after {MAX_BYTES} bytes)\n" if len(text) > MAX_BYTES else ""
    return text[:MAX_BYTES].decode(errors="replace") + cut


# ---- the code on disk


def changed_code(
    path: str, description: Mapping[str, Any], program: Program | None, secrets: tuple[str, ...]
) -> Iterator[Difference]:
    """Yield the files of the user's code that are not what the run has kept.

    A file is looked for at its place relative to the working directory, then among the modules that
    can be imported, then at its former place. Of a file that is nowhere nothing is said: the kept
    code does not need it.

    Args:
        path: the directory of the run.
        description: the content of its `run.json`.
        program: the program of the run; None if it was not kept.
        secrets: values that are masked in the kept texts.
    """
    folder = description.get("folder")
    for name, source in (program.modules if program else {}).items():
        file = _on_disk(source.path, folder, name)
        now = _read(file) if file else None
        yield from _differences_of(name, source.text, now, file)
    main, kept = description.get("main"), RunPaths(path).main
    if main and storage.exists(kept):
        file = _on_disk(main, folder)
        now = mask_text(_read(file), secrets, is_code=True) if file else None
        yield from _differences_of(Path(main).name, storage.read(kept).decode(), now, file)


def changed_repository(
    path: str, description: Mapping[str, Any], secrets: tuple[str, ...]
) -> Iterator[Difference]:
    """Yield how the git repository of the working directory differs from that of the run.

    The kept code has the function and the modules that travel with it. A value that the function
    has from elsewhere, such as a constant of another module, is found here only.

    Args:
        path: the directory of the run.
        description: the content of its `run.json`.
        secrets: values that are masked in the kept texts.
    """
    commit = (description.get("git_commit") or "").removesuffix(CHANGES)
    changes = _changes(Path.cwd(), commit) if commit else None
    kept = RunPaths(path).changes
    before = storage.read(kept).decode().splitlines() if storage.exists(kept) else []
    now = mask_text(changes or "", secrets, is_code=True).splitlines()
    if changes is None or now == before:
        return
    names = [line.removeprefix("+++ b/") for line in now if line.startswith("+++ b/")]
    yield Difference(
        subject=f"files since commit {commit[:10]}",
        before="the changes in source/changes.diff" if before else "no changes",
        now=", ".join(names) or "no changes",
        lines=tuple(line for line in now if line.startswith(("+", "-")) and line[:3] != "---"),
    )


def _on_disk(path: str, folder: str | None, module: str | None = None) -> Path | None:
    """Return the file that has the code now; None if there is none."""
    candidates = [Path(path)]
    if module and (spec := find(module)) and spec.origin:
        candidates.insert(0, Path(spec.origin))
    if folder:
        candidates.insert(0, Path.cwd() / os.path.relpath(path, folder))
    return next((file for file in candidates if file.is_file()), None)


def _differences_of(
    name: str, kept_text: str, text_now: str | None, file: Path | None
) -> Iterator[Difference]:
    if text_now is None or kept_text == text_now:
        return
    diff = difflib.unified_diff(kept_text.splitlines(), text_now.splitlines(), lineterm="", n=0)
    lines = [line for line in diff if not line.startswith(("---", "+++"))]
    counts = [sum(line.startswith(sign) for line in lines) for sign in "-+"]
    if lines:
        yield Difference(
            subject=f"code {name} (the run uses the kept code)",
            before=f"{counts[0]} other line(s)",
            now=f"{counts[1]} line(s) in {file}",
            lines=tuple(lines),
        )
