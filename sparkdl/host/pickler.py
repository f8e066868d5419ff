"""Runs anywhere. cloudpickle, but with the names of the files in which functions are defined."""

import io
from types import CodeType
from typing import Any

import cloudpickle


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler of functions and classes, whose tracebacks show file and line.

    cloudpickle 3.1.3 writes `<dynamic-code>` in place of the file's name.
    """

    def reducer_override(self, obj: Any) -> Any:
        """Return the reduction of an object; called for all but the simplest builtin types."""
        if not isinstance(obj, CodeType):
            return super().reducer_override(obj)
        constructor, arguments = self.dispatch_table[CodeType](obj)
        names = {"<dynamic-code>": obj.co_filename}
        return constructor, tuple(
            names.get(value, value) if isinstance(value, str) else value for value in arguments
        )


def dumps(obj: Any) -> bytes:
    """Return the pickle of an object.

    Raises:
        Exception: whatever the pickling of an object raises.

    Example:
        >>> import pickle
        >>> double = lambda x: 2 * x
        >>> pickle.loads(dumps(double)).__code__.co_filename == double.__code__.co_filename
        True
    """
    with io.BytesIO() as file:
        Pickler(file).dump(obj)
        return file.getvalue()
