"""Runs in the training process. Shorten the errors of frameworks to the line with the cause."""

import re
import traceback

_OPERATION = re.compile(r"\{\{function_node [^}]*\}\} ?")
# An exception of Python code that TensorFlow called, such as a reader of rows.
_PYTHON_ERROR = re.compile(r"^(\w+: [^\n]+)(?:\n[^\n]+)*?\nTraceback \(most recent call", re.M)
_ASSERTION = re.compile(r"assertion failed: \[(.*?)\](?: \[|$)", re.M)
# The line before the name of the node that failed.
_BEFORE_NODE = re.compile(r"^([^\n]+)\n\s*\[\[\{\{node", re.M)


def error_line(exc: BaseException) -> str:
    """Return one line with the class and the message of an exception.

    The messages of TensorFlow begin with names of operations, and have the cause further below.

    Example:
        >>> error_line(KeyError("x"))
        "KeyError: 'x'"
    """
    if not type(exc).__module__.startswith("tensorflow."):
        return "".join(traceback.format_exception_only(exc)).strip().split("\n")[0]
    text = _OPERATION.sub("", str(exc)).strip()
    if python_error := _PYTHON_ERROR.search(text):
        return python_error[1]
    for pattern in (_ASSERTION, _BEFORE_NODE):
        if cause := pattern.search(text):
            return f"{type(exc).__name__}: {cause[1].strip()}".replace("\\'", "'")
    return f"{type(exc).__name__}: {text}".split("\n")[0]
