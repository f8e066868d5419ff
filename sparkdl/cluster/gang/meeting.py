"""Runs in a Spark task. The meeting of a gang in a barrier stage: each rank learns of all others.

The ranks meet in two ways at once, and the first that succeeds counts:

- By Spark's `allGather`, which works wherever Spark does. It takes a second, however few the tasks,
  as Spark looks for its answer once a second.
- By files in the run directory, if that is on a local or mounted disk; this takes some hundredths
  of a second. Rank 0 opens the meeting when the folder is ready for the attempt, the other ranks
  enter, and rank 0 closes the meeting with a list of all. A remote store would not be faster than
  Spark, and charges for each request.

Both ways bring the same records, so that it does not matter if one rank learns of the others by
Spark and another by files. The files are signed with the secret of the attempt: those of another
attempt or writer are passed over. Spark may also repeat a stage, with the same secret, when rows
that it had shuffled are lost. So rank 0 opens each meeting with a new number, which the others
repeat, and a rank accepts only a list that has the number with which it has entered itself.
"""

import hmac
import json
import secrets
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict
from typing import TYPE_CHECKING

from sparkdl.cluster.gang.rendezvous import Peer
from sparkdl.cluster.plan import Member
from sparkdl.files import storage
from sparkdl.files.polling import Outages
from sparkdl.files.rank_files import RankFiles

if TYPE_CHECKING:
    from pyspark import BarrierTaskContext

# Messages of the meeting: `0.open`, then `<rank>.here` of the others, then `0.met`.
OPEN, HERE, MET = "open", "here", "met"

# Each message begins with its proof: the digits of an HMAC-SHA256, see RFC 2104.
PROOF_BYTES = 64

# A rank looks for files the more seldom, the longer it has waited.
MIN_POLL_S = 0.005
MAX_POLL_S = 0.1
POLL_SHARE = 0.1
# All ranks of a gang together read at most about this many files in a second.
MAX_READS_PER_S = 2000


def meet(
    context: "BarrierTaskContext",
    mine: Peer,
    rank: int,
    members: Sequence[Member],
    files: RankFiles,
    secret: bytes,
) -> list[Peer]:
    """Send `mine` to all tasks of this barrier stage; return the peers of all, by rank.

    Args:
        context: the barrier stage.
        mine: what the other ranks must know of this one.
        rank: this rank.
        members: the members of the gang, by rank.
        files: the files of the attempt, in a folder that rank 0 has made.
        secret: the secret of the attempt, which all ranks know.

    Raises:
        TimeoutError: if the deadline of the caller has passed, see `rendezvous.deadline`.
    """
    record = json.dumps(asdict(mine))
    gathered = _gather(context, record)
    if not storage.is_local(files.url):
        return _peers(gathered.result())
    meeting = FileMeeting(files, secret, rank, len(members), record)
    outages = Outages("read the files by which the ranks meet")
    begun_s = time.monotonic()
    try:
        while not gathered.done():
            records = None
            with outages.tolerated():
                records = meeting.look()
            if records:
                return _peers(records)
            wait([gathered], meeting.pause_s(time.monotonic() - begun_s))
    except TimeoutError as late:
        absent = ", ".join(str(members[other]) for other in meeting.absent())
        raise TimeoutError(f"{late}. Missing: {absent}" if absent else str(late)) from None
    return _peers(gathered.result())


def _peers(records: Sequence[str]) -> list[Peer]:
    return [Peer(**json.loads(record)) for record in records]


def _gather(context: "BarrierTaskContext", record: str) -> "Future[list[str]]":
    """Call `allGather` in a thread, which ends with the call."""
    future: Future[list[str]] = Future()

    def call() -> None:
        try:
            future.set_result(context.allGather(record))
        except BaseException as exc:  # noqa: BLE001 The caller gets it.
            future.set_exception(exc)

    # A daemon: the call may never end in a task that Spark has given up.
    threading.Thread(target=call, name="sparkdl-all-gather", daemon=True).start()
    return future


