"""Runs anywhere (pure). What a task and its training process say to each other.

They share a pair of Unix sockets (SOCK_SEQPACKET) that nobody else can reach. The rows themselves
stand in nameless files: the task writes Arrow IPC messages (the encapsulated message format of
arrow.apache.org/docs/format/Columnar.html) and passes the descriptor of each file once; the
process maps it. So every byte is copied once, and the file is the copy for later passes.

A packet of the task is a header: where a message stands, which dataset it belongs to, how many
rows it holds. The first one is of the schemas. A dataset ends with one that counts all its rows;
what ends without was cut off. An error's text comes behind its header, as no disk may be left.

The training process answers which messages it has taken in to keep, so that the task does not run
too far ahead; or, of rows for a single pass, which it needs no more, so that the task writes the
next ones over them. At last it says how many rows it has got.
"""

import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

__all__ = [
    "AHEAD_BYTES",
    "ANSWER",
    "BATCH",
    "END",
    "ERROR",
    "FREED",
    "HAVE",
    "HEADER",
    "KEPT",
    "LEAST_AHEAD",
    "MOST_TEXT",
    "SCHEMAS",
    "Feed",
    "unpack_schemas",
]

# Kind, number of the dataset, rows, and where the message stands: file, offset and length.
HEADER = struct.Struct("<HHQIQQ")
SCHEMAS, BATCH, END, ERROR = 0, 1, 2, 3

MOST_TEXT = 4096

# So much may be in use by the process; beyond, the task waits, and Spark with it. But so many
# messages always may, however large: a pipeline holds some while it waits for the next one.
AHEAD_BYTES = 256 << 20
LEAST_AHEAD = 8

# Kind, file, and a number of bytes or of rows.
ANSWER = struct.Struct("<HIQ")
KEPT, FREED, HAVE = 0, 1, 2


@dataclass(frozen=True)
class Feed:
    """The datasets that a job's tasks pass on.

    Attributes:
        schemas: the serialized Arrow schema of each, by name, in the order of the numbers.
        packed: those whose rows come as Arrow messages in a binary column, made from an RDD.
        readers: the ranks that get rows.
    """

    schemas: Mapping[str, bytes]
    packed: frozenset[str] = frozenset()
    readers: tuple[int, ...] = (0,)

    def pack_schemas(self) -> bytes:
        """What the first packet refers to."""
        texts = {name: b64encode(schema).decode() for name, schema in self.schemas.items()}
        return json.dumps(texts).encode()


def unpack_schemas(body: bytes) -> dict[str, pa.Schema]:
    """The schemas that `Feed.pack_schemas` packed, by name."""
    return {
        name: pa.ipc.read_schema(pa.py_buffer(b64decode(text)))
        for name, text in json.loads(body).items()
    }
