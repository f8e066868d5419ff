"""Malformed requests: whatever a client sends, the server itself never fails."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkdl.serving.application import Application
from tests.serving.fakes import Client, FakeCatalog, half_plus_three, named

APPLICATION = Application(FakeCatalog([half_plus_three(), half_plus_three(1), named()]))

NAMES = st.sampled_from(
    [
        *("instances", "inputs", "signature_name", "examples", "context", "x", "tag", "signal"),
        *("sensor", "name", "shape", "datatype", "data", "parameters", "binary_data_size", "id"),
        *("outputs", "binary_data", "b64", "serving_default", "tensorflow/serving/regress"),
        *("FP32", "INT64", "BYTES", "sum", "y", "aGk="),
    ]
)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), NAMES, st.text(max_size=5),
    st.just(10**400), st.just("\ud800"),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=12,
)
BODIES = st.one_of(
    st.dictionaries(NAMES, VALUES, max_size=5).map(json.dumps).map(str.encode),
    st.builds(
        lambda values: json.dumps({"inputs": [values]}).encode(),
        st.fixed_dictionaries(
            {},
            optional={
                "name": st.sampled_from(["x", "tag", "signal"]),
                "shape": st.lists(st.integers(-1, 5), max_size=3) | VALUES,
                "datatype": st.sampled_from(["FP32", "BYTES", "INT64"]),
                "data": VALUES,
                "parameters": VALUES,
            },
        ),
    ),
    st.binary(max_size=40),
)
PATHS = st.sampled_from(
    [
        *(f"/v1/models/half_plus_three:{verb}" for verb in ("predict", "classify", "regress")),
        *("/v1/models/named:predict", "/v2/models/named/infer", "/v2/models/half_plus_three/infer"),
        *("/v1/models/named/versions/1:predict", "/v1/models/x/labels/first:predict", "/v2/", "//"),
    ]
) | st.text(max_size=12).map("/v1/models/".__add__)
NESTED = "[" * 900 + "1" + "]" * 900
INFER = "/v2/models/half_plus_three/infer"
PREDICT = "/v1/models/half_plus_three:predict"
HEADERS = st.dictionaries(
    st.sampled_from(["Content-Encoding", "Inference-Header-Content-Length", "X-Request-Id"]),
    st.sampled_from(["gzip", "identity", "0", "7", "-1", "x" * 200, "é"]),
    max_size=2,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["POST", "GET", "PUT", "HEAD", "DELETE"]), PATHS, BODIES, HEADERS)
def test_whatever_comes_is_answered_with_json_and_a_reason(
    method: str, path: str, body: bytes, headers: dict[str, str]
) -> None:
    page = Client(APPLICATION).ask(method, path, body, {"Host": "localhost", **headers})
    assert page.status_code < 500 or page.status_code == 501, (page.data, body)
    if page.status_code >= 400:
        assert [*page.json] == ["error"]
    assert b"Traceback" not in page.data


def tensor(**fields: Any) -> bytes:
    fields = {"name": "x", "datatype": "FP32", "data": [1], **fields}
    return json.dumps({"inputs": [fields]}).encode()


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        (f"/v2/models/named/versions/{'9' * 5000}/infer", b"{}", {}),
        (f"/v1/models/named/versions/{'9' * 5000}:predict", b"{}", {}),
        (INFER, b"{}", {"Inference-Header-Content-Length": "9" * 5000}),
        (INFER, tensor(shape=[1] * 65), {}),
        (INFER, tensor(shape=[0, 1 << 39, 1 << 39], data=[]), {}),
        (INFER, tensor(shape=[1 << 70], data=[]), {}),
        (INFER, f'{{"inputs": [{{"name": {NESTED}}}]}}'.encode(), {}),
        (PREDICT, f'{{"instances": [1, {NESTED}]}}'.encode(), {}),
        (PREDICT, f'{{"instances": {NESTED}}}'.encode(), {}),
        (PREDICT, f'{{"signature_name": "{"x" * 100_000}", "instances": [1]}}'.encode(), {}),
        (PREDICT, ('{"instances": [' + "9" * 5000 + "]}").encode(), {}),
    ],
)
def test_numbers_and_shapes_beyond_all_limits_are_refused(
    path: str, body: bytes, headers: dict[str, str]
) -> None:
    answer = Client(APPLICATION).post(path, data=body, headers={"Host": "localhost", **headers})
    assert answer.status_code == 400 and [*answer.json] == ["error"]
    assert len(answer.data) < 3000


def test_one_long_text_among_many_short_ones_does_not_fill_the_memory() -> None:
    """NumPy would give each text the size of the longest one: 12 GB here."""
    body = {"instances": ["x" * 1_000_000, *["a"] * 3000]}
    tracemalloc.start()
    try:
        answer = Client(APPLICATION).post(PREDICT, json=body, headers={"Host": "localhost"})
        assert answer.status_code == 400
        assert tracemalloc.get_traced_memory()[1] < 1 << 27
    finally:
        tracemalloc.stop()


def test_half_of_a_surrogate_pair_comes_back_as_json_that_every_client_reads() -> None:
    body = b'{"inputs": [{"name": "\\ud800"}]}'
    answer = Client(APPLICATION).post(INFER, data=body, headers={"Host": "localhost"})
    assert answer.status_code == 400
    assert "ud800" in json.loads(answer.data.decode("ascii"))["error"]
