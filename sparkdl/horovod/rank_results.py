"""Runs in the training process. Keep the values that a function returns on all ranks.

Each rank writes its value into the folder of the trial, from where the driver reads them: a rank
that has called `hvd.shutdown` cannot send it to the others any more.
"""

import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparkdl import context
from sparkdl.files.layout import TrialPaths
from sparkdl.files.returned_values import keep
from sparkdl.secrets.masks import mask_value
from sparkdl.secrets.names import known_secrets

__all__ = ["call_and_keep"]


def call_and_keep(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Call a function on a rank and keep its value, see `returned_values`.

    Args:
        function, args, kwargs: the function and its arguments.
    """
    me = context.current()
    folder = Path(me.folder or ".")
    returned = function(*args, **kwargs)
    mask = functools.partial(mask_value, secrets=known_secrets(os.environ))
    value = keep(returned, f"rank-{me.rank}", folder, mask)
    file = Path(TrialPaths(str(folder)).result_of(me.rank))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value.typed))
