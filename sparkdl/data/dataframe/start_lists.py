"""Runs in the training process. The lists of the hashes of rows, at each start.

```
<trial>/rows/<digest>       the hashes of the rows of a rank: 8 bytes a row, little-endian
            /<digest>.json  a start: the digest, number of rows and window of each rank
```

Files are named by their content. So no later attempt replaces them by other rows, and a start whose
file exists is complete: it is written last.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

import numpy as np

from sparkdl.context import Context
from sparkdl.data.dataframe.known_order import Hashes, Start
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.files.layout import ROWS, TRIALS
from sparkdl.files.polling import retry
from sparkdl.training.identity import LOCAL

# A store may fail for so long before an operation fails.
PATIENCE_S = 120.0

_T = TypeVar("_T")


@dataclass(frozen=True)
class RankList:
    """The list of a rank, without the hashes.

    Attributes:
        digest: the name of the file with the hashes.
        rows: number of rows.
        window: number of rows that the rank shuffles together; None keeps the order.
    """

    digest: str
    rows: int
    window: int | None


class StartLists:
    """The lists of a trial.

    Args:
        me: the context of the rank.
    """

    def __init__(self, me: Context) -> None:
        self._me = me
        self._url = storage.join(me.url or me.folder or LOCAL, ROWS)

    def write(self, hashes: Hashes, window: int | None) -> RankList:
        """Write the list of this rank.

        Args:
            hashes: the hashes of its rows, an array (rows,).
            window: number of rows that it shuffles together; None keeps the order.
        """
        data = hashes.astype("<u8").tobytes()
        digest = _digest(data)
        _persist(lambda: storage.write(storage.join(self._url, digest), data))
        return RankList(digest, len(hashes), window)

    def finish(self, lists: Sequence[RankList]) -> str:
        """Write a start, the lists of which have been written, and return its name.

        Args:
            lists: the lists of all ranks.
        """
        text = json.dumps({"ranks": [asdict(one) for one in lists]})
        digest = _digest(text.encode())
        _persist(lambda: storage.write(storage.join(self._url, f"{digest}.json"), text))
        return f"{self._me.trial}/{digest}"

    def read(self, name: str) -> Start:
        """Return a start of this trial, or of another trial of the run.

        Args:
            name: the result of `finish`.

        Raises:
            ConfigError: if its files do not exist.
        """
        trial, _, digest = name.partition("/")
        urls = [self._url]
        if self._me.run_path:
            urls.append(storage.join(self._me.run_path, TRIALS, trial, ROWS))
        for url in urls:
            try:
                return _read(url, digest)
            except FileNotFoundError:
                continue
        raise ConfigError(
            "the state of the data is in the middle of an epoch, and the lists of the rows that "
            f"were used in it are in none of {', '.join(urls)}. They are kept until their trial is "
            "COMPLETE or PRUNED, for trials of the same run. Begin the epoch anew, without the "
            "state."
        )


def _read(url: str, digest: str) -> Start:
    text = _persist(lambda: storage.read(storage.join(url, f"{digest}.json")))
    ranks = [RankList(**fields) for fields in json.loads(text)["ranks"]]
    lists = []
    for rank in ranks:
        file = storage.join(url, rank.digest)
        data = _persist(functools.partial(storage.read, file)) if rank.rows else b""
        if _digest(data) != rank.digest:
            raise ConfigError(
                f"the list of used rows {file} is damaged: it has {len(data)} bytes, expected "
                f"{8 * rank.rows}. Begin the epoch anew, without the state."
            )
        lists.append(np.frombuffer(data, "<u8").astype(np.uint64, copy=False))
    return Start(lists, [rank.window for rank in ranks])


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _persist(operation: Callable[[], _T]) -> _T:
    return retry(operation, "use the lists of rows", PATIENCE_S)
