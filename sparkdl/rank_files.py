"""Runs anywhere. The files by which the ranks of a gang, their driver and onlookers talk.

All files of one attempt lie in one folder of the run directory. Each has one writer and is written
once, or replaced as a whole. Three forms of names are used:

- `<rank>.<topic>`: a message of a rank, such as `0.joining`, `1.done` or `2.failed`.
- `<topic>-<number>-<number>...`: a message about numbered things, such as `generation-3`.
- `<name>`: an order of the driver to all ranks, such as `end`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sparkdl import storage

__all__ = ["Listing", "RankFiles"]


@dataclass(frozen=True)
class Listing:
    """The names of the files in the folder at one moment.

    Example:
        >>> seen = Listing(frozenset({"0.done", "1.done", "began-0-2", "began-0-2.part", "end"}))
        >>> seen.ranks("done"), seen.numbered("began"), seen.has_order("end")
        ({0, 1}, [(0, 2)], True)
    """

    names: frozenset[str] = frozenset()

    def ranks(self, topic: str) -> set[int]:
        """Return the ranks that have posted a message of this topic."""
        parts = (name.partition(".") for name in self.names)
        return {int(rank) for rank, _, rest in parts if rest == topic}

    def numbered(self, topic: str) -> list[tuple[int, ...]]:
        """Return the numbers of all numbered messages of this topic, sorted."""
        # A store may list a file that is still being written, under a longer name with a dot.
        parts = (name.split("-") for name in self.names if "." not in name)
        return sorted(tuple(map(int, rest)) for first, *rest in parts if first == topic)

    def has_order(self, order: str) -> bool:
        """Return True if the driver has given this order."""
        return order in self.names


@dataclass(frozen=True)
class RankFiles:
    """The folder of one attempt.

    Attributes:
        url: the folder, as a local path or URL.
    """

    url: str

    def look(self) -> Listing:
        """List the folder.

        Raises:
            OSError: if the store cannot be reached.
        """
        return Listing(frozenset(storage.names(self.url)))

    def post(self, rank: int, topic: str, data: str | bytes = b"") -> None:
        """Write the message of a rank."""
        storage.write(self.of_rank(rank, topic), data)

    def post_numbered(self, topic: str, *numbers: int, data: str | bytes = b"") -> None:
        """Write a message about numbered things."""
        storage.write(self.of_numbers(topic, *numbers), data)

    def order(self, order: str) -> None:
        """Give an order to all ranks."""
        storage.write(storage.join(self.url, order), b"")

    def read(self, rank: int, topic: str) -> bytes:
        """Return the message of a rank.

        Raises:
            FileNotFoundError: if there is none.
        """
        return storage.read(self.of_rank(rank, topic))

    def read_numbered(self, topic: str, *numbers: int) -> bytes:
        """Return a message about numbered things.

        Raises:
            FileNotFoundError: if there is none.
        """
        return storage.read(self.of_numbers(topic, *numbers))

    def of_rank(self, rank: int, topic: str) -> str:
        """Return the URL of the message of a rank."""
        return storage.join(self.url, f"{rank}.{topic}")

    def of_numbers(self, topic: str, *numbers: int) -> str:
        """Return the URL of a message about numbered things."""
        return storage.join(self.url, "-".join([topic, *map(str, numbers)]))

    def read_all(self, ranks: Iterable[int], topic: str) -> dict[int, bytes]:
        """Return the messages of several ranks, those that exist, with one look at the store."""
        urls = {self.of_rank(rank, topic): rank for rank in ranks}
        return {urls[u]: data for u, data in storage.read_new(dict.fromkeys(urls, 0)).items()}
