"""Runs in the training process. Read TFRecord files as Arrow batches, without TensorFlow."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from sparkdl.data.readers.base import ArrowSource
from sparkdl.data.readers.folder_columns import with_folder_columns
from sparkdl.data.readers.record_features import RecordFeature
from sparkdl.data.readers.record_index import FileParts
from sparkdl.data.shard import Range
from sparkdl.data.tfexample.decode import NotAnExample, decode
from sparkdl.data.tfexample.framing import CorruptRecord, chunks
from sparkdl.data.tfexample.schema_inference import not_an_example
from sparkdl.data.tfexample.to_arrow import to_batch
from sparkdl.files import storage


def check_changes(
    file_chunks: Iterator[tuple[int, bytes, list[tuple[int, int]]]],
    check: Callable[[int], None],
    piece: int,
    is_local: bool,
) -> Iterator[tuple[int, bytes, list[tuple[int, int]]]]:
    """Yield the chunks of a file, which is opened for each of them.

    Args:
        file_chunks: the chunks, see `chunks`.
        check: called with the number of the file; refuses a changed one.
        piece: number of the file.
        is_local: check each chunk, not only the first one, since that takes no request.
    """
    is_first = True
    try:
        for chunk in file_chunks:
            if is_local or is_first:
                check(piece)
            is_first = False
            yield chunk
    except CorruptRecord:
        check(piece)
        raise


class RecordRows(ArrowSource):
    """The records of TFRecord files as rows of Arrow; a piece is a file.

    Args:
        name: the paths as the user gave them.
        urls: the files.
        sizes: number of records of each file.
        compressions: compression of each file.
        parts: where the records are in the files.
        features: the feature of each column, by name.
        check: called with the number of a file before it is read; refuses a changed one.
        keys: the values of columns that folders define, see `folder_columns`.
    """

    def __init__(
        self,
        name: str,
        urls: Sequence[str],
        sizes: Sequence[int],
        compressions: Sequence[str | None],
        parts: FileParts,
        features: Mapping[str, RecordFeature],
        check: Callable[[int], None],
        keys: Mapping[str, pa.Array],
    ) -> None:
        self.name = name
        self.sizes = sizes
        kinds = {name: feature.arrow_type for name, feature in features.items()}
        kinds |= {name: values.type for name, values in keys.items()}
        self.schema = pa.schema(list(kinds.items()))
        ragged = [name for name, feature in features.items() if feature.shape is None]
        self.options = {"ragged": ragged}
        self._urls = urls
        self._compressions = compressions
        self._parts = parts
        self._features = features
        self._check = check
        self._keys = keys

    def read(self, ranges: Sequence[Range], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Implement `ArrowSource.read`; a compressed file is read from its start."""
        for part in ranges:
            keys = {name: values[part.piece] for name, values in self._keys.items()}
            url, compression = self._urls[part.piece], self._compressions[part.piece]
            position, begin, end = self._parts.around(part.piece, part.start, part.stop)
            offset, is_local = begin, storage.is_local(url)
            file_chunks = chunks(url, compression, begin=begin, end=end)
            for offset, data, spans in check_changes(
                file_chunks, self._check, part.piece, is_local
            ):
                record_spans = spans[max(part.start - position, 0) : max(part.stop - position, 0)]
                if record_spans:
                    try:
                        batch = self._batch(data, record_spans, names)
                        yield with_folder_columns(batch, len(record_spans), names, keys)
                    except NotAnExample as error:
                        raise not_an_example(url, offset, error) from error
                position += len(spans)
                if position >= part.stop:
                    break
            # A remote file has no open descriptor: what was read later may be of another file.
            if position < part.stop or (offset > begin and not is_local):
                self._check(part.piece)
            if position < part.stop:
                raise ValueError(
                    f"{url} has {position} records, and had more when it was counted. Start "
                    "again. If that does not help, another program has replaced the file: remove "
                    "_SUCCESS from its folder, which has the old count."
                )

    def _batch(
        self, data: bytes, spans: Sequence[tuple[int, int]], names: Sequence[str]
    ) -> pa.RecordBatch:
        stored_names = [name for name in names if name not in self._keys]
        columns = [self._features[name].column(name) for name in stored_names]
        read = to_batch(decode(data, spans, stored_names), columns)
        values = [self._features[name].shaped(name, read.column(name)) for name in stored_names]
        return pa.RecordBatch.from_arrays(values, names=stored_names)
