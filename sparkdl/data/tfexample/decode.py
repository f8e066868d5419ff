"""Runs anywhere. Find the features of serialized `tf.train.Example`s, without TensorFlow.

Most records written by one program have the same layout: the same names in the same order, with
contents of the same lengths. One record of each length is parsed, and all records that equal it
outside of the contents are read together, column by column. Other records are parsed one by one.
Source of the format: see `encode`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from sparkdl.data.tfexample.columns import Kind

_VARINT, _FIXED_64, _DELIMITED, _FIXED_32 = 0, 1, 2, 5  # The wire types of protobuf.

Ints = Any  # A NumPy array of int64.


class NotAnExample(ValueError):
    """Raised for a record that is not a `tf.train.Example`, or has other features than expected."""


# ---- one record


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number that starts at `position`, and the position after it.

    See `encode.varint` for the format.
    """
    number = shift = 0
    while True:
        byte = data[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return number, position


def _fields(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of a message: number, wire type, and start and stop of the value."""
    while position < end:
        tag, position = read_varint(data, position)
        wire = tag & 7
        if wire == _DELIMITED:
            length, position = read_varint(data, position)
            stop = position + length
        elif wire == _VARINT:
            stop = read_varint(data, position)[1]
        elif wire in (_FIXED_32, _FIXED_64):
            stop = position + (4 if wire == _FIXED_32 else 8)
        else:
            raise NotAnExample(f"invalid wire type {wire} before byte {position}")
        if stop > end:
            raise NotAnExample(f"the field at byte {position} is longer than its message")
        yield tag >> 3, wire, position, stop
        position = stop


def _feature(data: bytes, position: int, end: int) -> tuple[Kind | None, list[tuple[int, int]]]:
    """Return the kind of a feature, and (start, stop) of each piece of its content."""
    kind: Kind | None = None
    pieces: list[tuple[int, int]] = []
    for number, wire, start, stop in _fields(data, position, end):
        if wire != _DELIMITED or number not in (1, 2, 3):
            continue
        if number != kind:  # In protobuf, the last field of a `oneof` wins.
            kind = Kind(number)
            pieces = []
        if kind is Kind.BYTES:
            pieces.append((start, stop))
        else:  # Most writers pack all numbers into one field; others write a field per number.
            pieces += [(a, b) for field, _, a, b in _fields(data, start, stop) if field == 1]
    return kind, pieces


def _feature_list(
    data: bytes, name: str, position: int, end: int
) -> tuple[Kind | None, list[tuple[int, int]]]:
    """Return the kind of a feature list, and (start, stop) of each piece of its content.

    With one value in each step, it has the content of a feature with all values.
    """
    kind: Kind | None = None
    pieces: list[tuple[int, int]] = []
    for number, wire, start, stop in _fields(data, position, end):
        if (number, wire) != (1, _DELIMITED):
            continue
        step_kind, step = _feature(data, start, stop)
        num_values = sum(_num_values(step_kind, data, a, b) for a, b in step)
        if num_values != 1:
            raise NotAnExample(
                f"feature list {name!r} has {num_values} values in a step; expected one. Write a "
                "feature list for each of the values"
            )
        if kind not in (None, step_kind):
            raise NotAnExample(f"feature list {name!r} has steps of several kinds; expected one")
        kind, pieces = step_kind, pieces + step
    return kind, pieces


def _num_values(kind: Kind | None, data: bytes, start: int, stop: int) -> int:
    if kind is Kind.FLOAT:
        return (stop - start) // 4
    if kind is Kind.INT64:
        return sum(byte < 0x80 for byte in data[start:stop])
    return sum(1 for _ in _fields(data, start, stop))


def features(record: bytes) -> tuple[dict[str, tuple[Kind, int, int]], bytes, set[str]]:
    """Return the features of one Example: kind, start and stop of the content, by name.

    The content of a feature is the content of its list: packed numbers, or a field for each bytes
    value. Contents that are in several pieces are joined in the second result; their positions
    continue after the end of the record. The third result has the names of the feature lists, if
    the record is a SequenceExample.

    Raises:
        NotAnExample: if the record is not an Example, or a feature list has a step that has not one
            value.

    Example:
        >>> features(b"\\n\\r\\n\\x0b\\n\\x02id\\x12\\x05\\x1a\\x03\\n\\x01\\x07")
        ({'id': (<Kind.INT64: 3>, 14, 15)}, b'', set())
    """
    contents: dict[str, tuple[Kind, int, int]] = {}
    joined = b""
    lists: set[str] = set()
    try:
        for is_list, name, start, stop in _entries(record):
            if is_list:
                if name in contents and name not in lists:
                    raise NotAnExample(f"{name!r} is a feature of the context and a feature list")
                lists.add(name)
                kind, pieces = _feature_list(record, name, start, stop)
            else:
                kind, pieces = _feature(record, start, stop)
            contents.pop(name, None)
            if kind is None:
                continue
            if len(pieces) > 1:
                begin = len(record) + len(joined)
                joined += b"".join(record[a:b] for a, b in pieces)
                contents[name] = kind, begin, len(record) + len(joined)
            else:
                contents[name] = (kind, *(pieces[0] if pieces else (start, start)))
    except (IndexError, UnicodeDecodeError) as error:
        raise NotAnExample(
            f"the record ends within a field, or a name is not text: {error}"
        ) from error
    return contents, joined, lists


def _entries(record: bytes) -> Iterator[tuple[bool, str, int, int]]:
    """Yield each feature of an Example: True if it is a feature list, name, start and stop."""
    for number, wire, start, stop in _fields(record, 0, len(record)):
        if number not in (1, 2) or wire != _DELIMITED:
            continue
        for inner, inner_wire, begin, end in _fields(record, start, stop):
            entry = {}
            if (inner, inner_wire) == (1, _DELIMITED):
                entry = {n: (a, b) for n, w, a, b in _fields(record, begin, end) if w == _DELIMITED}
            if 2 in entry:
                a, b = entry.get(1, (0, 0))
                yield number == 2, record[a:b].decode(), *entry[2]


# ---- many records


@dataclass
class Feature:
    """A feature in many records.

    Attributes:
        kind: kind of list in the feature.
        starts: start of the content for each record; -1 if the feature is absent.
        stops: end of the content for each record; -1 if the feature is absent.
    """

    kind: Kind
    starts: Ints
    stops: Ints


@dataclass
class Examples:
    """The features of many records.

    Attributes:
        data: the bytes that the starts and stops of the features refer to.
        rows: number of records.
        features: the features by name.
        lists: names of the feature lists of SequenceExamples.
    """

    data: bytes
    rows: int
    features: dict[str, Feature] = field(default_factory=dict)
    lists: set[str] = field(default_factory=set)

    def _put(self, name: str, kind: Kind, rows: Any, starts: Any, stops: Any) -> None:
        if name not in self.features:
            self.features[name] = Feature(kind, *np.full((2, self.rows), -1))
        feature = self.features[name]
        if feature.kind is not kind:
            raise NotAnExample(
                f"feature {name!r} holds {kind.name}, and {feature.kind.name} in an earlier "
                "record; expected one kind"
            )
        feature.starts[rows], feature.stops[rows] = starts, stops

    def content(self, name: str) -> tuple[bytes, Ints]:
        """Return the joined contents of a feature, and the length of each; -1 if absent."""
        feature = self.features[name]
        starts = feature.starts[feature.starts >= 0]
        stops = feature.stops[feature.starts >= 0]
        length = int(stops[0] - starts[0]) if len(starts) else 0
        if length and (stops - starts == length).all():
            windows = sliding_window_view(np.frombuffer(self.data, np.uint8), length)
            data = windows[starts].tobytes()
        else:
            pairs = zip(starts.tolist(), stops.tolist(), strict=True)
            data = b"".join([self.data[start:stop] for start, stop in pairs])
        return data, np.where(feature.starts < 0, -1, feature.stops - feature.starts)


def decode(data: bytes, spans: Sequence[tuple[int, int]], names: Sequence[str] | None) -> Examples:
    """Find the features of many records.

    Args:
        data: bytes that contain the records.
        spans: (start, stop) of each record.
        names: names of the features to find; None for all.

    Raises:
        NotAnExample: if a record is not an Example, or a feature changes its kind.

    Example:
        >>> import pyarrow as pa
        >>> from sparkdl.data.tfexample.encode import encode
        >>> from sparkdl.data.tfexample.columns import Column
        >>> batch = pa.RecordBatch.from_pydict({"id": [7, 300]})
        >>> first, second = encode(batch, [Column("id", Kind.INT64, pa.int64())])
        >>> spans = [(0, len(first)), (len(first), len(first + second))]
        >>> decode(first + second, spans, None).content("id")
        (b'\\x07\\xac\\x02', array([1, 2]))
    """
    begins, ends = np.array(spans, np.int64).reshape(-1, 2).T
    examples = Examples(data, len(begins))
    pieces = [data]
    size = len(data)
    for rows in _group_by_length(ends - begins):
        length = int(ends[rows[0]] - begins[rows[0]])
        is_decoded = _decode_same_layout(examples, rows, begins, length, names)
        for row in rows[~is_decoded].tolist():
            record = data[begins[row] : ends[row]]
            contents, joined, lists = features(record)
            examples.lists |= lists
            for name in contents if names is None else set(contents).intersection(names):
                kind, start, stop = contents[name]
                begin = begins[row] if start < len(record) or start == stop else size - len(record)
                examples._put(name, kind, row, begin + start, begin + stop)
            if joined:
                pieces.append(joined)
                size += len(joined)
    examples.data = b"".join(pieces) if len(pieces) > 1 else data
    return examples


def _group_by_length(lengths: Ints) -> list[Ints]:
    """Return the numbers of the records of each length."""
    order = np.argsort(lengths, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1) if len(order) else []


def _decode_same_layout(
    examples: Examples, rows: Ints, begins: Ints, length: int, names: Sequence[str] | None
) -> Any:
    """Decode the records that have the layout of the first one.

    Args:
        examples: receives the features.
        rows: numbers of the records, which all have the same length.
        begins: start of each record in the data, for all records.
        length: the length of the records in bytes.
        names: names of the features to find; None for all.

    Returns:
        A boolean array: True for each record that has been decoded.
    """
    if len(rows) < 2 or not length:
        return np.zeros(len(rows), bool)
    first = begins[rows[0]]
    contents, joined, lists = features(examples.data[first : first + length])
    examples.lists |= lists
    if joined or lists:
        return np.zeros(len(rows), bool)
    records = sliding_window_view(np.frombuffer(examples.data, np.uint8), length)[begins[rows]]
    layout = np.full(length, 0xFF, np.uint8)
    for _, start, stop in contents.values():
        layout[start:stop] = 0
    is_same = ~((records ^ records[0]) & layout).any(axis=1)
    begins_of_same = begins[rows[is_same]]
    for name in contents if names is None else set(contents).intersection(names):
        kind, start, stop = contents[name]
        examples._put(name, kind, rows[is_same], begins_of_same + start, begins_of_same + stop)
    return is_same