class FileMeeting:
    """One rank in a meeting by files.

    Args:
        files: the files of the attempt.
        secret: the secret of the attempt.
        rank: this rank.
        size: the number of ranks.
        record: what the other ranks must know of this one.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ranks = [FileMeeting(RankFiles(folder), b"key", r, 2, f"rank {r}") for r in (0, 1)]
        ...     [rank.look() for rank in (*ranks, *ranks)]
        [None, None, ['rank 0', 'rank 1'], ['rank 0', 'rank 1']]
    """

    def __init__(self, files: RankFiles, secret: bytes, rank: int, size: int, record: str) -> None:
        self._files = files
        self._secret = secret
        self._rank = rank
        self._size = size
        self._record = record
        # Numbers of this meeting, see the docstring of the module.
        self._entry = secrets.token_hex(8)
        self._opening = self._entry if rank == 0 else ""
        self._entries = {rank: [self._entry, record]}
        self._is_open = False

    def look(self) -> list[str] | None:
        """Take the next step of the meeting; return the records of all ranks when all are there.

        Raises:
            OSError: if the files cannot be read or written.
        """
        entries = self._host() if self._rank == 0 else self._visit()
        return [record for _, record in entries] if entries else None

    def _host(self) -> list[list[str]] | None:
        """Open the meeting as rank 0, and close it when all ranks have entered."""
        if not self._is_open:
            self._post(OPEN, self._entry)
            self._is_open = True
        self._entries |= self._entered()
        if self._missing_ranks:
            return None
        entries = [self._entries[rank] for rank in range(self._size)]
        self._post(MET, json.dumps(entries))
        return entries

    def _visit(self) -> list[list[str]] | None:
        """Enter the meeting, again if it was opened again, and look for its end."""
        opening = self._read([0], OPEN).get(0, "")
        if opening and opening != self._opening:
            entry = [self._entry, self._record]
            self._post(HERE, json.dumps([opening, *entry]))
            self._opening = opening
        met = self._read([0], MET) if opening else {}
        entries: list[list[str]] = json.loads(met[0]) if met else [[]] * self._size
        return entries if entries[self._rank] == [self._entry, self._record] else None

    def _entered(self) -> dict[int, list[str]]:
        """Return the entries of the missing ranks that have entered this meeting."""
        heres = {
            rank: json.loads(text) for rank, text in self._read(self._missing_ranks, HERE).items()
        }
        return {
            rank: entry for rank, (opening, *entry) in heres.items() if opening == self._opening
        }

    @property
    def _missing_ranks(self) -> list[int]:
        return [rank for rank in range(self._size) if rank not in self._entries]

    def pause_s(self, waited_s: float) -> float:
        """Return the seconds until the next look.

        Args:
            waited_s: seconds for which this rank has waited.
        """
        reads = len(self._missing_ranks) if self._rank == 0 else self._size
        pause_s = min(max(waited_s * POLL_SHARE, MIN_POLL_S), MAX_POLL_S)
        return max(pause_s, reads / MAX_READS_PER_S)

    def absent(self) -> list[int]:
        """Return the ranks that have not entered the meeting, as far as the files tell."""
        if not self._opening:
            return [0]  # The others enter after it.
        entered = {0, *self._entered()}
        return [rank for rank in self._missing_ranks if rank not in entered]

    def _post(self, topic: str, text: str) -> None:
        data = text.encode()
        self._files.post(self._rank, topic, self._proof(self._rank, topic, data) + data)

    def _read(self, ranks: Sequence[int], topic: str) -> dict[int, str]:
        """Return the messages of ranks that know the secret; other messages do not count."""
        texts = {}
        for rank, message in self._files.read_all(ranks, topic).items():
            proof, data = message[:PROOF_BYTES], message[PROOF_BYTES:]
            if hmac.compare_digest(proof, self._proof(rank, topic, data)):
                texts[rank] = data.decode()
        return texts

    def _proof(self, rank: int, topic: str, data: bytes) -> bytes:
        signed = f"{rank} {topic} ".encode() + data
        return hmac.digest(self._secret, signed, "sha256").hex().encode()
