"""Runs in the training process. Run a script as `python script.py` does."""

import linecache
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path

__all__ = ["run_script"]


def run_script(path: str, source: str, arguments: Sequence[str], folder: str) -> None:
    """Run a script as the main module of this process.

    Args:
        path: the path of the script on the driver. If the folder is there on this host too, the
            script can import the modules in it.
        source: the text of the script.
        arguments: the words after the script on the command line.
        folder: the working directory of the script; where this host does not have it, the script
            runs in that of the trial.

    Raises:
        SystemExit: if the script exits with another code than 0.

    Example:
        >>> run_script("hello.py", "import sys; print(__name__, sys.argv[1:])", ["-e", "3"], ".")
        __main__ ['-e', '3']
    """
    main = types.ModuleType("__main__")
    main.__file__ = path
    # AutoGraph and tracebacks read the source, which may not be on this host, or an older one.
    linecache.cache[path] = len(source), None, source.splitlines(keepends=True), path
    before, folder_before = (sys.modules["__main__"], sys.argv, sys.path), Path.cwd()
    sys.modules["__main__"], sys.argv = main, [path, *arguments]
    sys.path = [str(Path(path).parent), *sys.path]
    if Path(folder).is_dir():
        os.chdir(folder)
    try:
        exec(compile(source, path, "exec"), vars(main))  # noqa: S102 The script of the user.
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    finally:
        sys.modules["__main__"], sys.argv, sys.path = before
        os.chdir(folder_before)
