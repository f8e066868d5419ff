"""Runs anywhere. The aliases of a model, such as `stable`: names that move from version to version.

Each move of an alias is a file with the next number, which one process can create. The newest file
is where the alias is now, and all files together are its history.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from sparkdl.errors import ModelDamagedError
from sparkdl.files import storage
from sparkdl.files.jsonl import from_json
from sparkdl.models.layout import ModelPaths, is_no_record
from sparkdl.models.numbered import newest, numbers, take_next, who_and_when

_logger = logging.getLogger("sparkdl.models")


@dataclass(frozen=True, kw_only=True)
class AliasMove:
    """One move of an alias.

    Attributes:
        alias: the alias.
        number: the number of the move, from 1.
        version: the version to which the alias was moved; None if it was removed.
        time: the time of the move, in UTC.
        user: the user who moved it.
        host: the host of the process that moved it.
        is_back: the move is one of `models.roll_back`, which takes earlier moves back.
    """

    alias: str
    number: int
    version: int | None
    time: str
    user: str
    host: str
    is_back: bool = False


def move(paths: ModelPaths, alias: str, version: int | None, *, is_back: bool = False) -> None:
    """Move an alias to a version, or remove it. The last of several moves at once decides."""
    try:
        is_there = version_of(paths, alias) == version
    except ModelDamagedError:
        is_there = False
    if not is_there:
        mark = {"is_back": True} if is_back else {}
        take_next(paths.alias(alias), {"version": version, **who_and_when(), **mark})


def version_of(paths: ModelPaths, alias: str) -> int | None:
    """Return the version that an alias names now; None if there is no such alias.

    Raises:
        ModelDamagedError: if the newest move cannot be read.
    """
    number = newest(paths.alias(alias))
    if not number:
        return None
    url = _url(paths, alias, number)
    return _parse(alias, number, url, storage.read_many([url])).version


def aliases_of(paths: ModelPaths) -> dict[int, tuple[str, ...]]:
    """Return the aliases of each version that has one; damaged aliases are left out."""
    versions: dict[int, tuple[str, ...]] = {}
    for alias in storage.list_names(paths.aliases):
        try:
            version = version_of(paths, alias)
        except (ModelDamagedError, OSError) as exc:
            if isinstance(exc, OSError) and not is_no_record(exc):
                raise
            _logger.warning("left out: %s", exc)
            continue
        if version is not None:
            versions[version] = (*versions.get(version, ()), alias)
    return versions


def history(paths: ModelPaths, alias: str) -> list[AliasMove]:
    """Return all moves of an alias, oldest first; damaged ones are left out."""
    move_numbers = numbers(storage.list_names(paths.alias(alias)), ".json")
    urls = {number: _url(paths, alias, number) for number in move_numbers}
    contents = storage.read_many(urls.values())
    moves = []
    for number, url in urls.items():
        try:
            moves.append(_parse(alias, number, url, contents))
        except ModelDamagedError as exc:
            _logger.warning("left out: %s", exc)
    return moves


def _url(paths: ModelPaths, alias: str, number: int) -> str:
    return storage.join(paths.alias(alias), f"{number}.json")


def _parse(alias: str, number: int, url: str, contents: Mapping[str, bytes]) -> AliasMove:
    try:
        record = from_json(contents.get(url, b""))
        fields = {name: record[name] for name in ("version", "time", "user", "host")}
        is_back = bool(record.get("is_back"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise ModelDamagedError(
            f"{url} is damaged: {exc!r}. Remove the file, which takes back this move of the alias, "
            "or move the alias again."
        ) from exc
    return AliasMove(alias=alias, number=number, **fields, is_back=is_back)
