"""Runs anywhere (pure). Deadlines of requests: how clients tell them, and waits until them.

A proxy tells how long it waits, see `x-envoy-expected-rq-timeout-ms` at
https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_filters/router_filter. Triton's
clients send a parameter, see "Schedule Policy Extension" of Triton's protocol. gRPC has its own.
"""

import asyncio
import time
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from sparkdl.serving.request_error import RequestError, invalid

T = TypeVar("T")

HEADER = "x-envoy-expected-rq-timeout-ms"
# Larger numbers of milliseconds or microseconds are no time that anyone waits.
_MAX_DIGITS = 15


def too_late() -> RequestError:
    """Return the error of a request whose deadline has passed."""
    return RequestError("DEADLINE_EXCEEDED", "the model did not answer before the deadline")


def seconds_until(deadline: float | None) -> float | None:
    """Return the seconds until a time on the clock `time.monotonic`; None if there is no limit.

    Example:
        >>> seconds_until(None), seconds_until(time.monotonic() - 1)
        (None, 0.0)
    """
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def earlier(deadline: float | None, timeout_s: float | None) -> float | None:
    """Return the earlier of a deadline and of the end of a time that begins now.

    Args:
        deadline: a time on the clock `time.monotonic`; None if there is none.
        timeout_s: seconds; None for no limit.

    Example:
        >>> earlier(None, None)
        >>> earlier(5.0, 60.0)
        5.0
    """
    if timeout_s is None:
        return deadline
    end = time.monotonic() + timeout_s
    return end if deadline is None else min(deadline, end)


def header_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that the headers of a request leave; None if they have no limit.

    Raises:
        RequestError: if the header is no number.

    Example:
        >>> header_s({"x-envoy-expected-rq-timeout-ms": "250"})
        0.25
    """
    text = headers.get(HEADER)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise invalid(f"{HEADER} is {text[:40]!r}; expected a number of milliseconds")
    return int(text) / 1000 or None


def parameter_s(parameters: Any) -> float | None:
    """Return the seconds that the parameters of a request leave; None if they have no limit.

    Raises:
        RequestError: if the parameter is no number of microseconds.

    Example:
        >>> parameter_s({"timeout": 500_000})
        0.5
    """
    value = parameters.get("timeout") if isinstance(parameters, dict) else None
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 10**_MAX_DIGITS:
        raise invalid("the parameter timeout is no number of microseconds")
    return value / 1_000_000 or None


async def within(deadline: float | None, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine, which is cancelled at a deadline.

    Args:
        deadline: a time on the clock `time.monotonic`; None for any time.
        work: the coroutine.

    Raises:
        RequestError: if the deadline passes.
    """
    if deadline is None:
        return await work
    try:
        return await asyncio.wait_for(work, seconds_until(deadline))
    except asyncio.TimeoutError:
        raise too_late() from None
