"""Runs anywhere. How records stand in a TFRecord file: found, checked and written.

A record is `uint64 length, uint32 crc(length), data, uint32 crc(data)`, little-endian, where crc is
a masked CRC32C; a compressed file is one gzip or zlib stream of them. Source of the format:
https://www.tensorflow.org/tutorials/load_data/tfrecord and tensorflow's `record_writer.h`.
"""

import mmap
import struct
import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache

import google_crc32c

from sparkdl import storage

__all__ = ["COMPRESSIONS", "CorruptRecord", "chunks", "compression_of", "frame", "measure", "spans"]

COMPRESSIONS = ("gzip", "zlib")
HEADER, FOOTER = 12, 4

# How much of a file is read at once: a request to an object store should be worth its while.
CHUNK_BYTES = 8 << 20
_WINDOW_BITS = 32 + zlib.MAX_WBITS  # zlib then tells gzip and zlib apart itself.


class CorruptRecord(ValueError):
    """A file is cut off, was damaged, or holds no TFRecords."""


def masked_crc(data: bytes) -> int:
    """The checksum of a record, as TensorFlow's `crc32c.h` masks it.

    Example:
        >>> hex(masked_crc(b"123456789"))
        '0xc78ab0e5'
    """
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@lru_cache(maxsize=1 << 16)
def _header(length: int) -> bytes:
    number = struct.pack("<Q", length)
    return number + struct.pack("<I", masked_crc(number))


def frame(records: Iterable[bytes]) -> bytes:
    """Records as they stand in a file.

    Example:
        >>> data = frame([b"one", b"three"])
        >>> [data[start:stop] for start, stop in spans(data, "numbers.tfrecord")]
        [b'one', b'three']
    """
    parts: list[bytes] = []
    pack = struct.Struct("<I").pack
    for record in records:
        parts += (_header(len(record)), record, pack(masked_crc(record)))
    return b"".join(parts)


def spans(
    data: bytes | mmap.mmap, url: str, offset: int = 0, check: bool = True
) -> Iterator[tuple[int, int]]:
    """Where the data of each whole record of `data` starts and stops.

    Args:
        data: consecutive records; the last may be cut off, and is left out.
        url: the file, for the message.
        offset: where in the (uncompressed) file `data` begins, for the message.
        check: check the data as well; False hops over it.

    Raises:
        CorruptRecord: a checksum is wrong.
    """
    at, end = 0, len(data)
    unpack_length, unpack_crc = struct.Struct("<Q").unpack_from, struct.Struct("<I").unpack_from
    while at + HEADER <= end:
        (length,) = unpack_length(data, at)
        if data[at : at + HEADER] != _header(length):
            raise _corrupt(url, offset + at, "its length does not match its checksum")
        start, stop = at + HEADER, at + HEADER + length
        if stop + FOOTER > end:
            return
        if check and masked_crc(data[start:stop]) != unpack_crc(data, stop)[0]:
            raise _corrupt(url, offset + at, "its data do not match their checksum")
        yield start, stop
        at = stop + FOOTER


def _corrupt(url: str, offset: int, what: str) -> CorruptRecord:
    return CorruptRecord(
        f"{url!r} is no sound TFRecord file: the record at byte {offset}: {what}. Write the file "
        "again, or leave it out."
    )


def compression_of(url: str, given: str | None = "auto") -> str | None:
    """How a file is compressed: `gzip`, `zlib` or None, by its first bytes where `given` is auto.

    Raises:
        CorruptRecord: they are those of no TFRecord file.
        FileNotFoundError: there is no such file.
    """
    if given != "auto":
        return given
    first = storage.read(url, 0, HEADER)
    if not first or first == _header(int.from_bytes(first[:8], "little")):
        return None
    if first[:2] == b"\x1f\x8b":
        return "gzip"
    # https://www.rfc-editor.org/rfc/rfc1950: method 8, and a check of the first two bytes.
    if first[0] & 0xF == 8 and int.from_bytes(first[:2], "big") % 31 == 0:
        return "zlib"
    raise _corrupt(url, 0, "it begins as neither a record, gzip nor zlib does")


def _blocks(url: str) -> Iterator[bytes]:
    offset = 0
    while block := storage.read(url, offset, CHUNK_BYTES):
        yield block
        offset += len(block)
        if len(block) < CHUNK_BYTES:
            return


def _inflated(blocks: Iterable[bytes], url: str) -> Iterator[bytes]:
    """What compressed blocks hold, in pieces of at most `CHUNK_BYTES`."""
    inflate, read = zlib.decompressobj(_WINDOW_BITS), 0
    for block in blocks:
        read += len(block)
        data = b""
        # A full piece may have left some of itself behind, even if all of the block is read.
        while block or (len(data) == CHUNK_BYTES and not inflate.eof):
            if inflate.eof:  # Several streams may follow each other in one file.
                inflate = zlib.decompressobj(_WINDOW_BITS)
            try:
                data = inflate.decompress(block, CHUNK_BYTES)
            except zlib.error as error:
                raise _corrupt(url, read - len(block), f"not decompressed: {error}") from error
            yield data
            block = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
    if read and not inflate.eof:
        raise _corrupt(url, read, "the compressed file ends before its end")


def chunks(
    url: str, compression: str | None, check: bool = True
) -> Iterator[tuple[int, bytes, list[tuple[int, int]]]]:
    """The file's records in chunks: where a chunk begins in the file, its bytes, and their spans.

    Args:
        url: the file.
        compression: `gzip`, `zlib` or None.
        check: see `spans`.

    Raises:
        CorruptRecord: the file is damaged, or ends within a record.
    """
    blocks = _blocks(url)
    offset, data = 0, b""
    for block in _inflated(blocks, url) if compression else blocks:
        data += block
        found = list(spans(data, url, offset, check))
        if found:
            yield offset, data, found
            done = found[-1][1] + FOOTER
            offset, data = offset + done, data[done:]
    if data:
        raise _cut(url, offset, len(data))


def _cut(url: str, offset: int, length: int) -> CorruptRecord:
    return _corrupt(url, offset, f"the file ends {length} bytes after its begin")


def measure(url: str, compression: str | None) -> tuple[int, int]:
    """How many records a file has, and their bytes with what is around them, uncompressed.

    Where it can it hops over the data; it does not check them.

    Raises:
        CorruptRecord: a record's length is damaged, or the file ends within a record.
    """
    rows = end = 0
    if compression or not storage.is_local(url):
        for offset, _, found in chunks(url, compression, check=False):
            rows, end = rows + len(found), offset + found[-1][1] + FOOTER
        return rows, end
    if not (size := storage.size(url)):
        return 0, 0
    with (
        storage.local_path(url).open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        for _, stop in spans(data, url, check=False):
            rows, end = rows + 1, stop + FOOTER
    if end < size:
        raise _cut(url, end, size - end)
    return rows, end
