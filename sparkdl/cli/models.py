"""Runs on the driver. `sparkdl models ...`: list, show, export, name, compare and copy models."""

import argparse
import functools
import sys
from pathlib import Path
from typing import Any

from sparkdl import models
from sparkdl.cli.output import fact_lines, find
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.files.jsonl import to_json
from sparkdl.files.layout import RUN
from sparkdl.files.model_formats import is_model
from sparkdl.models import ModelVersion
from sparkdl.models.comparison import table
from sparkdl.models.registry import find as find_version
from sparkdl.runs import Run, Trial

# An exported model is not better. Workflow managers, such as Airflow, take the code for "skipped".
NOT_BETTER = 99

_VERSION = "version of a model: NAME for the newest one, NAME/3 or NAME@stable"


def add_models(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `sparkdl models`."""
    _add_common(parser)
    parser.set_defaults(run=_list, name=None, root=None, json=False)
    actions = parser.add_subparsers(metavar="ACTION")

    def action(name: str, run: Any, text: str) -> Any:
        subparser = actions.add_parser(name, help=text)
        _add_common(subparser)
        subparser.set_defaults(run=run)
        return subparser

    listed = action("list", _list, "list the versions of all models, or of one model")
    listed.add_argument("name", metavar="NAME", nargs="?", help="name of a model")
    action("show", _show, "print a version").add_argument("version", metavar="MODEL", help=_VERSION)
    compared = action("compare", _compare, "print a table of versions")
    compared.add_argument("versions", metavar="MODEL", nargs="+", help=_VERSION)
    pulled = action("pull", _pull, "copy the files of a version to a local folder")
    pulled.add_argument("version", metavar="MODEL", help=_VERSION)
    pulled.add_argument("--to", default=".", help="the folder that receives the copy; default: .")
    moved = action("alias", _alias, "move an alias; without VERSION, print where it has been")
    moved.add_argument("name", metavar="NAME", help="name of a model")
    moved.add_argument("alias", metavar="ALIAS", help="the alias, such as stable")
    moved.add_argument(
        "version", metavar="VERSION", nargs="?", type=int, help="number of a version"
    )
    moved.add_argument("--remove", action="store_true", help="remove the alias")
    promoted = action("promote", _promote, "let an alias name the version of another alias")
    promoted.add_argument("name", metavar="NAME", help="name of a model")
    promoted.add_argument("--alias", default="canary", help="default: %(default)s")
    promoted.add_argument("--to", default="stable", help="the alias to move; default: %(default)s")
    back = action("roll-back", _roll_back, "let an alias name the version before its last move")
    back.add_argument("name", metavar="NAME", help="name of a model")
    back.add_argument("--alias", default="stable", help="default: %(default)s")
    _add_affected(action("affected", _affected, "tell which versions were trained on rows"))
    _add_export(action("export", _export, "export the model of a run as a new version"))


def _add_affected(parser: Any) -> None:
    parser.add_argument("--rows", metavar="FILE", required=True, help="a Parquet or CSV file")
    parser.add_argument(
        "--key",
        action="append",
        help="a column of the key, as in row_key=; may be repeated; default: all columns of FILE",
    )
    parser.add_argument("--name", help="name of a model; default: all models")


def _affected(arguments: argparse.Namespace) -> int:
    """Return 0 if no version has seen the rows, 1 if one has, 2 if that is not known."""
    answers = models.affected(
        arguments.rows, key=arguments.key, name=arguments.name, root=arguments.root
    )
    if arguments.json:
        print(to_json([answer.to_dict() for answer in answers], indent=1))
    elif answers:
        print("\n".join(map(str, answers)))
    else:
        print("no models found; name their folder with --root or SPARKDL_ROOT")
    found = {answer.answer for answer in answers}
    return 1 if "yes" in found else 2 if "unknown" in found else 0


def _add_common(parser: argparse.ArgumentParser) -> None:
    # Without defaults of its own, an action keeps the options that stand before its name.
    add = functools.partial(parser.add_argument, default=argparse.SUPPRESS)
    add("--root", help="folder of runs and models; default: $SPARKDL_ROOT, otherwise ./runs")
    add("--json", action="store_true", help="print JSON")


def _add_export(parser: Any) -> None:
    parser.add_argument("model", metavar="RUN", help="folder or id of a run, or path of a model")
    parser.add_argument("--trial", type=int, help="number of a trial; default: the best one")
    parser.add_argument("--name", required=True, help="name of the model")
    parser.add_argument(
        "--metric",
        dest="metrics",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=_metric,
        help="a metric of the model; may be repeated",
    )
    parser.add_argument("--alias", help="an alias that names the new version from now on")
    parser.add_argument(
        "--if-better",
        metavar="METRIC",
        help=f"export only a model that is better than all versions; else exit with {NOT_BETTER}",
    )
    parser.add_argument("--direction", choices=("max", "min"), help="for --if-better")


def _metric(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    return name, float(value)


def _list(arguments: argparse.Namespace) -> int:
    versions = models.list(arguments.name, root=arguments.root)
    if arguments.name and not versions:
        find_version(arguments.name, arguments.root)  # It raises, with the names that there are.
    return _print_table(versions, arguments)


def _compare(arguments: argparse.Namespace) -> int:
    versions = [find_version(text, arguments.root) for text in arguments.versions]
    return _print_table(versions, arguments)


def _print_table(versions: list[ModelVersion], arguments: argparse.Namespace) -> int:
    if arguments.json:
        print(to_json([version.to_dict() for version in versions], indent=1))
    elif versions:
        columns = table(versions).dropna(axis="columns", how="all")
        print(columns.to_string(index=False, na_rep=""))
    else:
        print("no models found; name their folder with --root or SPARKDL_ROOT")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    version = find_version(arguments.version, arguments.root)
    content = version.to_dict()
    if arguments.json:
        print(to_json(content, indent=1))
        return 0
    print(f"{version.name}/{version.version} {' '.join('@' + alias for alias in version.aliases)}")
    # The export and the run each have a user and versions of packages.
    facts = {**content, **content.pop("lineage"), "exported": content.pop("exported")}
    left_out = {"format", "name", "version", "aliases", "files", "lineage"}
    print("\n".join(fact_lines({k: v for k, v in facts.items() if k not in left_out}, "  ")))
    return 0


def _pull(arguments: argparse.Namespace) -> int:
    path = find_version(arguments.version, arguments.root).download(arguments.to)
    print(to_json({"path": path}) if arguments.json else path)
    return 0


def _alias(arguments: argparse.Namespace) -> int:
    name, alias, root = arguments.name, arguments.alias, arguments.root
    if arguments.version is not None or arguments.remove:
        number = None if arguments.remove else arguments.version
        models.alias(name, alias, number, root=root)
    moves = models.alias_history(name, alias, root=root)
    if arguments.json:
        print(to_json([vars(move) for move in moves], indent=1))
    for move in () if arguments.json else moves:
        target = "removed" if move.version is None else f"version {move.version}"
        print(f"{move.time}  {alias}  {target}  by {move.user} on {move.host}")
    return 0


def _promote(arguments: argparse.Namespace) -> int:
    version = models.promote(arguments.name, arguments.alias, arguments.to, root=arguments.root)
    return _print_version(version, arguments)


def _roll_back(arguments: argparse.Namespace) -> int:
    version = models.roll_back(arguments.name, arguments.alias, root=arguments.root)
    return _print_version(version, arguments)


def _print_version(version: ModelVersion, arguments: argparse.Namespace) -> int:
    print(to_json(version.to_dict(), indent=1) if arguments.json else version)
    return 0


def _export(arguments: argparse.Namespace) -> int:
    version = models.export(
        _model_of(arguments),
        arguments.name,
        metrics=dict(arguments.metrics),
        if_better=arguments.if_better,
        direction=arguments.direction,
        alias=arguments.alias,
        root=arguments.root,
    )
    if version is None:
        print(f"not exported: {arguments.if_better} is not better than before", file=sys.stderr)
        return NOT_BETTER
    return _print_version(version, arguments)


def _path_below(root: str | None, name: str) -> str:
    """Return the path of the run with an id below the given root; a path as it is."""
    is_path = "/" in name or Path(name, RUN).exists()
    return name if root is None or is_path else storage.join(storage.absolute(root), name)


def _model_of(arguments: argparse.Namespace) -> str | Run | Trial:
    if arguments.trial is None and is_model(storage.absolute(arguments.model)):
        return str(arguments.model)
    run = find(_path_below(arguments.root, arguments.model))
    if arguments.trial is None:
        return run
    by_number = {trial.number: trial for trial in run.trials}
    if arguments.trial not in by_number:
        raise ConfigError(f"run {run.id} has no trial {arguments.trial}; it has {len(by_number)}.")
    return by_number[arguments.trial]
