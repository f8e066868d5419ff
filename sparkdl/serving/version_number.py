"""Runs anywhere (pure). The number of a version, as the address of a request has it."""

from sparkdl.serving.request_error import invalid

__all__ = ["version_number"]

# TensorFlow Serving counts versions in int64.
MAX_VERSION = (1 << 63) - 1


def version_number(text: str | None) -> int | None:
    """Return the number of a version; None if the request names no version.

    Raises:
        RequestError: if the text is no number that a version can have.

    Example:
        >>> version_number("12")
        12
    """
    if text is None:
        return None
    # Python refuses to convert some thousand digits.
    if not text.isdecimal() or len(text) > 19 or int(text) > MAX_VERSION:
        raise invalid(f"Failed to convert version: {text[:40]} to numeric.")
    return int(text)
