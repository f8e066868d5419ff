"""Runs anywhere (pure). The lines of an inference log, in the forms of three systems.

- The model server of sparkdl writes a record with inputs and outputs, see docs/serving.md.
- Hopsworks writes an event for the request and one for the answer, with the fields `inferenceId`,
  `messageType`, `requestTimestamp` and `payload`, the body as text.
  https://docs.hopsworks.ai/latest/user_guides/mlops/serving/inference-logger/
- KServe sends a CloudEvent for the request and one for the answer, with the same id; in Kafka, the
  attributes are headers and the value is the body.
  https://github.com/kserve/kserve/blob/master/pkg/logger/worker.go
  https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/kafka-protocol-binding.md

Bodies are those of TensorFlow Serving's REST API or of the Open Inference Protocol v2.
"""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

# Nested lists of values by the name of the tensor. A list without names has the name "".
Tensors = Mapping[str, Any]

_KSERVE = "org.kubeflow.serving.inference."
_KSERVE_SERVICE = ("namespace", "endpoint")
# The model itself. The transformer in front of it is a part of the same service, and logs the same
# ids with values of its own.
_PREDICTOR = "predictor"
# The end of the year 9999, the last of Python and of Spark.
_END_MS = 253_402_300_800_000
_HEADERS = ("ce_", "ce-")


@dataclass(frozen=True, kw_only=True)
class Event:
    """A request, an answer, or both.

    Attributes:
        id: the id that a request and its answer have in common.
        time_ms: milliseconds since 1970.
        model: the name of the model.
        version: the number of the version; None if it is not known.
        service: what else tells apart the events of services that pass an id on to each other.
        component: the part of the service, such as `transformer`; empty for the model itself.
        is_refused: the request was answered with an error.
        inputs: the inputs by name; None in an event of an answer.
        outputs: the outputs by name; None in an event of a request.
    """

    id: str
    time_ms: int
    model: str
    version: int | None = None
    service: str = ""
    component: str = ""
    is_refused: bool = False
    inputs: Tensors | None = None
    outputs: Tensors | None = None


def read_event(
    value: bytes | str, headers: Mapping[str, str] | None = None, time_ms: int | None = None
) -> Event:
    """Return the event that a line of a log stands for.

    Args:
        value: the line, or the value of a record of Kafka.
        headers: the headers of the record of Kafka.
        time_ms: the time of an event that has none itself.

    Raises:
        ValueError: if it is no event of a known form.

    Example:
        >>> read_event('{"time": 5, "model": "m", "inputs": {"x": [1]}, "outputs": {}}').inputs
        {'x': [1]}
    """
    try:
        text = value if isinstance(value, str) else value.decode()
        content = json.loads(text)
        if "\\ud" in text or "\\uD" in text:  # A half of a pair is no text of UTF-8.
            json.dumps(content, ensure_ascii=False).encode()
        return _check_event(_event(content, _attributes(headers or {}), time_ms))
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as exc:
        raise ValueError(f"{type(exc).__name__}: {exc}") from exc


def _check_event(event: Event) -> Event:
    """Return an event whose time and version fit into the columns of Spark."""
    if not 0 <= event.time_ms < _END_MS:
        raise ValueError(f"its time is {event.time_ms} milliseconds since 1970")
    if event.version is not None and event.version >= 1 << 63:
        raise ValueError(f"its version is {event.version}")
    return event


def _event(content: Any, attributes: dict[str, str], time_ms: int | None) -> Event:
    if attributes.get("type", "").startswith(_KSERVE):
        return _kserve(attributes, content, time_ms)
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")
    if str(content.get("type", "")).startswith(_KSERVE):
        return _kserve(content, _data(content), time_ms)
    if "messageType" in content:
        return _two_events(content, time_ms)
    return _event_of_sparkdl(content)


def _event_of_sparkdl(record: dict[str, Any]) -> Event:
    if not isinstance(record["inputs"], dict) or not isinstance(record["outputs"], dict):
        raise ValueError("its inputs and outputs are no objects")
    return Event(
        id=str(record.get("id", "")),
        time_ms=int(record["time"]),
        model=str(record["model"]),
        version=_version(record.get("version")),
        is_refused=int(record.get("status", 200)) != 200,
        inputs=record["inputs"],
        outputs=record["outputs"],
    )


