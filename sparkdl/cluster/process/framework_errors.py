"""Runs in the training process. Shorten the errors of frameworks to the line with the cause."""

import re
import traceback

__all__ = ["error_line"]

# TensorFlow's error for an exception in Python code that it called, such as a reader of rows.
_PYTHON_ERROR = re.compile(r"\b(\w+): ([^\n]+)(?:\n[^\n]+)*?\nTraceback \(most recent call last\):")
# The line before the name of the node that failed.
_BEFORE_NODE = re.compile(r"\n([^\n]+)\n\s*\[\[\{\{node")


def error_line(exc: BaseException) -> str:
    """Return one line with the class and the message of an exception.

    The messages of TensorFlow begin with names of operations, and have the cause further below.

    Example:
        >>> error_line(KeyError("x"))
        "KeyError: 'x'"
    """
    text = "".join(traceback.format_exception_only(exc)).strip()
    if type(exc).__module__.startswith("tensorflow."):
        if python_errors := _PYTHON_ERROR.findall(text):
            return ": ".join(python_errors[-1])
        if causes := _BEFORE_NODE.findall(text):
            return f"{type(exc).__name__}: {causes[-1].strip()}"
    return text.split("\n")[0]
