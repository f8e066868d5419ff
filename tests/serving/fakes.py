"""A catalog of models that need no TensorFlow."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np

from sparkdl.serving.application import Application
from sparkdl.serving.calls import Result
from sparkdl.serving.messages import Answer, HttpRequest
from sparkdl.serving.request_error import RequestError, not_found
from sparkdl.serving.request_threads import RequestThreads
from sparkdl.serving.signatures import Signature, TensorInfo

__all__ = [
    "Client",
    "FakeCatalog",
    "FakeModel",
    "Page",
    "client",
    "half_plus_three",
    "named",
    "tensor",
]


def tensor(name: str, dtype: str, *shape: int | None) -> tuple[str, TensorInfo]:
    return name, TensorInfo(name, dtype, shape)


class FakeModel:
    """A model whose functions are functions of arrays, by name of the signature."""

    def __init__(self, name: str, version: int, functions: Mapping[str, Any]) -> None:
        self.name = name
        self.version = version
        self.signatures = {key: signature for key, (signature, _) in functions.items()}
        self._functions = {key: function for key, (_, function) in functions.items()}

    platform = "tensorflow_savedmodel"

    def run(
        self, signature: Signature, arrays: Mapping[str, Any], deadline: float | None = None
    ) -> Result:
        return Result(self._functions[signature.name](**arrays))

    async def run_soon(self, signature: Signature, arrays: Mapping[str, Any]) -> Result:
        return await asyncio.to_thread(self.run, signature, arrays)


class FakeCatalog:
    """The newest version of each model takes requests; the label `first` names version 1."""

    loads_on_demand = False

    @property
    def names(self) -> list[str]:
        return [*dict.fromkeys(name for name, _ in self._models)]

    def __init__(self, models: Sequence[FakeModel]) -> None:
        self._models = {(model.name, model.version): model for model in models}

    def find(self, name: str, version: int | None = None, label: str | None = None) -> FakeModel:
        if label is not None and label != "first":
            raise RequestError("INVALID_ARGUMENT", f"Unrecognized servable version label: {label}")
        numbers = [number for other, number in self._models if other == name]
        number = 1 if label else version or max(numbers, default=0)
        if (name, number) not in self._models:
            raise not_found(f"Servable not found for request: Latest({name})")
        return self._models[name, number]

    def status(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> list[dict[str, Any]]:
        found = self.find(name, version, label)
        status = {"error_code": "OK", "error_message": ""}
        return [{"version": str(found.version), "state": "AVAILABLE", "status": status}]

    def ready(self) -> bool:
        return True

    def is_ready(self, name: str, version: int | None = None) -> bool:
        return bool(self.find(name, version))


def half_plus_three(version: int = 123) -> FakeModel:
    """The example of TensorFlow Serving's documentation, with its regress signature."""
    plain = Signature(
        name="serving_default",
        inputs=dict([tensor("x", "float32", None)]),
        outputs=dict([tensor("y", "float32", None)]),
        metadata={"method_name": "tensorflow/serving/predict"},
    )
    regress = Signature(
        name="tensorflow/serving/regress",
        method="tensorflow/serving/regress",
        inputs=dict([tensor("inputs", "string", None)]),
        outputs=dict([tensor("outputs", "float32", None, 1)]),
    )

    def of_examples(inputs: Any) -> dict[str, Any]:
        # A float is the last four bytes of an example with one feature.
        numbers = np.array([np.frombuffer(item[-4:], "<f4")[0] for item in inputs])
        return {"outputs": (numbers / 2 + 3)[:, None]}

    functions = {
        "serving_default": (plain, lambda x: {"y": x / 2 + 3}),
        "tensorflow/serving/regress": (regress, of_examples),
    }
    return FakeModel("half_plus_three", version, functions)


def named() -> FakeModel:
    """Three inputs, as in the documentation, and two outputs."""
    signature = Signature(
        name="serving_default",
        inputs=dict(
            [
                tensor("sensor", "int64", None, 2, 2),
                tensor("signal", "float32", None, 5),
                tensor("tag", "string", None),
            ]
        ),
        outputs=dict([tensor("sum", "float32", None), tensor("tag_bytes", "string", None)]),
    )

    def function(sensor: Any, signal: Any, tag: Any) -> dict[str, Any]:
        return {"sum": signal.sum(1) + sensor.sum((1, 2)).astype("float32"), "tag_bytes": tag}

    return FakeModel("named", 1, {"serving_default": (signature, function)})


class Page:
    """An answer, as a client sees it."""

    def __init__(self, answer: Answer) -> None:
        self.status_code = answer.status
        self.headers = answer.headers
        self.content_type = answer.content_type
        self.data = answer.body

    @property
    def text(self) -> str:
        return self.data.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.data)


class Client:
    """Asks an application without a server."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._pool = RequestThreads(4, "test-request")

    def get(self, path: str, headers: Mapping[str, str]) -> Page:
        return self.ask("GET", path, b"", headers)

    def post(
        self, path: str, data: bytes | str = b"", json: Any = None, *, headers: Mapping[str, str]
    ) -> Page:
        body = data if json is None else encoded(json)
        return self.ask("POST", path, body.encode() if isinstance(body, str) else body, headers)

    def ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Page:
        small = {name.lower(): value for name, value in headers.items()}
        head = HttpRequest(method, unquote(path), small)

        async def read() -> bytes:
            return body

        return Page(asyncio.run(self._application.answer_soon(head, read, self._pool)))


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def client(*models: FakeModel, **options: Any) -> Client:
    return Client(Application(FakeCatalog(models), **options))
