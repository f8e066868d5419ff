"""Runs on the driver. The process in which a model with a loader computes.

A loader may bring any framework with its threads and signals: in a process of its own it does not
stop the server when it fails. It is no protection from a loader that means harm.
"""

import contextlib
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np

from sparkdl.inference import model_worker
from sparkdl.inference.array_messages import receive, send
from sparkdl.inference.loader_model import LoaderModel, ModelFunction, read_loader_model
from sparkdl.inference.tensor_spec import TensorSpec
from sparkdl.serving.child_process import start_child
from sparkdl.serving.json_tensors import Array
from sparkdl.serving.request_error import RequestError, invalid
from sparkdl.serving.settings import METRICS_FOLDER
from sparkdl.serving.signatures import Signature, TensorInfo

_END_S = 2.0
# The first call of a process compiles or loads what the others only use.
FIRST_CALL = 10
# By the loaders that read a format; a function of the user is like Triton's backend for Python.
_PLATFORMS = {
    "torch.export": "pytorch_libtorch",
    "sklearn": "sklearn",
    "xgboost": "xgboost",
    "onnx": "onnxruntime_onnx",
}

_logger = logging.getLogger("sparkdl.serving")


class ModelFailed(Exception):
    """The model has raised an exception.

    Args:
        kinds: the names of the class of the exception and of its bases.
        message: what it says.
    """

    def __init__(self, kinds: Sequence[str], message: str) -> None:
        super().__init__(message)
        self.kinds = tuple(kinds)


class _Worker:
    """A process with the model in memory.

    Args:
        folder: the local folder of the model.

    Raises:
        ModelFailed: if the loader raises an exception.
        EOFError: if the process ends.
    """

    def __init__(self, folder: Path) -> None:
        # The metrics of a worker are not those of a model.
        environment = {k: v for k, v in os.environ.items() if k != METRICS_FOLDER}
        self.process, self._connection = start_child(
            model_worker.main, str(folder), environment=environment
        )
        self._has_computed = False
        self._life = os.pidfd_open(self.process.pid)
        try:
            self._receive()  # The model is loaded.
        except BaseException:
            self.end()
            raise

    def compute(
        self, signature: str, arrays: Sequence[Array], timeout_s: float | None = None
    ) -> list[Any]:
        """Return the array of each output, or a list of its rows of different lengths.

        Args:
            signature: the name of the signature.
            arrays: the inputs.
            timeout_s: seconds to wait, and `FIRST_CALL` times as many at the first call.

        Raises:
            TimeoutError: if the outputs do not come.
            ModelFailed: if the model raises an exception.
            EOFError: if the process ends.
        """
        send(self._connection, arrays, signature=signature)
        factor = 1 if self._has_computed else FIRST_CALL
        outputs = self._receive(None if timeout_s is None else factor * timeout_s)
        self._has_computed = True
        return outputs

    def _receive(self, timeout_s: float | None = None) -> list[Any]:
        # A process that the model has forked may hold the other end of the socket.
        ready = wait([self._connection, self._life], timeout_s)
        if not ready:
            raise TimeoutError(f"it has computed for {timeout_s} s")
        if self._connection not in ready:
            raise EOFError("the process has ended")
        arrays, header = receive(self._connection)
        if "error" in header:
            raise ModelFailed(header["kinds"], header["error"])
        return arrays

    def end(self) -> int:
        """End the process; return its exit code."""
        for close in (self._connection.close, lambda: os.close(self._life)):
            with contextlib.suppress(OSError):
                close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_S)  # It ends by itself when the socket is closed.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # With the processes that it has started.
        return self.process.wait()


