"""Runs on the driver. The web application of the page: its addresses and who may ask for them."""

import functools
import gzip
import hashlib
import hmac
import logging
import zlib
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from typing import Any

from werkzeug.exceptions import Forbidden, HTTPException, NotFound
from werkzeug.routing import Map, Rule
from werkzeug.wrappers import Request, Response

from sparkdl.errors import (
    ConfigError,
    ControlError,
    FunctionError,
    ModelNotFoundError,
    RunNotFoundError,
    SparkDLError,
)
from sparkdl.host.loopback import leads_here
from sparkdl.runs.views.html_page import shared_file
from sparkdl.ui import compared, model_versions, one_trial, overview, trial_table
from sparkdl.ui.commands import carry_out
from sparkdl.ui.live_runs import LiveRuns
from sparkdl.ui.plain import to_plain_json

# Plotly compiles its WebGL figures, and sets styles of elements. A notebook on this host, or behind
# a tunnel, may show the page in a frame. https://www.w3.org/TR/CSP3/
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'self' http://localhost:* http://127.0.0.1:*"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
# The files that report.html has, too.
SHARED = ("figures.js", "page.css")
# Smaller answers are sent as they are.
MIN_PACKED_BYTES = 4096

_STATUS = (
    ((RunNotFoundError, ModelNotFoundError), 404),
    ((ConfigError, FunctionError), 400),
    (ControlError, 409),
)
_RUN = "/api/runs/<run_id>"
_ADDRESSES = Map(
    [
        Rule("/", endpoint="file", defaults={"name": "index.html"}, methods=["GET"]),
        Rule("/<name>", endpoint="file", methods=["GET"]),
        Rule("/plotly.js", endpoint="plotly", methods=["GET"]),
        Rule("/api/runs", endpoint="all_runs", methods=["GET"]),
        Rule(_RUN, endpoint="overview", methods=["GET"]),
        Rule(f"{_RUN}/trials", endpoint="trials", methods=["GET"]),
        Rule(f"{_RUN}/figures/<name>", endpoint="figure", methods=["GET"]),
        Rule(f"{_RUN}/parts/<name>", endpoint="part", methods=["GET"]),
        Rule(f"{_RUN}/trials/<int:number>", endpoint="trial", methods=["GET"]),
        Rule(f"{_RUN}/trials/<int:number>/curves", endpoint="curves", methods=["GET"]),
        Rule(f"{_RUN}/trials/<int:number>/log", endpoint="log", methods=["GET"]),
        Rule("/api/compare", endpoint="compare", methods=["GET"]),
        Rule("/api/compare/figures/<name>", endpoint="compare_figure", methods=["GET"]),
        Rule("/api/models", endpoint="all_models", methods=["GET"]),
        Rule("/api/models/<name>/<int:number>", endpoint="model", methods=["GET"]),
        Rule(f"{_RUN}/control", endpoint="control", methods=["POST"]),
    ],
    redirect_defaults=False,
)

_logger = logging.getLogger("sparkdl.ui")


