"""Runs on the driver. The journal of a run: one JSON line per event, in segments.

A segment is a file `<owner>-<number>.jsonl` in the folder of the journal. Its first number is that
of the driver session that wrote it, see `sparkdl.runs.owner`. No segment is ever rewritten: where
files can be read while they grow, a session has one segment that grows; in other stores each flush
is a new segment, and many small ones are merged into a larger one now and then.

Each line has a `seq`, which counts the events of its session. The first line of a session names the
events of earlier sessions that it has read; what an earlier driver, which was believed dead, has
written after those is ignored.
"""

import dataclasses
import logging
import re
import threading
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sparkdl.files import storage
from sparkdl.files.jsonl import from_json, to_json
from sparkdl.files.polling import RETRY_S, pause_s
from sparkdl.runs.events import Event, EventKind, event_from_dict

_logger = logging.getLogger("sparkdl.runs")

# The kind of the first line of a session.
_SESSION = "session"
_KINDS = {str(kind) for kind in EventKind}
_LEFT_OUT = {"event": str(EventKind.REPORTS), "is_left_out": True}
# A whole line of reports: a torn one may end in the middle of its `seq`.
_REPORTS = re.compile(
    rb'\{"time": [\d.]+, "event": "%b", .*, "seq": (\d+)\}' % EventKind.REPORTS.encode()
)

# In a store whose files do not grow, events are gathered for so long before they are written
# together, and after so many segments these are merged.
GATHER_S = 0.05
MERGE = 100

# A segment with more bytes is none that a run has written.
MAX_BYTES = 1 << 31

# A listing and the reads after it meet a merge at most so often.
_TRIES = 5


@dataclasses.dataclass(frozen=True)
class JournalContent:
    """The content of a journal.

    Attributes:
        events: the events, oldest first.
        last: the `seq` of the last event of each session, by the number of its owner.
        num_lost: number of events that could not be read.
    """

    events: list[Event]
    last: dict[int, int]
    num_lost: int


def read_journal(folder: str) -> list[Event]:
    """Return every event that can be read, oldest first; empty if there is no journal yet."""
    return scan_journal(folder).events


def scan_journal(folder: str, with_reports: bool = True) -> JournalContent:
    """Read a journal.

    Events of an unknown kind are left out, as a later version of sparkdl may write more kinds.
    Events that cannot be read are left out and counted.

    Args:
        folder: the folder of the journal.
        with_reports: False leaves out the reports to the study, most of the journal of a search
            with a pruner, which is then read several times as fast.

    Raises:
        OSError: if the store cannot be read now.
    """
    sessions = _read_sessions(folder, with_reports)
    limits: dict[int, float] = {}
    for owner, lines in sessions.items():
        begin = lines.get(0, {})
        if begin.get("event") == _SESSION:
            for earlier in (number for number in sessions if number < owner):
                seen = begin.get("after", {}).get(str(earlier), -1)
                limits[earlier] = min(limits.get(earlier, seen), seen)
    events: list[Event] = []
    last: dict[int, int] = {}
    num_lost = 0
    for owner, lines in sorted(sessions.items()):
        valid = sorted(seq for seq in lines if seq <= limits.get(owner, float("inf")))
        if not valid:
            continue
        last[owner] = valid[-1]
        read = [_event_of(lines[seq]) for seq in valid]
        num_lost += valid[-1] + 1 - len(valid) + read.count(None)
        events += [event for event in read if isinstance(event, Event)]
    if num_lost:
        _logger.warning("%d events of the journal %s cannot be read and are lost", num_lost, folder)
    return JournalContent(events, last, num_lost)


def _event_of(line: Mapping[str, Any]) -> Event | str | None:
    """Return the event of a line, the kind of an event that is left out, or None if damaged."""
    kind = line.get("event")
    if isinstance(kind, str) and (kind not in _KINDS or line.get("is_left_out")):
        return kind
    try:
        return event_from_dict(line)
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


def _read_sessions(folder: str, with_reports: bool) -> dict[int, dict[int, dict[str, Any]]]:
    """Return the lines of each session by their `seq`, by the number of the owner."""
    sessions: dict[int, dict[int, dict[str, Any]]] = {}
    for url, data in _read_segments(folder).items():
        owner = int(url.rsplit("/", 1)[1].split("-")[0])
        lines = sessions.setdefault(owner, {})
        for text in data.split(b"\n"):
            try:
                if not with_reports and (seq := _seq_of_reports(text)) is not None:
                    lines[seq] = _LEFT_OUT
                    continue
                line = from_json(text)
                if not with_reports and line.get("event") == EventKind.REPORTS:
                    line = {**_LEFT_OUT, "seq": line["seq"]}
                lines[int(line["seq"])] = line
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # Torn; the missing `seq` is counted.
    return sessions


def _seq_of_reports(text: bytes) -> int | None:
    """Return the `seq` of a whole line of reports, which is long, without parsing the line."""
    line = _REPORTS.fullmatch(text)
    # Another line may have been written behind the first part of this one.
    return int(line[1]) if line and text.count(b'"event": ') == 1 else None


def _read_segments(folder: str) -> dict[str, bytes]:
    for _ in range(_TRIES):
        names = [name for name in storage.list_names(folder) if name.endswith(".jsonl")]
        urls = [storage.join(folder, name) for name in names if name[0].isdigit()]
        contents = storage.read_many(urls, MAX_BYTES)
        if len(contents) == len(urls):
            return contents
    raise FileNotFoundError(f"segments of the journal {folder} vanish while they are read")


