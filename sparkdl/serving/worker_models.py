"""Runs in a worker of a model server. The models of the worker, which does what the server says.

The server looks for versions and decides; a worker loads a version when it is told, and lets it
take requests when it is told that all workers have it.
"""

import contextlib
import gc
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdl.serving.loaded_version import LoadedVersion
from sparkdl.serving.request_error import RequestError, not_found
from sparkdl.serving.served_model import Loader, Shown
from sparkdl.serving.signatures import Signature
from sparkdl.serving.version_view import VersionView, servable_not_found

# A model that was loaded for a request may be unloaded for another one before it answers.
MAX_TRIES = 3


@dataclass(frozen=True)
class Loaded:
    """A version that a worker has loaded, as the server is told of it.

    Attributes:
        num_bytes: the size of its files.
        is_warm: its functions have computed rows of zeros.
        signatures: its signatures.
    """

    num_bytes: int
    is_warm: bool
    signatures: Mapping[str, Signature]


class WorkerModels:
    """The models of a worker, see `Catalog`.

    Args:
        names: the names of the models.
        loader: loads a version.
        warm_up: the numbers of rows on which a version is called before it takes requests.
        want: asks the server to load a model; None if it loads all models at the start.
    """

    def __init__(
        self,
        names: Sequence[str],
        loader: Loader,
        warm_up: Sequence[int] = (1,),
        want: Callable[[str], None] | None = None,
    ) -> None:
        self._loader = loader
        self._sizes = warm_up
        self._want = want
        self._lock = threading.Lock()
        # By the name of the model and the number of the version.
        self._loaded: dict[tuple[str, int], tuple[str, LoadedVersion, Loaded]] = {}
        nothing = [Shown(name, {}, None, {}, {}, {}, {}) for name in names]
        self._shown = {shown.name: (VersionView(shown.name), shown) for shown in nothing}
        self._use_times: dict[str, float] = {}

    # ---- what the server says

    def load(self, url: str, name: str, version: int) -> Loaded:
        """Load a version unless it is loaded; it takes no requests yet.

        Raises:
            OSError: if its files cannot be read.
            ValueError: if it cannot be loaded for another reason.
        """
        known = self._loaded.get((name, version))
        if known and known[0] == url:
            return known[2]
        try:
            loaded = self._loader(url, name, version)
            told = Loaded(loaded.num_bytes, loaded.warm_up(self._sizes), loaded.signatures)
        except OSError as exc:
            # Exceptions of libraries cannot be sent to another process.
            raise OSError(str(exc)) from None
        except Exception as exc:  # noqa: BLE001
            raise ValueError(str(exc) or type(exc).__name__) from None
        with self._lock:
            self._loaded[name, version] = (url, loaded, told)
        return told

    def show(self, shown: Shown) -> None:
        """Let versions take requests from now on, all of which are loaded, and drop the others."""
        name = shown.name
        with self._lock:
            versions = {number: self._loaded[name, number][1] for number in shown.urls}
            view = VersionView(name, versions, shown.main, shown.shares, shown.labels)
            self._shown[name] = (view, shown)
            others = [key for key in self._loaded if key[0] == name and key[1] not in versions]
            for key in others:
                del self._loaded[key]
        if others:
            gc.collect()  # Models refer to themselves.

    def use_times(self) -> dict[str, float]:
        """Return the time of the last request of each model."""
        return dict(self._use_times)

    def close(self) -> None:
        """Unload all models."""
        for name in self.names:
            self.show(Shown(name, {}, None, {}, {}, {}, {}))

    # ---- requests

    @property
    def names(self) -> list[str]:
        """The names of the models."""
        return list(self._shown)

    @property
    def loads_on_demand(self) -> bool:
        """A request may wait until its model is loaded."""
        return self._want is not None

    def find(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> LoadedVersion:
        """Return the version that a request asks for, see `Catalog`."""
        view, _ = self._of(name, servable_not_found(name, version))
        if self._want is not None:
            self._use_times[name] = time.monotonic()
            # Another request may unload the model in the meantime.
            if view.main is not None:
                with contextlib.suppress(RequestError):
                    found: LoadedVersion = view.find(version, label)
                    return found
            view = self._view_on_demand(name)
        found = view.find(version, label)
        return found

    def _view_on_demand(self, name: str) -> VersionView:
        """Return the versions of a model, which the server loads if they are not."""
        for _ in range(MAX_TRIES):
            if self._want is not None:
                self._want(name)
            view, _shown = self._shown[name]
            if view.main is not None:
                return view
        raise RequestError("UNAVAILABLE", f"the model {name} cannot be loaded now")

    def status(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the state of each version, see `Catalog`."""
        error = not_found(f"Could not find any versions of model {name}")
        view, shown = self._of(name, error)
        return view.status(shown.states, version, label)

    def ready(self) -> bool:
        """Return True if requests can be answered."""
        views = [view for view, _ in self._shown.values()]
        return self._want is not None or all(view.main is not None for view in views)

    def is_ready(self, name: str, version: int | None = None) -> bool:
        """Return True if requests to a model can be answered, see `Catalog`."""
        view, shown = self._of(name, not_found(f"Could not find any versions of model {name}"))
        if self._want is not None and view.main is None:
            return version not in shown.failures if version is not None else not shown.failures
        states = view.status(shown.states, version)
        return any(state["state"] == "AVAILABLE" for state in states)

    def loaded(self) -> list[tuple[str, int]]:
        """Return the name and the number of each version that takes requests."""
        return [(name, n) for name, (view, _) in self._shown.items() for n in sorted(view.loaded)]

    def _of(self, name: str, error: RequestError) -> tuple[VersionView, Shown]:
        if name not in self._shown:
            raise error
        return self._shown[name]
