"""Runs on the driver. Pack the user's program: a function and the modules that it needs.

The function is pickled, by value if it was defined in a script or notebook, and the user's own
modules travel with it, see `local_modules`. Packages that are installed on the driver must be
installed on the executors too; the preflight compares them.
"""

import base64
import dis
import functools
import inspect
import pickletools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import cloudpickle

from sparkdl.cluster.program.local_modules import Source, find, imported_by, local_source
from sparkdl.errors import FunctionError

__all__ = ["Program", "find_framework", "pack", "preloadable"]

# A function of this size makes sending each trial slow, which users do not expect.
LARGE_BYTES = 10 << 20

# Packages that are safe to import before a fork: they start no threads that a child would miss.
_PRELOADABLE = {
    *("jax", "keras", "numpy", "pandas", "PIL", "pyarrow", "pyspark", "scipy", "sklearn"),
    *("sparkdl", "tensorflow", "tf_keras", "torch"),
}
_FRAMEWORKS = {
    "tensorflow": ("tensorflow", "keras", "tf_keras"),
    "torch": ("torch", "lightning", "pytorch_lightning"),
    "jax": ("jax", "flax"),
}


@dataclass(frozen=True)
class Program:
    """A function ready to be sent to the executors.

    Attributes:
        function: the pickled function.
        modules: the local modules that it imports, by name.
        imports: the names of the installed modules that it imports.
        warning: a warning for the user, such as that the function is very large.
    """

    function: bytes = field(repr=False)
    modules: Mapping[str, Source] = field(repr=False)
    imports: frozenset[str] = frozenset()
    warning: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON; the function stays pickled, and the driver never loads it."""
        return {
            "function": base64.b64encode(self.function).decode(),
            "modules": {name: list(source) for name, source in self.modules.items()},
            "imports": sorted(self.imports),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Program":
        """Create a program from the dict returned by `to_dict`."""
        modules = {name: Source(*source) for name, source in fields["modules"].items()}
        function = base64.b64decode(fields["function"])
        return cls(function, modules, frozenset(fields["imports"]))


def pack(function: Callable[..., Any]) -> Program:
    """Pickle a function and find the modules it needs.

    Raises:
        FunctionError: if the function holds an object that cannot leave this process.
    """
    try:
        pickled = cloudpickle.dumps(_with_names_of_classes(function))
    except Exception as exc:
        raise FunctionError(
            f"the training function cannot be sent to Spark: {_culprit(function)}. "
            f"({type(exc).__name__}: {exc}) Create such things inside the function, and read data "
            "inside it too; a SparkSession lives on the driver only."
        ) from exc
    modules: dict[str, Source] = {}
    imports: set[str] = set()
    names = [*_referenced(pickled), *_imported_by_bodies(function, set())]
    while names:
        name = names.pop()
        if name in modules or name in imports:
            continue
        spec = find(name)
        if spec is None:
            continue  # An optional import, or an object that `from x import name` imports.
        if source := local_source(spec):
            modules[name] = source
            names += imported_by(name, source)
        else:
            imports.add(name)
        names += [name.rpartition(".")[0]] if "." in name else []
    return Program(pickled, modules, frozenset(imports), _too_large(function, pickled))


@dataclass(frozen=True)
class _WithGlobals:
    """A function, and global names that it needs beside those that cloudpickle finds."""

    function: FunctionType
    names: Mapping[str, Any]

    def __call__(self, **params: Any) -> Any:
        for name, value in self.names.items():
            self.function.__globals__.setdefault(name, value)
        return self.function(**params)


def _with_names_of_classes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with the global names that the bodies of its inner classes use.

    cloudpickle 3.1 finds the names of LOAD_GLOBAL only; the body of a class has LOAD_NAME.
    """
    if not isinstance(function, FunctionType) or not _by_value(function):
        return function
    module = function.__globals__
    names = {n: module[n] for n in _names_in_classes(function.__code__) if n in module}
    return _WithGlobals(function, names) if names else function


def _names_in_classes(code: CodeType) -> set[str]:
    names: set[str] = set()
    for inner in (constant for constant in code.co_consts if isinstance(constant, CodeType)):
        if not inner.co_flags & inspect.CO_OPTIMIZED:  # The body of a class.
            steps = dis.get_instructions(inner)
            names |= {str(step.argval) for step in steps if step.opname == "LOAD_NAME"}
        names |= _names_in_classes(inner)
    return names - {"__name__"}


