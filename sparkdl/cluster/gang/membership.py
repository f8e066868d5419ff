"""Runs on the driver and in Spark tasks. The members of an elastic gang, as files record them.

Each process of a rank is an incarnation of the rank. Its task posts `began-<rank>-<incarnation>`; a
later incarnation of a rank means that the one before has ended. `here-<generation>-<rank>-
<incarnation>` asks for a place in the ring of that generation, and `alive-...` reports that a
process is busy and will ask. Only the driver decides: when no process is missing, it writes
`generation-<number>` with the processes that form that ring, and `gone-<rank>-<incarnation>` for a
process whose executor Spark has given up.

A further process, see `StandbyJobs`, waits while the others train: it posts
`moves-<rank>-<incarnation>` before it asks, `began-...` when it is in, and `gone-...` if it ends
before. With `leaves-<rank>-<incarnation>`, the driver asks it, and those that its task has started
since, to leave between two steps.
"""

import json
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass

from sparkdl.files.rank_files import Listing, RankFiles

# The further processes of ranks are counted from a multiple of this, and those that Spark or their
# tasks start after them from the last one: no two processes of a rank have the same number.
INCARNATIONS = 1 << 16
# A process that posts nothing for this long, while others wait for its rank, is taken for lost; on
# network filesystems and in stores it gets longer, see `RankFiles.patience_s`.
SILENCE_TIMEOUT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class JoinRequest:
    """A request of a process for a place in a ring.

    Attributes:
        rank: the rank of the process.
        incarnation: the number of the process among those of its rank.
        address: the address at which it listens, see `Endpoint`.
        port: the port at which it listens.
        node: the name of its host, see `Endpoint`.
        between_steps: it has no collective that was cut short.
        has_state: it has the state of the training.
        executor: the id of its executor; None if it is not known.
    """

    rank: int
    incarnation: int
    address: str
    port: int
    node: str
    between_steps: bool = True
    has_state: bool = True
    executor: str | None = None


@dataclass(frozen=True)
class Generation:
    """The processes of one ring.

    Attributes:
        members: the requests of the processes, by rank.
        between_steps: no process has a collective that was cut short.
    """

    members: Sequence[JoinRequest]
    between_steps: bool

    @property
    def processes(self) -> set[tuple[int, int]]:
        """The rank and incarnation of each process."""
        return {(member.rank, member.incarnation) for member in self.members}


def incarnations(listing: Listing) -> dict[int, int]:
    """Return the newest incarnation of each rank."""
    return dict(listing.numbered("began"))  # type: ignore[arg-type]


def newest_incarnation(files: RankFiles, rank: int, least: int = -1) -> int:
    """Return the newest incarnation of a rank, -1 before any, whatever a listing says.

    Args:
        files: the files by which the ranks talk.
        rank: the rank.
        least: an incarnation that is known.

    Raises:
        OSError: if the store cannot be reached.
    """
    newest = max(least, incarnations(files.look()).get(rank, -1))
    while files.has_numbered("began", rank, newest + 1):
        newest += 1
    return newest


def generations(listing: Listing) -> list[int]:
    """Return the numbers of the rings that the driver has decided on."""
    return [number for (number,) in listing.numbered("generation")]


def read_generation(files: RankFiles, number: int) -> Generation:
    """Return the processes of a ring."""
    record = json.loads(files.read_numbered("generation", number))
    members = [JoinRequest(**request) for request in record["members"]]
    return Generation(members, record["between_steps"])


