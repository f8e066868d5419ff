"""Runs on the driver and in Spark tasks. The files of a cluster's nodes beside those of any gang.

The driver gives three orders: `FEED_OVER` when no more rows come, `OVER` to the nodes that need not
return, and `END` to all nodes. Each node leaves its outcome as a message, so that the tasks that
feed it can read the outcome too. Each node supervisor shows that it lives by a changing message.
"""

import base64
import hmac
import json
from collections.abc import Collection
from dataclasses import replace

from sparkdl.cluster.outcome import Outcome
from sparkdl.files.polling import poll_s
from sparkdl.files.rank_files import RankFiles
from sparkdl.secrets.masks import mask_text

FEED_OVER = "feed-over"
OVER = "over"
END = "end"

# Seconds between two messages of a node supervisor, and how many all of a cluster write to a store.
BEAT_S = 1.0
REMOTE_BEAT_S = 3.0
MAX_BEATS_PER_S = 20

# The variable that gives a node the `address:port` of all nodes, by name.
NODES = "SPARKDL_NODES"

ALIVE = "alive"
MET = "met"
OUTCOME = "row"


def beat_s(url: str, num_nodes: int, local_s: float = BEAT_S) -> float:
    """Return the seconds between two messages by which a node supervisor shows that it lives.

    Example:
        >>> beat_s("/runs/a", 200), beat_s("s3://bucket/a", 2), beat_s("s3://bucket/a", 200)
        (1.0, 3.0, 10.0)
    """
    return poll_s(url, local_s, max(REMOTE_BEAT_S, num_nodes / MAX_BEATS_PER_S))


def post_outcome(
    files: RankFiles,
    rank: int,
    outcome: Outcome,
    secret: bytes,
    masked: Collection[str] = (),
) -> None:
    """Leave the outcome of a node in the run directory.

    Args:
        files: the files of the attempt.
        rank: the rank of the node.
        outcome: the outcome.
        secret: the secret of the run. The pickled exception is left out without one: no reader
            could tell that the exception is from a node of the run.
        masked: values that must not be in any file. A pickled exception with a credential in it is
            left out.
    """
    record = {"outcome": outcome.without_exception().to_json()}
    text = (outcome.exception or b"").decode(errors="surrogateescape")
    if text and secret and mask_text(text, masked) == text:
        pickled = text.encode(errors="surrogateescape")
        record["exception"] = base64.b64encode(pickled).decode()
        record["proof"] = hmac.digest(secret, pickled, "sha256").hex()
    files.post(rank, OUTCOME, json.dumps(record))


def read_outcome(files: RankFiles, rank: int, secret: bytes = b"") -> Outcome:
    """Return the outcome that a node has left.

    Args:
        files: the files of the attempt.
        rank: the rank of the node.
        secret: the secret of the run. Only with it is the exception of the node returned, if the
            node that pickled the exception knew the secret.
    """
    record = json.loads(files.read(rank, OUTCOME))
    # Others may write to the run directory: an exception counts only with its proof.
    outcome = Outcome.from_json(record["outcome"]).without_exception()
    if secret and "exception" in record:
        pickled = base64.b64decode(record["exception"])
        proof = hmac.digest(secret, pickled, "sha256").hex()
        if hmac.compare_digest(proof, record["proof"]):
            return replace(outcome, exception=pickled)
    return outcome
