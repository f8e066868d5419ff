"""Runs on the driver. A version of a model in memory, whose functions take requests."""

import asyncio
import contextlib
import functools
import logging
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from sparkdl.errors import named_type
from sparkdl.files import storage
from sparkdl.files.model_formats import LOADER_FILE, library_of, load_keras
from sparkdl.inference.model_file import local_copy
from sparkdl.inference.short_call import short_call
from sparkdl.models.saved_model import write_keras
from sparkdl.serving.batcher import Batcher, BatchFailed
from sparkdl.serving.batching import Batching
from sparkdl.serving.calls import Result
from sparkdl.serving.deadlines import seconds_until, too_late
from sparkdl.serving.json_tensors import Array
from sparkdl.serving.model_process import ModelProcess, platform_of, serving_signatures
from sparkdl.serving.request_error import RequestError
from sparkdl.serving.request_threads import RequestThreads
from sparkdl.serving.signatures import Signature, TensorInfo, read_signatures

# TensorFlow's exceptions, by code.
_CODES = {
    "InvalidArgumentError": "INVALID_ARGUMENT",
    "FailedPreconditionError": "FAILED_PRECONDITION",
    "OutOfRangeError": "OUT_OF_RANGE",
    "NotFoundError": "INVALID_ARGUMENT",
    "UnimplementedError": "UNIMPLEMENTED",
    "UnavailableError": "UNAVAILABLE",
    "ResourceExhaustedError": "RESOURCE_EXHAUSTED",
    "DeadlineExceededError": "DEADLINE_EXCEEDED",
    "AbortedError": "ABORTED",
    "TypeError": "INVALID_ARGUMENT",
    "ValueError": "INVALID_ARGUMENT",
    "MemoryError": "RESOURCE_EXHAUSTED",
}
MAX_MESSAGE = 500
# Requests that one version computes at the same time without batches.
THREADS = 64
# Lines of a message of TensorFlow that tell of its code rather than of the request.
_CODE_LINE = re.compile(
    r"\s|Graph execution error|Detected at node|File \"|Traceback|\(most recent|$"
)
_OPERATION = re.compile(
    r"\s*\[Op:\w+\]|\{\{(function_)?node [^}]*\}\}\s*|\s*\[\[.*?\]\]|<stack traces unavailable>\s*"
)

_logger = logging.getLogger("sparkdl.serving")


Function = Callable[[Signature, Sequence[Array]], list[Array]]


