"""Runs on the driver. Pack the user's program: a function and the modules that it needs.

The function is pickled, by value if it was defined in a script or notebook, and the user's own
modules travel with it, see `local_modules`. Packages that are installed on the driver must be
installed on the executors too; the preflight compares them.
"""

import base64
import contextlib
import dis
import importlib.util
import inspect
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import cloudpickle

from sparkdl.cluster.program.local_modules import Source, find, imported_by, local_source
from sparkdl.cluster.program.needed_packages import first_imports, needed_packages
from sparkdl.cluster.program.pickling import num_bytes, pickle_function
from sparkdl.cluster.program.preloading import HUB, LAZY
from sparkdl.errors import FunctionError, named_type
from sparkdl.host.optional_packages import require
from sparkdl.training.script import Script

# Each training process loads the function, which takes a noticeable time from this size on.
LARGE_BYTES = 10 << 20

# Environment variables that Keras and TensorFlow read only when they are imported.
_BACKEND_VARIABLES = ("KERAS_BACKEND", "TF_USE_LEGACY_KERAS")
# Environment variables that packages of Hugging Face read only when they are imported.
_HUB_VARIABLES = (
    *("HF_HOME", "HF_ENDPOINT", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_CACHE"),
    *("HF_DATASETS_OFFLINE", "HF_ASSETS_CACHE", "HF_XET_CACHE", "HF_TOKEN_PATH"),
    *("HUGGINGFACE_HUB_CACHE", "HF_HUB_DISABLE_PROGRESS_BARS", "HF_HUB_DISABLE_TELEMETRY"),
    *("TRANSFORMERS_CACHE", "TRANSFORMERS_OFFLINE", "TRANSFORMERS_VERBOSITY"),
    *("HF_MODULES_CACHE", "USE_TF", "USE_TORCH"),
)


@dataclass(frozen=True)
class Program:
    """A function ready to be sent to the executors.

    Attributes:
        function: the pickled function.
        modules: the local modules that it imports, by name.
        imports: the names of the installed modules that it imports, in its own order.
        loaded: the modules that the loading of the function imports, in the program's own order.
        largest: the name of the largest object in a large function; empty if it is unknown.
        needed: the optional packages that each call needs, see `needed_packages`.
        preload: the function of `preload=`; its modules and imports are among those above.
    """

    function: bytes = field(repr=False)
    modules: Mapping[str, Source] = field(repr=False)
    imports: tuple[str, ...] = ()
    loaded: tuple[str, ...] = ()
    largest: str = ""
    needed: Mapping[str, str] = field(default_factory=dict, repr=False)
    preload: "Program | None" = field(default=None, repr=False)

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
        preload = len(self.preload.function) if self.preload else 0
        return len(self.function) + preload + sum(map(len, texts))

    def backend_variables(self, env: Mapping[str, str]) -> tuple[str, ...]:
        """Return the variables by which the program itself may choose the backend of Keras.

        Args:
            env: the variables of `env=`, which are set before anything is imported.

        Example:
            >>> pack(lambda: __import__("os").environ.get("KERAS_BACKEND")).backend_variables({})
            ('KERAS_BACKEND',)
        """
        return self._names_of(_BACKEND_VARIABLES, env)

    def hub_variables(self, env: Mapping[str, str]) -> tuple[str, ...]:
        """Return the variables by which the program itself may set up packages of Hugging Face.

        Args:
            env: the variables of `env=`, which are set before anything is imported.
        """
        imported = {name.partition(".")[0] for name in self.imports}
        return () if imported.isdisjoint(HUB) else self._names_of(_HUB_VARIABLES, env)

    def _names_of(self, variables: Iterable[str], env: Mapping[str, str]) -> tuple[str, ...]:
        """Return the variables whose names the program contains, and that `env` does not set."""
        texts = [source.text.encode() for source in self.modules.values()]
        texts += [self.function, self.preload.function if self.preload else b""]
        return tuple(
            name
            for name in variables
            if name not in env and any(name.encode() in text for text in texts)
        )

    def with_preload(self, preload: "Program | None") -> "Program":
        """Return the program with another function of `preload=`, which imports its modules first.

        Args:
            preload: the function; None leaves the program as it is.
        """
        if preload is None:
            return self
        return replace(
            self,
            modules={**preload.modules, **self.modules},
            imports=tuple(dict.fromkeys((*preload.imports, *self.imports))),
            needed={**preload.needed, **self.needed},
            preload=replace(preload, modules={}),
        )

    def preload_request(self, seed: int) -> bytes | None:
        """Return the function of `preload=` as a process gets it that calls it; None without one.

        Args:
            seed: the seed of random numbers in the function.
        """
        if self.preload is None:
            return None
        request = {"function": self.preload.function, "loaded": self.preload.loaded}
        return pickle.dumps({**request, "modules": dict(self.modules), "seed": seed})

    def check_packages(self) -> None:
        """Validate that this Python has the optional packages that each call needs.

        Raises:
            MissingPackageError: if one is not installed.
        """
        for package, feature in self.needed.items():
            require(package, feature)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON; the function stays pickled, and the driver never loads it."""
        return {
            "function": base64.b64encode(self.function).decode(),
            "modules": {name: list(source) for name, source in self.modules.items()},
            "imports": list(self.imports),
            "loaded": list(self.loaded),
            **({"preload": self.preload.to_dict()} if self.preload else {}),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Program":
        """Create a program from the dict returned by `to_dict`."""
        modules = {name: Source(*source) for name, source in fields["modules"].items()}
        function = base64.b64decode(fields["function"])
        loaded = tuple(fields.get("loaded", ()))  # Programs of older runs have none.
        preload = cls.from_dict(fields["preload"]) if "preload" in fields else None
        return cls(function, modules, tuple(fields["imports"]), loaded, preload=preload)


def pack(function: Callable[..., Any], preload: Callable[[], Any] | None = None) -> Program:
    """Pickle a function and find the modules it needs.

    Args:
        function: the training function.
        preload: the function of `preload=`, if any.

    Raises:
        FunctionError: if the function holds an object that cannot leave this process.
    """
    if preload is not None:
        return pack(function).with_preload(pack_preload(preload))
    needed = needed_packages(function)
    try:
        data, loaded_modules, modules_in_calls = pickle_function(_with_names_of_classes(function))
    except Exception as exc:
        raise FunctionError(
            f"the function cannot be sent to Spark: {_culprit(function)}. "
            f"({type(exc).__name__}: {exc}) Create such things inside the function, and read data "
            "inside it too; a SparkSession lives on the driver only."
        ) from exc
    walk = _ModuleWalk()
    with _imports_of_script(function) as in_script:
        for names in (loaded_modules, modules_in_calls, in_script, walk.in_calls, list(needed)):
            walk.add(names)
    # The preflight asks the executors for what this Python lacks.
    lacking = [name for name in first_imports(function) if not _is_there(name)]
    walk.imports |= dict.fromkeys(name for name in [*needed, *lacking] if name not in walk.modules)
    in_order = tuple(
        name for name in loaded_modules if name in walk.imports or name in walk.modules
    )
    largest = _largest_value(function, len(data))
    return Program(data, walk.modules, tuple(walk.imports), in_order, largest, needed)


def _is_there(name: str) -> bool:
    return name in sys.modules or importlib.util.find_spec(name) is not None


def pack_preload(preload: Callable[[], Any]) -> Program:
    """Pickle the function of `preload=`.

    Raises:
        FunctionError: as `pack`; the message names the function.
    """
    try:
        return pack(preload)
    except FunctionError as exc:
        raise FunctionError(
            f"preload={getattr(preload, '__name__', preload)!s}: {exc}"
        ) from exc.__cause__


@contextlib.contextmanager
def _imports_of_script(function: Callable[..., Any]) -> Iterator[list[str]]:
    """Yield the names that a script imports, and let the modules beside it be found meanwhile."""
    if not isinstance(function, Script):
        yield []
        return
    before = sys.path
    sys.path = [str(Path(function.path).parent), *before]
    try:
        at_import, in_calls = imported_by("__main__", Source(function.source, function.path, False))
        yield [*at_import, *in_calls]
    finally:
        sys.path = before


class _ModuleWalk:
    """The modules that a program needs, found in the order in which it imports them.

    Attributes:
        modules: the local modules by name.
        imports: the names of the installed modules; the values mean nothing.
        in_calls: the names that functions of local modules import when they are called. It grows
            while it is read.
    """

    def __init__(self) -> None:
        self.modules: dict[str, Source] = {}
        self.imports: dict[str, None] = {}
        self.in_calls: list[str] = []
        self._visited: set[str] = set()

    def add(self, names: Iterable[str]) -> None:
        """Add modules, with their packages and the modules that local ones import."""
        for name in names:
            pending = [name]
            while pending:
                pending += reversed(self._add_one(pending.pop()))

    def _add_one(self, name: str) -> list[str]:
        """Add one module; return the modules to add next, in their order."""
        if name in self._visited:
            return []
        package = name.rpartition(".")[0]
        if package and package not in self._visited:
            return [package, name]  # Python imports the package first.
        self._visited.add(name)
        spec = find(name)
        if spec is None:
            # An optional import, or an object that `from x import name` imports.
            if package in LAZY and package in self.imports:
                self.imports[name] = None
            return []
        if not (source := local_source(spec)):
            self.imports[name] = None
            return []
        self.modules[name] = source
        at_import, in_calls = imported_by(name, source)
        self.in_calls += in_calls
        return at_import


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


def _named_values(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the globals, closure variables and set arguments of a function, by name."""
    inner = inspect.unwrap(getattr(function, "func", function))
    arguments: dict[str, Any] = getattr(function, "keywords", {})
    if not isinstance(inner, FunctionType):
        return arguments
    variables = inspect.getclosurevars(inner)
    return {**variables.globals, **variables.nonlocals, **arguments}


def _culprit(function: Callable[..., Any]) -> str:
    for name, value in _named_values(function).items():
        try:
            cloudpickle.dumps(value)
        except Exception:  # noqa: BLE001 Pickling may raise any error.
            return f"it uses {name!r}, {named_type(value)}"
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
