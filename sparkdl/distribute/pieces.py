"""Runs in the training process. Pieces of a long array, for work on several at the same time."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from queue import SimpleQueue

from sparkdl.distribute.rows import row_slices

# An array has pieces of about so many bytes, or so many longer pieces.
PIECE_BYTES = 1 << 23
MAX_PIECES = 8

Parts = Sequence[slice]


def pieces_of(parts: Parts, num_bytes: int) -> list[list[slice]]:
    """Return the pieces of an array, each with some of each part.

    Args:
        parts: slices of the array.
        num_bytes: bytes of the array.

    Example:
        >>> pieces_of([slice(0, 8), slice(8, 12)], num_bytes=2 * PIECE_BYTES)
        [[slice(0, 4, None), slice(8, 10, None)], [slice(4, 8, None), slice(10, 12, None)]]
    """
    count = max(1, min(MAX_PIECES, num_bytes // PIECE_BYTES))
    slices = [
        [slice(part.start + one.start, part.start + one.stop) for one in rows]
        for part in parts
        for rows in [row_slices(part.stop - part.start, count)]
    ]
    return [list(piece) for piece in zip(*slices, strict=True)]


def run_in_turns(
    pieces: Sequence[Parts],
    before: Callable[[Parts], None],
    beside: Callable[[Parts], None],
    after: Callable[[Parts, Callable[[], object]], None],
    close: Callable[[], None],
) -> None:
    """Work on each piece in three turns, of which the second runs in a thread of its own.

    Args:
        pieces: the pieces.
        before, beside, after: the turns. `after` also gets a function, which it calls first: it
            waits until `beside` is done with the piece.
        close: called after a failure; `beside` fails soon then.
    """
    if len(pieces) == 1:
        before(pieces[0])
        beside(pieces[0])
        after(pieces[0], nothing)
        return
    made: SimpleQueue[Parts | None] = SimpleQueue()
    turns: list[Future[None]] = [Future() for _ in pieces]

    def work() -> None:
        for turn in turns:
            if (piece := made.get()) is None:
                return
            try:
                beside(piece)
                turn.set_result(None)
            except BaseException as exc:  # noqa: BLE001
                turn.set_exception(exc)
                return

    # Not that of an executor: Python's exit would wait for its end, and lets it begin no more. The
    # context has what `np.errstate` has set.
    run, name = copy_context().run, "sparkdl pieces"
    thread = threading.Thread(target=run, args=(work,), name=name, daemon=True)
    thread.start()
    try:
        for piece in pieces:
            before(piece)
            made.put(piece)
        for piece, turn in zip(pieces, turns, strict=True):
            after(piece, turn.result)
        for turn in turns:
            turn.result()
    except BaseException:
        close()
        raise
    finally:
        made.put(None)
        thread.join()


def nothing() -> None:
    """Do nothing: there is nothing to wait for."""
