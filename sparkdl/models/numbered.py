"""Runs anywhere. Files with consecutive numbers in one folder, each created by one process."""

import functools
import json
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from sparkdl.files import storage
from sparkdl.files.polling import retry
from sparkdl.runs import provenance

_ACTIVITY = "write to the model registry"


def numbers(names: Iterable[str], suffix: str = "") -> list[int]:
    """Return the numbers among the names of files or folders, ascending.

    Example:
        >>> numbers(["10.json", "2.json", "notes.txt"], ".json")
        [2, 10]
    """
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(int(stem) for stem in stems if stem.isdigit())


def newest(folder: str) -> int:
    """Return the largest number in use, 0 if there is none."""
    names = retry(lambda: storage.list_names(folder), _ACTIVITY)
    return max(numbers(names, ".json"), default=0)


def take_next(folder: str, record: Mapping[str, Any], above: int = 0) -> int:
    """Create the file with the next number, and return the number.

    Several processes that call at once get different numbers.

    Args:
        folder: the folder of the numbered files.
        record: the content of the file.
        above: the number is larger than this one.

    Raises:
        OSError: if the store fails for minutes.
    """
    text = json.dumps({**record, "id": uuid.uuid4().hex})
    number = max(above, newest(folder)) + 1
    while not create(storage.join(folder, f"{number}.json"), text):
        number += 1  # Another process was faster, or the list of files was out of date.
    return number


def create(url: str, text: str) -> bool:
    """Create a file with a unique content; return False if another process has created it.

    Raises:
        OSError: if the store fails for minutes.
    """
    try:
        retry(functools.partial(storage.create, url, text), _ACTIVITY)
    except FileExistsError:
        # The store may have written the file and then reported a failure.
        return retry(functools.partial(storage.read, url), _ACTIVITY) == text.encode()
    return True


def who_and_when() -> dict[str, str]:
    """Return the user and the host of this process, and the time in UTC."""
    time = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    return {"time": time, **provenance.who()}
