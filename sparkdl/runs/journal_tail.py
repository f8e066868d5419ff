"""Runs on the driver. Read the events that are added to a journal from now on."""

from sparkdl.files import storage
from sparkdl.files.jsonl import from_json
from sparkdl.runs.events import Event, event_from_dict


class JournalTail:
    """The events that are added to the journal of a run after this object was made.

    Only what is new is read, so that a large journal can be followed.

    Args:
        folder: the folder of the journal.

    Raises:
        OSError: if the store cannot be read now.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._offsets: dict[str, int] = {}
        # The segments that do not grow any more.
        self._whole_segments: set[str] = set()
        self._event_ids: set[tuple[str, int]] = set()
        self._grows = storage.grows(folder)
        for url in self._segments():
            if self._grows:
                self._offsets[url] = storage.size(url)
            else:
                self._whole_segments.add(url)

    def _segments(self) -> list[str]:
        names = [name for name in storage.list_names(self._folder) if name.endswith(".jsonl")]
        return [storage.join(self._folder, name) for name in names if name[0].isdigit()]

    def read(self) -> list[Event]:
        """Return the events that were added since the last call; unknown kinds are left out.

        Raises:
            OSError: if the store cannot be read now.
        """
        offsets = {url: self._offsets.get(url, 0) for url in self._segments()}
        events = []
        new = {url: offset for url, offset in offsets.items() if url not in self._whole_segments}
        for url, data in storage.read_new(new).items():
            whole = data[: data.rfind(b"\n") + 1]
            if self._grows:
                self._offsets[url] = new[url] + len(whole)
            else:
                self._whole_segments.add(url)
            owner = url.rsplit("/", 1)[1].split("-")[0]
            events += [event for line in whole.splitlines() if (event := self._event(owner, line))]
        return events

    def _event(self, owner: str, line: bytes) -> Event | None:
        """Return the event of a line; None if the line is damaged or was read before."""
        try:
            values = from_json(line)
            number = owner, int(values["seq"])
            if number in self._event_ids:  # Several segments were merged into one.
                return None
            self._event_ids.add(number)
            return event_from_dict(values)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
