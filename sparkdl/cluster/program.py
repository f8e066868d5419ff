"""Where it runs: D packs, P unpacks. The person's program: a function and the modules it needs.

The function is pickled (by value where it was typed in a script or notebook). Modules of the
person's own, which no executor has installed, travel as source text and are imported from memory.
What is installed on the driver must be installed on the executors; the preflight compares.
"""

import ast
import dis
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import cloudpickle

from sparkdl.errors import FunctionError

__all__ = ["Program", "Source", "find_framework", "install", "pack", "preloadable"]

# Large enough that sending it with each trial costs more than a person expects.
LARGE_BYTES = 10 << 20

# Packages known to be safe to import before a fork: they start nothing that a child would miss.
_PRELOADABLE = {
    *("jax", "keras", "numpy", "pandas", "PIL", "pyarrow", "scipy", "sklearn"),
    *("tensorflow", "tf_keras", "torch"),
}
_FRAMEWORKS = {
    "tensorflow": ("tensorflow", "keras", "tf_keras"),
    "torch": ("torch", "lightning", "pytorch_lightning"),
    "jax": ("jax", "flax"),
}


class Source(NamedTuple):
    """The source of a module, and the file it came from."""

    text: str
    path: str
    is_package: bool


@dataclass(frozen=True)
class Program:
    """A function ready to travel.

    Attributes:
        function: the pickled function.
        modules: the local modules it imports, by name.
        imports: names of the installed modules it imports.
        warning: what the person should know, such as that it is very large.
    """

    function: bytes = field(repr=False)
    modules: Mapping[str, Source] = field(repr=False)
    imports: frozenset[str] = frozenset()
    warning: str | None = None


def pack(function: Callable[..., Any]) -> Program:
    """Pickle a function and find the modules it needs.

    Raises:
        FunctionError: it holds something that cannot leave this process, which is named.
    """
    try:
        pickled = cloudpickle.dumps(function)
    except Exception as exc:
        raise FunctionError(
            f"the training function cannot be sent to Spark: {_culprit(function)}. "
            f"({type(exc).__name__}: {exc}) Create such things inside the function, and read data "
            "inside it too; a SparkSession lives on the driver only."
        ) from exc
    modules: dict[str, Source] = {}
    imports: set[str] = set()
    names = list(_imported_by_function(function, set()))
    while names:
        name = names.pop()
        if name in modules or name in imports:
            continue
        found = _find(name)
        if found is None:
            continue  # Not here either: an optional import, or a name from `from x import name`.
        if source := _local_source(found):
            modules[name] = source
            names += _imported_by_source(name, source)
        else:
            imports.add(name)
        names += [name.rpartition(".")[0]] if "." in name else []
    return Program(pickled, modules, frozenset(imports), _too_large(function, pickled))


def find_framework(imports: frozenset[str]) -> str | None:
    """The framework that a program imports; None for none of those known here.

    Example:
        >>> find_framework(frozenset({"numpy", "keras.layers"}))
        'tensorflow'
    """
    tops = {name.partition(".")[0] for name in imports}
    return next((key for key, names in _FRAMEWORKS.items() if tops & set(names)), None)


def preloadable(imports: frozenset[str], framework: str | None) -> tuple[str, ...]:
    """The modules of a program that a fork server should import, sorted; the framework first."""
    wanted = sorted(name for name in imports if name.partition(".")[0] in _PRELOADABLE)
    first = {"tensorflow": ("tensorflow",), "torch": ("torch",), "jax": ("jax",)}
    return ("sparkdl.cluster.child", *first.get(framework or "", ()), *wanted)


def _culprit(function: Callable[..., Any]) -> str:
    inner = inspect.unwrap(getattr(function, "func", function))
    if isinstance(inner, FunctionType):
        held = {**inspect.getclosurevars(inner).globals, **inspect.getclosurevars(inner).nonlocals}
        for name, value in held.items():
            try:
                cloudpickle.dumps(value)
            except Exception:  # noqa: BLE001 Any error of its pickling makes it the culprit.
                return f"it uses {name!r}, a {type(value).__name__}"
    return f"{function!r} holds something that cannot be pickled"


def _too_large(function: Callable[..., Any], pickled: bytes) -> str | None:
    if len(pickled) <= LARGE_BYTES:
        return None
    inner = inspect.unwrap(getattr(function, "func", function))
    held = inspect.getclosurevars(inner) if isinstance(inner, FunctionType) else None
    sizes = (
        {n: len(cloudpickle.dumps(v)) for n, v in {**held.globals, **held.nonlocals}.items()}
        if held
        else {}
    )
    what = f", most of it in {max(sizes, key=lambda n: sizes[n])!r}" if sizes else ""
    return (
        f"the training function is {len(pickled) >> 20} MiB large{what}; it is sent with every "
        "trial. Read the data inside the function instead."
    )


def _imported_by_function(function: Any, seen: set[int]) -> Iterator[str]:
    """Modules that a function needs: where it is defined, or what its body refers to."""
    function = inspect.unwrap(getattr(function, "func", function))
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, ModuleType):
        yield function.__name__
        return
    home = getattr(function, "__module__", None) or "__main__"
    if home != "__main__":
        yield home
        return
    for inner in vars(function).values() if inspect.isclass(function) else (function,):
        if isinstance(inner, FunctionType):
            yield from _imported_by_code(inner.__code__)
            held = inspect.getclosurevars(inner)
            for value in [*held.globals.values(), *held.nonlocals.values()]:
                yield from _imported_by_function(value, seen)


def _imported_by_code(code: CodeType) -> Iterator[str]:
    module = ""
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            module = str(step.argval)
            yield module
        elif step.opname == "IMPORT_FROM":
            yield f"{module}.{step.argval}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _imported_by_code(constant)


def _imported_by_source(name: str, source: Source) -> list[str]:
    package = name if source.is_package else name.rpartition(".")[0]
    found: list[str] = []
    for node in ast.walk(ast.parse(source.text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = importlib.util.resolve_name("." * node.level + base, package)
            found += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return found


def _find(name: str) -> importlib.machinery.ModuleSpec | None:
    """A module's spec, found without importing anything."""
    path = None
    spec: importlib.machinery.ModuleSpec | None = None
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        full = ".".join(parts[:end])
        loaded = sys.modules.get(full)
        spec = getattr(loaded, "__spec__", None) or importlib.machinery.PathFinder.find_spec(
            full, path
        )
        if spec is None or (end < len(parts) and spec.submodule_search_locations is None):
            return None
        try:
            path = list(spec.submodule_search_locations or ())
        except (ImportError, KeyError):
            return spec  # A namespace package tells its folders only once it is imported.
    return spec


def _installed_folders() -> tuple[str, ...]:
    folders = {*sysconfig.get_paths().values(), *site.getsitepackages(), sys.base_prefix}
    folders |= {site.getusersitepackages(), str(Path(__file__).parents[1])}
    return tuple(folder.rstrip("/") + "/" for folder in folders)


def _local_source(spec: importlib.machinery.ModuleSpec) -> Source | None:
    origin = spec.origin
    if not origin or not origin.endswith(".py") or origin.startswith(_installed_folders()):
        return None
    if not Path(origin).is_file():
        return None
    is_package = spec.submodule_search_locations is not None
    return Source(Path(origin).read_text(encoding="utf-8"), origin, is_package)


class _FromMemory(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports the modules that came with the program."""

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
    """Make the program's local modules importable in this process, before any others."""
    if modules:
        sys.meta_path.insert(0, _FromMemory(modules))
