"""Runs on the driver. The card of a run: what it was made of and what came out, as JSON and HTML.

A card is for those who were not there: reviewers, auditors, the users of a model. It is made of the
files of the run alone, and of the verifications beside it.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparkdl.errors import ConfigError
from sparkdl.files import folders, storage
from sparkdl.files.jsonl import from_json, read_lines, to_json
from sparkdl.files.layout import RunPaths, TrialPaths
from sparkdl.files.resources import read_manifest
from sparkdl.runs import annotations, lineage
from sparkdl.runs.differences import read_environment, read_executors
from sparkdl.runs.earlier_run import sources
from sparkdl.runs.trial import Trial
from sparkdl.runs.verification.trials import result_files
from sparkdl.runs.verification.verification import Verification, read_verifications
from sparkdl.runs.views.html_page import page
from sparkdl.runs.views.html_parts import (
    details,
    escaped,
    pairs,
    preformatted,
    row,
    section,
    short,
    table,
)

if TYPE_CHECKING:
    from sparkdl.runs.views.figures.base import RunView

_RUN = ("description", "function", "created", "user", "host", "seed", "plan", "framework")
_CODE = ("git_commit", "function", "folder", "main")
_MACHINE = ("versions", "hardware", "spark", "env")


def card_of(run: "RunView", root: str | None = None) -> dict[str, Any]:
    """Return the card of a run as a JSON object.

    Args:
        run: the run.
        root: the folder that verifications were given as their root, if any.

    Raises:
        FileNotFoundError: if there is no run in `run.path`.
    """
    facts = from_json(storage.read(RunPaths(run.path).run))
    trial = _best(run)
    of_run = annotations.read(run.path)
    return {
        "run": {
            **{name: getattr(run, name) for name in ("id", "name", "kind", "path", "reason")},
            "state": str(run.state),
            "duration_s": run.duration_s,
            "trials": dict(Counter(str(trial.state) for trial in run.trials)),
            "tags": of_run.tags,
            "notes": [str(note) for note in of_run.notes],
            **{name: facts.get(name) for name in _RUN},
        },
        "result": _result(run, trial),
        "data": _data(run, trial),
        "code": {
            **{name: facts.get(name) for name in _CODE},
            "files": {
                name: {"lines": text.count("\n") + 1, "sha256": _digest(text.encode())}
                for name, text in sources(run.path).items()
            },
        },
        "environment": {
            **{name: facts.get(name) for name in _MACHINE},
            "packages": read_environment(run.path),
            "executors": read_executors(run.path),
        },
        "lineage": {
            "reproduces": facts.get("reproduces"),
            "init_from": facts.get("request", {}).get("init_from"),
            "learn_from": facts.get("request", {}).get("learn_from"),
            "models": lineage.models_of(run.path, run.id),
        },
        "verifications": [each.to_dict() for each in read_verifications(run.path, root)],
    }


def write_card(run: "RunView", to: str, root: str | None = None) -> dict[str, Any]:
    """Write the card of a run, and return the card.

    Args:
        run: the run.
        to: a file or URL that ends in `.html` or `.json`.
        root: see `card_of`.

    Raises:
        ConfigError: if it has another ending.
    """
    if not to.endswith((".html", ".json")):
        raise ConfigError(f"to is {to!r}; expected a file that ends in .html or .json.")
    card = card_of(run, root)
    text = to_json(card, indent=1) if to.endswith(".json") else html(card)
    storage.write(storage.absolute(to), text)
    return card


def _best(run: "RunView") -> Trial | None:
    """Return the best trial, or the only one."""
    if len(run.trials) == 1:
        return run.trials[0]
    best = run.top(1) if len(run.objectives) < 2 else run.pareto[:1]
    return best[0] if best else None


def _result(run: "RunView", trial: Trial | None) -> dict[str, Any] | None:
    if trial is None:
        return None
    files = result_files(trial)
    return {
        "trial": trial.number,
        "state": str(trial.state),
        "params": trial.params,
        "seed": trial.seed,
        "metric": run.metric,
        "direction": run.direction,
        "value": trial.value,
        "metrics": trial.metrics,
        "attempts": trial.attempts,
        "files": {
            name: {"bytes": size, "sha256": folders.sha256(storage.join(trial.path, name))}
            for name, size in files.items()
        },
    }


def _data(run: "RunView", trial: Trial | None) -> dict[str, Any]:
    url = RunPaths(run.path).data_fingerprints
    texts = storage.read_many([url])
    return {
        "given": from_json(texts[url]) if url in texts else {},
        "read": trial.data if trial else [],
        "columns": trial.columns if trial else [],
        "files": read_lines(TrialPaths(trial.path).files) if trial else [],
        "resources": {name: dict(each.files) for name, each in read_manifest(run.path).items()},
    }


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# ---- HTML


def html(card: Mapping[str, Any]) -> str:
    """Return a card as a page that needs no network.

    Args:
        card: the JSON object.
    """
    run = card["run"]
    parts = [
        f"<header><h1>{escaped(run['name'])}</h1><p><b>{escaped(run['state'])}</b></p>"
        f'<p class="soft">{escaped(run["kind"])} {escaped(run["id"])}</p></header>',
        section("Verification", "", _verifications(card["verifications"])),
        section("Run", "", pairs(_known(run))),
        section("Result", "", _result_part(card["result"])),
        section("Data", "", _nested(card["data"]) or "<p>The run has recorded no data.</p>"),
        section("Code", "", _nested(card["code"])),
        section("Environment", "", _environment(card["environment"])),
        section("Lineage", "", _nested(card["lineage"]) or "<p>None is recorded.</p>"),
    ]
    return page(f"{run['name']}: {run['id']}", parts, "")


def _verifications(found: Sequence[Mapping[str, Any]]) -> str:
    if not found:
        return "<p>No trial was verified: <code>sparkdl verify</code> trains one again.</p>"
    parts: list[str] = []
    for content in reversed(found):
        each = Verification.from_dict(content)
        lines = str(each).split("\n")
        head = f"<b>{escaped(each.verdict)}</b>, trial {each.trial}, {escaped(each.time)}"
        parts.append(details(head, preformatted(lines), is_open=not parts))
    return "".join(parts)


def _result_part(result: Mapping[str, Any] | None) -> str:
    if result is None:
        return "<p>No trial is COMPLETE.</p>"
    facts = {name: result[name] for name in ("trial", "state", "metric", "direction", "value")}
    files = [row([name, each["bytes"], each["sha256"]]) for name, each in result["files"].items()]
    listed = table([row(["file", "bytes", "SHA-256"]), *files]) if files else ""
    values = {"seed": result["seed"], **result["params"]}
    return (
        f"{pairs(_known(facts))}<h3>metrics</h3>{pairs(_known(result['metrics']))}"
        f"<h3>parameters</h3>{pairs(_known(values))}{listed}"
    )


def _environment(environment: Mapping[str, Any]) -> str:
    packages = environment["packages"]
    rows = [row(pair) for pair in packages.items()]
    listed = details(f"{len(rows)} packages", table(rows)) if rows else ""
    return _nested({k: v for k, v in environment.items() if k != "packages"}) + listed


def _nested(values: Mapping[str, Any]) -> str:
    """Return facts, those with an inner structure as JSON."""
    known = _known(values)
    plain = {name: value for name, value in known.items() if not isinstance(value, dict | list)}
    parts = [pairs(plain)]
    for name, value in known.items():
        if name not in plain:
            lines = to_json(value, indent=1).split("\n")
            parts.append(details(escaped(name), preformatted(lines)))
    return "".join(parts)


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that there are, numbers and texts in short."""
    return {
        name: value if isinstance(value, dict | list) else short(value)
        for name, value in values.items()
        if value not in (None, "", {}, [])
    }
