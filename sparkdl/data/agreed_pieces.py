"""Runs in the training process. Let all ranks of a gang divide the same pieces of the same files.

Ranks that listed files by themselves could see different files, and would divide different rows.
So only the first rank lists the files, reads their footers and counts their rows. The result is a
message in the folder `ranks/<attempt>/` of the trial, which the other ranks read. Calls of readers
are numbered: on every rank, call 3 must be the same call.

A process that reads all rows, such as one outside a run, lists the files by itself.
"""

import functools
import gzip
import hashlib
import itertools
import json
import logging
import os
import re
import reprlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkdl import context
from sparkdl.context import Context
from sparkdl.data.pace import Pace
from sparkdl.data.peer_files import FIRST, PeerFiles
from sparkdl.data.per_worker import refuse_in_graph
from sparkdl.errors import ConfigError

# The content of the message: the pieces as JSON, in the form of each reader.
Pieces = dict[str, Any]

MAX_TEXT = 300
REMIND_S = 60.0
LOOKS_PER_CHECK = 4

# Errors of the first rank that the other ranks raise as well; others become a RuntimeError.
_ERRORS = (FileNotFoundError, ConfigError, ImportError, OSError, ValueError)

_logger = logging.getLogger("sparkdl.data")


@dataclass(frozen=True)
class Call:
    """A call of a reader.

    Attributes:
        reader: the name of the reader, such as `data.parquet`.
        arguments: the arguments that the pieces and their division depend on.

    Example:
        >>> print(Call("data.csv", {"path": "a.csv", "global_batch_size": 8}))
        data.csv(path='a.csv', global_batch_size=8)
    """

    reader: str
    arguments: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """The digest of the call; equal for equal calls in any process."""
        text = json.dumps([self.reader, _plain(self.arguments)])
        return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:32]

    def __str__(self) -> str:
        short = reprlib.Repr()
        short.maxlist, short.maxstring, short.maxother = 3, 100, 100
        arguments = [
            f"{name}={short.repr(_plain(value))}"
            for name, value in self.arguments.items()
            if value is not None
        ]
        text = f"{self.reader}({', '.join(arguments)})"
        return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 4]}...)"


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; equal values of different processes become equal."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, np.ndarray) and value.dtype != object:
        content = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16]
        return f"array{value.shape} {value.dtype} {content}"
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(item) for item in value), key=repr)
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def agree(call: Call, make: Callable[[], Pieces], me: Context | None = None) -> Pieces:
    """Return the pieces of a call, which are the same on every rank.

    Args:
        call: the call of this rank.
        make: lists the pieces. Called on the first rank, and in a process that reads all rows.
        me: the context of the rank; by default that of this process.

    Raises:
        ConfigError: if the ranks call different readers, or with different arguments.
        TimeoutError: if the first rank does not call the reader.
        RuntimeError: if the first rank returned without a call of the reader.
    """
    me = me or context.current()
    refuse_in_graph(me, call.reader)
    rank, num_readers = me.reading
    if num_readers == 1 and not me.grows:  # Ranks that come later make the same calls.
        return make()
    files = PeerFiles(me)
    number = next(_call_numbers(files.url, rank, os.getpid()))
    # The calls of a process that replaces a lost one begin again, while others are further on.
    message = _Message(files, call.digest if me.is_elastic else str(number), call)
    return message.publish(make) if rank == FIRST else message.wait(me)


def agree_on_sizes(call: Call, count: Callable[[], list[int]]) -> list[int]:
    """Return the numbers of rows of pieces, which the first rank counts for all ranks.

    Args:
        call: the call of this rank.
        count: counts the rows of each piece, by the content of files on which the ranks have
            agreed.
    """
    if context.current().is_elastic:
        # Messages are found by their call there, and two functions may have the same description.
        # All ranks have agreed on the files, so all count the same rows.
        return count()
    sizes: list[int] = agree(call, lambda: {"rows": count()})["rows"]
    return sizes


# Process-wide state: the number of the next call. The process id is an argument because a forked
# process has calls of its own.
@functools.cache
def _call_numbers(folder: str, rank: int, pid: int) -> Iterator[int]:
    return itertools.count()


