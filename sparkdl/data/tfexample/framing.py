"""Runs anywhere. Find, check and write the records of a TFRecord file.

A record is `uint64 length, uint32 crc(length), data, uint32 crc(data)`, little-endian, where crc is
a masked CRC32C; a compressed file is a gzip or zlib stream of records. Source of the format:
https://www.tensorflow.org/tutorials/load_data/tfrecord and tensorflow's `record_writer.h`.
"""

import mmap
import struct
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from functools import lru_cache

import google_crc32c

from sparkdl.data.ahead import map_ahead
from sparkdl.data.tfexample.marks import Marks
from sparkdl.files import storage

COMPRESSIONS = ("gzip", "zlib")
HEADER, FOOTER = 12, 4

# Bytes of a file that are read at once; large, because each request to an object store is slow.
CHUNK_BYTES = 8 << 20
# The same for a file whose records are only counted: several files are counted at a time.
MEASURED_BYTES = 4 << 20
# Chunks of a remote file that are asked for at the same time; one for each of these bytes of
# a chunk, since small chunks mean that many files are read at once.
CHUNKS_AHEAD = 4
BYTES_PER_AHEAD = 2 << 20
_WINDOW_BITS = 32 + zlib.MAX_WBITS  # With 32, zlib detects gzip and zlib streams.


class CorruptRecord(ValueError):
    """Raised for a file that is cut off or damaged, or is not a TFRecord file."""


def masked_crc(data: bytes) -> int:
    """Return the CRC32C of a record, masked like in TensorFlow's `crc32c.h`.

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
    """Return records with their lengths and checksums, as they are written to a file.

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


def ends(records: Iterable[bytes], begin: int = 0) -> Iterator[int]:
    """Yield where each record ends in a file that has the first one at `begin`.

    Example:
        >>> list(ends([b"one", b"three"]))
        [19, 40]
    """
    for record in records:
        begin += HEADER + len(record) + FOOTER
        yield begin


