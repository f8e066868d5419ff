"""The lines of logs of three systems."""

import json
from typing import Any

import pytest

from sparkdl.errors import ConfigError
from sparkdl.monitoring.logs import read_event
from sparkdl.monitoring.logs.counting import LogRows
from sparkdl.monitoring.logs.places import Place, places_of, rows_of

TIME = "2026-11-23T10:00:00.123456789Z"
TIME_MS = 1795428000123
FEATURES: dict[str, Any] = {"age": {"kind": "number"}, "word": {"kind": "category"}}


def own(**fields: Any) -> str:
    record = {"id": "a", "time": 5, "model": "m", "version": 3, "status": 200}
    return json.dumps({**record, "inputs": {"age": [1.5]}, "outputs": {"y": [2]}, **fields})


def kserve(kind: str, data: Any) -> dict[str, Any]:
    kind = f"org.kubeflow.serving.inference.{kind}"
    ids = {"specversion": "1.0", "id": "r-1", "inferenceservicename": "m", "time": TIME}
    return {**ids, "type": kind, "data": data}


def two_events(kind: str, payload: Any, **fields: Any) -> str:
    ids = {"servingId": 1, "modelName": "m", "modelVersion": "3", "inferenceId": "r-1"}
    times = {"requestTimestamp": TIME_MS, "messageType": kind, "payload": json.dumps(payload)}
    return json.dumps({**ids, **times, "responseHttpCode": -1, **fields})


def test_a_record_has_inputs_and_outputs() -> None:
    event = read_event(own())
    assert (event.id, event.time_ms, event.model, event.version) == ("a", 5, "m", 3)
    assert (event.inputs, event.outputs) == ({"age": [1.5]}, {"y": [2]})
    assert read_event(own(status=400)).is_refused


def test_a_cloud_event_is_a_request_or_an_answer() -> None:
    body = {"inputs": [{"name": "age", "shape": [2, 1], "datatype": "FP32", "data": [1, 2]}]}
    event = read_event(json.dumps(kserve("request", body)))
    assert (event.id, event.model, event.version, event.time_ms) == ("r-1", "m", None, TIME_MS)
    assert (event.inputs, event.outputs) == ({"age": [[1], [2]]}, None)
    headers = {f"ce_{k}": v for k, v in kserve("response", None).items() if v and k != "data"}
    event = read_event('{"predictions": [[0.5]]}', headers)
    assert (event.inputs, event.outputs) == (None, {"": [[0.5]]})
    assert read_event('{"error": "no"}', headers).is_refused


def test_a_cloud_event_of_a_service_with_another_name_has_the_name_of_the_model() -> None:
    named = {**kserve("request", None), "annotations": '{"sparkdl/model": "Digits_cnn"}'}
    headers = {f"ce-{k}": v for k, v in named.items() if v}
    assert read_event('{"instances": [[1]]}', headers).model == "Digits_cnn"
    with pytest.raises(ValueError):
        read_event('{"instances": [[1]]}', {**headers, "ce-annotations": "[1"})


def test_two_events_have_their_body_as_text() -> None:
    rows = [{"age": 1, "word": "a"}, {"age": 2, "word": "b"}]
    event = read_event(two_events("request", {"instances": rows}))
    assert event.inputs == {"age": [1, 2], "word": ["a", "b"]}
    assert (event.version, event.time_ms, event.is_refused) == (3, TIME_MS, False)
    answer = two_events("response", {"outputs": {"y": [1]}}, responseHttpCode=200)
    assert read_event(answer).outputs == {"y": [1]}
    assert read_event(two_events("response", {"error": "x"}, responseHttpCode=503)).is_refused


@pytest.mark.parametrize(
    "line",
    [
        *("", "5", "{", "[]", "{}", '{"time": 1}', own(inputs=None), own(time="x"), "\udcff"),
        *(two_events("other", {}), two_events("request", 5), '{"messageType": "request"}'),
        json.dumps(kserve("request", None)),
        "[" * 100_000,
        # Numbers and texts that no column of Spark can hold.
        *(own(time=10**30), own(time=-1), own(version=10**20), own(inputs={"x": ["\ud800"]})),
    ],
)
def test_other_lines_are_refused(line: str) -> None:
    with pytest.raises(ValueError):
        read_event(line)


