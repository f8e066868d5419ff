"""Runs on the driver. Choose runs from a table of runs, by a condition, user, time or tags."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sparkdl.errors import ConfigError
from sparkdl.runs.summary import METRIC, PARAM

if TYPE_CHECKING:
    import pandas as pd

Where = str | Callable[[Any], Any]
Since = str | date | datetime | timedelta

_AGE = re.compile(r"(\d+(?:\.\d+)?) *(s|min|h|d|w)")
_UNITS = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_age(text: str) -> timedelta:
    """Return a duration such as `30d`.

    Raises:
        ConfigError: if the text is no number with one of the units s, min, h, d and w.

    Example:
        >>> parse_age("30d"), parse_age("1.5h")
        (datetime.timedelta(days=30), datetime.timedelta(seconds=5400))
    """
    if match := _AGE.fullmatch(text.strip()):
        return timedelta(**{_UNITS[match[2]]: float(match[1])})
    raise ConfigError(
        f"the age is {text!r}; expected a number with s, min, h, d or w, such as '30d' or '12h'."
    )


def parse_since(since: Since) -> datetime:
    """Return a time with a time zone; a time without one is in the zone of this host.

    Args:
        since: a time, a date, a duration before now, or a text with one, such as `2026-11-01` or
            `7d`.

    Raises:
        ConfigError: if it is anything else.
    """
    value: Any = since
    if isinstance(value, str) and _AGE.fullmatch(value.strip()):
        value = parse_age(value)
    elif isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            value = None
    if isinstance(value, timedelta):
        return datetime.now().astimezone() - value
    if isinstance(value, datetime):
        return value.astimezone()
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day).astimezone()
    raise ConfigError(
        f"since is {since!r}; expected a time such as '2026-11-01' or '2026-11-01T09:00', a "
        "datetime, or a duration such as '7d' or '12h'."
    )


def rows_meeting(
    rows: Sequence[Mapping[str, Any]],
    user: str | Iterable[str] | None = None,
    since: Since | None = None,
    tags: str | Iterable[str] | None = None,
) -> list[int]:
    """Return the numbers of the rows that meet all conditions, see `experiment.history`.

    Raises:
        ConfigError: if `since` is no time.
    """
    users = [user] if isinstance(user, str) else user and list(user)
    begin = None if since is None else parse_since(since)
    wanted_tags = {tags} if isinstance(tags, str) else set(tags or ())
    return [
        number
        for number, row in enumerate(rows)
        if (users is None or row["user"] in users)
        and (begin is None or (row["started"] is not None and row["started"] >= begin))
        and wanted_tags <= set(row["tags"])
    ]


def meets(frame: "pd.DataFrame", where: Where) -> Any:
    """Return a truth value for each row of a table of runs: True if it meets the condition.

    Raises:
        ConfigError: if the condition cannot be evaluated.
    """
    if not isinstance(where, str):
        return [bool(where(row)) for _, row in frame.iterrows()]
    table = _with_short_names(frame)
    try:
        mask: Any = table.eval(where, engine="python")
    except Exception as exc:  # The expression of a user may raise anything.
        names = ", ".join(str(name) for name in table.columns if "." not in str(name))
        raise ConfigError(
            f"where={where!r} cannot be evaluated: {type(exc).__name__}: {exc}. Expected a "
            f"condition on the columns {names}, such as \"state == 'COMPLETE' and best > 0.9\", "
            "or a function of a row. A name with other characters than letters, digits and _ "
            "stands in backticks."
        ) from exc
    if str(getattr(mask, "dtype", None)) not in ("bool", "boolean"):
        raise ConfigError(
            f"where={where!r} is no condition: expected a comparison, such as 'best > 0.9'."
        )
    return mask.to_numpy()


def _with_short_names(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Return the table with a column `lr` for `param.lr`, unless another column has that name."""
    names = [str(name) for name in frame.columns]
    short: dict[str, Any] = {}
    for prefix in (PARAM, METRIC):
        for name in names:
            rest = name.removeprefix(prefix)
            if rest != name and rest not in names:
                short.setdefault(rest, frame[name])
    return frame.assign(**short)
