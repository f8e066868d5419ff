"""Runs anywhere (pure). The protocol between a Spark task and its training process.

The two sides share a pair of Unix sockets (SOCK_SEQPACKET) that no other process can reach. The
rows are not sent through the socket: the task writes them to unnamed files as Arrow IPC messages
(the encapsulated message format of arrow.apache.org/docs/format/Columnar.html) and passes the
descriptor of each file once; the training process maps the file. Every byte is copied once, and the
file serves as the copy for later passes.

A packet of the task is a header: the place of a message, the dataset that the message belongs to,
and its number of rows. The first packet refers to the schemas. The last packet of a dataset has the
total number of its rows; a dataset without such a packet was cut off. The text of an error follows
its header in the same packet, because the disk may be full.

The training process answers with the messages that it has received. A message that is kept for
later passes is answered at once, so that the task does not run too far ahead; a message for a
single pass is answered when it is no longer used, and the task then overwrites it. A process that
will not read all rows, or read them once only, says so as soon as it is known. Finally the training
process sends the number of rows that it has received.

The packets and files of one task can serve other training processes: see `RowCopy`.
"""

import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

# Kind, number of the dataset, rows, and the place of the message: file, offset and length.
HEADER = struct.Struct("<HHQIQQ")
SCHEMAS, BATCH, END, ERROR = 0, 1, 2, 3

MAX_TEXT_BYTES = 4096

# The task, and Spark with it, waits while the training process has more unanswered bytes than
# MAX_AHEAD_BYTES. The first MIN_AHEAD_MESSAGES messages are exempt, however large they are: a
# pipeline holds some messages while it waits for the next one.
MAX_AHEAD_BYTES = 256 << 20
MIN_AHEAD_MESSAGES = 8

# Kind, file, and a number of bytes or of rows.
ANSWER = struct.Struct("<HIQ")
KEPT, FREED, RECEIVED, PART = 0, 1, 2, 3


class RowCopy(NamedTuple):
    """All packets that a task has sent, for further training processes.

    Attributes:
        headers: the headers of the packets, one after the other.
        descriptors: the descriptors of the files with the messages, by the number of the file.
    """

    headers: bytes
    descriptors: list[int]


@dataclass(frozen=True)
class Feed:
    """The datasets that the tasks of a job pass to their training processes.

    Attributes:
        schemas: the serialized Arrow schema of each dataset by name; their order numbers the
            datasets.
        packed_names: names of the datasets made from RDDs, whose rows are Arrow messages in a
            binary column.
        readers: the ranks that get rows.
        copy_key: a name that no other run has, if the trials of an executor share a copy of the
            rows; None if they do not.
        is_in_partition: False if the partition does not have the rows, as there is a copy.
    """

    schemas: Mapping[str, bytes]
    packed_names: frozenset[str] = frozenset()
    readers: tuple[int, ...] = (0,)
    copy_key: str | None = None
    is_in_partition: bool = True

    def pack_schemas(self) -> bytes:
        """Return the message of the first packet."""
        texts = {name: b64encode(schema).decode() for name, schema in self.schemas.items()}
        return json.dumps(texts).encode()


def unpack_schemas(body: bytes) -> "dict[str, pa.Schema]":
    """Return the schemas by name from the result of `Feed.pack_schemas`."""
    import pyarrow as pa

    return {
        name: pa.ipc.read_schema(pa.py_buffer(b64decode(text)))
        for name, text in json.loads(body).items()
    }
