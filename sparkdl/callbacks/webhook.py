"""Runs on the driver. A callback that posts the events of a run to a URL."""

import base64
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from sparkdl._version import __version__
from sparkdl.callbacks.callback import Callback
from sparkdl.errors import ConfigError, named_type, suggest
from sparkdl.files.jsonl import to_json
from sparkdl.runs import Run, Trial
from sparkdl.secrets.masks import MASK

EVENTS = ("trial_start", "trial_end", "best", "run_end")

# Answers after which the same request may succeed at once.
_TEMPORARY = (429, 500, 502, 503, 504)
# Answers that are about the content. What is wrong with the address or the token can be mended.
_FINAL = (400, 410, 413, 414, 415, 422)
PAUSE_S = 1.0


class PostRefusedError(ConnectionError):
    """The server refuses a post, and would refuse it again."""


class Webhook(Callback):
    """Post the events of a run as JSON to a URL, such as an incoming webhook of a chat.

    The posted object has the keys `event`, `time` (seconds since 1970), `text` (a sentence that
    chats show), `run` and, except at the end of the run, `trial`. A post that fails for a moment
    is tried once more. In logs and in the run directory, only the host of the URL is shown.

    Args:
        url: an `http` or `https` URL. `user:password@` in the URL becomes a header.
        events: the events to post, of `trial_start`, `trial_end`, `best` and `run_end`.
        body: a function that takes the object and returns another JSON value to post in its place.
        headers: further headers, such as `{"Authorization": "Bearer ..."}`; never shown.
        timeout_s: seconds after which a server that does not answer is given up.

    Raises:
        ConfigError: if the URL, an event or a header is invalid.

    Example:
        >>> Webhook("https://hooks.example.com/services/T0/B0/secret", events=["run_end"])
        Webhook('https://hooks.example.com/***')
    """

    def __init__(
        self,
        url: str,
        *,
        events: Sequence[str] = ("best", "run_end"),
        body: Callable[[dict[str, Any]], Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        parts = _split(url)
        for event in [events] if isinstance(events, str) else events:
            if event not in EVENTS:
                raise ConfigError(
                    f"a webhook has no event {event!r}; expected a list of {', '.join(EVENTS)}."
                    f"{suggest(str(event), EVENTS)}"
                )
        self._events = (events,) if isinstance(events, str) else tuple(events)
        host = parts.netloc.rpartition("@")[2]
        self._url = parts._replace(netloc=host).geturl()
        self._masked_url = f"{parts.scheme}://{host}/{MASK}"
        self._body = body
        self._timeout_s = timeout_s
        self._headers = {
            "Content-Type": "application/json",
            "User-Agent": f"sparkdl/{__version__}",
            **_authorization(parts),
            **_valid_headers(headers or {}),
        }

    def __repr__(self) -> str:
        return f"Webhook({self._masked_url!r})"

    def describe(self) -> dict[str, Any]:
        """Return the host of the URL and the events."""
        return {**super().describe(), "url": self._masked_url, "events": list(self._events)}

    def on_trial_start(self, run: Run, trial: Trial) -> None:
        """Post the start of an attempt at a trial."""
        self._post("trial_start", run, f"Trial {trial.number} of run {run.id} has started", trial)

    def on_trial_end(self, run: Run, trial: Trial) -> None:
        """Post the end of a trial."""
        value = _value_text(run, trial)
        text = f"Trial {trial.number} of run {run.id}: {trial.state}{value} {trial.summary}"
        self._post("trial_end", run, text.strip(), trial)

    def on_best(self, run: Run, trial: Trial) -> None:
        """Post a new best trial."""
        text = f"Best of run {run.id} so far: trial {trial.number}{_value_text(run, trial)}"
        self._post("best", run, f"{text}, {_params_text(trial)}".rstrip(", "), trial)

    def on_run_end(self, run: Run) -> None:
        """Post the end of the run."""
        self._post("run_end", run, _end_text(run))

    def _post(self, event: str, run: Run, text: str, trial: Trial | None = None) -> None:
        if event not in self._events:
            return
        content = {"event": event, "time": time.time(), "text": text, "run": _run_facts(run)}
        if trial is not None:
            content["trial"] = _trial_facts(trial)
        self.post(content)

    def post(self, content: dict[str, Any]) -> None:
        """Post an object with the key `event`.

        Raises:
            PostRefusedError: if the server answered that it will not take it.
            ConnectionError: if it was not taken for another reason, after a second try.
        """
        body = content if self._body is None else self._body(content)
        problem = self._send(to_json(body).encode())
        if problem is not None and problem.is_temporary:
            time.sleep(PAUSE_S)
            problem = self._send(to_json(body).encode())
        if problem is not None:
            error = PostRefusedError if problem.is_final else ConnectionError
            raise error(f"{self._masked_url} did not take {content['event']!r}: {problem.text}")

    def _send(self, data: bytes) -> "_Problem | None":
        """Post data; return the problem, as exceptions of urllib may contain the URL."""
        request = urllib.request.Request(self._url, data, self._headers, method="POST")
        try:
            opener = urllib.request.build_opener(NoRedirect)
            with opener.open(request, timeout=self._timeout_s):
                pass  # The answer is not read: it may have no end.
        except urllib.error.HTTPError as exc:
            exc.close()
            more = (
                ", a redirect: pass the address to which it leads" if exc.code // 100 == 3 else ""
            )
            is_final = exc.code in _FINAL
            return _Problem(f"it answered {exc.code}{more}", exc.code in _TEMPORARY, is_final)
        except urllib.error.URLError as exc:
            return _Problem(f"{exc.reason}", True)
        except (OSError, http.client.HTTPException) as exc:
            return _Problem(type(exc).__name__, True)
        return None


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which would get the headers, and may lead to any address."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Let urllib raise the answer as an error."""


class _Problem:
    """A reason for which a post failed.

    Attributes:
        text: the reason.
        is_temporary: the same post may succeed at once.
        is_final: the same post will not succeed later.
    """

    def __init__(self, text: str, is_temporary: bool, is_final: bool = False) -> None:
        self.text = text
        self.is_temporary = is_temporary
        self.is_final = is_final


def _split(url: str) -> SplitResult:
    """Return the parts of a URL; the message of an error does not contain the URL."""
    problem = f"it is {named_type(url)}" if not isinstance(url, str) else ""
    if not problem:
        try:
            parts = urlsplit(url)
            is_plain = url.isascii() and url.isprintable() and " " not in url
            if parts.scheme in ("http", "https") and parts.hostname and is_plain:
                _ = parts.port  # A port that is no number raises.
                return parts
            problem = "its scheme, its host or a character is invalid"
        except ValueError:
            problem = "its host or port is invalid"
    raise ConfigError(
        f"the URL of a webhook is no address to post to: {problem}. Expected "
        "'https://host/path' or 'http://host:port/path'."
    )


def _valid_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return headers after validating them: later errors of http.client show their values."""
    for name, value in headers.items():
        is_text = isinstance(name, str) and isinstance(value, str)
        if not (is_text and f"{name}{value}".isprintable() and f"{name}{value}".isascii()):
            raise ConfigError(
                f"the header {name!r} of a webhook has an invalid value; expected one line of "
                "ASCII text. The content of a file may end with a line break: "
                "Path(file).read_text().strip()."
            )
    return headers


def _authorization(parts: SplitResult) -> dict[str, str]:
    if not parts.username:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


# ---- the content of a post


def _value_text(run: Run, trial: Trial) -> str:
    value = trial.last_value
    return "" if value is None else f", {run.metric or 'value'} {value:.5g}"


def _params_text(trial: Trial) -> str:
    return ", ".join(f"{name}={value}" for name, value in trial.params.items())


def _end_text(run: Run) -> str:
    reason = f" ({run.reason})" if run.reason else ""
    text = f"Run {run.id} ended {run.state}{reason}: {run.counts_text()}"
    if len(run.objectives) < 2 and (best := run.top(1)):
        params = _params_text(best[0])
        text += f". Best: trial {best[0].number}{_value_text(run, best[0])}"
        text += f", {params}" if params else ""
    return text


def _run_facts(run: Run) -> dict[str, Any]:
    names = ("id", "name", "kind", "path", "metric", "direction", "reason", "duration_s")
    best = run.top(1) if len(run.objectives) < 2 else []
    return {
        **{name: getattr(run, name) for name in names},
        "state": str(run.state),
        "counts": run.counts(),
        "best": best[0].number if best else None,
    }


def _trial_facts(trial: Trial) -> dict[str, Any]:
    names = ("number", "params", "value", "metrics", "failure", "attempts", "duration_s", "path")
    facts = {name: getattr(trial, name) for name in names}
    return {**facts, "state": str(trial.state), "error": trial.summary or None}
