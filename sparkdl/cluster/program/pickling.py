"""Runs on the driver. Pickle a function, and record what its pickle imports when it is loaded.

cloudpickle writes functions, classes and modules of installed packages by name, and those of a
script or notebook as a whole. The pickler asks for each of them, wherever the function holds the
object: in a closure, a global, a default, a container, another function.
"""

import dis
import io
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from sparkdl.cluster.program.preloading import LAZY
from sparkdl.host.pickler import Pickler


class _RecordingPickler(Pickler):
    """A pickler that records the names of modules.

    Args:
        file: the file to write to.

    Attributes:
        loaded_modules: the modules that the loading of the pickle imports.
        modules_in_calls: the modules that are imported inside the functions which the pickle
            contains as a whole, in the order of their lines; the function itself comes first.
    """

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.loaded_modules: list[str] = []
        self.modules_in_calls: list[str] = []

    def reducer_override(self, obj: Any) -> Any:
        """Return the reduction of an object; called for all but the simplest builtin types."""
        reduced = super().reducer_override(obj)
        if isinstance(obj, ModuleType):
            self.loaded_modules.append(obj.__name__)
        elif reduced is NotImplemented:
            self._record_reference(obj)
        elif isinstance(obj, FunctionType):
            self.modules_in_calls += imported_by_code(obj.__code__)
        return reduced

    def _record_reference(self, obj: Any) -> None:
        """Record the module of an object that is written by its name.

        The class of any other object is written too. It is recorded by the same rule, unless the
        pickle contains the class as a whole.
        """
        if not isinstance(obj, type | FunctionType) and "<locals>" in type(obj).__qualname__:
            return
        module = getattr(obj, "__module__", None) or type(obj).__module__
        if isinstance(module, str):
            self.loaded_modules.append(module)


class Pickled(NamedTuple):
    """A pickled function, and the names of the modules that it needs, in the program's order.

    Some names are those of objects inside a module, as `from x import name` does not tell the two
    apart.

    Attributes:
        data: the pickle.
        loaded_modules: the modules that the loading of the pickle imports, in the order in which
            this process has imported them.
        modules_in_calls: the modules that its calls import, in the order of their lines.
    """

    data: bytes
    loaded_modules: list[str]
    modules_in_calls: list[str]


def pickle_function(function: Callable[..., Any]) -> Pickled:
    """Pickle a function.

    Raises:
        Exception: whatever the pickling of an object raises.
    """
    with io.BytesIO() as file:
        pickler = _RecordingPickler(file)
        pickler.dump(function)
        places = {name: place for place, name in enumerate(list(sys.modules))}
        loaded_modules = {name for name in pickler.loaded_modules if name != "__main__"}
        in_order = sorted(loaded_modules, key=lambda name: (places.get(name, len(places)), name))
        return Pickled(file.getvalue(), in_order, list(dict.fromkeys(pickler.modules_in_calls)))


def imported_by_code(code: CodeType) -> Iterator[str]:
    """Yield the modules that the import statements of a function name, inner functions included.

    Of a package that imports a module when a name is taken from it, the names are yielded too.
    """
    module = before = ""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and before in LAZY:
            yield f"{before}.{step.argval}"
        before = str(step.argval) if step.opname.startswith("LOAD_") else ""
        if step.opname == "IMPORT_NAME":
            module = str(step.argval)
            yield module
        elif step.opname == "IMPORT_FROM":
            yield f"{module}.{step.argval}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from imported_by_code(constant)


class _Counter:
    """A file that only counts the bytes that are written to it."""

    num_bytes = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.num_bytes += size
        return size


def num_bytes(value: Any) -> int:
    """Return the size of the pickle of an object, which is not kept."""
    counter = _Counter()
    Pickler(counter).dump(value)
    return counter.num_bytes
