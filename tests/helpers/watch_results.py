"""Results of a watch, without a stream."""

from datetime import datetime, timedelta, timezone

from sparkdl.files import storage
from sparkdl.files.jsonl import to_json
from sparkdl.models.watch_files import ResultFiles

__all__ = ["START", "write_windows"]

START = datetime(2026, 11, 23, 10, tzinfo=timezone.utc)


def write_windows(folder: str, statuses: dict[str, list[str]], model: str = "m/1") -> None:
    """Write windows of an hour with the status of each feature."""
    files = ResultFiles(folder)
    storage.write(files.options, to_json({"model": model}))
    hour = timedelta(hours=1)
    for number in range(max(map(len, statuses.values()))):
        times = {"window": START + number * hour, "window_end": START + (number + 1) * hour}
        numbers = {"value": 0.3, "threshold": 0.2, "rows": 600, "nulls": 0, "version": 1}
        names = {"metric": "psi", "role": "input"}
        rows = [
            {**times, **numbers, **names, "feature": feature, "status": by_hour[number]}
            for feature, by_hour in statuses.items()
        ]
        files.write_windows(number, rows)
