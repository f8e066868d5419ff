"""Runs on the driver to find modules, in the training process to import them.

The user's own modules are installed on no executor. They travel as source text and are imported
from memory, so that nothing is written to an executor's disk, and a module of the same name of
another run never gets in the way.
"""

import ast
import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import site
import sys
import sysconfig
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

_PACKAGES = frozenset(("site-packages", "dist-packages"))


class Source(NamedTuple):
    """The source of a module, and the file that it came from."""

    text: str
    path: str
    is_package: bool


def imported_by(name: str, source: Source) -> tuple[list[str], list[str]]:
    """Return the names that a module imports; some are names of objects inside a module.

    Returns:
        The names that its own import imports, and those that calls of its functions import, in the
        order of their lines.
    """
    package = name if source.is_package else name.rpartition(".")[0]
    at_import: list[str] = []
    in_calls: list[str] = []
    try:
        tree = ast.parse(source.text)
    except SyntaxError:
        return [], []  # The import of the module will raise the error.
    pending: list[tuple[ast.AST, list[str]]] = [(tree, at_import)]
    while pending:
        node, names = pending.pop()
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += _imported_from(node, package)
        is_call = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        names = in_calls if is_call else names
        pending += [(child, names) for child in reversed(list(ast.iter_child_nodes(node)))]
    return at_import, in_calls


def _imported_from(node: ast.ImportFrom, package: str) -> list[str]:
    base = node.module or ""
    if node.level:
        try:
            base = importlib.util.resolve_name("." * node.level + base, package)
        except ImportError:
            return []  # It leaves the package. Running the line will raise the error.
    return [base, *(f"{base}.{alias.name}" for alias in node.names)]


def find(name: str) -> importlib.machinery.ModuleSpec | None:
    """Find the spec of a module without importing anything."""
    folders: list[str] | None = None
    spec: importlib.machinery.ModuleSpec | None = None
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        full = ".".join(parts[:end])
        loaded = sys.modules.get(full)
        spec = getattr(loaded, "__spec__", None) or _search(full, folders)
        if spec is None or (end < len(parts) and spec.submodule_search_locations is None):
            return None
        folders = list(spec.submodule_search_locations or ())
    return spec


def _search(name: str, folders: list[str] | None) -> importlib.machinery.ModuleSpec | None:
    """Return the spec of a module in the folders of its package; None if it is not there."""
    try:
        return importlib.machinery.PathFinder.find_spec(name, folders)
    except KeyError:
        # Python asks for the folders of a namespace package in a package that is not imported yet.
        paths = [Path(folder, name.rpartition(".")[2]) for folder in folders or ()]
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(path) for path in paths if path.is_dir()]
        return spec if spec.submodule_search_locations else None


@functools.cache  # Looked for in each module that a function may need, and always the same.
def _installed_folders() -> tuple[str, ...]:
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {*(sysconfig.get_path(kind) for kind in kinds), *site.getsitepackages()}
    folders |= {site.getusersitepackages(), str(Path(__file__).parents[2])}
    return tuple(folder.rstrip("/") + "/" for folder in folders)


def is_installed(path: str) -> bool:
    """Return True if a file belongs to Python, an installed package or sparkdl itself."""
    # A .pth file may add the folder of another environment, which `site` does not list.
    return path.startswith(_installed_folders()) or not _PACKAGES.isdisjoint(Path(path).parts)


def local_source(spec: importlib.machinery.ModuleSpec) -> Source | None:
    """Return the source of a user's own module; None for installed modules and other files.

    A namespace package, a folder without `__init__.py`, is an empty module.
    """
    folders = spec.submodule_search_locations
    if spec.origin is None and folders:
        is_local = not any(is_installed(f"{folder}/") for folder in folders)
        return Source("", str(Path(next(iter(folders)), "__init__.py")), True) if is_local else None
    origin = spec.origin
    if not origin or not origin.endswith(".py") or is_installed(origin):
        return None
    if not Path(origin).is_file():
        return None
    with tokenize.open(origin) as file:  # Uses the encoding that the file declares.
        return Source(file.read(), origin, folders is not None)


class _FromMemory(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Import the modules that travelled with the program."""

    def __init__(self, modules: Mapping[str, Source]) -> None:
        self._modules = modules

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        source = self._modules.get(fullname)
        if source is None:
            return None
        spec = importlib.machinery.ModuleSpec(
            fullname, self, origin=source.path, is_package=source.is_package
        )
        spec.has_location = True  # Sets __file__: data files beside it are found where it exists.
        if source.is_package:
            spec.submodule_search_locations = [str(Path(source.path).parent)]
        return spec

    def get_source(self, fullname: str) -> str:
        return self._modules[fullname].text

    def get_code(self, fullname: str) -> CodeType:
        source = self._modules[fullname]
        return compile(source.text, source.path, "exec", dont_inherit=True)

    def is_package(self, fullname: str) -> bool:
        return self._modules[fullname].is_package


def install(modules: Mapping[str, Source]) -> None:
    """Make the local modules of a program importable in this process, before all others."""
    if modules:
        sys.meta_path.insert(0, _FromMemory(modules))


@contextlib.contextmanager
def importing(modules: Mapping[str, Source]) -> Iterator[None]:
    """Let this process import the local modules of a program for a while, in place of its own.

    Args:
        modules: the modules by name. Those of these names that were imported before are hidden
            meanwhile, and are back afterwards.
    """
    hidden = {name: sys.modules.pop(name) for name in modules if name in sys.modules}
    finder = _FromMemory(modules)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in modules:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)
