"""Runs anywhere. Raise the exceptions of stores, and of their libraries, as OSErrors."""

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from sparkdl.errors import ConfigError


@contextmanager
def store_errors(url: str) -> Iterator[None]:
    """Raise every exception of a store as an OSError that names the URL.

    Libraries of stores raise classes of their own, many of which are no OSError. A missing file is
    a FileNotFoundError, and a refused access a PermissionError, whatever the store.
    """
    try:
        yield
    except ConfigError:
        raise
    except OSError as exc:
        if exc.errno is not None and exc.filename is None:
            exc.filename = url
        if exc.errno is None and str(exc).startswith("Forbidden"):  # gcsfs
            raise PermissionError(errno.EACCES, str(exc), url) from exc
        raise
    except Exception as exc:
        raise _as_os_error(exc, url) from exc


def _as_os_error(exc: Exception, url: str) -> OSError:
    status, name = status_of(exc), type(exc).__name__
    text = f"{name}: {exc}"
    if status == 404:
        return FileNotFoundError(errno.ENOENT, text, url)
    if status in (401, 403) or "Credential" in name or "Authentication" in name:
        return PermissionError(errno.EACCES, text, url)
    if status in (408, 504) or "timeout" in name.lower():
        return TimeoutError(errno.ETIMEDOUT, text, url)
    return OSError(errno.EIO, text, url)


def is_beyond_end(exc: BaseException) -> bool:
    """Return True if a store has refused to read because nothing is there, behind the end."""
    return status_of(exc) == 416


def is_no_end_of_file(record: logging.LogRecord) -> bool:
    """Return False for the traceback that gcsfs logs whenever a file has no new content."""
    return not (record.exc_info and record.exc_info[1] and is_beyond_end(record.exc_info[1]))


def status_of(exc: BaseException | None) -> int | None:
    """Return the HTTP status of an exception or of its causes."""
    while exc is not None:
        response = getattr(exc, "response", None)
        if isinstance(response, dict):  # botocore
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        else:
            names = ("status_code", "status", "code")
            status = next((s for n in names if (s := getattr(exc, n, None)) is not None), None)
        if str(status).isdigit():
            return int(str(status))
        exc = exc.__cause__
    return None


def advice(exc: OSError) -> str:
    """Return what the user can do about an error of a disk or store; empty if that is unknown."""
    if exc.errno == errno.ENOSPC:
        return "The disk is full: free some space."
    if exc.errno == errno.EDQUOT:
        return "The quota is used up: free some space."
    if exc.errno == errno.EROFS:
        return "The disk is mounted read-only."
    if isinstance(exc, PermissionError):
        return f"Check the permissions or credentials of this user ({os.getuid()})."
    return ""
