"""Runs on the driver. `sparkdl verify` and `card`: prove a run, and describe it."""

import argparse
import contextlib

from sparkdl import experiment
from sparkdl.cli.output import add_json, find, print_json
from sparkdl.cli.start import printing_to_stderr

# The exit codes of the verdicts. An error ends with 2, too: the answer is not known.
_CODES = {"equal": 0, "different": 1, "unknown": 2}


def add_verify(parser: argparse.ArgumentParser) -> None:
    """`sparkdl verify RUN`: train a trial again, and compare the results."""
    parser.description = (
        "Train a trial again from what its run has kept, in a place of its own, and say whether "
        "the results are the same to the last bit. The exit code is 0 if they are, 1 if one "
        "differs, and 2 if it is not known."
    )
    parser.add_argument("name", metavar="RUN", help="folder of the run, or its id below the root")
    parser.add_argument("--trial", type=int, help="number of a trial; default: the best one")
    parser.add_argument(
        "--ignore",
        metavar="NAME",
        action="append",
        default=[],
        help="a metric or returned value that is not compared; may be repeated",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=2,
        help="1: do not train once more where results differ; default: %(default)s",
    )
    parser.add_argument("--num-workers", type=int, help="another number of workers of a gang")
    parser.add_argument("--root", help="folder of the new training; default: that of RUN")
    parser.add_argument("--card", metavar="FILE", help="also write the card, .html or .json")
    add_json(parser)
    parser.set_defaults(run=_verify)


def _verify(arguments: argparse.Namespace) -> int:
    options = {"root": arguments.root} if arguments.root else {}
    run = find(arguments.name)
    # What the training prints must not be taken for the JSON document.
    with printing_to_stderr() if arguments.json else contextlib.nullcontext():
        verification = experiment.verify(
            run,
            trial=arguments.trial,
            ignore=arguments.ignore,
            repeats=arguments.repeats,
            num_workers=arguments.num_workers,
            **options,
        )
    if arguments.json:
        print_json(verification.to_dict())
    else:
        print(verification)
    if arguments.card:
        run.card(arguments.card, root=arguments.root)
    return _CODES[str(verification.verdict)]


def add_card(parser: argparse.ArgumentParser) -> None:
    """`sparkdl card [RUN]`: write the card of a run."""
    help_text = "folder of the run, or its id below the root; default: the newest run"
    parser.add_argument("name", nargs="?", metavar="RUN", help=help_text)
    parser.add_argument(
        "--to", metavar="FILE", help="a file that ends in .html or .json; default: <id>.html here"
    )
    parser.add_argument("--root", help="the folder given to `sparkdl verify --root`")
    add_json(parser, "the card in place of the path")
    parser.set_defaults(run=_card)


def _card(arguments: argparse.Namespace) -> int:
    run = find(arguments.name)
    to = arguments.to or (None if arguments.json else f"{run.id}.html")
    card = run.card(to, root=arguments.root)
    if arguments.json:
        print_json(card)
    else:
        print(to)
    return 0
