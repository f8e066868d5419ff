"""Processes that export versions of one model at once; the first is killed in the middle.

Prints the exit codes. The processes are forked after the imports, so that they start together.
"""

import json
import multiprocessing
import os
import signal
import sys
from typing import Any

from sparkdl import models
from sparkdl.files import storage


def export(path: str, root: str, number: int) -> None:
    models.export(path, "digits", metrics={"number": number}, root=root)


def export_and_be_killed(path: str, root: str) -> None:
    """Take a number, and die before the last file is there."""

    def die(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    # On a local disk the folder is renamed at the end; elsewhere the files are uploaded.
    storage.rename = die
    put = storage.put
    storage.put = lambda *arguments: die() if "variables" in arguments[1] else put(*arguments)
    models.export(path, "digits", root=root)


def main(path: str, root: str, number: str) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=export_and_be_killed, args=(path, root))]
    processes += [
        context.Process(target=export, args=(path, root, number)) for number in range(int(number))
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print(json.dumps([process.exitcode for process in processes]))


if __name__ == "__main__":
    main(*sys.argv[1:])
