"""Runs in the training process. The header by which ranks notice that their collectives differ."""

import struct
import zlib
from typing import Any

OPERATIONS = ("sum", "mean", "min", "max", "product")

# Each rank sends a header before each collective: number of collectives before, index in CALLS,
# index in OPERATIONS or root, checksum of dtype and shape, number of bytes, and dtype and shape as
# text for the error, the beginning of it if it is long.
HEADER = struct.Struct("<QHIIQ48s")
CALLS = (
    *("allreduce", "reduce_scatter", "broadcast", "allgather", "alltoall", "vote", "swap"),
    "reduce_part",
)


def pack_header(number: int, call: str, detail: int, array: Any) -> bytes:
    """Return the header of a collective.

    Args:
        number: number of collectives before.
        call: one of CALLS.
        detail: index in OPERATIONS, or root.
        array: array whose dtype and shape the header describes.
    """
    text = f"{array.dtype} {array.shape}".encode()
    # The text of a dtype lacks the byte order of this machine; `str` has it, and no name.
    checksum = zlib.crc32(text + array.dtype.str.encode())
    return HEADER.pack(number, CALLS.index(call), detail, checksum, array.nbytes, text)


def check_header(own_header: bytes, received_header: bytes | bytearray) -> None:
    """Validate that another rank has called the same collective.

    Raises:
        RuntimeError: if the headers differ.
    """
    if received_header == own_header:
        return
    raise _difference(HEADER.unpack(own_header), HEADER.unpack(received_header))


def check_vote(own_header: bytes, received_header: bytes | bytearray, is_same: bool) -> int:
    """Validate that another rank votes too; return the number of bytes that follow its header.

    Arrays of both ranks must be equal in shape and dtype. Ranks with the same vote must both have
    an array, or none of them.

    Args:
        own_header: the header of this rank.
        received_header: the header of the other rank.
        is_same: both ranks vote the same.

    Raises:
        RuntimeError: if it does not.
    """
    ours, theirs = HEADER.unpack(own_header), HEADER.unpack(received_header)
    has_arrays = (ours[4] or theirs[4]) if is_same else (ours[4] and theirs[4])
    if ours[:2] != theirs[:2] or (has_arrays and ours != theirs):
        raise _difference(ours, theirs)
    return int(theirs[4])


def check_call(own_header: bytes, other_header: bytes) -> None:
    """Validate that another rank has not called another collective as the same number.

    Raises:
        RuntimeError: if it has.
    """
    ours, theirs = HEADER.unpack(own_header), HEADER.unpack(other_header)
    are_votes = ours[1] == theirs[1] == CALLS.index("vote")
    if ours[0] == theirs[0] and ours != theirs and not are_votes:
        raise _difference(ours, theirs)


def _difference(ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> RuntimeError:
    return RuntimeError(
        f"the ranks do not call the same collectives: this rank called {_description(ours)}, and "
        f"another rank {_description(theirs)}"
        f"{'' if ours[3] == theirs[3] else ' of another dtype or shape'}. All ranks must call the "
        "same collectives in the same order, with the same shapes and dtypes."
    )


def _description(header: tuple[Any, ...]) -> str:
    number, call, detail, _, nbytes, text = header
    name = CALLS[call] if call < len(CALLS) else "an unknown collective"
    how = {
        "broadcast": f"from rank {detail} ",
        "allgather": "",
        "alltoall": "",
        "vote": "",
        "swap": "",
    }
    operation = f"({OPERATIONS[detail]}) " if detail < len(OPERATIONS) else ""
    array = text.rstrip(b"\0").decode(errors="replace")
    return f"{name} {how.get(name, operation)}of {array}, {nbytes} bytes, as number {number}"
