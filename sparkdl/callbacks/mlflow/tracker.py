"""Runs on the driver. The callback that mirrors a run in MLflow."""

import math
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ssl import SSLError
from typing import Any

from sparkdl.callbacks.callback import Callback
from sparkdl.callbacks.mlflow import values
from sparkdl.callbacks.webhook import NoRedirect
from sparkdl.errors import ConfigError, named_type
from sparkdl.host.optional_packages import require
from sparkdl.runs import Run
from sparkdl.secrets.masks import MASK, mask_text

# The seconds in which a server must answer at all, before MLflow's client asks it for more.
PROBE_S = 5.0

# MLflow prints the address of each run, and a bar for each file.
_SILENT = {
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_DISABLE_AGENT_HINT": "true",
}
# The mirror itself tries again, every few seconds.
_IMPATIENT = {**_SILENT, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}


class MLflow(Callback):
    """Mirror a run in an MLflow tracking server while it goes on.

    `launch(train, args, callbacks=[MLflow("http://mlflow:5000", experiment="digits")])`

    The run is a run of MLflow, and each trial that has started is a child of it, with parameters,
    reported metrics, state, error, logs and returned files. Models of the registry that come from
    the run are registered in MLflow. Only the driver talks to the server, in batches and in a
    thread of its own; trials do not wait for it.

    Everything is also in the run directory. What a server that is down has missed follows when it
    is there again or, after the run, with `sparkdl mlflow push RUN` or `push`. Nothing is written
    twice.

    Needs `pip install 'sparkdl-platform[mlflow]'` on the driver.

    Args:
        uri: the tracking URI; by default that of MLflow, such as `$MLFLOW_TRACKING_URI`. MLflow
            reads `$MLFLOW_TRACKING_USERNAME`, `$MLFLOW_TRACKING_PASSWORD` and
            `$MLFLOW_TRACKING_TOKEN`.
        experiment: the name of the experiment; by default `$MLFLOW_EXPERIMENT_NAME`, otherwise the
            name of the run.
        artifacts: the trials whose logs and returned files are copied: `all`; `best`, when the run
            has ended; or `none`.
        interval_s: seconds between two updates.
        end_timeout_s: seconds that the end of the run waits for the last update.

    Raises:
        ConfigError: if MLflow is not installed, or an argument is invalid.
    """

    def __init__(
        self,
        uri: str | None = None,
        *,
        experiment: str | None = None,
        artifacts: str = "all",
        interval_s: float = 5.0,
        end_timeout_s: float = 60.0,
    ) -> None:
        require("mlflow", "callbacks.MLflow")
        if artifacts not in ("all", "best", "none"):
            raise ConfigError(f"artifacts is {artifacts!r}; expected 'all', 'best' or 'none'.")
        for name, text in (("uri", uri), ("experiment", experiment)):
            if text is not None and not (isinstance(text, str) and text):
                kind = named_type(text)
                raise ConfigError(f"{name} of MLflow is {kind} or empty; expected a text.")
        self.interval_s = interval_s
        self.end_timeout_s = end_timeout_s
        self._uri = uri
        self._experiment = experiment
        self._artifacts = artifacts
        self._mirrors: dict[str, Any] = {}

    def __repr__(self) -> str:
        uri = None if self._uri is None else values.masked_uri(self._uri)
        return f"MLflow({uri!r}, experiment={self._experiment!r})"

    def describe(self) -> dict[str, Any]:
        """Return the arguments; the URI without credentials."""
        uri = None if self._uri is None else values.masked_uri(self._uri)
        return {
            "callback": MLflow.__name__,  # Of a subclass, too: `of_run` looks for the name.
            "uri": uri,
            "experiment": self._experiment,
            "artifacts": self._artifacts,
        }

    @classmethod
    def of_run(cls, description: Mapping[str, Any], **arguments: Any) -> "MLflow":
        """Return the callback that a run had, for a later push.

        Args:
            description: the content of `run.json`.
            arguments: arguments that replace those of the run; None keeps an argument.

        Raises:
            ConfigError: if the URI had credentials, which were not kept.
        """
        callbacks = description.get("callbacks", ())
        configurations = [c for c in callbacks if c.get("callback") == MLflow.__name__]
        names = ("uri", "experiment", "artifacts")
        settings = {name: configurations[0][name] for name in names} if configurations else {}
        arguments = {**settings, **{n: v for n, v in arguments.items() if v is not None}}
        if MASK in str(arguments.get("uri")):
            raise ConfigError(
                f"the URI of the tracking server had credentials, which run {description['id']} "
                f"has not kept: {arguments['uri']}. Pass the URI."
            )
        return cls(**arguments)

    def remedy(self, run: Run) -> str:
        """Return how the user brings MLflow up to date."""
        return (
            "Everything is kept in the run directory. If MLflow is not up to date in the end: "
            f"sparkdl mlflow push {run.path}"
        )

    def on_interval(self, run: Run) -> None:
        """Bring MLflow up to date."""
        self._update(run, _IMPATIENT, until_s=time.monotonic() + (self.interval_s or 0.0))

    def on_run_end(self, run: Run) -> None:
        """Bring MLflow up to date with the end of the run."""
        self._update(run, _IMPATIENT)
        self._mirrors.pop(run.path, None)

    def push(self, run: Run) -> str:
        """Bring MLflow up to date with a run of any age, and return the id of its MLflow run.

        Raises:
            ConnectionError: if the server does not answer, or refuses.
        """
        self._mirrors.pop(run.path, None)
        return self._update(run, _SILENT)

    def _update(self, run: Run, settings: Mapping[str, str], until_s: float = math.inf) -> str:
        """Bring MLflow up to date, with as many files as are copied until a time."""
        with _variables(settings):
            try:
                mirror, uploads = self._mirrors.get(run.path) or self._connect(run)
                self._mirrors[run.path] = (mirror, uploads)
                mirror.update(run)
                for _ in uploads.steps(run):
                    if time.monotonic() > until_s:
                        break
            except Exception as exc:  # noqa: BLE001 MLflow raises errors of many libraries.
                # What MLflow has is read again, as an answer may have been lost.
                self._mirrors.pop(run.path, None)
                raise self._error(exc) from None
            return str(mirror.parent.id)

    def _connect(self, run: Run) -> tuple[Any, Any]:
        from mlflow import MlflowClient
        from mlflow.environment_variables import MLFLOW_EXPERIMENT_NAME
        from mlflow.tracking import get_tracking_uri

        from sparkdl.callbacks.mlflow.files import Uploads
        from sparkdl.callbacks.mlflow.mirror import Mirror

        uri = self._uri or get_tracking_uri()
        _probe(uri)
        client = MlflowClient(uri)
        mirror = Mirror(client, run, self._experiment or MLFLOW_EXPERIMENT_NAME.get() or run.name)
        return mirror, Uploads(client, mirror, self._artifacts)

    def _error(self, exc: Exception) -> ConnectionError:
        """Return the error of an update, without credentials and without a page of text."""
        text = f"{exc}".strip().split("\n")[0][:500]
        if self._uri:
            text = text.replace(self._uri, values.masked_uri(self._uri))
        return ConnectionError(f"{self!r}: {type(exc).__name__}: {mask_text(text)}")


@contextmanager
def _variables(settings: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a block, unless the user has set them."""
    new = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)


def _probe(uri: str) -> None:
    """Validate that a server answers at all: MLflow's client waits minutes for one that is down.

    Raises:
        ConnectionError: if the server does not answer.
    """
    if not uri.startswith(("http://", "https://")):
        return
    host = uri.partition("://")[2].rpartition("@")[2]
    url = f"{uri.partition('://')[0]}://{host.split('?')[0].rstrip('/')}/health"
    try:
        # A redirect could lead to an address that only this host reaches.
        with urllib.request.build_opener(NoRedirect).open(url, timeout=PROBE_S):
            pass
    except urllib.error.HTTPError as exc:
        exc.close()  # It answers.
    except urllib.error.URLError as exc:
        if not isinstance(exc.reason, SSLError):  # The client has its own certificates.
            raise ConnectionError(f"the server does not answer: {exc.reason}") from None
    except OSError as exc:
        raise ConnectionError(f"the server does not answer: {exc}") from None
