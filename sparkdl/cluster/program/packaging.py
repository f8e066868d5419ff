"""Runs on the driver. Pack the user's program: a function and the modules that it needs.

The function is pickled, by value if it was defined in a script or notebook, and the user's own
modules travel with it, see `local_modules`. Packages that are installed on the driver must be
installed on the executors too; the preflight compares them.
"""

import base64
import dis
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

import cloudpickle

from sparkdl.cluster.program.local_modules import Source, find, imported_by, local_source
from sparkdl.cluster.program.pickling import num_bytes, pickle_function
from sparkdl.errors import FunctionError

__all__ = ["Program", "find_framework", "pack", "preloadable"]

# Each training process loads the function, which takes a noticeable time from this size on.
LARGE_BYTES = 10 << 20

# Environment variables that Keras and TensorFlow read only when they are imported.
_BACKEND_VARIABLES = ("KERAS_BACKEND", "TF_USE_LEGACY_KERAS")
# The packages and modules that import Keras, or read these variables, when they are imported.
_FIXES_BACKEND = ("keras", "sparkdl.horovod.callbacks", "sparkdl.keras", "tensorflow", "tf_keras")

# Packages that are safe to import before a fork: they start no threads that a child would miss.
_PRELOADABLE = {
    *("jax", "keras", "numpy", "pandas", "PIL", "pyarrow", "pyspark", "scipy", "sklearn"),
    *("sparkdl", "tensorflow", "tf_keras", "torch"),
}
_FRAMEWORKS = {
    "tensorflow": _FIXES_BACKEND,
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
        largest: the name of the largest object in a large function; empty if it is unknown.
    """

    function: bytes = field(repr=False)
    modules: Mapping[str, Source] = field(repr=False)
    imports: frozenset[str] = frozenset()
    largest: str = ""

    @property
    def where(self) -> str:
        """A phrase that names the largest object in the function, for messages; may be empty."""
        return f", most of it in {self.largest!r}" if self.largest else ""

    @property
    def warning(self) -> str | None:
        """A warning that the function is large; None if it is not."""
        if len(self.function) <= LARGE_BYTES:
            return None
        return (
            f"the training function is {len(self.function) >> 20} MiB large{self.where}; each "
            "trial loads all of it. Read the data inside the function instead."
        )

    @property
    def num_bytes(self) -> int:
        """The size of the function and of the modules that travel with it."""
        texts = (source.text.encode() for source in self.modules.values())
        return len(self.function) + sum(map(len, texts))

    def backend_variables(self, env: Mapping[str, str]) -> tuple[str, ...]:
        """Return the variables by which the program itself may choose the backend of Keras.

        Args:
            env: the variables of `env=`, which are set before anything is imported.

        Example:
            >>> pack(lambda: __import__("os").environ.get("KERAS_BACKEND")).backend_variables({})
            ('KERAS_BACKEND',)
        """
        texts = [source.text for source in self.modules.values()]
        return tuple(
            name
            for name in _BACKEND_VARIABLES
            if name not in env
            and (name.encode() in self.function or any(name in text for text in texts))
        )

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
        pickled, referenced = pickle_function(_with_names_of_classes(function))
    except Exception as exc:
        raise FunctionError(
            f"the function cannot be sent to Spark: {_culprit(function)}. "
            f"({type(exc).__name__}: {exc}) Create such things inside the function, and read data "
            "inside it too; a SparkSession lives on the driver only."
        ) from exc
    modules: dict[str, Source] = {}
    imports: set[str] = set()
    names = sorted(referenced)
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
    return Program(pickled, modules, frozenset(imports), _largest_value(function, len(pickled)))


@dataclass(frozen=True)
class _WithGlobals:
    """A function, and global names that it needs beside those that cloudpickle finds."""

    function: FunctionType
    names: Mapping[str, Any]

    def __call__(self, *args: Any, **params: Any) -> Any:
        for name, value in self.names.items():
            self.function.__globals__.setdefault(name, value)
        return self.function(*args, **params)


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
    return next(
        (key for key, parts in _FRAMEWORKS.items() if any(_is_in(n, parts) for n in imports)), None
    )


def preloadable(
    imports: frozenset[str], framework: str | None, sets_backend: bool = False
) -> tuple[str, ...]:
    """Return the modules that a fork server should import for a program, the framework first.

    Args:
        imports: the modules that the program imports.
        framework: the framework of the program, if any.
        sets_backend: the program chooses the backend of Keras, so that it must import Keras itself.

    Example:
        >>> preloadable(frozenset({"keras", "numpy"}), "tensorflow", sets_backend=True)
        ('sparkdl.cluster.process.child', 'numpy')
    """
    safe = sorted(name for name in imports if _is_in(name, _PRELOADABLE))
    readers = ("pyarrow.dataset",) if "sparkdl.data" in imports else ()
    names = ("sparkdl.cluster.process.child", *((framework,) if framework else ()), *safe, *readers)
    return tuple(n for n in names if not (sets_backend and _is_in(n, _FIXES_BACKEND)))


def _is_in(name: str, packages: Iterable[str]) -> bool:
    """Return True if a module is one of the packages, or inside one of them."""
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


def _named_values(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the globals, closure variables and set arguments of a function, by name."""
    inner = inspect.unwrap(getattr(function, "func", function))
    arguments: dict[str, Any] = getattr(function, "keywords", {})
    if not isinstance(inner, FunctionType):
        return arguments
    held = inspect.getclosurevars(inner)
    return {**held.globals, **held.nonlocals, **arguments}


def _culprit(function: Callable[..., Any]) -> str:
    for name, value in _named_values(function).items():
        try:
            cloudpickle.dumps(value)
        except Exception:  # noqa: BLE001 Pickling may raise any error.
            return f"it uses {name!r}, a {type(value).__name__}"
    return f"{function!r} holds something that cannot be pickled"


def _largest_value(function: Callable[..., Any], size: int) -> str:
    """Return the name of the object that makes a function large; empty if there is none."""
    if size <= LARGE_BYTES:
        return ""
    sizes = {name: num_bytes(value) for name, value in _named_values(function).items()}
    return next((name for name, part in sizes.items() if 2 * part > size), "")


def _by_value(thing: type | FunctionType) -> bool:
    """Return True if cloudpickle writes a class or function as a whole, not by its name."""
    return thing.__module__ == "__main__" or "<" in thing.__qualname__
