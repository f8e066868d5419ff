"""Runs in the training process. Tell the user how many rows a dataset has, and record it."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparkdl import context
from sparkdl.context import Context
from sparkdl.data.column_record import ColumnRecord
from sparkdl.data.column_selection import ColumnSelection
from sparkdl.data.mapped_blocks import MappedColumns
from sparkdl.files.jsonl import to_json
from sparkdl.files.layout import COLUMNS, DATA

_logger = logging.getLogger("sparkdl.data")


def report_dataset(
    name: str,
    batch_size: int,
    max_steps: int | None,
    rows: int,
    steps: int,
    padded: int,
    dropped: int,
) -> None:
    """Log the size of a dataset and record it in the trial's folder; only the chief does.

    Args:
        name: name of the dataset.
        batch_size: number of rows in a batch of one rank.
        max_steps: maximum number of batches in one pass; None for no maximum.
        rows: number of rows of all ranks together.
        steps: number of batches of each rank in one pass.
        padded: number of rows that are repeated, over all ranks.
        dropped: number of rows that are left out, over all ranks.
    """
    me = context.current()
    if not me.is_chief:
        return
    num_readers = me.reading[1]
    record: dict[str, Any] = {"data": name, "rows": rows, "batch_size_per_worker": batch_size}
    if me.grows:
        message = "%s: %d rows; batches of %d on each rank, of which an epoch has 1 to %d"
        _logger.info(message, name, rows, batch_size, me.num_readers)
        _record(me, record)
        return
    record |= {
        "global_batch_size": batch_size * num_readers,
        "steps": min(steps, max_steps or steps),
        "padded": padded,
        "dropped": dropped,
    }
    remainder = f", {padded} repeated" if padded else f", {dropped} left out" if dropped else ""
    ranks = f" on each of {num_readers} ranks, {record['global_batch_size']} together"
    _logger.info(
        "%s: %d rows%s; batches of %d%s; %d steps per epoch",
        name,
        rows,
        remainder,
        batch_size,
        ranks if num_readers > 1 else "",
        record["steps"],
    )
    _record(me, record)


def _record(me: Context, record: Mapping[str, Any]) -> None:
    if me.folder:
        line = json.dumps(record).encode() + b"\n"
        with Path(me.folder, DATA).open("ab") as file:
            file.write(line)


def record_columns(
    name: str,
    chosen: ColumnSelection | MappedColumns,
    schema: pa.Schema | None,
    options: Mapping[str, Any],
) -> None:
    """Record what a reader was told about the columns, for predictions; only the chief does.

    Args:
        name: the source as the user would call it.
        chosen: the columns that were selected, or with those that `map` computes.
        schema: names and Arrow types of the stored columns; None for a source without such types.
        options: the arguments `fill`, `pad` and `decode` of the reader.
    """
    me = context.current()
    if not me.is_chief or not me.folder:
        return
    mapped = chosen if isinstance(chosen, MappedColumns) else None
    selection = chosen.selection if isinstance(chosen, MappedColumns) else chosen
    fields = {} if schema is None else {field.name: field for field in schema}
    names = ColumnSelection(selection.features).names
    record = ColumnRecord(
        data=name,
        features=selection.features,
        labels=selection.labels,
        **{key: options.get(key) or {} for key in ("fill", "pad", "decode")},
        types={each: str(fields[each].type) for each in names if each in fields},
        function=mapped.batch_map.name if mapped else None,
        computed=tuple(mapped.outputs) if mapped else (),
    )
    line = to_json(record.to_dict()).encode() + b"\n"
    with Path(me.folder, COLUMNS).open("a+b") as file:
        file.seek(0)
        if line not in file.readlines():  # A program may call a reader in each epoch.
            file.write(line)


def notes_of_datasets(folder: str) -> list[str]:
    """Return a note for each dataset that has given no step.

    Args:
        folder: the folder of the trial.
    """
    try:
        lines = Path(folder, DATA).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    records = {line: json.loads(line) for line in lines}
    return [
        f"{record['data']} gave no step: its {record['rows']} rows do not fill "
        f"a batch of {record['global_batch_size']}, and last_batch is 'drop'"
        for record in records.values()
        if not record.get("steps", 1)  # A gang that grows has another number in each epoch.
    ]
