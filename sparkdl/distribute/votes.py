"""Runs in the training process. The messages of a vote, which can carry an array each."""

from typing import Any

from sparkdl.distribute.call_header import check_vote


class Ballot:
    """The messages of all ranks, on their way around the ring.

    A message is a header, a vote, and the bytes of an array or none. The ranks do not know before
    which of the others send an array: the header tells.

    Args:
        header: the header of this rank, see `pack_header`.
        vote: the vote of this rank, from 0 to 255.
        data: the bytes of the array of this rank.
        size: number of ranks.
        limit: number of bytes of the longest array that travels with a vote.

    Attributes:
        sends, receives: see `Links.exchange`. The lists grow with what arrives.
        votes: of each rank, by the number of steps that its message has made.
        arrays: the bytes of the arrays, likewise.
    """

    def __init__(self, header: bytes, vote: int, data: bytes, size: int, limit: int) -> None:
        self._header = header
        self._size = size
        self._limit = limit
        self.votes = [vote]
        self.arrays: list[Any] = [data]
        self.sends: list[Any] = [header + bytes([vote]) + data]
        self.receives: list[Any] = []
        self._receive_next()

    def arrived(self, number: int, part: Any) -> None:
        """Note a part of a message, and pass it on; see `Links.exchange`.

        Raises:
            RuntimeError: if another rank does not vote, or with another array, or votes the same
            and only one of the two ranks sends an array.
        """
        if len(self.votes) > len(self.arrays):
            self.arrays.append(part)
        else:
            nbytes = check_vote(self._header, part[:-1], is_same=part[-1] == self.votes[0])
            self.votes.append(part[-1])
            if 0 < nbytes <= self._limit:
                self.receives.append(bytearray(nbytes))
            else:
                self.arrays.append(b"")
        if len(self.votes) < self._size:
            self.sends.append(part)
        if len(self.arrays) == len(self.votes):
            self._receive_next()

    def _receive_next(self) -> None:
        if len(self.votes) < self._size:
            self.receives.append(bytearray(len(self._header) + 1))
