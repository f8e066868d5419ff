"""Runs anywhere. Serialized `tf.train.Example`s as Arrow batches, without TensorFlow.

Records that one program wrote mostly have the same layout: the same names in the same order, with
contents of the same lengths. So a record is taken apart once for each length, and those of that
length that equal it outside of the contents are read column by column, at once. Others are taken
apart one by one. Source of the format: see `encode`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from sparkdl.data.tfexample.columns import Kind

__all__ = ["Examples", "Feature", "NotAnExample", "decode", "features"]

_VARINT, _FIXED_64, _DELIMITED, _FIXED_32 = 0, 1, 2, 5  # The wire types of protobuf.

Ints = Any  # A NumPy array of int64.


class NotAnExample(ValueError):
    """A record holds something else than a `tf.train.Example`, or other features than expected."""


# ---- one record


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at `at`, and where the next byte is; see `encode.varint`."""
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message: number, wire type, and where the value starts and stops."""
    while at < end:
        tag, at = read_varint(data, at)
        wire = tag & 7
        if wire == _DELIMITED:
            length, at = read_varint(data, at)
            stop = at + length
        elif wire == _VARINT:
            stop = read_varint(data, at)[1]
        elif wire in (_FIXED_32, _FIXED_64):
            stop = at + (4 if wire == _FIXED_32 else 8)
        else:
            raise NotAnExample(f"no field begins before its byte {at}")
        if stop > end:
            raise NotAnExample(f"the field at its byte {at} is longer than what it is in")
        yield tag >> 3, wire, at, stop
        at = stop


def _feature(data: bytes, at: int, end: int) -> tuple[Kind | None, list[tuple[int, int]]]:
    """The kind of a feature, and where its content is, which may be in pieces."""
    kind: Kind | None = None
    pieces: list[tuple[int, int]] = []
    for number, wire, start, stop in _fields(data, at, end):
        if wire != _DELIMITED or number not in (1, 2, 3):
            continue
        if number != kind:  # The last one counts.
            kind, pieces = Kind(number), []
        if kind is Kind.BYTES:
            pieces.append((start, stop))
        else:  # Packed into one field by all but rare writers; else a field for each number.
            pieces += [(a, b) for field, _, a, b in _fields(data, start, stop) if field == 1]
    return kind, pieces


def features(record: bytes) -> tuple[dict[str, tuple[Kind, int, int]], bytes]:
    """The features of one Example by name: their kind, and where their content starts and stops.

    A content is what the feature's list has in it: numbers packed together, or a field for each
    value of bytes. Contents that the record has in pieces are put together in the second result;
    their places count on from the record's end.

    Raises:
        NotAnExample: the record is none.

    Example:
        >>> features(b"\\n\\r\\n\\x0b\\n\\x02id\\x12\\x05\\x1a\\x03\\n\\x01\\x07")
        ({'id': (<Kind.INT64: 3>, 14, 15)}, b'')
    """
    found: dict[str, tuple[Kind, int, int]] = {}
    joined = b""
    try:
        for name, start, stop in _entries(record):
            kind, pieces = _feature(record, start, stop)
            found.pop(name, None)
            if kind is None:
                continue
            if len(pieces) > 1:
                begin = len(record) + len(joined)
                joined += b"".join(record[a:b] for a, b in pieces)
                found[name] = kind, begin, len(record) + len(joined)
            else:
                found[name] = (kind, *(pieces[0] if pieces else (start, start)))
    except (IndexError, UnicodeDecodeError) as error:
        raise NotAnExample(f"it ends within a field, or a name is no text: {error}") from error
    return found, joined


def _entries(record: bytes) -> Iterator[tuple[str, int, int]]:
    """The names of an Example's features, and where each feature starts and stops."""
    for number, wire, start, stop in _fields(record, 0, len(record)):
        if (number, wire) != (1, _DELIMITED):
            continue
        for inner, kind, at, end in _fields(record, start, stop):
            entry = {}
            if (inner, kind) == (1, _DELIMITED):
                entry = {n: (a, b) for n, w, a, b in _fields(record, at, end) if w == _DELIMITED}
            if 2 in entry:
                a, b = entry.get(1, (0, 0))
                yield record[a:b].decode(), *entry[2]


# ---- many records


