"""Runs on the driver and in Spark tasks.

Who is in an elastic gang, as files in the run directory say it.

Each process of a rank is a life of it. Its task writes `began-<rank>-<life>`; a later life of a
rank means that the one before is over. `here-<generation>-<rank>-<life>` says that this one wants
to be in that ring, and `alive-...` that it is busy and will come. The driver alone decides, when
nobody is missing any more: it writes `generation-<number>` with those that make this ring.
"""

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from sparkdl import storage

__all__ = ["Here", "Roster", "generations", "lives_of", "read_generation", "told"]

# Tasks that say nothing for so long, while others wait for their rank, are gone.
SILENT_S = 10.0


@dataclass(frozen=True)
class Here:
    """A process that wants to be in a ring.

    Attributes:
        rank, life: which process.
        address, port, node: where it listens, see `Endpoint`.
        is_calm: it has no collective that was cut short.
        has_state: it has the state of the training.
    """

    rank: int
    life: int
    address: str
    port: int
    node: str
    is_calm: bool = True
    has_state: bool = True


def told(names: Iterable[str], what: str) -> list[tuple[int, ...]]:
    """The numbers in the names that begin with a word.

    Example:
        >>> told(["began-0-2", "here-1-0-2", "began-1-0", "0.done"], "began")
        [(0, 2), (1, 0)]
    """
    # A store may show files that are being written, by a longer name.
    found = (name.split("-") for name in names if "." not in name)
    return [tuple(int(part) for part in parts[1:]) for parts in found if parts[0] == what]


def lives_of(names: Iterable[str]) -> dict[int, int]:
    """The newest life of each rank."""
    return dict(sorted(told(names, "began")))  # type: ignore[arg-type]


def generations(names: Iterable[str]) -> list[int]:
    """The rings that were decided on."""
    return [number for (number,) in told(names, "generation")]


def read_generation(folder: str, number: int) -> tuple[list[Here], bool]:
    """The processes of a ring by rank; whether all of them were calm."""
    said = json.loads(storage.read(storage.join(folder, f"generation-{number}")))
    return [Here(**one) for one in said["members"]], said["is_calm"]


class Roster:
    """Decides who makes the next ring; the driver's.

    Args:
        folder: where the tasks of this attempt tell what they know.
        size: how many ranks there are in the beginning.
        patience_s: how long the others wait for a rank that is busy, or hangs.
    """

    def __init__(self, folder: str, size: int, patience_s: float) -> None:
        self._folder, self._size, self._patience_s = folder, size, patience_s
        self._number, self._members = -1, dict[int, int]()
        self._asked_s: float | None = None

    def look(self) -> None:
        """Decide, if all is known."""
        names = storage.names(self._folder)
        lives = lives_of(names)
        number = self._number + 1
        here = {(rank, life) for n, rank, life in told(names, "here") if n == number}
        here = {(rank, life) for rank, life in here if lives.get(rank) == life}
        if number == 0:
            if len(here) == self._size:
                self._publish(here)
            return
        done = {int(name.split(".")[0]) for name in names if name.endswith((".done", ".failed"))}
        members = {(r, life) for r, life in self._members.items() if lives.get(r) == life}
        members = {one for one in members if one[0] not in done}
        if not members and not done and self._members:
            self._publish(set())  # Nobody is left to go on from.
        asked, missing = members & here, members - here
        if asked and missing:
            waited_s = self._waited_s()
            if waited_s > SILENT_S:
                missing &= {(rank, life) for n, rank, life in told(names, "alive") if n == number}
            if waited_s > self._patience_s:
                missing = set()
        if asked and not missing:
            self._publish(here if self._are_calm(number, asked) else self._stateful(number, asked))

    def _waited_s(self) -> float:
        self._asked_s = self._asked_s or time.monotonic()
        return time.monotonic() - self._asked_s

    def _here(self, number: int, rank: int, life: int) -> Here:
        name = f"here-{number}-{rank}-{life}"
        said: dict[str, Any] = json.loads(storage.read(storage.join(self._folder, name)))
        return Here(**said)

    def _are_calm(self, number: int, asked: set[tuple[int, int]]) -> bool:
        return all(self._here(number, *one).is_calm for one in asked)

    def _stateful(self, number: int, asked: set[tuple[int, int]]) -> set[tuple[int, int]]:
        """Those that can repeat a collective: one that was just let in knows nothing of it."""
        return {one for one in asked if self._here(number, *one).has_state}

    def _publish(self, members: set[tuple[int, int]]) -> None:
        number = self._number + 1
        those = [self._here(number, *one) for one in sorted(members)]
        is_calm = all(one.is_calm for one in those)
        said = {"members": [asdict(one) for one in those], "is_calm": is_calm}
        storage.write(storage.join(self._folder, f"generation-{number}"), json.dumps(said))
        # Only now: should the store have failed, it is done again.
        self._number, self._members, self._asked_s = number, dict(members), None
