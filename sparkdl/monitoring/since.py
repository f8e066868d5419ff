"""Runs on the driver. The time from which on the requests in a log are those of a version."""

from datetime import datetime, timezone
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.models.registry import alias_history
from sparkdl.models.version import ModelVersion


def milliseconds(since: Any) -> int:
    """Return a time as milliseconds since 1970.

    Args:
        since: a datetime or its text in the form of ISO 8601, in UTC if it has no time zone; or
            seconds since 1970.

    Raises:
        ConfigError: if it is anything else.

    Example:
        >>> milliseconds("1970-01-01T01:00:00+01:00"), milliseconds(1.5)
        (0, 1500)
    """
    try:
        if isinstance(since, int | float) and not isinstance(since, bool):
            return int(since * 1000)
        moment = since
        if isinstance(since, str):
            # Python 3.10 does not read the letter.
            moment = datetime.fromisoformat(since.strip().replace("Z", "+00:00"))
        if isinstance(moment, datetime):
            moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
            return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        pass  # It is told below.
    raise ConfigError(
        f"since is {since!r}; expected a datetime, a text such as '2026-11-23T10:00:00Z', or "
        "seconds since 1970."
    )


def as_text(time_ms: int) -> str:
    """Return milliseconds since 1970 as a text that `milliseconds` reads.

    Example:
        >>> as_text(1500)
        '1970-01-01T00:00:01.500+00:00'
    """
    moment = datetime.fromtimestamp(time_ms / 1000, timezone.utc)
    return moment.isoformat(timespec="milliseconds")


def start_of(reference: Any, version: ModelVersion, root: str | None = None) -> int:
    """Return the time from which on requests are compared with a version, in milliseconds.

    It is the time of the export or, where an alias names the version, that of the last move of the
    alias. Requests before belong to other versions, also in logs that do not tell the version.

    Args:
        reference: the reference of the user, such as `loans@stable`.
        version: the version that it names.
        root: the folder that holds the runs and the models.
    """
    text = version.details.get("exported", {}).get("time")
    _, at, alias = reference.partition("@") if isinstance(reference, str) else ("", "", "")
    if at:
        moves = alias_history(version.name, alias, root=root)
        texts = [move.time for move in moves if move.version == version.version]
        text = texts[-1] if texts else text
    return milliseconds(text) if text else 0
