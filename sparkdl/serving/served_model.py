"""Runs on the driver. A model that is served: its versions are loaded, swapped and unloaded."""

import contextlib
import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparkdl.files.polling import Outages, pause_s
from sparkdl.serving.choice import Choice
from sparkdl.serving.loaded_version import LoadedVersion
from sparkdl.serving.version_source import Listing, VersionSource
from sparkdl.serving.version_view import VersionView

# Loads a version: takes its URL, the name of the model and the number.
Loader = Callable[[str, str, int], LoadedVersion]

# A version that cannot be loaded may be incomplete: it is tried again.
MAX_TRIES = 5
# Versions that are no more served and that the status still shows.
MAX_UNLOADED = 10

_logger = logging.getLogger("sparkdl.serving")


@dataclass
class _Failure:
    """A version that could not be loaded."""

    message: str
    num_tries: int
    next_try: float


@dataclass(frozen=True)
class Shown:
    """The versions of a model that take requests, as another process is told of them.

    Attributes:
        name: the name of the model.
        urls: path or URL of each version, by number.
        main: see `VersionView`.
        shares: see `VersionView`.
        labels: see `VersionView`.
        states: the state and the message of each version, also of those that take no requests.
        failures: the reasons why versions could not be loaded.
    """

    name: str
    urls: Mapping[int, str]
    main: int | None
    shares: Mapping[int, float]
    labels: Mapping[str, int]
    states: Mapping[int, tuple[str, str]]
    failures: Mapping[int, str]


