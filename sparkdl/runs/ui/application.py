"""Runs on the driver. The web application of the page: its addresses and who may ask for them."""

import gzip
import hmac
import json
from collections.abc import Callable, Iterable
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

from werkzeug.exceptions import BadRequest, Forbidden, HTTPException, NotFound
from werkzeug.routing import Map, Rule
from werkzeug.wrappers import Request, Response

from sparkdl.errors import RunNotFoundError, SparkDLError
from sparkdl.runs.html_page import shared_file
from sparkdl.runs.run import Run
from sparkdl.runs.trial import Trial
from sparkdl.runs.ui import answers
from sparkdl.runs.ui.live_runs import LiveRuns

__all__ = ["Application"]

# The names under which a browser on this host, or behind a tunnel to this host, asks for the page.
LOOPBACK = ("127.0.0.1", "localhost", "::1")

# Plotly compiles its WebGL figures, and sets styles of elements.
# https://www.w3.org/TR/CSP3/#framework-directive-source-list
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'"
)
TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
# The files that report.html has, too.
SHARED = ("figures.js", "page.css")
_ADDRESSES = Map(
    [
        Rule("/", endpoint="file", defaults={"name": "index.html"}),
        Rule("/<any('app.js', 'app.css', 'figures.js', 'page.css'):name>", endpoint="file"),
        Rule("/plotly.js", endpoint="plotly"),
        Rule("/api/runs", endpoint="all_runs"),
        Rule("/api/runs/<run_id>", endpoint="overview"),
        Rule("/api/runs/<run_id>/trials", endpoint="trials"),
        Rule("/api/runs/<run_id>/figures/<name>", endpoint="figure"),
        Rule("/api/runs/<run_id>/trials/<int:number>/log", endpoint="log"),
        Rule("/api/runs/<run_id>/control", endpoint="control_run", methods=["POST"]),
    ]
)


class Application:
    """The application, a function of WSGI.

    The files of the page hold nothing of the runs and are for everyone. What is below `/api` is
    for requests with the token, which the page takes from its own address.
    https://peps.python.org/pep-3333/

    Args:
        runs: the runs to show.
        token: the secret in the address of the page.
        control: let the page cancel, pause and change runs.
    """

    def __init__(self, runs: LiveRuns, token: str, control: bool = False) -> None:
        self._runs = runs
        self._token = token
        self._control = control

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request."""
        request = Request(environ)
        try:
            response = self._answer(request)
        except HTTPException as exc:
            response = _json({"error": exc.description}, exc.code or 500)
        except RunNotFoundError as exc:
            response = _json({"error": str(exc)}, 404)
        except (SparkDLError, OSError) as exc:
            response = _json({"error": str(exc)}, 500)
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response(environ, start)

    def _answer(self, request: Request) -> Response:
        # A page of another host, whose name was made to lead here, has that name in `Host`.
        if urlsplit(f"//{request.host}").hostname not in LOOPBACK:
            raise Forbidden("this server answers only to the names of its own host")
        endpoint, values = _ADDRESSES.bind_to_environ(request.environ).match()
        if request.path.startswith("/api/"):
            scheme, _, token = request.headers.get("Authorization", "").partition(" ")
            if scheme != "Bearer" or not hmac.compare_digest(token.encode(), self._token.encode()):
                raise Forbidden("the token is missing or wrong: open the address that was printed")
        answer: Response = getattr(self, f"_{endpoint}")(request, **values)
        return answer

    def _file(self, request: Request, name: str) -> Response:
        if name in SHARED:
            content = shared_file(name)
        else:
            content = (resources.files("sparkdl.runs.ui") / "static" / name).read_text()
        kind = TYPES[name.rsplit(".", 1)[1]]
        return Response(content, content_type=f"{kind}; charset=utf-8")

    def _plotly(self, request: Request) -> Response:
        from plotly.offline import get_plotlyjs

        response = Response(gzip.compress(get_plotlyjs().encode(), 6), mimetype="text/javascript")
        response.headers["Content-Encoding"] = "gzip"
        response.headers["Cache-Control"] = "private, max-age=86400"
        return response

    def _all_runs(self, request: Request) -> Response:
        return _json({"root": self._runs.root, "control": self._control, "runs": self._runs.rows()})

    def _overview(self, request: Request, run_id: str) -> Response:
        live = self._runs.get(run_id)
        if request.args.get("version") == str(live.version):
            return _json({"version": live.version})
        return _json(answers.overview(live))

    def _trials(self, request: Request, run_id: str) -> Response:
        arguments = request.args
        page = answers.trials(
            self._runs.get(run_id).run,
            offset=max(0, arguments.get("offset", 0, type=int)),
            sort=arguments.get("sort", "number"),
            descending=arguments.get("descending") == "true",
            state=arguments.get("state", ""),
            text=arguments.get("text", ""),
        )
        return _json(page)

    def _figure(self, request: Request, run_id: str, name: str) -> Response:
        text = answers.figure(self._runs.get(run_id), name)
        return Response(text or "null", mimetype="application/json")

    def _log(self, request: Request, run_id: str, number: int) -> Response:
        trial = self._trial(self._runs.get(run_id).run, number)
        name = request.args.get("name", "")
        return _json(answers.log(trial, name, request.args.get("offset", -1, type=int)))

    def _trial(self, run: Run, number: int) -> Trial:
        if number >= len(run.trials):
            raise NotFound(f"run {run.id} has no trial {number}")
        return run.trials[number]

    def _control_run(self, request: Request, run_id: str) -> Response:
        if not self._control:
            raise Forbidden("the page is read-only: start it with --control to change runs")
        run, order = self._runs.get(run_id).run, request.get_json()
        match order:
            case {"action": "cancel", "trial": int(number)}:
                run.cancel(number)
            case {"action": "cancel"}:
                run.cancel()
            case {"action": "pause"}:
                run.pause()
            case {"action": "unpause"}:
                run.unpause()
            case _:
                raise BadRequest("expected an action: cancel, pause or unpause")
        return _json({"done": order["action"]})


def _json(value: Any, status: int = 200) -> Response:
    return Response(json.dumps(value, default=str), status, mimetype="application/json")
