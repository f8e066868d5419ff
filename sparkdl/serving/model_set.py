"""Runs on the driver. The models of a server: loaded at the start or on demand, and polled."""

import contextlib
import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sparkdl.errors import ConfigError, ModelDamagedError, ModelNotFoundError
from sparkdl.files.polling import poll_s
from sparkdl.serving.loaded_version import LoadedVersion
from sparkdl.serving.request_error import RequestError, not_found
from sparkdl.serving.served_model import ServedModel, Shown
from sparkdl.serving.version_view import servable_not_found

LOCAL_POLL_S = 1.0
REMOTE_POLL_S = 5.0

_logger = logging.getLogger("sparkdl.serving")


class ModelSet:
    """The models of a server.

    Args:
        models: the models.
        memory_limit_bytes: load a model at its first request, and unload the models that were not
            asked for the longest while the files of the loaded models are larger than this; None
            loads all models at the start and keeps them.
        use_times: returns the time of the last request of each model in other processes, on the
            clock `time.monotonic`.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        memory_limit_bytes: int | None = None,
        use_times: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._models = {model.name: model for model in models}
        if len(self._models) < len(models):
            names = ", ".join(model.name for model in models)
            raise ConfigError(f"the models are called {names}; expected names that differ.")
        self._limit = memory_limit_bytes
        self._use_times: dict[str, float] = {}
        self._other_use_times = use_times
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="sparkdl-serving-poll", daemon=True)

    @property
    def names(self) -> list[str]:
        """The names of the models."""
        return list(self._models)

    @property
    def loads_on_demand(self) -> bool:
        """A request may wait until its model is loaded."""
        return self._limit is not None

    def start(self) -> None:
        """Load the models, and look for versions from now on.

        Raises:
            ModelDamagedError: if no version of a model can be loaded.
            ModelNotFoundError: if a version that the user has named does not exist.
        """
        if self._limit is None:
            for model in self._models.values():
                model.poll()
                if not model.is_ready:
                    raise _unusable(model)
        self._thread.start()

    def stop(self) -> None:
        """Look for versions no more; a version that is being loaded is not waited for."""
        self._stop.set()

    def close(self, timeout_s: float = 0.0) -> None:
        """Unload all models.

        Args:
            timeout_s: seconds to wait for a version that is being loaded. After them, the thread
                that loads the version unloads the models.
        """
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._is_closed.set()
        if self._thread.is_alive():
            _logger.info("a version is still being loaded; its thread ends after it")
        else:
            self._unload()

    def _unload(self) -> None:
        for model in self._models.values():
            model.unload()

    # ---- requests

    def find(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> LoadedVersion:
        """Return the version that a request asks for, see `Catalog`."""
        model = self._model(name, servable_not_found(name, version))
        if self._limit is None:
            return model.find(version, label)
        return self._load(model, version, label)

    def status(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the state of each version, see `Catalog`."""
        model = self._model(name, not_found(f"Could not find any versions of model {name}"))
        return model.status(version, label)

    def ready(self) -> bool:
        """Return True if requests can be answered."""
        return self._limit is not None or all(m.is_ready for m in self._models.values())

    def is_ready(self, name: str, version: int | None = None) -> bool:
        """Return True if requests to a model can be answered, see `Catalog`."""
        model = self._model(name, not_found(f"Could not find any versions of model {name}"))
        if self.loads_on_demand and not model.is_ready:
            # The first request loads the model, and a client may wait for this answer before it.
            failures = model.failures()
            return version not in failures if version is not None else not failures
        return any(state["state"] == "AVAILABLE" for state in model.status(version))

    def loaded(self) -> list[tuple[str, int]]:
        """Return the name and the number of each loaded version."""
        return [(name, n) for name, model in self._models.items() for n in model.versions]

    def _model(self, name: str, error: RequestError) -> ServedModel:
        if name not in self._models:
            raise error
        return self._models[name]

    def _load(self, model: ServedModel, version: int | None, label: str | None) -> LoadedVersion:
        """Load a model unless it is loaded, and unload others for which there is no memory."""
        self._use_times[model.name] = time.monotonic()
        if model.is_ready:
            # Another request may unload the model in the meantime.
            with contextlib.suppress(RequestError):
                return model.find(version, label)
        with self._lock:
            self._load_now(model)
            return model.find(version, label)

    def load(self, name: str) -> None:
        """Load a model unless it is loaded, and unload others for which there is no memory.

        Raises:
            RequestError: if the model cannot be loaded.
        """
        with self._lock:
            self._load_now(self._models[name])

    def _load_now(self, model: ServedModel) -> None:
        if not model.is_ready:
            model.poll()
            self._make_room(model)
        if not model.is_ready:
            raise RequestError("UNAVAILABLE", f"the model {model.name} cannot be loaded now")

    def _make_room(self, wanted: ServedModel) -> None:
        others = [m for m in self._models.values() if m.is_ready and m is not wanted]
        times = {**self._use_times, **self._other_use_times()}
        others.sort(key=lambda model: times.get(model.name, 0.0))
        while others and sum(m.num_bytes for m in [*others, wanted]) > (self._limit or 0):
            others.pop(0).unload()

    def shown(self) -> list[Shown]:
        """Return the versions of all models, for another process."""
        return [model.shown() for model in self._models.values()]

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Keep the versions of all models as they are during a block."""
        with contextlib.ExitStack() as stack:
            for model in self._models.values():
                stack.enter_context(model.unchanged())
            yield

    # ---- versions

    def _poll(self) -> None:
        pauses = [poll_s(m.source.url, LOCAL_POLL_S, REMOTE_POLL_S) for m in self._models.values()]
        while not self._stop.wait(max(pauses)):
            before = self.loaded()
            for model in self._models.values():
                if not self._stop.is_set() and (self._limit is None or model.is_ready):
                    try:
                        model.poll()
                    except Exception:
                        # The models that are loaded go on.
                        _logger.exception("cannot look for versions of the model %s", model.name)
            if {*before} - {*self.loaded()}:
                gc.collect()  # Models refer to themselves.
        if self._is_closed.is_set():
            self._unload()


def _unusable(model: ServedModel) -> Exception:
    failures = model.failures()
    if failures:
        text = "; ".join(f"version {number}: {text}" for number, text in failures.items())
        return ModelDamagedError(f"no version of the model {model.name} can be loaded: {text}")
    return ModelNotFoundError(
        f"the model {model.name} at {model.source.url} has no version that was asked for; "
        "`sparkdl models list` shows the versions and their aliases."
    )
