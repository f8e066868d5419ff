"""MLflow's scoring API: the forms of its documentation, and its own client."""

from typing import Any

import numpy as np
import pytest

from sparkdl.serving.application import Application
from sparkdl.serving.http_server import HttpServer
from sparkdl.serving.signatures import Signature
from sparkdl.serving.sockets import listen
from tests.serving.fakes import FakeCatalog, FakeModel, client, half_plus_three, named, tensor

HOST = {"Host": "localhost"}
JSON = {**HOST, "Content-Type": "application/json"}


def house() -> FakeModel:
    """Two columns of numbers and one of text, and two outputs."""
    inputs = dict(
        [tensor("a", "float32", None), tensor("b", "int64", None), tensor("c", "string", None)]
    )
    outputs = dict([tensor("sum", "float32", None), tensor("text", "string", None)])
    signature = Signature(name="serving_default", inputs=inputs, outputs=outputs)
    return FakeModel(
        "house", 1, {"serving_default": (signature, lambda a, b, c: {"sum": a + b, "text": c})}
    )


def matrix() -> FakeModel:
    """One input with three numbers for each row."""
    inputs = dict([tensor("inputs", "float32", None, 3)])
    outputs = dict([tensor("output_0", "float32", None, 3)])
    signature = Signature(name="serving_default", inputs=inputs, outputs=outputs)
    return FakeModel(
        "matrix", 1, {"serving_default": (signature, lambda inputs: {"output_0": inputs * 2})}
    )


def invoke(model: FakeModel, body: Any, **headers: str) -> tuple[int, Any]:
    page = client(model).post("/invocations", json=body, headers={**JSON, **headers})
    return page.status_code, page.json


ROWS = [{"sum": 3.0, "text": "x"}, {"sum": 7.0, "text": "y"}]


@pytest.mark.parametrize(
    "body",
    [
        {"dataframe_split": {"columns": ["b", "a", "c"], "data": [[2, 1, "x"], [4, 3, "y"]]}},
        {"dataframe_records": [{"a": 1, "b": 2, "c": "x"}, {"c": "y", "b": 4, "a": 3}]},
        {"instances": [{"a": 1, "b": 2, "c": "x"}, {"a": 3, "b": 4, "c": "y"}]},
    ],
)
def test_rows_are_answered_by_rows(body: Any) -> None:
    assert invoke(house(), body) == (200, {"predictions": ROWS})


def test_columns_are_answered_by_columns() -> None:
    body = {"inputs": {"a": [1, 3], "b": [2, 4], "c": ["x", "y"]}}
    columns = {"sum": [3.0, 7.0], "text": ["x", "y"]}
    assert invoke(house(), body) == (200, {"predictions": columns})


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": [[1, 2, 3]]},
        {"instances": [[1, 2, 3]]},
        {"dataframe_split": {"columns": ["x", "y", "z"], "index": [0], "data": [[1, 2, 3]]}},
        {"dataframe_split": {"data": [[1, 2, 3]]}},
        {"dataframe_records": [{"x": 1, "y": 2, "z": 3}]},
    ],
)
def test_the_columns_of_a_table_are_the_numbers_of_the_only_input(body: Any) -> None:
    assert invoke(matrix(), body) == (200, {"predictions": [[2.0, 4.0, 6.0]]})


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "has no data"),
        ({"inputs": [1], "instances": [1]}, "has instances and inputs"),
        ({"dataframe_split": [1]}, "has no rows"),
        ({"dataframe_split": {"columns": ["a"], "data": [[1, 2]]}}, "another number of values"),
        ({"dataframe_split": {"columns": [["a"]], "data": [[1]]}}, "another number of values"),
        ({"dataframe_split": {"columns": ["a", "a"], "data": [[1, 2]]}}, "different names"),
        ({"dataframe_records": {"a": 1}}, "no list of objects"),
        ({"dataframe_records": [{"a": 1}, {"b": 1}]}, "other columns than the first"),
        ({"dataframe_records": [{"a": 1}]}, "keys must be equal to: a, b, c"),
        ({"dataframe_records": []}, "No values"),
        ({"inputs": [1], "params": {"temperature": 1}}, "params has something else"),
        ({"inputs": [1], "params": {"signature_name": "none"}}, "none"),
    ],
)
def test_wrong_requests_are_refused(body: Any, text: str) -> None:
    status, answer = invoke(house(), body)
    assert status in (400, 404) and text in answer["error"]


def test_other_types_are_refused() -> None:
    for kind in ("text/csv", "text/csv; charset=utf-8", "application/x-parquet"):
        status, answer = invoke(matrix(), {"inputs": [[1, 2, 3]]}, **{"Content-Type": kind})
        assert status == 415 and "expected application/json" in answer["error"]


def test_a_server_of_two_models_refuses_invocations() -> None:
    page = client(half_plus_three(), named()).post("/invocations", b"{}", headers=HOST)
    assert page.status_code == 400 and "this server has 2" in page.json["error"]


def test_a_ping_needs_no_token_and_the_rest_does() -> None:
    page = client(matrix(), token="0123456789abcdef")
    assert page.get("/ping", headers={}).status_code == 200
    assert page.post("/invocations", b"{}", headers=HOST).status_code == 401
    assert page.post("/ping", b"{}", headers=HOST).status_code == 404


def test_a_server_that_is_stopped_is_not_well() -> None:
    application = Application(FakeCatalog([matrix()]))
    application.drain()
    from tests.serving.fakes import Client

    assert Client(application).get("/ping", headers=HOST).status_code == 503


@pytest.mark.slow
def test_the_client_of_mlflow_is_answered() -> None:
    """With DataFrames and an array; MLflow 3.17's own client fails for a dict of arrays."""
    module = pytest.importorskip("mlflow.pyfunc.scoring_server.client")
    pd = pytest.importorskip("pandas")
    for model, data, expected in (
        (matrix(), np.array([[1.0, 2.0, 3.0]], "float32"), [[2.0, 4.0, 6.0]]),
        (matrix(), pd.DataFrame([[1.0, 2.0, 3.0]], columns=["x", "y", "z"]), [[2.0, 4.0, 6.0]]),
        (house(), pd.DataFrame({"a": [1.0], "b": [2], "c": ["x"]}), [{"sum": 3.0, "text": "x"}]),
    ):
        server = HttpServer(listen("127.0.0.1", 0), 1 << 20)
        server.start(Application(FakeCatalog([model])).answer_soon)
        try:
            mlflow = module.ScoringServerClient(*server.address)
            mlflow.wait_server_ready()
            answer = mlflow.invoke(data)
            assert answer["predictions"] == expected
            assert len(answer.get_predictions()) == 1
            with pytest.raises(Exception, match="error code 400"):
                mlflow.invoke(pd.DataFrame({"q": [1.0]}))
        finally:
            server.close()
