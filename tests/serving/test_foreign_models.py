"""Models as users write them, asked as clients of TensorFlow Serving ask.

What Keras itself computes is compared with the answers by REST, by gRPC and below `/v2`.
"""

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sparkdl import models, serving
from sparkdl.serving import Server

pytestmark = pytest.mark.slow

grpc = pytest.importorskip("grpc")
pytest.importorskip("tensorflow_serving", reason="sparkdl-platform[serving-grpc] is not installed")

ROWS = {
    "city": np.array([["Rome"], ["Oslo"], ["nowhere"]], object),
    "size": np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "float32"),
}


def houses() -> Any:
    """Two inputs, one of them text, preprocessing layers and two outputs."""
    import keras

    city = keras.Input((1,), dtype="string", name="city")
    size = keras.Input((2,), name="size")
    one_hot = keras.layers.StringLookup(vocabulary=["Rome", "Oslo"], output_mode="one_hot")(city)
    scaled = keras.layers.Normalization(mean=[1.0, 2.0], variance=[4.0, 9.0])(size)
    joined = keras.layers.Concatenate()([one_hot, scaled])
    price = keras.layers.Dense(1, name="price")(joined)
    kind = keras.layers.Dense(3, activation="softmax", name="kind")(joined)
    return keras.Model({"city": city, "size": size}, {"price": price, "kind": kind})


def comments() -> Any:
    """One input of text, which the model divides into words."""
    import keras

    words = keras.layers.TextVectorization(vocabulary=["good", "bad"], output_sequence_length=4)
    layers = [keras.Input((1,), dtype="string", name="comment"), words]
    return keras.Sequential([*layers, keras.layers.Embedding(4, 2), keras.layers.Flatten()])


def save_half_plus_three(folder: str) -> None:
    """The model of TensorFlow Serving's documentation, by `tf.saved_model.save`."""
    import tensorflow as tf

    class Half(tf.Module):  # type: ignore[misc]
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
        def predict(self, x: Any) -> Any:
            return {"y": x / 2 + 3}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="inputs")])
        def regress(self, inputs: Any) -> Any:
            parsed = tf.io.parse_example(inputs, {"x": tf.io.FixedLenFeature([1], tf.float32)})
            return {"outputs": parsed["x"] / 2 + 3}

    half = Half()
    signatures = {"serving_default": half.predict, "tensorflow/serving/regress": half.regress}
    tf.saved_model.save(half, folder, signatures)


@pytest.fixture(scope="module")
def built() -> dict[str, Any]:
    return {"houses": houses(), "comments": comments()}


