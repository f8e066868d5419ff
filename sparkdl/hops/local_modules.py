"""Runs anywhere. Modules of the project, which a program imports."""

import importlib
import json
import sys
from pathlib import Path

from sparkdl.errors import ConfigError
from sparkdl.hops.copies import copy_to_local
from sparkdl.hops.project import existing

__all__ = ["add_module"]

FOLDER = "localized_deps"


def add_module(hdfs_path: str, project: str | None = None) -> str:
    """Copy a module of the project into the working directory, so that it can be imported.

    Args:
        hdfs_path: a file `<name>.py`, or a notebook `<name>.ipynb`, whose cells become the module.
        project: see `hdfs.project_path`.

    Returns:
        The path of the copy, which `import <name>` finds.

    Raises:
        ConfigError: if the file is neither a module nor a notebook.
        FileNotFoundError: if it does not exist.

    Example:
        >>> from sparkdl.hops import hdfs
        >>> hdfs.dump("answer = 42", "Resources/answers.py")
        >>> path = add_module("Resources/answers.py")
        >>> import answers
        >>> answers.answer
        42
    """
    url = existing(hdfs_path, project)
    if not url.endswith((".py", ".ipynb")):
        raise ConfigError(f"add_module got {hdfs_path!r}; expected a .py or an .ipynb file.")
    folder = Path(FOLDER).absolute()
    folder.mkdir(exist_ok=True)
    module = Path(copy_to_local(url, str(folder), overwrite=True))
    if module.suffix == ".ipynb":
        module = _of_notebook(module)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    importlib.invalidate_caches()
    if loaded := sys.modules.get(module.stem):
        importlib.reload(loaded)
    return str(module)


def _of_notebook(notebook: Path) -> Path:
    """Write the cells with code, without lines such as `%matplotlib inline`, as a module."""
    cells = json.loads(notebook.read_text())["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    lines = "\n\n".join(texts).split("\n")
    module = notebook.with_suffix(".py")
    module.write_text("\n".join(line for line in lines if line.lstrip()[:1] not in ("%", "!")))
    return module
