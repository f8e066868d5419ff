"""Runs in the training process and on the driver. The values that a function returns on all ranks.

Each rank writes its value as JSON into the folder of the trial, from where the driver reads them: a
rank that has called `hvd.shutdown` cannot send it to the others any more.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkdl import context, storage
from sparkdl.horovod.objects import decoded, encoded

__all__ = ["call_and_keep", "kept"]

_FOLDER = "results"


def call_and_keep(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Call a function on a rank and keep its value.

    Args:
        function, args, kwargs: the function and its arguments.

    Raises:
        TypeError: if the value cannot travel, see `encoded`.
    """
    text = json.dumps(encoded(function(*args, **kwargs)))
    me = context.current()
    file = Path(me.folder or ".", _FOLDER, f"{me.rank}.json")
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


def kept(folder: str) -> list[Any]:
    """Return the values of all ranks, by rank.

    Args:
        folder: path or URL of the folder of the trial.
    """
    results = storage.join(folder, _FOLDER)
    ranks = sorted(int(name.removesuffix(".json")) for name in storage.list_names(results))
    return [decoded(json.loads(storage.read(storage.join(results, f"{r}.json")))) for r in ranks]