class Journal:
    """Write events to a journal.

    `write` never fails: events that cannot be written are kept in memory, and are written as soon
    as the store works again. `flush` and `close` wait for that.

    Args:
        folder: the folder of the journal, which need not exist yet.
        owner: the number of this driver session, see `sparkdl.runs.owner`.
        after: the `seq` of the last event of each earlier session that this session has read.
    """

    def __init__(
        self, folder: str, owner: int = 1, after: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        self.folder = folder
        self._owner = owner
        self._after = dict(after)
        self._grows = storage.grows(folder)
        self._segment = 0
        self._small: list[tuple[int, bytes]] = []  # The segments since the last merge.
        self._seq = 0
        self._pending: list[bytes] = []
        self._error: OSError | None = None
        self._num_failures = 0
        self._is_fenced = False
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition(threading.RLock())
        self._writing = threading.Lock()

    def _add(self, line: Mapping[str, Any]) -> None:
        self._pending.append(to_json({**line, "seq": self._seq}).encode() + b"\n")
        self._seq += 1

    def write(self, events: Sequence[Event]) -> list[Event]:
        """Add events, and return them with the time at which they were added."""
        now = _now()
        stamped = [
            event if event.time is not None else dataclasses.replace(event, time=now)
            for event in events
        ]
        with self._changed:
            if not self._is_fenced:
                if not self._seq:
                    session = {"owner": self._owner, "after": self._after}
                    self._add({"time": now, "event": _SESSION, **session})
                for event in stamped:
                    self._add(event.to_dict())
        if self._grows and not self._num_failures:
            self._try()
        self._wake_writer()
        return stamped

    def flush(self, timeout_s: float) -> None:
        """Wait until all events are written.

        Raises:
            OSError: if the store still fails after `timeout_s` seconds.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._pending:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise self._error or TimeoutError(f"{self.folder} does not answer")
                self._wake_writer()
                self._changed.wait(min(left_s, 1.0))

    def fence(self) -> None:
        """Write nothing any more: another driver owns the run."""
        with self._changed:
            self._is_fenced = True
            self._pending.clear()
            self._changed.notify_all()

    def close(self, timeout_s: float | None = None) -> None:
        """Write what is left, for at most `timeout_s` seconds; None means `RETRY_S`."""
        try:
            self.flush(RETRY_S if timeout_s is None else timeout_s)
        except OSError as exc:
            _logger.error(
                "%d events could not be written to %s: %s. %s Trials that they are about are run "
                "again when the run is resumed.",
                len(self._pending),
                self.folder,
                exc,
                storage.advice(exc),
            )
        finally:
            with self._changed:  # `flush` has written all that could be written.
                self._is_closing = True
                self._changed.notify_all()

    # ---- the thread that writes, for stores, and after a failure

    def _wake_writer(self) -> None:
        with self._changed:
            if self._pending and self._thread is None and not self._is_closing:
                self._thread = threading.Thread(
                    target=self._write_repeatedly, name="sparkdl-journal", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def _write_repeatedly(self) -> None:
        while True:
            with self._changed:
                # A segment that grows is written by the caller of `write`, unless it fails.
                while not (self._pending or self._is_closing or self._grows):
                    self._changed.wait()
                failures = self._num_failures
                self._wait_on(pause_s(failures) if failures else GATHER_S)
                if self._is_closing or (self._grows and not self._pending):
                    self._thread = None
                    return
            self._try()

    def _wait_on(self, seconds: float) -> None:
        """Wait, less if the journal is closed or fenced."""
        deadline = time.monotonic() + seconds
        while (left_s := deadline - time.monotonic()) > 0:
            if self._is_closing or self._is_fenced:
                return
            self._changed.wait(left_s)

    def _try(self) -> None:
        """Write what is pending; after a failure go on in another segment."""
        with self._writing:
            with self._changed:
                batch = list(self._pending)
            if not batch:
                return
            try:
                self._store(b"".join(batch))
            except OSError as exc:
                # What was written may still arrive, so that its segment is not written again.
                self._segment += 1
                self._note(exc)
                return
            with self._changed:
                del self._pending[: len(batch)]
                self._num_failures, self._error = 0, None
                self._changed.notify_all()

    def _note(self, exc: OSError) -> None:
        with self._changed:
            self._error = exc
            self._num_failures += 1
            if self._num_failures == 1:
                _logger.warning(
                    "the run directory cannot be written, in %s: %s. %s Trials go on; what happens "
                    "is written as soon as this is possible.",
                    self.folder,
                    exc.strerror or exc,
                    storage.advice(exc),
                )

    def _url(self, *numbers: int) -> str:
        name = "-".join([f"{self._owner:04d}", *(f"{number:06d}" for number in numbers)])
        return storage.join(self.folder, f"{name}.jsonl")

    def _store(self, data: bytes) -> None:
        if self._grows:
            storage.append(self._url(self._segment), data)
            return
        storage.write(self._url(self._segment), data)
        self._small.append((self._segment, data))
        self._segment += 1
        if len(self._small) == MERGE:
            self._merge()

    def _merge(self) -> None:
        """Replace the small segments by a large one, so that a long run can be read quickly."""
        numbers = [number for number, _ in self._small]
        data = b"".join(data for _, data in self._small)
        self._small.clear()
        try:
            storage.write(self._url(numbers[0], numbers[-1]), data)
            storage.remove_files([self._url(number) for number in numbers])
        except OSError as exc:  # Readers read each event once, wherever it is.
            _logger.debug("segments of the journal could not be merged: %s", exc)


def _now() -> float:
    return round(time.time(), 3)
