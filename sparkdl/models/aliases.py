"""Runs anywhere. The aliases of a model, such as `stable`: names that move from version to version.

Each move of an alias is a file with the next number, which one process can create. The newest file
is where the alias is now, and all files together are its history.
"""

from dataclasses import dataclass

from sparkdl import storage
from sparkdl.jsonl import from_json
from sparkdl.models.layout import ModelPaths
from sparkdl.models.numbered import newest, numbers, take_next, who_and_when

__all__ = ["AliasMove", "aliases_of", "history", "move", "version_of"]


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
    """

    alias: str
    number: int
    version: int | None
    time: str
    user: str
    host: str


def move(paths: ModelPaths, alias: str, version: int | None) -> None:
    """Move an alias to a version, or remove it. The last of several moves at once decides."""
    if version_of(paths, alias) != version:
        take_next(paths.alias(alias), {"version": version, **who_and_when()})


def version_of(paths: ModelPaths, alias: str) -> int | None:
    """Return the version that an alias names now; None if there is no such alias."""
    number = newest(paths.alias(alias))
    return _read(paths, alias, [number])[0].version if number else None


def aliases_of(paths: ModelPaths) -> dict[int, tuple[str, ...]]:
    """Return the aliases of each version that has one."""
    versions: dict[int, tuple[str, ...]] = {}
    for alias in storage.list_names(paths.aliases):
        if (version := version_of(paths, alias)) is not None:
            versions[version] = (*versions.get(version, ()), alias)
    return versions


def history(paths: ModelPaths, alias: str) -> list[AliasMove]:
    """Return all moves of an alias, oldest first."""
    return _read(paths, alias, numbers(storage.list_names(paths.alias(alias)), ".json"))


def _read(paths: ModelPaths, alias: str, moves: list[int]) -> list[AliasMove]:
    urls = {number: storage.join(paths.alias(alias), f"{number}.json") for number in moves}
    contents = storage.read_many(urls.values())
    records = {n: from_json(contents[url]) for n, url in urls.items() if url in contents}
    fields = ("version", "time", "user", "host")
    return [
        AliasMove(alias=alias, number=number, **{name: record[name] for name in fields})
        for number, record in records.items()
    ]