def test_texts_beyond_the_first_plane_are_read_also_from_bytes() -> None:
    line = own(inputs={"x": ["\U0001f600"]})
    assert "\\ud83d" in line
    assert read_event(line.encode()).inputs == {"x": ["\U0001f600"]}


def test_rows_have_the_kinds_of_the_profile() -> None:
    places = places_of({**FEATURES, "v": {"kind": "array"}, "o": {"kind": "other"}}, None)
    inputs = {"age": [[1], True, "x"], "word": [[True], 5, None], "v": [[1, [2]], 3, []]}
    assert rows_of(read_event(own(inputs=inputs)), places) == {
        "age": [1.0, 1.0, None],
        "word": ["true", "5", None],
        "v": [[1.0, 2.0], None, []],
    }


def test_one_name_for_several_values_in_a_row_is_refused() -> None:
    signature = {"inputs": {"age": {}}, "outputs": {"y": {"shape": [None, 3]}}}
    with pytest.raises(ConfigError, match=r"'p' is one value, and 'y' .* outputs=\{'y': \['p_0', "):
        places_of(FEATURES, signature, outputs={"y": "p"}, has_others=True)
    names = {"y": ["p", "q", "r"]}
    places = places_of(FEATURES, signature, ["age"], outputs=names, has_others=True)
    assert [place.feature for place in places] == ["age", "p", "q", "r"]
    for shape in ([None, 1], [None], None, [None, None]):
        signature["outputs"]["y"] = {"shape": shape}
        assert (
            len(places_of(FEATURES, signature, ["age"], outputs={"y": "p"}, has_others=True)) == 2
        )


def test_tensors_that_the_model_does_not_have_are_told(caplog: pytest.LogCaptureFixture) -> None:
    signature = {"inputs": {"age": {}}, "outputs": {"output_0": {}}}
    places_of(FEATURES, signature, outputs={"output_0": "p"}, has_others=True)
    assert caplog.text == ""
    places_of(FEATURES, signature, outputs={"output": "p"}, has_others=True)
    assert "outputs names 'output', which the model does not have: its outputs are 'output_0'" in (
        caplog.text
    )


def test_elements_of_a_tensor_are_features() -> None:
    named = {"x": ["other", "age"]}
    features = {**FEATURES, "other": {"kind": "number"}, "score": {"kind": "number"}}
    signature = {"inputs": {"x": {}, "word": {}}, "outputs": {"output_0": {}}}
    places = places_of(features, signature, inputs=named, outputs={"output_0": "score"})
    event = read_event(own(inputs={"x": [[1, 2], [3]], "word": ["a", "b"]}, outputs={}))
    assert rows_of(event, places) == {
        "age": [2.0, None],
        "word": ["a", "b"],
        "other": [1.0, 3.0],
    }
    answer = read_event(two_events("response", {"predictions": [0.5]}))
    assert rows_of(answer, places) == {"score": [0.5]}


def test_an_event_without_the_features_is_told_from_one_that_tells_nothing() -> None:
    places = (Place("age", "number", "age"),)
    assert rows_of(read_event(own(inputs={"x": [1]})), places) is None
    assert rows_of(read_event(two_events("response", {"predictions": [1]})), places) == {}
    rows = LogRows(places, "m")
    assert rows.rows(read_event(own(model="other"))) == {}
    assert rows.rows(read_event(own(status=503))) == {}
    assert rows.rows(read_event(own(inputs={"age": [10**400]}))) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": ["size"]}, "the reference has no feature 'size'"),
        ({"inputs": {"x": ["size"]}}, "the reference has no feature 'size'"),
        ({"columns": ["age"]}, "'age' of the reference is no input and no output of the model"),
        ({}, r"no input .* has the inputs \['x'\] and the outputs \['y'\]. Say which features"),
    ],
)
def test_features_that_the_model_does_not_have_are_refused(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        places_of(FEATURES, {"inputs": {"x": {}}, "outputs": {"y": {}}}, **arguments)
