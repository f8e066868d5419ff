"""Runs anywhere. The addresses of MLflow's scoring server, which clients of SageMaker ask, too.

Source: https://mlflow.org/docs/latest/ml/deployment/deploy-model-locally, section "Local Inference
Server Specification", and mlflow/pyfunc/scoring_server.
"""

import functools
from collections.abc import Mapping
from typing import Any

from sparkdl.serving import predict_format
from sparkdl.serving.calls import Call, Catalog, Work
from sparkdl.serving.json_tensors import Array, parse
from sparkdl.serving.messages import Answer, HttpRequest, json_answer
from sparkdl.serving.request_error import RequestError, invalid
from sparkdl.serving.signatures import Signature, signature_of

PING = "/ping"
INVOCATIONS = "/invocations"

_TABLES = ("dataframe_split", "dataframe_records")
_OTHER_TYPES = ("text/csv", "application/vnd.apache.parquet", "application/x-parquet")


class MlflowRoutes:
    """Answers `/invocations`, which names no model: the server must have one.

    Args:
        catalog: the models.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def ping(self) -> Answer:
        """Return 200 if requests can be answered."""
        is_ready = self._catalog.ready()
        return json_answer({"ready": is_ready}, 200 if is_ready else 503)

    def read(self, request: HttpRequest, body: bytes, call: Call) -> Work:
        """Return the work that a request asks for.

        Args:
            request: the request.
            body: its body.
            call: what is noted of the request.

        Raises:
            RequestError: if the request cannot be answered.
        """
        call.method = "invocations"
        names = self._catalog.names
        if len(names) != 1:
            raise invalid(
                f"/invocations names no model, and this server has {len(names)}; send the request "
                "to /v1/models/NAME:predict"
            )
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in _OTHER_TYPES:
            raise RequestError("UNSUPPORTED_TYPE", f"the body is {kind}; expected application/json")
        servable = self._catalog.find(names[0])
        call.note_version(servable)
        content = parse(body)
        signature = signature_of(servable.signatures, _signature_name(content))
        inputs = predict_format.read(_with_rows(content, signature), signature)
        rows = predict_format.rows_of(inputs.arrays)
        reply = functools.partial(_answer, is_rows=inputs.is_rows)
        return Work(servable, signature, inputs.arrays, rows, reply)


def _signature_name(content: Mapping[str, Any]) -> str:
    """Return the signature that the parameters of a request name; there are no others."""
    params = content.get("params") or {}
    if not isinstance(params, dict) or {*params} - {"signature_name"}:
        raise invalid("params has something else than 'signature_name', which no model here takes")
    return predict_format.signature_name(params)


def _with_rows(content: dict[str, Any], signature: Signature) -> dict[str, Any]:
    """Return a request in TensorFlow Serving's form, in place of one with a table.

    The columns of a table are the inputs of the model, or the numbers of its only input.
    """
    keys = [key for key in (*_TABLES, "instances", "inputs") if key in content]
    if len(keys) != 1:
        raise invalid(
            f"the request has {' and '.join(keys) or 'no data'}; expected one of dataframe_split, "
            "dataframe_records, instances and inputs"
        )
    if keys[0] not in _TABLES:
        return content
    columns, rows = (_split if keys[0] == _TABLES[0] else _records)(content[keys[0]])
    if len({*columns}) != len(columns):
        raise invalid(f"the columns are {', '.join(map(str, columns))}; expected different names")
    if {*columns} == {*signature.inputs} or len(signature.inputs) > 1:
        return {"instances": [dict(zip(columns, row, strict=True)) for row in rows]}
    return {"instances": rows}


def _split(table: Any) -> tuple[list[Any], list[list[Any]]]:
    rows = table.get("data") if isinstance(table, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise invalid("dataframe_split has no rows; expected {'columns': [...], 'data': [[...]]}")
    columns = table.get("columns", [*range(len(rows[0]))] if rows else [])
    is_list = isinstance(columns, list) and all(isinstance(c, str | int) for c in columns)
    if not is_list or any(len(row) != len(columns) for row in rows):
        raise invalid("dataframe_split has rows with another number of values than columns")
    return columns, rows


def _records(table: Any) -> tuple[list[Any], list[list[Any]]]:
    if not isinstance(table, list) or not all(isinstance(row, dict) for row in table):
        raise invalid("dataframe_records is no list of objects; expected [{column: value}, ...]")
    columns = [*table[0]] if table else []
    if any(row.keys() != {*columns} for row in table):
        raise invalid("dataframe_records has rows with other columns than the first one")
    return columns, [[row[column] for column in columns] for row in table]


def _answer(outputs: dict[str, Array], is_rows: bool) -> Answer:
    if is_rows:
        return Answer(predict_format.answer_text(outputs, is_rows))
    return json_answer({"predictions": predict_format.answer(outputs, is_rows)["outputs"]})