def spans(
    data: bytes | mmap.mmap, url: str, offset: int = 0, check: bool = True
) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of the data of each complete record.

    Args:
        data: consecutive records; a last record that is cut off is left out.
        url: the file, for the error message.
        offset: position of `data` in the (uncompressed) file, for the error message.
        check: check the data as well as the lengths; False skips the data.

    Raises:
        CorruptRecord: if a checksum does not match.
    """
    position = 0
    end = len(data)
    unpack_length, unpack_crc = struct.Struct("<Q").unpack_from, struct.Struct("<I").unpack_from
    while position + HEADER <= end:
        (length,) = unpack_length(data, position)
        if data[position : position + HEADER] != _header(length):
            place = f"the length of the record at byte {offset + position}"
            raise _corrupt(url, f"checksum mismatch in {place}")
        start, stop = position + HEADER, position + HEADER + length
        if stop + FOOTER > end:
            return
        if check and masked_crc(data[start:stop]) != unpack_crc(data, stop)[0]:
            place = f"the data of the record at byte {offset + position}"
            raise _corrupt(url, f"checksum mismatch in {place}")
        yield start, stop
        position = stop + FOOTER


def _corrupt(url: str, problem: str) -> CorruptRecord:
    return CorruptRecord(
        f"corrupt TFRecord file {url!r}: {problem}. Write the file again, or leave it out."
    )


def compression_of(url: str, compression: str | None = "auto") -> str | None:
    """Return the compression of a file: `gzip`, `zlib` or None.

    Args:
        url: the file.
        compression: the compression if it is known; `auto` detects it from the first bytes.

    Raises:
        CorruptRecord: if the first bytes are not those of a TFRecord file.
        FileNotFoundError: if there is no such file.
    """
    if compression != "auto":
        return compression
    first = storage.read(url, 0, HEADER)
    if not first or first == _header(int.from_bytes(first[:8], "little")):
        return None
    if first[:2] == b"\x1f\x8b":
        return "gzip"
    # https://www.rfc-editor.org/rfc/rfc1950: method 8, and the first two bytes are a multiple of
    # 31.
    if first[0] & 0xF == 8 and int.from_bytes(first[:2], "big") % 31 == 0:
        return "zlib"
    raise _corrupt(url, "it starts with neither a record, gzip nor zlib, at byte 0")


def _blocks(url: str, num_bytes: int, begin: int, end: int | None) -> Generator[bytes, None, None]:
    """Yield the bytes of a part of a file; with an end, several are asked for at the same time."""
    if end is None:
        while block := storage.read(url, begin, num_bytes):
            yield block
            begin += len(block)
            if len(block) < num_bytes:
                return
        return
    places = [(at, min(num_bytes, end - at)) for at in range(begin, end, num_bytes)]
    if storage.is_local(url) or len(places) == 1:
        yield from (storage.read(url, *place) for place in places)
    else:
        num_ahead = min(max(num_bytes // BYTES_PER_AHEAD, 1), CHUNKS_AHEAD)
        yield from map_ahead(lambda place: storage.read(url, *place), places, num_ahead)


def _inflated(blocks: Iterable[bytes], url: str) -> Iterator[bytes]:
    """Yield the decompressed content of blocks, in pieces of at most `CHUNK_BYTES`."""
    inflate = zlib.decompressobj(_WINDOW_BITS)
    num_read = 0
    for block in blocks:
        num_read += len(block)
        data = b""
        # After a full piece, zlib may hold more data although the whole block has been consumed.
        while block or (len(data) == CHUNK_BYTES and not inflate.eof):
            if inflate.eof:  # A file may have several streams, one after the other.
                inflate = zlib.decompressobj(_WINDOW_BITS)
            try:
                data = inflate.decompress(block, CHUNK_BYTES)
            except zlib.error as error:
                position = num_read - len(block)
                raise _corrupt(
                    url, f"cannot be decompressed at byte {position}: {error}"
                ) from error
            yield data
            block = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
    if num_read and not inflate.eof:
        raise _corrupt(url, f"the compressed stream is cut off at byte {num_read}")


def chunks(
    url: str,
    compression: str | None,
    check: bool = True,
    num_bytes: int = CHUNK_BYTES,
    begin: int = 0,
    end: int | None = None,
) -> Iterator[tuple[int, bytes, list[tuple[int, int]]]]:
    """Yield the records of a file in chunks: position in the file, bytes, and spans of the records.

    Args:
        url: the file.
        compression: `gzip`, `zlib` or None.
        check: see `spans`.
        num_bytes: number of bytes that are read at once.
        begin: position of the first record to read; 0 in a compressed file.
        end: position of the end of the last record to read, or of the file if that is known. Chunks
            of a remote file are then asked for before they are needed.

    Raises:
        CorruptRecord: if the file is damaged, or ends within a record.
    """
    blocks = _blocks(url, num_bytes, begin, end)
    offset = begin
    data = b""
    with closing(blocks):
        for block in _inflated(blocks, url) if compression else blocks:
            data += block
            record_spans = list(spans(data, url, offset, check))
            if record_spans:
                yield offset, data, record_spans
                consumed = record_spans[-1][1] + FOOTER
                offset, data = offset + consumed, data[consumed:]
    if data:
        raise _cut_off(url, offset, len(data))


def _cut_off(url: str, offset: int, length: int) -> CorruptRecord:
    return _corrupt(
        url, f"the record at byte {offset} is cut off: the file ends {length} bytes after its start"
    )


def measure(
    url: str, compression: str | None, size: int | None = None, marks: Marks | None = None
) -> tuple[int, int]:
    """Return the number of records of a file, and its uncompressed size in bytes.

    The data of the records is not checked, and not read in an uncompressed local file.

    Args:
        url: the file.
        compression: `gzip`, `zlib` or None.
        size: the size of the file if it is known.
        marks: gets the places of records, unless the file is compressed.

    Raises:
        CorruptRecord: if a record's length is damaged, or the file ends within a record.
    """
    counted = Marks() if marks is None or compression else marks
    if compression or not storage.is_local(url):
        for offset, _, found in chunks(url, compression, False, MEASURED_BYTES, end=size):
            counted.add(offset + stop + FOOTER for _, stop in found)
        return counted.rows_seen, counted.end
    if not (size := storage.size(url)):
        return 0, 0
    with (
        storage.local_path(url).open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        counted.add(stop + FOOTER for _, stop in spans(data, url, check=False))
    if counted.end < size:
        raise _cut_off(url, counted.end, size - counted.end)
    return counted.rows_seen, counted.end