def find_framework(imports: frozenset[str]) -> str | None:
    """Return the framework that a program imports; None if it imports none of the known ones.

    Example:
        >>> find_framework(frozenset({"numpy", "keras.layers"}))
        'tensorflow'
    """
    tops = {name.partition(".")[0] for name in imports}
    return next((key for key, names in _FRAMEWORKS.items() if tops & set(names)), None)


def preloadable(imports: frozenset[str], framework: str | None) -> tuple[str, ...]:
    """Return the modules that a fork server should import for a program, the framework first."""
    safe = sorted(name for name in imports if name.partition(".")[0] in _PRELOADABLE)
    first = (framework,) if framework else ()
    readers = ("pyarrow.dataset",) if "sparkdl.data" in imports else ()
    return ("sparkdl.cluster.process.child", *first, *safe, *readers)


def _named_values(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the globals and closure variables that a function uses, by name."""
    inner = inspect.unwrap(getattr(function, "func", function))
    if not isinstance(inner, FunctionType):
        return {}
    held = inspect.getclosurevars(inner)
    return {**held.globals, **held.nonlocals}


def _culprit(function: Callable[..., Any]) -> str:
    for name, value in _named_values(function).items():
        try:
            cloudpickle.dumps(value)
        except Exception:  # noqa: BLE001 Pickling may raise any error.
            return f"it uses {name!r}, a {type(value).__name__}"
    return f"{function!r} holds something that cannot be pickled"


def _too_large(function: Callable[..., Any], pickled: bytes) -> str | None:
    if len(pickled) <= LARGE_BYTES:
        return None
    sizes = {name: len(cloudpickle.dumps(v)) for name, v in _named_values(function).items()}
    what = f", most of it in {max(sizes, key=lambda name: sizes[name])!r}" if sizes else ""
    return (
        f"the training function is {len(pickled) >> 20} MiB large{what}; it is sent with every "
        "trial. Read the data inside the function instead."
    )


def _referenced(pickled: bytes) -> Iterator[str]:
    """Yield the modules that a pickle imports when it is loaded, read from its opcodes."""
    memo: list[Any] = []
    strings: list[str] = []
    last: Any = None
    module_next = False
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name == "MEMOIZE":
            memo.append(last)
            continue
        last = None
        if "UNICODE" in opcode.name:
            last = argument
        elif opcode.name in ("BINGET", "LONG_BINGET"):
            last = memo[int(argument or 0)]
        elif opcode.name == "STACK_GLOBAL":
            yield strings[-2]
            module_next = (
                strings[-1] == "subimport"
            )  # The form in which cloudpickle writes a module.
        if isinstance(last, str):
            strings.append(last)
            if module_next:
                yield last
            module_next = False


def _imported_by_bodies(thing: Any, seen: set[int]) -> Iterator[str]:
    """Yield the modules that are imported inside the functions that are pickled by value."""
    if isinstance(thing, staticmethod | classmethod | MethodType):
        yield from _imported_by_bodies(getattr(thing, "__self__", None), seen)
        thing = thing.__func__
    if id(thing) in seen:
        return
    seen.add(id(thing))
    held: list[Any] = []
    if isinstance(thing, functools.partial):
        held = [thing.func, *thing.args, *thing.keywords.values()]
    elif isinstance(thing, FunctionType) and _by_value(thing):
        yield from _imported_by_code(thing.__code__)
        held = _held_by(thing)
    elif isinstance(thing, type) and _by_value(thing):
        held = [*vars(thing).values(), *thing.__bases__]
    elif _by_value(type(thing)):
        held = [type(thing), *getattr(thing, "__dict__", {}).values()]
    for value in held:
        yield from _imported_by_bodies(value, seen)


def _by_value(thing: type | FunctionType) -> bool:
    """Return True if cloudpickle writes a class or function as a whole, not by its name."""
    return thing.__module__ == "__main__" or "<" in thing.__qualname__


def _held_by(function: FunctionType) -> list[Any]:
    cells = [c.cell_contents for c in function.__closure__ or () if c != CellType()]
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    names = _names(function.__code__)
    used = [value for name, value in function.__globals__.items() if name in names]
    return [*cells, *defaults, *used, *vars(function).values()]


def _names(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, inner))


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