@pytest.fixture(scope="module")
def server(built: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("foreign")
    root = str(folder / "root")
    for name, model in built.items():
        model.export(str(folder / f"{name}_keras" / "1"), verbose=False)
        models.export(model, name, root=root)
    save_half_plus_three(str(folder / "half_plus_three" / "123"))
    names = [*built, *(str(folder / f"{name}_keras") for name in built)]
    names.append(str(folder / "half_plus_three"))
    with serving.start(names, root=root, port=0, grpc_port=0) as server:
        yield server


def ask(server: Server, path: str, body: Any) -> Any:
    request = urllib.request.Request(f"{server.url}{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=240) as answer:
        return json.loads(answer.read())


def by_grpc(server: Server, name: str, inputs: dict[str, Any]) -> dict[str, Any]:
    import tensorflow as tf
    from tensorflow_serving.apis.predict_pb2 import PredictRequest
    from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub

    request = PredictRequest()
    request.model_spec.name = name
    for key, value in inputs.items():
        request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
    with grpc.insecure_channel(str(server.grpc_address)) as channel:
        response = PredictionServiceStub(channel).Predict(request, timeout=240)
    return {key: tf.make_ndarray(tensor) for key, tensor in response.outputs.items()}


def by_protocol(server: Server, name: str, inputs: dict[str, Any]) -> dict[str, Any]:
    tensors = [
        {
            "name": key,
            "datatype": "BYTES" if value.dtype == object else "FP32",
            "shape": list(value.shape),
            "data": value.ravel().tolist(),
        }
        for key, value in inputs.items()
    ]
    outputs = ask(server, f"/v2/models/{name}/infer", {"inputs": tensors})["outputs"]
    return {one["name"]: np.reshape(one["data"], one["shape"]) for one in outputs}


def of_keras(model: Any, inputs: dict[str, Any]) -> Any:
    import tensorflow as tf

    tensors = {key: tf.constant(value) for key, value in inputs.items()}
    return model(tensors if len(tensors) > 1 else next(iter(tensors.values())))


@pytest.mark.parametrize("name", ["houses", "houses_keras"])
def test_preprocessing_and_several_outputs(
    built: dict[str, Any], server: Server, name: str
) -> None:
    expected = {key: value.numpy() for key, value in of_keras(built["houses"], ROWS).items()}
    texts = {"city": ROWS["city"].tolist(), "size": ROWS["size"].tolist()}
    rows = [dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)]
    predictions = ask(server, f"/v1/models/{name}:predict", {"instances": rows})["predictions"]
    by_rows = {key: np.array([row[key] for row in predictions]) for key in predictions[0]}
    by_columns = ask(server, f"/v1/models/{name}:predict", {"inputs": texts})["outputs"]
    coded = {**texts, "city": [[{"b64": "Um9tZQ=="}], ["Oslo"], [{"b64": "/w=="}]]}
    by_bytes = ask(server, f"/v1/models/{name}:predict", {"inputs": coded})["outputs"]
    answers = [by_rows, by_columns, by_bytes]
    answers += [by_grpc(server, name, ROWS), by_protocol(server, name, ROWS)]
    for answer in answers:
        assert answer.keys() == expected.keys()
        for key, value in expected.items():
            assert np.allclose(answer[key], value, atol=1e-6), (key, answer)


@pytest.mark.parametrize("name", ["comments", "comments_keras"])
def test_text_is_divided_by_the_model(built: dict[str, Any], server: Server, name: str) -> None:
    inputs = {"comment": np.array([["good, good"], ["very bad"]], object)}
    expected = of_keras(built["comments"], inputs).numpy()
    body = {"instances": inputs["comment"].tolist()}
    rows = ask(server, f"/v1/models/{name}:predict", body)["predictions"]
    assert np.allclose(rows, expected)
    for answer in (by_grpc(server, name, inputs), by_protocol(server, name, inputs)):
        assert [*answer] == ["output_0"] and np.allclose(answer["output_0"], expected)


def test_the_commands_of_the_documentation(server: Server) -> None:
    """Source: https://www.tensorflow.org/tfx/serving/api_rest, the section Example."""
    if (curl := shutil.which("curl")) is None:
        pytest.skip("curl is not installed")
    model = f"{server.url}/v1/models/half_plus_three"
    regress = {"signature_name": "tensorflow/serving/regress", "examples": [{"x": 1.0}, {"x": 2.0}]}

    def run(*arguments: str) -> Any:
        done = subprocess.run(
            [curl, "-sS", *arguments], capture_output=True, check=True, timeout=240
        )
        return json.loads(done.stdout)

    status = {"error_code": "OK", "error_message": ""}
    assert run(model) == {
        "model_version_status": [{"version": "123", "state": "AVAILABLE", "status": status}]
    }
    body = '{"instances": [1.0, 2.0, 5.0]}'
    assert run("-d", body, "-X", "POST", f"{model}:predict") == {"predictions": [3.5, 4.0, 5.5]}
    answer = run("-d", json.dumps(regress), "-X", "POST", f"{model}:regress")
    assert answer == {"results": [3.5, 4.0]}
    missing = run("-d", body, "-X", "POST", f"{server.url}/v1/models/half:predict")
    assert missing == {"error": "Servable not found for request: Latest(half)"}


def test_metadata_is_what_the_saved_model_says(server: Server) -> None:
    with urllib.request.urlopen(f"{server.url}/v1/models/houses_keras/metadata") as answer:
        described = json.loads(answer.read())
    signatures = described["metadata"]["signature_def"]["signature_def"]
    inputs = signatures["serving_default"]["inputs"]
    assert {key: info["dtype"] for key, info in inputs.items()} == {
        "city": "DT_STRING",
        "size": "DT_FLOAT",
    }
    assert [dim["size"] for dim in inputs["size"]["tensor_shape"]["dim"]] == ["-1", "2"]
    assert {*signatures["serving_default"]["outputs"]} == {"price", "kind"}