class ModelProcess:
    """A model in a process of its own, which takes one request at a time.

    A process that has died is started again by the next request.

    Args:
        folder: the local folder of the model; it stays as long as this object is used.
        timeout_s: the seconds after which a process that computes one request is ended, as nobody
            waits for it any more; None for any time.

    Raises:
        ValueError: if the model cannot be loaded.
    """

    def __init__(self, folder: Path, timeout_s: float | None = None) -> None:
        self.model: LoaderModel = read_loader_model(folder)
        self._folder = folder
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        try:
            self._worker: _Worker | None = _Worker(folder)
        except (ModelFailed, EOFError, OSError) as exc:
            reason = str(exc) or "its process has ended; the output of the server has the reason"
            raise ValueError(f"the loader {self.model.loader} failed: {reason}") from exc

    @property
    def pid(self) -> int | None:
        """The id of the process; None if it has died."""
        return self._worker.process.pid if self._worker else None

    def __call__(self, signature: str, arrays: Sequence[Array]) -> list[Array]:
        """Return the array of each output.

        Args:
            signature: the name of the signature.
            arrays: one array for each input, in their order; text as bytes in UTF-8.

        Raises:
            ModelFailed: if the model raises an exception.
            RequestError: if a text is no UTF-8, the process dies, or it takes too long.
        """
        pairs = zip(arrays, self.model.functions[signature].inputs, strict=True)
        inputs = [_decoded(*pair) for pair in pairs]
        with self._lock:
            worker = self._running()
            try:
                outputs = worker.compute(signature, inputs, self._timeout_s)
            except TimeoutError as exc:
                worker.end()
                self._worker = None
                text = f"the process of the model was ended: {exc}"
                _logger.error("%s: %s", self._folder, text)
                raise RequestError("DEADLINE_EXCEEDED", text) from exc
            except (EOFError, OSError) as exc:
                code, self._worker = worker.end(), None
                text = f"the process of the model has ended with the code {code}"
                _logger.error("%s: %s", self._folder, text)
                raise RequestError("UNAVAILABLE", f"{text}; the next request starts it") from exc
        return [_encoded(output) for output in outputs]

    def _running(self) -> _Worker:
        """Return the process; start it if it has died."""
        if self._worker is None:
            try:
                self._worker = _Worker(self._folder)
            except (ModelFailed, EOFError, OSError) as exc:
                text = f"the model cannot be loaded again: {exc}"
                _logger.error("%s: %s", self._folder, text)
                raise RequestError("UNAVAILABLE", text) from exc
        return self._worker

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.end()


def _decoded(array: Array, spec: TensorSpec) -> Array:
    if spec.dtype != "string":
        return np.asarray(array)  # Bytes stay as they are.
    try:
        texts = [v.decode() if isinstance(v, bytes) else str(v) for v in array.ravel().tolist()]
    except UnicodeDecodeError as exc:
        raise invalid(f"the input {spec.name!r} is no text in UTF-8: {exc}") from exc
    return np.array([*texts, None], object)[:-1].reshape(array.shape)


def _encoded(output: Any) -> Any:
    """Return an output as the models of TensorFlow give it: text as bytes, ragged rows as lists."""
    if isinstance(output, list):
        return [row.tolist() for row in output]
    if output.dtype != object:
        return output
    texts = output.ravel().tolist()
    if None in texts:
        raise RequestError("INTERNAL", "the model has returned None for a text, which has no form")
    encoded = [text if isinstance(text, bytes) else text.encode() for text in texts]
    return np.array([*encoded, None], object)[:-1].reshape(output.shape)


def platform_of(model: LoaderModel) -> str:
    """Return the framework of a model in the names of Triton, and of KServe where Triton has none.

    Source: https://github.com/triton-inference-server/server/blob/main/docs/user_guide, and
    `modelFormat` of https://kserve.github.io/website/docs/reference/crd-api
    """
    return _PLATFORMS.get(model.loader, "python")


def serving_signatures(model: LoaderModel) -> dict[str, Signature]:
    """Return the signatures of a model, as those of a SavedModel."""
    return {name: _signature(name, function) for name, function in model.functions.items()}


def _signature(name: str, function: ModelFunction) -> Signature:
    inputs = {spec.name: _info(spec) for spec in function.inputs}
    outputs = {spec.name: _info(spec, may_be_ragged=True) for spec in function.outputs}
    metadata = {
        "inputs": {name: _metadata(info) for name, info in inputs.items()},
        "outputs": {name: _metadata(info) for name, info in outputs.items()},
        "method_name": "tensorflow/serving/predict",
    }
    return Signature(name=name, inputs=inputs, outputs=outputs, metadata=metadata)


def _info(spec: TensorSpec, may_be_ragged: bool = False) -> TensorInfo:
    is_ragged = may_be_ragged and None in (spec.shape or ())
    shape = None if is_ragged else (None, *(spec.shape or ()))
    # TensorFlow's strings are bytes.
    dtype = "string" if spec.dtype == "bytes" else spec.dtype
    return TensorInfo(spec.name, dtype, shape, is_ragged)


def _metadata(info: TensorInfo) -> dict[str, Any]:
    names = {"float16": "HALF", "float32": "FLOAT", "float64": "DOUBLE"}
    dims = [{"size": str(-1 if n is None else n), "name": ""} for n in info.shape or ()]
    return {
        "dtype": f"DT_{names.get(info.dtype, info.dtype.upper())}",
        "tensor_shape": {"dim": dims, "unknown_rank": info.shape is None},
        "name": info.name,
    }
