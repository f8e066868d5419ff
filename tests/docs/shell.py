"""Check command lines in the documentation with the parsers that will read them."""

import configparser
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

from sparkdl.cli.main import make_parser
from sparkdl.config import SETTINGS
from tests.docs.pages import REPOSITORY

__all__ = ["check_commands", "check_setting", "check_usage"]

# Programs of others, whose arguments are not checked.
PROGRAMS = {
    *("cp", "mkdir", "cd", "export", "chmod", "echo", "jq", "tail", "tensorboard", "git"),
    *("spark-class", "venv-pack", "hdfs", "java", "ulimit", "command", "ssh"),
    *("aws", "bash", "curl", "docker", "gcloud", "kubectl"),
}
# What stands for a value in the description of a command, and such a value.
VALUES = {"AGE": "30d", "N": "3", "TRIAL": "3", "VERSION": "3", "TRIALS": "failed"}
_USAGE = re.compile(r"sparkdl [a-z]|make [a-z-]+$|SPARKDL_[A-Z_]+|spark\.sparkdl\.\w+")


def check_commands(text: str) -> Iterator[str]:
    """Yield what is wrong with the lines of a block."""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        words.commenters = "#"
        command: list[str] = []
        for word in [*words, ";"]:
            if set(word) <= set("|&;()<>"):
                yield from _check_command(command)
                command = []
            else:
                command.append(word)


def check_usage(text: str) -> Iterator[str]:
    """Yield what is wrong with a command, or a setting, in a sentence or a table."""
    if not _USAGE.match(text):
        return
    if text.startswith("sparkdl "):
        words = [VALUES.get(word, word) for word in re.sub(r"[\[\]]", "", text).split()]
        # `sparkdl show` and `sparkdl models export` are names of commands.
        is_name = re.fullmatch(r"sparkdl( [a-z]+)+", text) is not None
        yield from _check_command([*shlex.split(" ".join(words)), *["--help"] * is_name])
    elif text.startswith("make "):
        yield from _check_command(text.split())
    else:
        yield from check_setting(text)


def check_setting(text: str) -> Iterator[str]:
    """Yield what is wrong with a setting such as `spark.sparkdl.root=/runs`."""
    name = re.split(r"[=\s]", text)[0]
    names = {name for one in SETTINGS.values() for name in (one.variable, one.conf)}
    if name.startswith(("SPARKDL_", "spark.sparkdl.")) and name not in names:
        yield f"there is no setting {name}"


def _check_command(words: list[str]) -> Iterator[str]:
    while words and re.match(r"\w+=", words[0]):
        yield from check_setting(words.pop(0))
    if not words:
        return
    program, *arguments = words
    check = CHECKS.get(program)
    if check is not None:
        yield from check(arguments)
    elif program not in PROGRAMS:
        yield f"unknown program {program}: {' '.join(words)}"
    for word in arguments:
        yield from _check_path(word)
        yield from check_setting(word)


def _check_sparkdl(arguments: list[str]) -> Iterator[str]:
    errors = StringIO()
    try:
        with redirect_stderr(errors), redirect_stdout(StringIO()):
            make_parser().parse_args(arguments)
    except SystemExit as end:
        if end.code:
            yield f"sparkdl {' '.join(arguments)}: {errors.getvalue().splitlines()[-1]}"


def _check_make(arguments: list[str]) -> Iterator[str]:
    makefile = (REPOSITORY / "Makefile").read_text()
    for target in arguments:
        if "=" not in target and not re.search(rf"^{target}:", makefile, re.MULTILINE):
            yield f"there is no target {target}"


def _check_pip(arguments: list[str]) -> Iterator[str]:
    setup = configparser.ConfigParser()
    setup.read(REPOSITORY / "setup.cfg")
    for argument in arguments:
        if extras := re.fullmatch(r"sparkdl(?:-platform)?\[([\w,-]+)\]", argument):
            for extra in extras[1].split(","):
                if extra not in setup["options.extras_require"]:
                    yield f"there is no extra {extra}"


def _check_python(arguments: list[str]) -> Iterator[str]:
    if arguments[:1] == ["-c"]:
        compile(arguments[1], "-c", "exec")
    yield from ()


def _check_path(word: str) -> Iterator[str]:
    """Yield what is wrong with a path in the repository."""
    is_path = re.match(r"(examples|benchmarks|conf|docs|scripts|notebooks)/", word)
    if is_path and not (REPOSITORY / word).exists():
        yield f"there is no {word}"


CHECKS = {
    "make": _check_make,
    "pip": _check_pip,
    "python": _check_python,
    "spark-submit": lambda arguments: iter(()),
    "sparkdl": _check_sparkdl,
}
