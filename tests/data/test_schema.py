"""The sentence about columns whose tensors have another type than their users see."""

import pyarrow as pa
import pytest

from sparkdl.data.schema import describe_conversions

DAY = "'c' (date) becomes days since 1970-01-01"
TIME = "'c' (timestamp) becomes microseconds since 1970-01-01"
TEXT = "'c' (string) becomes text, which a model must encode"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.date32(), DAY),
        (pa.timestamp("us"), TIME),
        (pa.timestamp("us", "UTC"), TIME),
        (pa.string(), TEXT),
        (pa.large_string(), TEXT),
        (pa.int64(), ""),
        (pa.binary(), ""),
        (pa.bool_(), ""),
    ],
)
def test_a_conversion_is_described_also_within_lists(kind: pa.DataType, expected: str) -> None:
    nested = [pa.list_(kind), pa.large_list(kind), pa.list_(kind, 2), pa.list_(pa.large_list(kind))]
    for each in (kind, *nested):
        schema = pa.schema({"c": each, "other": pa.date32()})
        assert describe_conversions(schema, ["c"]) == expected
