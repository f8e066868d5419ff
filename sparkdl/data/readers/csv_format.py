"""Runs in the training process. The format of CSV files, with the names of Spark's options."""

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import csv as arrow_csv

from sparkdl.data.readers.csv_text import rewritten, without_escapes
from sparkdl.errors import ConfigError

BLOCK_BYTES = 4 << 20

# The escape of Spark, which may be text if none is given.
DEFAULT_ESCAPE = "\\"

Types: TypeAlias = pa.Schema | Mapping[str, Any]


@dataclass(frozen=True)
class CsvFormat:
    """The format of CSV files.

    Attributes:
        types: the known types of columns, by name.
        header, column_names, sep, encoding, quote, escape, comment, null_value: see `csv`.
        is_single: True if the files have one column: an empty line is then a null, and otherwise
            it is no row.
    """

    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    header: bool = True
    column_names: Sequence[str] = ()
    sep: str = ","
    encoding: str = "utf-8"
    quote: str = '"'
    escape: str | None = None
    comment: str | None = None
    null_value: str | Sequence[str] = ""
    is_single: bool = False

    def __post_init__(self) -> None:
        for name, value, is_optional in (
            ("sep", self.sep, False),
            ("quote", self.quote, self.quote == ""),
            ("escape", self.escape, self.escape is None),
            ("comment", self.comment, self.comment is None),
        ):
            is_char = isinstance(value, str) and len(value) == 1 and value.isascii()
            if not is_optional and not is_char:
                raise ConfigError(f"{name} is {value!r}; expected one character of ASCII.")
        if not all(isinstance(text, str) for text in self._null_texts()):
            raise ConfigError(
                f"nullValue is {self.null_value!r}; expected a text, or a list of texts."
            )
        if isinstance(self.column_names, str):
            raise ConfigError(f"column_names is {self.column_names!r}; expected a list of names.")
        try:
            codecs.lookup(self.encoding)
        except (LookupError, TypeError) as exc:
            raise ConfigError(
                f"encoding is {self.encoding!r}; expected the name of an encoding of Python, such "
                "as 'utf-8', 'latin-1' or 'cp1252'."
            ) from exc

    def _null_texts(self) -> Sequence[Any]:
        is_list = isinstance(self.null_value, list | tuple)
        return self.null_value if is_list else [self.null_value]

    def of(self, schema: pa.Schema) -> "CsvFormat":
        """Return the format of files with these columns, whose types apply to all files."""
        types = dict(zip(schema.names, schema.types, strict=True))
        return replace(self, types=types, is_single=len(schema) == 1)

    def open(
        self, source: Any, names: Sequence[str] | None = None, has_escapes: bool | None = None
    ) -> Any:
        """Open a stream of CSV text.

        Args:
            source: the stream.
            names: names of the columns to read; None for all.
            has_escapes: True if the text has escapes; None if it is not known.

        Raises:
            HasEscapes: while the text is read, if it has escapes, and this was not known.
            AmbiguousText: while the text is read, if it has escapes, and `escape` is None.
        """
        read = arrow_csv.ReadOptions(
            block_size=BLOCK_BYTES,
            column_names=list(self.column_names),
            skip_rows=1 if self.header and self.column_names else 0,
            autogenerate_column_names=not self.header and not self.column_names,
        )
        parse = arrow_csv.ParseOptions(
            delimiter=self.sep,
            quote_char=self.quote or False,
            ignore_empty_lines=not self.is_single,
        )
        # NaN is a number; as by Spark, no other text is a null.
        convert = arrow_csv.ConvertOptions(
            column_types=self.types,
            include_columns=names,
            null_values=list({"", *self._null_texts()}),
            strings_can_be_null=True,
        )
        return arrow_csv.open_csv(
            self._text(source, has_escapes),
            read_options=read,
            parse_options=parse,
            convert_options=convert,
        )

    def _text(self, source: Any, has_escapes: bool | None) -> Any:
        """Return a stream as UTF-8 with doubled quotes and without comments."""
        if codecs.lookup(self.encoding).name != "utf-8":
            source = pa.transcoding_input_stream(source, self.encoding, "utf-8")
        escape = DEFAULT_ESCAPE if self.escape is None else self.escape
        if has_escapes is None:
            source = without_escapes(source, self.quote, escape)
        if not has_escapes and self.comment is None:
            return source
        return rewritten(
            source, self.sep, self.quote, escape, self.comment, is_ambiguous=self.escape is None
        )


def parse_types(schema: Types | None) -> dict[str, pa.DataType]:
    """Return the types that a user has given.

    Args:
        schema: see `csv`.

    Raises:
        ConfigError: if a type is unknown.
    """
    if isinstance(schema, pa.Schema):
        return dict(zip(schema.names, schema.types, strict=True))
    column_types = {}
    for name, kind in (schema or {}).items():
        try:
            column_types[name] = kind if isinstance(kind, pa.DataType) else pa.type_for_alias(kind)
        except (TypeError, ValueError) as exc:
            raise ConfigError(
                f"schema[{name!r}] is {kind!r}; expected a pyarrow type or its name, such as "
                "'int64', 'float32', 'string', 'bool' or 'date32'."
            ) from exc
    return column_types