class LoadedVersion:
    """A version of a model.

    Args:
        name: the name of the model.
        version: the number of the version.
        signatures: the signatures of the model.
        function: calls a signature with its inputs, in the order of their names, and returns its
            outputs.
        num_bytes: the size of its files in bytes.
        batching: the options of batching; None computes each request alone.
        num_clients: see `Batcher`.
        executor: the threads in which requests without batches are computed; by default up to
            `THREADS` of this version, so that a model that hangs holds no thread of the others.
        platform: see `Servable`.
    """

    def __init__(
        self,
        name: str,
        version: int,
        signatures: Mapping[str, Signature],
        function: Function,
        num_bytes: int = 0,
        batching: Batching | None = None,
        num_clients: Callable[[], int] | None = None,
        executor: Executor | None = None,
        platform: str = "tensorflow_savedmodel",
    ) -> None:
        self.name = name
        self.version = version
        self.signatures = signatures
        self.num_bytes = num_bytes
        self._function = function
        self.platform = platform
        self._executor = executor or RequestThreads(THREADS, f"sparkdl-{name}-{version}")
        # Requests refer to this object: when it goes, the last of them was answered.
        weakref.finalize(self, self._executor.shutdown, wait=False)
        self._queues: dict[str, Batcher] = {}
        for key, signature in signatures.items():
            if batching and signature.has_rows and not key.startswith("__"):
                compute = functools.partial(self._function, signature)
                self._queues[key] = queue = Batcher(compute, batching, num_clients)
                weakref.finalize(self, queue.close)

    def __repr__(self) -> str:
        return f"<{self.name} version {self.version}>"

    def run(
        self, signature: Signature, arrays: Mapping[str, Array], deadline: float | None = None
    ) -> Result:
        """Compute the outputs, see `Servable`."""
        ordered = [arrays[name] for name in signature.inputs]
        outputs = None
        batch_size = None
        if queue := self._queue_of(signature, ordered):
            # A row of another request may be wrong, or the model does not keep the rows apart.
            with suppress(BatchFailed):
                outputs, batch_size = queue(ordered, deadline)
        if outputs is None:
            future = self._executor.submit(self._function, signature, ordered)
            try:
                outputs = future.result(seconds_until(deadline))
            except FutureTimeoutError:
                future.cancel()
                raise too_late() from None
        return Result(dict(zip(signature.outputs, outputs, strict=True)), batch_size)

    async def run_soon(self, signature: Signature, arrays: Mapping[str, Array]) -> Result:
        """Compute the outputs in other threads, see `Servable`."""
        ordered = [arrays[name] for name in signature.inputs]
        outputs = None
        batch_size = None
        if queue := self._queue_of(signature, ordered):
            with suppress(BatchFailed):
                outputs, batch_size = await queue.run_soon(ordered)
        if outputs is None:
            loop = asyncio.get_running_loop()
            alone = functools.partial(self._function, signature, ordered)
            outputs = await loop.run_in_executor(self._executor, alone)
        return Result(dict(zip(signature.outputs, outputs, strict=True)), batch_size)

    def _queue_of(self, signature: Signature, arrays: Sequence[Array]) -> Batcher | None:
        """Return the queue for a request; None if its rows cannot be batched."""
        queue = self._queues.get(signature.name)
        has_rows = queue and len({len(array) for array in arrays}) == 1 and len(arrays[0])
        return queue if has_rows else None

    def warm_up(self, sizes: Sequence[int] = (1,)) -> bool:
        """Call each function on rows of zeros, so that the first request does not wait.

        Args:
            sizes: numbers of rows.

        Returns:
            True if all functions have computed these rows.
        """
        is_warm = True
        for key, signature in self.signatures.items():
            for size in sizes if not key.startswith("__") else ():
                try:
                    self.run(signature, {n: _zeros(i, size) for n, i in signature.inputs.items()})
                except RequestError as exc:
                    _logger.info("%r: %s does not compute zeros: %s", self, key, exc)
                    is_warm = False
        return is_warm


def _call(
    model: Any,
    functions: Mapping[str, Callable[..., Any]],
    signature: Signature,
    arrays: Sequence[Array],
) -> list[Array]:
    """Call a function of a model with its inputs, in the order of their names.

    Args:
        model: the model; its variables are there as long as it is.
        functions: its functions by name.
        signature: the signature of one of them.
        arrays: the inputs, whose shapes the server has checked.

    Raises:
        RequestError: if the function fails.
    """
    with _request_errors():
        pairs = zip(arrays, signature.inputs.values(), strict=True)
        outputs = functions[signature.name](*(_tensor(array, info.dtype) for array, info in pairs))
        return [_array(outputs[name]) for name in signature.outputs]


def _by_position(function: Any, signature: Signature) -> Callable[..., Any]:
    """Return a function of a model, which takes its inputs by name, as one of their tensors."""
    import tensorflow as tf

    def call(*tensors: Any) -> Any:
        return function(**dict(zip(signature.inputs, tensors, strict=True)))

    specs = [tf.TensorSpec(info.shape, info.dtype) for info in signature.inputs.values()]
    return short_call(tf.function(call, autograph=False).get_concrete_function(*specs))


def _tensor(array: Array, dtype: str) -> Any:
    import tensorflow as tf

    if dtype == "bfloat16":
        return tf.cast(tf.constant(array), dtype)
    return tf.constant(array, dtype)


def _zeros(info: TensorInfo, size: int) -> Array:
    shape = [1 if n is None else n for n in info.shape or ()]
    if info.shape and info.shape[0] is None:
        shape[0] = size
    if info.dtype == "string":
        return np.full(shape, b"", object)
    return np.zeros(shape, "float32" if info.dtype == "bfloat16" else info.dtype)