class Application:
    """The application, a function of WSGI.

    The files of the page hold nothing of the runs and are for everyone. What is below `/api` is
    for requests with the token, which the page takes from its own address.
    https://peps.python.org/pep-3333/

    Args:
        runs: the runs and models to show.
        token: the secret in the address of the page.
        control: let the page change runs.
    """

    def __init__(self, runs: LiveRuns, token: str, control: bool = False) -> None:
        self._live = runs
        self._token = token
        self._control_allowed = control

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request."""
        request = Request(environ)
        try:
            response = self._answer(request)
        except HTTPException as exc:
            response = _error(exc.description or exc.name, exc.code or 500)
        except (SparkDLError, OSError) as exc:
            status = next((code for kinds, code in _STATUS if isinstance(exc, kinds)), 500)
            response = _error(str(exc), status)
        except Exception as exc:
            # The page shows what can be read, whatever is wrong with one file.
            _logger.exception("the page cannot answer %s", request.path)
            response = _error(f"{type(exc).__name__}: {exc}", 500)
        response.headers.extend(HEADERS)
        return _compress(request, response)(environ, start)

    def _answer(self, request: Request) -> Response:
        # A page of another host, whose name was made to lead here, has that name in `Host`.
        if not leads_here(f"//{request.host}"):
            raise Forbidden("this server answers only to the names of its own host")
        endpoint, values = _ADDRESSES.bind_to_environ(request.environ).match()
        if request.path.startswith("/api/"):
            self._check_token(request)
        answer: Response = getattr(self, f"_{endpoint}")(request, **values)
        return answer

    def _check_token(self, request: Request) -> None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Bearer" or not hmac.compare_digest(token.encode(), self._token.encode()):
            raise Forbidden("the token is missing or wrong: open the address that was printed")

    # ---- files

    def _file(self, request: Request, name: str) -> Response:
        if name not in _files():
            raise NotFound(f"there is no file {name!r}")
        kind = TYPES[name.rsplit(".", 1)[1]]
        response = Response(_files()[name], content_type=f"{kind}; charset=utf-8")
        response.headers["Cache-Control"] = "no-cache"
        return response

    def _plotly(self, request: Request) -> Response:
        response = Response(_plotly(), mimetype="text/javascript")
        response.headers["Content-Encoding"] = "gzip"
        response.headers["Cache-Control"] = "private, max-age=86400"
        return response

    # ---- runs

    def _all_runs(self, request: Request) -> Response:
        rows, unreadable = self._live.rows()
        answer = {
            "root": self._live.root,
            "control": self._control_allowed,
            "runs": rows,
            "unreadable": unreadable,
        }
        return _with_version(request, answer)

    def _overview(self, request: Request, run_id: str) -> Response:
        snapshot = self._live.snapshot(run_id)
        versions = [v for v in self._live.models() if v.run == snapshot.run.id]
        # A model may be exported, and its aliases may be moved, when the run has ended long ago.
        marks = [(v.name, v.version, v.aliases) for v in versions]
        version = f"{snapshot.version}-{zlib.crc32(repr(marks).encode()):x}"
        if request.args.get("version") == version:
            return _json({"version": version})
        answer = {**overview.overview(snapshot, versions), "version": version}
        return _json({**answer, "root": self._live.root, "control": self._control_allowed})

    def _figure(self, request: Request, run_id: str, name: str) -> Response:
        return _json_text(overview.figure(self._live.snapshot(run_id), name))

    def _part(self, request: Request, run_id: str, name: str) -> Response:
        return _with_version(request, {"text": overview.part_of(self._live.snapshot(run_id), name)})

    def _trials(self, request: Request, run_id: str) -> Response:
        arguments = request.args
        rows = trial_table.rows(
            self._live.snapshot(run_id),
            offset=max(0, arguments.get("offset", 0, type=int)),
            sort=arguments.get("sort", "number"),
            descending=arguments.get("descending") == "true",
            state=arguments.get("state", ""),
            text=arguments.get("text", ""),
        )
        return _json(rows)

    def _trial(self, request: Request, run_id: str, number: int) -> Response:
        return _json(one_trial.details(self._live.snapshot(run_id), number))

    def _curves(self, request: Request, run_id: str, number: int) -> Response:
        return _json_text(one_trial.curves(self._live.snapshot(run_id), number))

    def _log(self, request: Request, run_id: str, number: int) -> Response:
        trial = one_trial.trial_of(self._live.snapshot(run_id), number)
        name = request.args.get("name", "")
        return _json(one_trial.log(trial, name, request.args.get("offset", -1, type=int)))

    def _compare(self, request: Request) -> Response:
        snapshots = [self._live.snapshot(run_id) for run_id in request.args.getlist("run")]
        version = " ".join(snapshot.version for snapshot in snapshots)
        if request.args.get("version") == version:
            return _json({"version": version})
        answer = {"version": version, "root": self._live.root, **compared.differences(snapshots)}
        return _json(answer)

    def _compare_figure(self, request: Request, name: str) -> Response:
        snapshots = [self._live.snapshot(run_id) for run_id in request.args.getlist("run")]
        return _json_text(compared.figure(snapshots, name))

    # ---- models

    def _all_models(self, request: Request) -> Response:
        rows = [model_versions.row(version) for version in self._live.models()]
        return _with_version(request, {"root": self._live.root, "models": rows})

    def _model(self, request: Request, name: str, number: int) -> Response:
        answer = model_versions.details(name, number, self._live.root)
        return _json({"root": self._live.root, **answer})

    # ---- changes

    def _control(self, request: Request, run_id: str) -> Response:
        if not self._control_allowed:
            raise Forbidden("the page is read-only: start it with --control to change runs")
        # A browser names the page that asks, which a page of another origin cannot change.
        if request.headers.get("Origin") != f"{request.scheme}://{request.host}":
            raise Forbidden("this request comes from no page of this server")
        live = self._live.get(run_id)
        carry_out(live.refreshed.get().run, request.get_json())
        live.refreshed.read_now()
        return _json({"done": True})


@functools.cache
def _files() -> dict[str, str]:
    """Return the texts of the files of the page, by name."""
    folder = resources.files("sparkdl.ui") / "static"
    files = {file.name: file.read_text() for file in folder.iterdir() if file.is_file()}
    return {**files, **{name: shared_file(name) for name in SHARED}}


@functools.cache
def _plotly() -> bytes:
    from plotly.offline import get_plotlyjs

    return gzip.compress(get_plotlyjs().encode(), 6)


def _json(value: Mapping[str, Any], status: int = 200) -> Response:
    return _json_text(to_plain_json(value), status)


def _error(text: str, status: int) -> Response:
    return _json({"error": text}, status)


def _with_version(request: Request, value: Mapping[str, Any]) -> Response:
    """Return a value with its version, or only the version if the page has the value."""
    text = to_plain_json(value)
    version = hashlib.sha256(text.encode()).hexdigest()[:16]
    if request.args.get("version") == version:
        return _json({"version": version})
    return _json_text(f'{{"version": "{version}", {text[1:]}')


def _json_text(text: str | None, status: int = 200) -> Response:
    response = Response(text or "null", status, mimetype="application/json")
    response.headers["Cache-Control"] = "no-store"
    return response


def _compress(request: Request, response: Response) -> Response:
    """Compress a large answer: the page may be looked at through a tunnel."""
    data = response.get_data()
    is_taken = request.accept_encodings["gzip"] and "Content-Encoding" not in response.headers
    if is_taken and len(data) >= MIN_PACKED_BYTES:
        response.set_data(gzip.compress(data, 1))
        response.headers["Content-Encoding"] = "gzip"
    return response