class _Message:
    """The message of the first rank about one call.

    The first rank announces its call before it lists files, which may take long; the message with
    the pieces then replaces the announcement.

    Args:
        files: the folder of the attempt.
        name: the number of the call.
        call: the call of this rank.
    """

    def __init__(self, files: PeerFiles, name: str, call: Call) -> None:
        self._files = files
        self._topic = f"pieces-{name}"
        self._name = name
        self._call = call

    def publish(self, make: Callable[[], Pieces]) -> Pieces:
        """Make the pieces and post them; pieces that were posted before are used again."""
        if (earlier := self._read()) and earlier["pieces"] is not None:
            return dict(earlier["pieces"])
        self._post(pieces=None)
        try:
            pieces = make()
        except Exception as exc:
            kind = next((e.__name__ for e in _ERRORS if isinstance(exc, e)), "")
            self._post(pieces=None, error=[kind, f"{type(exc).__name__}: {exc}"])
            raise
        self._post(pieces=pieces)
        return pieces

    def wait(self, me: Context) -> Pieces:
        """Return the pieces of the first rank, once it has posted them."""
        pace = Pace(self._files.url, me.num_readers)
        began_s = reminded_s = time.monotonic()
        time.sleep(pace.first_s())
        for look in itertools.count(me.rank):  # Not all ranks look for the end at once.
            is_announced, pieces = self.look(me, checks_end=look % LOOKS_PER_CHECK == 0)
            if pieces is not None:
                return pieces
            waited_s = time.monotonic() - began_s
            if not is_announced and waited_s > me.peer_timeout_s:
                raise TimeoutError(self._absent(me, f"did not call it within {waited_s:.0f} s"))
            if time.monotonic() - reminded_s > REMIND_S:
                reminded_s = time.monotonic()
                state = "lists the files" if is_announced else "has not called it yet"
                _logger.warning("%s", self._absent(me, state))
            time.sleep(pace.next_s())
        raise AssertionError("unreachable")

    def look(self, me: Context, checks_end: bool) -> tuple[bool, Pieces | None]:
        """Return True if the first rank has announced the call, and its pieces, if posted.

        Args:
            me: the context of this rank.
            checks_end: look as well if the first rank has returned.

        Raises:
            RuntimeError: if the first rank has returned without a call of the reader.
        """
        has_ended = checks_end and bool(self._files.returned_ranks([FIRST]))
        message = self._read()
        if message and message["error"]:
            kind, text = message["error"]
            errors = {error.__name__: error for error in _ERRORS}
            raise errors.get(kind, RuntimeError)(f"rank {FIRST}: {text}")
        if message and message["pieces"] is not None:
            return True, dict(message["pieces"])
        if has_ended:
            raise RuntimeError(self._absent(me, "returned without calling it"))
        return message is not None, None

    def _absent(self, me: Context, state: str) -> str:
        return (
            f"rank {me.rank} waits in {self._call} for rank {FIRST}, which {state}. Every rank "
            "must call the same readers, in the same order."
        )

    def _post(self, pieces: Pieces | None, error: list[str] | None = None) -> None:
        message = {
            "call": str(self._call),
            "digest": self._call.digest,
            "pieces": pieces,
            "error": error,
        }
        self._files.post(FIRST, self._topic, gzip.compress(json.dumps(message).encode(), 1))

    def _read(self) -> Mapping[str, Any] | None:
        """Return the message; None if there is none.

        Raises:
            ConfigError: if the message is about another call.
        """
        data = self._files.read([FIRST], self._topic).get(FIRST)
        if not data:
            return None
        message: Mapping[str, Any] = json.loads(gzip.decompress(data))
        if message["digest"] != self._call.digest:
            number = f"reader call {self._name}"
            raise ConfigError(
                f"{number} of this rank is {self._call}; on rank {FIRST} it is {message['call']}. "
                "Every rank must call the same readers in the same order, with the same paths and "
                "batch arguments: the reader itself divides the rows among the ranks."
            )
        return message