def _array(output: Any) -> Array:
    if hasattr(output, "to_list"):
        return output.to_list()  # A ragged tensor.
    if not hasattr(output, "numpy"):
        kind = named_type(output)
        raise RequestError("UNIMPLEMENTED", f"an output is {kind}; expected a dense tensor")
    return output.numpy()


@contextmanager
def _request_errors() -> Iterator[None]:
    """Raise an error of the model as one of the request, without a traceback."""
    try:
        yield
    except RequestError:
        raise
    except Exception as exc:
        names = getattr(exc, "kinds", None) or [kind.__name__ for kind in type(exc).__mro__]
        code = next((_CODES[name] for name in names if name in _CODES), "INTERNAL")
        text = _reason(getattr(exc, "message", None) or str(exc))
        if code == "INTERNAL":
            _logger.exception("a model failed")
        raise RequestError(code, text) from exc


def _reason(message: str) -> str:
    """Return what a message of TensorFlow says, without its traceback and names of operations.

    Example:
        >>> _reason("Graph execution error:\\n\\n  File x\\nToo long {{node a}}\\n\\t [[a]] [Op:b]")
        'Too long'
    """
    lines = [line for line in message.splitlines() if not _CODE_LINE.match(line)]
    text = " ".join(_OPERATION.sub("", line).strip() for line in lines)
    return text[:MAX_MESSAGE].strip() or "the model failed"


# ---- loading


def load(
    url: str,
    name: str,
    version: int,
    batching: Batching | None = None,
    num_clients: Callable[[], int] | None = None,
    timeout_s: float | None = None,
) -> LoadedVersion:
    """Load a version of a model: into this process, or with its loader into one of its own.

    Args:
        url: path or URL of the folder of a model, or of a Keras file.
        name: the name of the model.
        version: the number of the version.
        batching: the options of batching; None computes each request alone.
        num_clients: see `Batcher`.
        timeout_s: see `ModelProcess`.

    Raises:
        ValueError: if it is no model, or its loader fails.
        OSError: if its files cannot be read.
    """
    if storage.exists(storage.join(url, LOADER_FILE)):
        return _with_loader(url, name, version, batching, num_clients, timeout_s)
    import tensorflow as tf

    with local_copy(url) as path, TemporaryDirectory(prefix="sparkdl-serving-") as temporary:
        if library_of(path) != "tensorflow":
            library = library_of(path)
            write_keras(load_keras(path, library), library, temporary)
            path = Path(temporary)
        signatures = read_signatures(path)
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        try:
            model = tf.saved_model.load(str(path))
        except tf.errors.OpError as exc:
            raise ValueError(f"{url} cannot be loaded: {_reason(exc.message)}") from exc
    callable_signatures = {
        key: s for key, s in signatures.items() if key in model.signatures or key[:2] == "__"
    }
    functions = {
        key: _by_position(model.signatures[key], signature)
        for key, signature in signatures.items()
        if key in model.signatures
    }
    function = functools.partial(_call, model, functions)
    return LoadedVersion(name, version, callable_signatures, function, size, batching, num_clients)


def _with_loader(
    url: str,
    name: str,
    version: int,
    batching: Batching | None,
    num_clients: Callable[[], int] | None,
    timeout_s: float | None,
) -> LoadedVersion:
    """Load a model with a loader into a process of its own, which ends with the version."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(local_copy(url))
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        process = ModelProcess(folder, timeout_s)
        # One at a time: a model that hangs takes no thread of the others.
        executor = ThreadPoolExecutor(1, thread_name_prefix=f"sparkdl-{name}-{version}")
        stack.callback(executor.shutdown, wait=False, cancel_futures=True)
        stack.callback(process.close)
        signatures = serving_signatures(process.model)
        _logger.info("%s version %d computes in process %s", name, version, process.pid)

        def compute(signature: Signature, arrays: Sequence[Array]) -> list[Array]:
            with _request_errors():
                return process(signature.name, arrays)

        loaded = LoadedVersion(
            *(name, version, signatures, compute, size, batching, num_clients, executor),
            platform=platform_of(process.model),
        )
        # Requests refer to the version: when it goes, the last of them was answered.
        weakref.finalize(loaded, stack.pop_all().close)
        return loaded
