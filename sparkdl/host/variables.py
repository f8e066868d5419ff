"""Runs anywhere. Set environment variables for a while."""

import contextlib
import os
from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def set_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables in the block, and restore those that were there before.

    Example:
        >>> with set_variables({"SPARKDL_EXAMPLE": "1"}):
        ...     os.environ["SPARKDL_EXAMPLE"]
        '1'
        >>> "SPARKDL_EXAMPLE" in os.environ
        False
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
