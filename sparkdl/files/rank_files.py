"""Runs anywhere. The files by which the ranks of a gang, their driver and onlookers talk.

All files of one attempt lie in one folder of the run directory. Each has one writer and is written
once, or replaced as a whole. Three forms of names are used:

- `<rank>.<topic>`: a message of a rank, such as `0.joining`, `1.done` or `2.failed`.
- `<topic>-<number>-<number>...`: a message about numbered things, such as `generation-3`.
- `<name>`: an order of the driver to all ranks, such as `end`.

A listing may be old: clients of network filesystems keep listings for up to a minute. So the
absence of a message in a listing proves nothing; ask for the message by its name.
"""

import ctypes
import errno
import functools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparkdl.files import storage
from sparkdl.files.polling import LOCAL_POLL_S, REMOTE_POLL_S, poll_s

# Seconds until a message of another host can be missed: NFS keeps listings for 60 s by default
# (acdirmax in nfs(5)), and stores may be slow for a while.
REMOTE_PATIENCE_S = 90.0
# All ranks of a gang together list their folder in a store at most this often.
MAX_LISTINGS_PER_S = 20

# The types of filesystems whose clients keep listings, see statfs(2): NFS, SMB 1 and 2, AFS, 9p,
# Ceph, Lustre, GPFS, FUSE.
_NETWORK_TYPES = frozenset(
    (
        0x6969,
        0xFF534D42,
        0xFE534D42,
        0x5346414F,
        0x01021997,
        0x00C36400,
        0x0BD00BD0,
        0x47504653,
        0x65735546,
    )
)


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

    def poll_s(self, num_ranks: int, local_s: float = LOCAL_POLL_S) -> float:
        """Return the seconds between two looks of one of the ranks.

        Args:
            num_ranks: number of ranks that look.
            local_s: seconds where the folder is on a local or mounted disk.

        Example:
            >>> RankFiles("/runs/a").poll_s(200), RankFiles("s3://bucket/a").poll_s(200)
            (0.2, 10.0)
        """
        return poll_s(self.url, local_s, max(REMOTE_POLL_S, num_ranks / MAX_LISTINGS_PER_S))

    def patience_s(self, local_s: float, remote_s: float = REMOTE_PATIENCE_S) -> float:
        """Return the seconds after which silence means that a rank is lost.

        Args:
            local_s: seconds where the folder is on a disk of this host.
            remote_s: seconds where the folder is in a store, or on a network filesystem.
        """
        is_near = storage.is_local(self.url) and not _is_on_network(self.url)
        return local_s if is_near else remote_s

    def look(self) -> Listing:
        """List the folder.

        Raises:
            OSError: if the store cannot be reached.
        """
        return Listing(frozenset(storage.list_names(self.url)))

    def post(self, rank: int, topic: str, data: str | bytes = b"") -> None:
        """Write the message of a rank."""
        storage.write(self.of_rank(rank, topic), data)

    def post_numbered(self, topic: str, *numbers: int, data: str | bytes = b"") -> None:
        """Write a message about numbered things."""
        storage.write(self.of_numbers(topic, *numbers), data)

    def order(self, order: str) -> None:
        """Give an order to all ranks."""
        storage.write(storage.join(self.url, order), b"")

    def has_ordered(self, order: str) -> bool:
        """Return True if this order was given, whatever a listing says.

        Raises:
            OSError: if the store cannot be reached.
        """
        return _exists(storage.join(self.url, order))

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

    def read_all_numbered(self, topic: str, messages: Sequence[tuple[int, ...]]) -> list[bytes]:
        """Return messages about numbered things, with one look at the store.

        Args:
            topic: the topic of the messages.
            messages: the numbers of each message.

        Raises:
            FileNotFoundError: if one of the messages does not exist.
        """
        urls = [self.of_numbers(topic, *numbers) for numbers in messages]
        contents = storage.read_many(urls)
        for url in urls:
            if url not in contents:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url)
        return [contents[url] for url in urls]

    def has_posted(self, rank: int, topic: str) -> bool:
        """Return True if a rank has posted a message, whatever a listing says.

        Raises:
            OSError: if the store cannot be reached.
        """
        return _exists(self.of_rank(rank, topic))

    def has_numbered(self, topic: str, *numbers: int) -> bool:
        """Return True if there is a message about numbered things, whatever a listing says.

        Raises:
            OSError: if the store cannot be reached.
        """
        return _exists(self.of_numbers(topic, *numbers))

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


def _exists(url: str) -> bool:
    """Return True if a file can be opened: network filesystems ask their server then."""
    try:
        storage.read(url)
    except FileNotFoundError:
        return False
    return True


# The answer is the same for the whole process, and is asked for several times in a run.
@functools.lru_cache(maxsize=16)
def _is_on_network(url: str) -> bool:
    """Return True if a local path is on a filesystem that other hosts write to as well."""
    return _filesystem_type(str(storage.local_path(url))) in _NETWORK_TYPES


def _filesystem_type(path: str) -> int:
    """Return the type of the filesystem of a path, from statfs(2), which Python does not offer."""
    while not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    buffer = ctypes.create_string_buffer(512)
    if ctypes.CDLL(None).statfs(os.fsencode(path), buffer):
        return 0
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF
