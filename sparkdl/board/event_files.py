"""Runs on the driver. Content of TensorBoard's event files, without TensorFlow."""

import io
from typing import Any


def first_event(time: float) -> Any:
    """Return the event with which a file begins."""
    from tensorboard.compat.proto.event_pb2 import Event

    return Event(wall_time=time, file_version="brain.Event:2")


def scalar(tag: str, value: float, time: float, step: int = 0) -> Any:
    """Return the event of a number.

    Args:
        tag: the name of the curve; a part before a slash is the name of a group of curves.
        value: the number.
        time: seconds since 1970.
        step: the step.
    """
    from tensorboard.compat.proto.event_pb2 import Event

    event = Event(wall_time=time, step=step)
    event.summary.value.add(tag=tag, simple_value=value)
    return event


def records(*events: Any) -> bytes:
    """Return events as a part of an event file."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    data = io.BytesIO()
    writer = RecordWriter(data)
    for event in events:
        writer.write(event.SerializeToString())
    return data.getvalue()