def _two_events(event: dict[str, Any], time_ms: int | None) -> Event:
    payload = event["payload"]
    body = json.loads(payload) if isinstance(payload, str) else payload
    code = event.get("responseHttpCode")
    return Event(
        id=str(event["inferenceId"]),
        time_ms=_time_ms(event.get("requestTimestamp"), time_ms),
        model=str(event["modelName"]),
        version=_version(event.get("modelVersion")),
        is_refused="error" in body or code not in (None, "", -1, 200, "200"),
        **_side(str(event["messageType"]).lower(), body),
    )


def _kserve(attributes: Mapping[str, Any], body: Any, time_ms: int | None) -> Event:
    component = str(attributes.get("component", ""))
    return Event(
        id=str(attributes["id"]),
        time_ms=_time_ms(attributes.get("time"), time_ms),
        model=_model_of(attributes),
        service="/".join(str(attributes.get(name, "")) for name in _KSERVE_SERVICE),
        component="" if component == _PREDICTOR else component,
        is_refused="error" in body,
        **_side(attributes["type"].removeprefix(_KSERVE), body),
    )


def _model_of(attributes: Mapping[str, Any]) -> str:
    """Return the name of the model: `serving.kserve` lets KServe add it as an annotation."""
    annotations = json.loads(attributes.get("annotations") or "{}")
    return str(annotations.get("sparkdl/model") or attributes["inferenceservicename"])


def _attributes(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of a CloudEvent whose value is the body."""
    return {name[3:]: text for name, text in headers.items() if name.startswith(_HEADERS)}


def _data(event: dict[str, Any]) -> Any:
    if "data_base64" in event:
        return json.loads(base64.b64decode(event["data_base64"]))
    data = event["data"]
    return json.loads(data) if isinstance(data, str) else data


def _side(side: str, body: Any) -> dict[str, Any]:
    if side == "request":
        return {"inputs": _tensors(body, ("inputs", "instances"))}
    if side == "response":
        return {"outputs": _tensors(body, ("outputs", "predictions"))}
    raise ValueError(f"it is a {side!r}, neither a request nor a response")


def _tensors(body: Any, names: tuple[str, str]) -> Tensors:
    """Return the tensors of a body: columns, rows, or the tensors of the protocol v2."""
    columns, rows = (body.get(name) for name in names)
    if isinstance(columns, dict):
        return columns
    if isinstance(columns, list) and columns and all(map(_is_tensor, columns)):
        return {
            tensor["name"]: _reshape(tensor["data"], tensor.get("shape") or [])
            for tensor in columns
        }
    if rows is None:
        return {} if columns is None else {"": columns}
    if rows and all(isinstance(row, dict) and row.keys() != {"b64"} for row in rows):
        return {name: [row.get(name) for row in rows] for name in rows[0]}
    return {"": rows}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, dict) and {"name", "data"} <= value.keys()


def _reshape(data: Any, shape: Sequence[int]) -> Any:
    """Return flat data as nested lists of a shape.

    Example:
        >>> _reshape([1, 2, 3, 4], [2, 2])
        [[1, 2], [3, 4]]
    """
    is_flat = isinstance(data, list) and not any(isinstance(item, list) for item in data)
    if not is_flat or len(shape) < 2 or math.prod(shape) != len(data) or 0 in shape:
        return data
    for size in reversed(shape[1:]):
        data = [data[i : i + size] for i in range(0, len(data), size)]
    return data


def _version(value: Any) -> int | None:
    return int(value) if str(value).isdecimal() else None


def _time_ms(value: Any, default: int | None) -> int:
    """Return a time in milliseconds: a number, its text, or a time of RFC 3339.

    Example:
        >>> _time_ms("1970-01-01T00:00:01.5Z", None), _time_ms("1500", None)
        (1500, 1500)
    """
    if value in (None, ""):
        if default is None:
            raise ValueError("it has no time")
        return default
    if isinstance(value, int | float) or value.isdecimal():
        return int(value)
    # Python reads six digits after the point, and Go writes nine.
    head, point, rest = value.upper().replace("Z", "+00:00").partition(".")
    digits = len(rest) - len(rest.lstrip("0123456789"))
    text = f"{head}.{rest[:digits][:6].ljust(6, '0')}{rest[digits:]}" if point else head
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return int(moment.timestamp() * 1000)
