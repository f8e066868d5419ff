"""Runs on the driver. Pickle a function, and record what its pickle imports when it is loaded.

cloudpickle writes functions, classes and modules of installed packages by name, and those of a
script or notebook as a whole. The pickler asks for each of them, wherever the function holds the
object: in a closure, a global, a default, a container, another function.
"""

import dis
import io
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from sparkdl.pickler import Pickler

__all__ = ["num_bytes", "pickle_function"]


class _RecordingPickler(Pickler):
    """A pickler that records the names of modules.

    Args:
        file: the file to write to.

    Attributes:
        modules: the modules that the loading of the pickle imports, and those that are imported
            inside the functions which the pickle contains as a whole.
    """

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.modules: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        """Return the reduction of an object; called for all but the simplest builtin types."""
        reduced = super().reducer_override(obj)
        if isinstance(obj, ModuleType):
            self.modules.add(obj.__name__)
        elif reduced is NotImplemented:
            self._record_reference(obj)
        elif isinstance(obj, FunctionType):
            self.modules.update(imported_by_code(obj.__code__))
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
            self.modules.add(module)


def pickle_function(function: Callable[..., Any]) -> tuple[bytes, set[str]]:
    """Return the pickle of a function, and the names of the modules that the function needs.

    Some names are those of objects inside a module, as `from x import name` does not tell the two
    apart.

    Raises:
        Exception: whatever the pickling of an object raises.
    """
    with io.BytesIO() as file:
        pickler = _RecordingPickler(file)
        pickler.dump(function)
        return file.getvalue(), pickler.modules - {"__main__"}


def imported_by_code(code: CodeType) -> Iterator[str]:
    """Yield the modules that the import statements of a function name, inner functions included."""
    module = ""
    for step in dis.get_instructions(code):
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
