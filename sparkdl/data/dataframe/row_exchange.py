"""Runs in the training process. Give rows to other ranks, by files that only these read."""

from collections.abc import Callable, Iterator

import pyarrow as pa

from sparkdl.data.peer_files import PeerFiles
from sparkdl.data.shard import Balance, Transfer


class RowExchange:
    """The exchange of rows by which ranks come to equal numbers of them.

    Args:
        files: the files by which the ranks talk.
        topic: the topic of the messages; another one for each exchange.
        schema: names and types of the columns.
        rank: the rank of this process.
    """

    def __init__(self, files: PeerFiles, topic: str, schema: pa.Schema, rank: int) -> None:
        self._files = files
        self._topic = topic
        self._schema = schema
        self._rank = rank

    def run(
        self, plan: Balance, read: Callable[[int, int], Iterator[pa.RecordBatch]]
    ) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
        """Give rows to other ranks, and return the rows of other ranks, and those to repeat.

        Args:
            plan: the plan of the exchange, the same on every rank.
            read: yields rows `start <= i < stop` of this rank.

        Raises:
            RuntimeError: if a rank returned before it gave its rows.
        """
        for transfer in plan.transfers:
            if transfer.giver == self._rank != transfer.taker:
                self._give(transfer, read(transfer.start, transfer.stop))
        received: list[pa.RecordBatch] = []
        repeated: list[pa.RecordBatch] = []
        for transfer in plan.transfers:
            if transfer.taker == self._rank:
                is_own = transfer.giver == self._rank
                rows = read(transfer.start, transfer.stop) if is_own else self._take(transfer)
                (repeated if plan.is_repeated(transfer) else received).extend(rows)
        return received, repeated

    def _of(self, transfer: Transfer) -> str:
        return f"{self._topic}-{transfer.taker}-{transfer.start}"

    def _give(self, transfer: Transfer, rows: Iterator[pa.RecordBatch]) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema) as writer:
            for batch in rows:
                writer.write_batch(batch)
        self._files.post(transfer.giver, self._of(transfer), sink.getvalue().to_pybytes())

    def _take(self, transfer: Transfer) -> Iterator[pa.RecordBatch]:
        giver, topic = transfer.giver, self._of(transfer)
        data = self._files.wait_for([giver], topic, self._rank, "to give it rows")[giver]
        with pa.ipc.open_stream(data) as reader:
            yield from reader
        self._files.remove(giver, topic)