@dataclass
class Feature:
    """One feature in many records.

    Attributes:
        kind: what it holds.
        starts, stops: where its content is in each record; -1 where it is absent.
    """

    kind: Kind
    starts: Ints
    stops: Ints


@dataclass
class Examples:
    """The features of many records.

    Attributes:
        data: what their places are in.
        rows: how many records there are.
        features: by name.
    """

    data: bytes
    rows: int
    features: dict[str, Feature] = field(default_factory=dict)

    def _put(self, name: str, kind: Kind, rows: Any, starts: Any, stops: Any) -> None:
        if name not in self.features:
            self.features[name] = Feature(kind, *np.full((2, self.rows), -1))
        feature = self.features[name]
        if feature.kind is not kind:
            raise NotAnExample(
                f"feature {name!r} holds {kind.name} here, and {feature.kind.name} in a record "
                "before; expected one kind"
            )
        feature.starts[rows], feature.stops[rows] = starts, stops

    def content(self, name: str) -> tuple[bytes, Ints]:
        """All contents of a feature together, and the length of each; -1 where it is absent."""
        feature = self.features[name]
        starts = feature.starts[feature.starts >= 0]
        stops = feature.stops[feature.starts >= 0]
        each = int(stops[0] - starts[0]) if len(starts) else 0
        if each and (stops - starts == each).all():
            data = sliding_window_view(np.frombuffer(self.data, np.uint8), each)[starts].tobytes()
        else:
            pairs = zip(starts.tolist(), stops.tolist(), strict=True)
            data = b"".join([self.data[start:stop] for start, stop in pairs])
        return data, np.where(feature.starts < 0, -1, feature.stops - feature.starts)


def decode(data: bytes, spans: Sequence[tuple[int, int]], names: Sequence[str] | None) -> Examples:
    """Find the features of many records.

    Args:
        data: the records.
        spans: where each starts and stops.
        names: the features that are wanted; None for all.

    Raises:
        NotAnExample: a record is none, or a feature changes its kind.

    Example:
        >>> import pyarrow as pa
        >>> from sparkdl.data.tfexample.encode import encode
        >>> from sparkdl.data.tfexample.columns import Column
        >>> batch = pa.RecordBatch.from_pydict({"id": [7, 300]})
        >>> one, two = encode(batch, [Column("id", Kind.INT64, pa.int64())])
        >>> places = [(0, len(one)), (len(one), len(one + two))]
        >>> decode(one + two, places, None).content("id")
        (b'\\x07\\xac\\x02', array([1, 2]))
    """
    begins, ends = np.array(spans, np.int64).reshape(-1, 2).T
    found = Examples(data, len(begins))
    pieces, size = [data], len(data)
    for rows in _by_length(ends - begins):
        alike = _alike(found, rows, begins, int(ends[rows[0]] - begins[rows[0]]), names)
        for row in rows[~alike].tolist():
            record = data[begins[row] : ends[row]]
            contents, joined = features(record)
            for name in contents if names is None else set(contents).intersection(names):
                kind, start, stop = contents[name]
                begin = begins[row] if start < len(record) or start == stop else size - len(record)
                found._put(name, kind, row, begin + start, begin + stop)
            if joined:
                pieces.append(joined)
                size += len(joined)
    found.data = b"".join(pieces) if len(pieces) > 1 else data
    return found


def _by_length(lengths: Ints) -> list[Ints]:
    order = np.argsort(lengths, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1) if len(order) else []


def _alike(
    found: Examples, rows: Ints, begins: Ints, length: int, names: Sequence[str] | None
) -> Any:
    """Which of these rows, all of one length, have the first one's layout. Theirs is put down."""
    if len(rows) < 2 or not length:
        return np.zeros(len(rows), bool)
    first = begins[rows[0]]
    contents, joined = features(found.data[first : first + length])
    if joined:
        return np.zeros(len(rows), bool)
    records = sliding_window_view(np.frombuffer(found.data, np.uint8), length)[begins[rows]]
    layout = np.full(length, 0xFF, np.uint8)
    for _, start, stop in contents.values():
        layout[start:stop] = 0
    alike = ~((records ^ records[0]) & layout).any(axis=1)
    for name in contents if names is None else set(contents).intersection(names):
        kind, start, stop = contents[name]
        found._put(name, kind, rows[alike], begins[rows[alike]] + start, begins[rows[alike]] + stop)
    return alike