class ServedModel:
    """A model and those of its versions that take requests.

    Args:
        source: the place where versions appear.
        choice: the versions that the user wants to serve.
        loader: loads a version.
        warm_up: the numbers of rows on which a new version is called before it takes requests.
        on_change: called with this model after each look at its versions.
    """

    def __init__(
        self,
        source: VersionSource,
        choice: Choice,
        loader: Loader,
        warm_up: tuple[int, ...] = (1,),
        on_change: "Callable[[ServedModel], None]" = lambda _: None,
    ) -> None:
        self.name = source.name
        self.source = source
        self._choice = choice
        self._loader = loader
        self._sizes = warm_up
        self._on_change = on_change
        self._view = VersionView(source.name)
        self._urls: dict[int, str] = {}
        self._lock = threading.Lock()
        self._outages = Outages(f"look for versions of the model {source.name}")
        self._failures: dict[int, _Failure] = {}
        self._states: dict[int, tuple[str, str]] = {}
        self._is_warm: dict[int, bool] = {}

    @property
    def num_bytes(self) -> int:
        """The size of the files of the loaded versions, in bytes."""
        return self._view.num_bytes

    @property
    def versions(self) -> list[int]:
        """The versions that are loaded."""
        return sorted(self._view.loaded)

    @property
    def is_ready(self) -> bool:
        """A version takes requests."""
        return self._view.main is not None

    # ---- requests

    def find(self, version: int | None = None, label: str | None = None) -> LoadedVersion:
        """Return the version that a request asks for; it stays loaded while it is referred to.

        Raises:
            RequestError: if it is not loaded.
        """
        found: LoadedVersion = self._view.find(version, label)
        return found

    def status(self, version: int | None = None, label: str | None = None) -> list[dict[str, Any]]:
        """Return the state of each version, newest first.

        Raises:
            RequestError: if there is no such version.
        """
        return self._view.status(self._states, version, label)

    def shown(self) -> Shown:
        """Return the versions that take requests, for another process."""
        view = self._view
        return Shown(
            self.name,
            {number: self._urls[number] for number in view.loaded},
            view.main,
            view.shares,
            view.labels,
            dict(self._states),
            self.failures(),
        )

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Keep the versions as they are during a block."""
        with self._lock:
            yield

    # ---- versions

    def poll(self) -> None:
        """Look for versions, load those that are wanted, and unload the others.

        A store that fails changes nothing.
        """
        with self._lock, self._outages.tolerated():
            listing = self._listing()
            self._update(listing)

    def _listing(self) -> Listing:
        listing = self.source.look()
        if not listing.urls and self._view.loaded:
            # A store that is not mounted looks like an empty folder.
            raise OSError(f"{self.source.url} has no versions any more; those loaded are served")
        return listing

    def _update(self, listing: Listing) -> None:
        loaded = dict(self._view.loaded)
        labels = {
            label: self._label_version(label, number, listing, loaded)
            for label, number in listing.labels.items()
            if number in listing.urls or label in self._view.labels
        }
        # Requests for an alias, and its share, go to the version that answers for the alias.
        usable = Listing(listing.urls, {**listing.labels, **labels})
        main = self._new_main(self._choice.candidates(usable), listing, loaded)
        shares = self._choice.shares(usable)
        for number in {*shares} - {main}:
            self._load(number, listing, loaded)
        used = {main, *shares, *labels.values()}
        versions = {number: version for number, version in loaded.items() if number in used}
        self._view = VersionView(self.name, versions, main, shares, labels)
        self._unload([number for number in loaded if number not in versions], listing)
        self._on_change(self)
        del loaded, versions

    def _new_main(
        self, candidates: list[int], listing: Listing, loaded: dict[int, LoadedVersion]
    ) -> int | None:
        """Return the main version, which is loaded: the best that works, or the one before."""
        for number in candidates:
            if self._load(number, listing, loaded):
                return number
        return self._view.main

    def _label_version(
        self, label: str, number: int, listing: Listing, loaded: dict[int, LoadedVersion]
    ) -> int:
        """Return the version that answers for an alias: the one before while its own is broken."""
        before = self._view.labels.get(label, number)
        for candidate in (number, before):
            if self._load(candidate, listing, loaded):
                return candidate
        return number

    def _load(self, number: int, listing: Listing, loaded: dict[int, LoadedVersion]) -> bool:
        """Load a version unless it is loaded; return False if it cannot be used."""
        if number in loaded:
            return True
        if number not in listing.urls:
            return False
        failure = self._failures.get(number)
        if failure and (failure.num_tries >= MAX_TRIES or time.monotonic() < failure.next_try):
            return False
        self._states[number] = ("LOADING", "")
        try:
            version = self._loader(listing.urls[number], self.name, number)
            self._check(version)
        except Exception as exc:  # noqa: BLE001
            self._fail(number, exc)
            return False
        self._failures.pop(number, None)
        loaded[number] = version
        self._urls[number] = listing.urls[number]
        self._states[number] = ("AVAILABLE", "")
        _logger.info("version %d of the model %s takes requests", number, self.name)
        return True

    def _check(self, version: LoadedVersion) -> None:
        """Warm a version up. Where the version before computes zeros, the new one must, too."""
        is_warm = version.warm_up(self._sizes)
        self._is_warm[version.version] = is_warm
        before = self._view.loaded.get(self._view.main or -1)
        if is_warm or before is None or not self._is_warm.get(before.version):
            return
        signatures = {key: s.inputs for key, s in version.signatures.items()}
        if signatures == {key: s.inputs for key, s in before.signatures.items()}:
            raise ValueError(
                f"it does not compute rows of zeros, which version {before.version} does; the log "
                "of the server has the reason"
            )

    def _fail(self, number: int, exc: Exception) -> None:
        before = self._failures.get(number, _Failure("", 0, 0.0))
        tries = before.num_tries + 1
        if isinstance(exc, OSError):
            # The store fails, not the version: it is tried again until it can be read.
            tries = min(tries, MAX_TRIES - 1)
        self._failures[number] = _Failure(str(exc), tries, time.monotonic() + pause_s(tries + 1))
        self._states[number] = ("END", f"the version cannot be loaded: {exc}"[:500])
        if before.message != str(exc):
            # The error itself has the frames of its traceback, which hold other versions.
            message = "version %d of the model %s is not served: %s"
            _logger.error(message, number, self.name, str(exc))

    def _unload(self, numbers: list[int], listing: Listing) -> None:
        for number in numbers:
            # A request that uses the version still holds it.
            self._states[number] = ("END", "")
            self._is_warm.pop(number, None)
            self._urls.pop(number, None)
            _logger.info("version %d of the model %s takes no more requests", number, self.name)
        unloaded = [n for n in sorted(self._states) if n not in self._view.loaded]
        for number in unloaded[:-MAX_UNLOADED]:
            self._states.pop(number)
        for number in self._failures.keys() - listing.urls.keys():
            self._failures.pop(number)

    def unload(self) -> None:
        """Unload all versions; the next `poll` loads them again."""
        with self._lock:
            numbers = list(self._view.loaded)
            self._view = VersionView(self.name, labels=self._view.labels)
            self._unload(numbers, Listing({}))
            self._on_change(self)
        # Models refer to themselves.
        gc.collect()

    def failures(self) -> dict[int, str]:
        """Return the reasons why versions could not be loaded."""
        return {number: failure.message for number, failure in self._failures.items()}
