"""The row that a task yields to Spark."""

import subprocess
import sys

import pyarrow as pa
import pytest

from sparkdl.cluster.arrow_row import arrow_row


@pytest.mark.parametrize("value", ["", "a", "zwölf \0 €\n", None, True, False])
def test_row_has_the_value(value: str | bool | None) -> None:
    row = arrow_row({"other": "x", "value": value})
    row.validate(full=True)
    assert row.to_pylist() == [{"other": "x", "value": value}]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as stream:
        stream.write_batch(row)
    assert pa.ipc.open_stream(sink.getvalue()).read_all().to_pylist() == row.to_pylist()


def test_row_is_made_without_pandas() -> None:
    program = (
        "import sys; from sparkdl.cluster.arrow_row import arrow_row; "
        "arrow_row({'text': 'a', 'flag': True, 'missing': None}); "
        "sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