class Membership:
    """Decide, on the driver, which processes form the next ring.

    Args:
        files: the files by which the ranks of the attempt talk.
        size: the number of ranks at the beginning.
        patience_s: seconds that other ranks wait for a rank that is busy, or hangs.
        executor_ids: returns the ids of the present executors; None if Spark does not tell.

    Attributes:
        moved: the processes that have taken the place of a slow one, by rank.
    """

    def __init__(
        self,
        files: RankFiles,
        size: int,
        patience_s: float,
        executor_ids: Callable[[], Collection[str] | None] = lambda: None,
    ) -> None:
        self._files = files
        self._size = size
        self._patience_s = patience_s
        self._silence_s = files.patience_s(SILENCE_TIMEOUT_S)
        self._number = -1
        self._members: dict[int, int] = {}
        self._executor_ids = executor_ids
        self._executors: dict[tuple[int, int], str | None] = {}
        self._gone_processes: set[tuple[int, int]] = set()
        # Some launchers of executors give them another name on the command line than Spark knows.
        self._executor_ids_so_far: set[str] = set()
        self._waiting_since: float | None = None
        self._movers: set[tuple[int, int]] = set()
        self._leaving: dict[int, int] = {}
        self.moved: dict[int, JoinRequest] = {}

    @property
    def members(self) -> dict[int, int]:
        """The ranks of the last ring, each with the number of its process."""
        return dict(self._members)

    def release(self, rank: int, incarnation: int) -> None:
        """Ask a further process to leave between two steps; one that is not in stays out.

        Args:
            rank: its rank.
            incarnation: its number, see `Standby`.
        """
        self._files.post_numbered("leaves", rank, incarnation)
        self._leaving[rank] = incarnation

    def _leaves(self, process: tuple[int, int]) -> bool:
        rank, incarnation = process
        first = self._leaving.get(rank)
        return first is not None and first <= incarnation < first + INCARNATIONS

    def look(self) -> None:
        """Decide on the next ring, if all that is needed is known."""
        listing = self._files.look()
        newest = incarnations(listing)
        for rank, incarnation in self._members.items():  # One that moves may not have told yet.
            newest[rank] = max(incarnation, newest.get(rank, -1))
        number = self._number + 1
        self._movers = {(r, i) for r, i in listing.numbered("moves") if i > newest.get(r, -1)}
        asking = {(r, i) for n, r, i in listing.numbered("here") if n == number}
        asking = {(rank, inc) for rank, inc in asking if newest.get(rank) == inc} | (
            asking & self._movers
        )
        if number == 0:
            if len(asking) == self._size:
                self._publish(self._requests(number, asking))
            return
        ended_ranks = listing.ranks("done") | listing.ranks("failed")
        self._note_lost(number, asking)
        self._gone_processes.update(listing.numbered("gone"))  # type: ignore[arg-type]
        asking -= self._gone_processes
        asking = {p for p in asking if p in self._members.items() or not self._leaves(p)}
        members = {(r, inc) for r, inc in self._members.items() if newest.get(r) == inc}
        members = {
            member for member in members - self._gone_processes if member[0] not in ended_ranks
        }
        if not members and not ended_ranks and self._members and not self._have_ended():
            self._publish([])  # No process is left that has the state.
            return
        present, missing = members & asking, members - asking
        if present and missing and self._waited_s() > min(self._silence_s, self._patience_s):
            asking |= self._posted("here", number, missing)
            present, missing = members & asking, members - asking
            is_late = self._waited_s() > self._patience_s
            missing = set() if is_late else self._posted("alive", number, missing)
        if present and not missing:
            requests = self._requests(number, asking)
            stays = [r for r in requests if (r.rank, r.incarnation) in present]
            # A process that was just let in cannot repeat a collective that was cut short.
            are_between_steps = all(request.between_steps for request in stays)
            chosen = self._between_steps(requests) if are_between_steps else []
            self._publish(chosen or [r for r in stays if r.has_state])

    def _between_steps(self, requests: Sequence[JoinRequest]) -> list[JoinRequest]:
        """Return one request of each rank: that of a process that moves, if there is one.

        Processes that are asked to leave are left out. Some process that has the state must stay,
        to give it to the others.
        """
        chosen = {request.rank: request for request in requests}  # The newest incarnation is last.
        if not any(request.has_state for request in chosen.values()):
            chosen = {r.rank: r for r in requests if (r.rank, r.incarnation) not in self._movers}
        found = [chosen[rank] for rank in sorted(chosen)]
        staying = [r for r in found if not self._leaves((r.rank, r.incarnation))]
        return staying if any(request.has_state for request in staying) else found

    def _posted(
        self, topic: str, number: int, processes: set[tuple[int, int]]
    ) -> set[tuple[int, int]]:
        """Return the processes that have posted a message about the next ring."""
        return {p for p in processes if self._files.has_numbered(topic, number, *p)}

    def _note_lost(self, number: int, asking: set[tuple[int, int]]) -> None:
        """Post the members and asking processes whose executors Spark has given up.

        Such a process may live on, on a host that is cut off from the others, and reach the store.
        """
        executors = self._executor_ids()
        if executors is None:
            return
        if new := asking - self._executors.keys():
            self._executors |= _executors_of(self._requests(number, new))
        self._executor_ids_so_far.update(executors)
        gone_executors = self._executor_ids_so_far - set(executors)
        lost_processes = {
            process for process, executor in self._executors.items() if executor in gone_executors
        }
        for process in lost_processes - self._gone_processes:
            self._files.post_numbered("gone", *process)
            self._gone_processes.add(process)

    def _have_ended(self) -> bool:
        """Return True if a rank of the last ring has ended by itself."""
        topics = ("done", "failed")
        return any(self._files.has_posted(rank, t) for rank in self._members for t in topics)

    def _waited_s(self) -> float:
        self._waiting_since = self._waiting_since or time.monotonic()
        return time.monotonic() - self._waiting_since

    def _requests(self, number: int, processes: set[tuple[int, int]]) -> list[JoinRequest]:
        """Return the requests of processes for a ring, by rank, with one look at the store."""
        messages = [(number, rank, incarnation) for rank, incarnation in sorted(processes)]
        return [
            JoinRequest(**json.loads(d)) for d in self._files.read_all_numbered("here", messages)
        ]

    def _publish(self, requests: Sequence[JoinRequest]) -> None:
        number = self._number + 1
        self._executor_ids_so_far.update(self._executor_ids() or ())
        record = {
            "members": [asdict(request) for request in requests],
            "between_steps": all(request.between_steps for request in requests),
        }
        self._files.post_numbered("generation", number, data=json.dumps(record))
        # Only now: if the store failed above, the decision is taken again.
        self._number = number
        self._members = {request.rank: request.incarnation for request in requests}
        self._executors = _executors_of(requests)
        self._waiting_since = None
        self.moved |= {r.rank: r for r in requests if (r.rank, r.incarnation) in self._movers}


def _executors_of(requests: Iterable[JoinRequest]) -> dict[tuple[int, int], str | None]:
    return {(request.rank, request.incarnation): request.executor for request in requests}
