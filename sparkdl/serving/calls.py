"""Runs anywhere (pure). Models as requests see them, and the note that is taken of a request."""

import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sparkdl.serving.deadlines import earlier
from sparkdl.serving.json_tensors import Array
from sparkdl.serving.messages import Answer
from sparkdl.serving.request_checks import check_splits
from sparkdl.serving.signatures import Signature

_ID = re.compile(r"[\w.:/+=-]{1,128}", re.ASCII)

_logger = logging.getLogger("sparkdl.serving")


@dataclass(frozen=True)
class Result:
    """The outputs of a model for one request.

    Attributes:
        outputs: the outputs by name; nested lists for a ragged output.
        batch: number of rows that the model computed at once, with those of other requests; None
            if rows are not batched.
    """

    outputs: dict[str, Array]
    batch: int | None = None


class Servable(Protocol):
    """A version of a model that takes requests."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def platform(self) -> str:
        """The framework that computes, in the names of the Open Inference Protocol."""

    @property
    def signatures(self) -> Mapping[str, Signature]: ...

    def run(
        self, signature: Signature, arrays: Mapping[str, Array], deadline: float | None = None
    ) -> Result:
        """Compute the outputs.

        Args:
            signature: the signature.
            arrays: the inputs by name.
            deadline: the time on the clock `time.monotonic` until which to wait for the model;
                None for any time.

        Raises:
            RequestError: if the model refuses the inputs, too many requests wait, or the model
                takes too long.
        """

    async def run_soon(self, signature: Signature, arrays: Mapping[str, Array]) -> Result:
        """Compute the outputs without holding the thread.

        What has not begun is not computed if the call is cancelled.

        Raises:
            RequestError: as `run` does.
        """


class Catalog(Protocol):
    """The models that a server has."""

    @property
    def names(self) -> list[str]:
        """The names of the models."""

    @property
    def loads_on_demand(self) -> bool:
        """`find` may wait until a model is loaded."""

    def find(self, name: str, version: int | None = None, label: str | None = None) -> Servable:
        """Return the version that a request asks for.

        Raises:
            RequestError: if there is none.
        """

    def status(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the state of each version, as TensorFlow Serving shows it, newest first.

        Raises:
            RequestError: if there is no such model or version.
        """

    def ready(self) -> bool:
        """Return True if each model has a version that takes requests, or is loaded on demand."""

    def is_ready(self, name: str, version: int | None = None) -> bool:
        """Return True if requests to a model, or to a version, can be answered.

        Raises:
            RequestError: if there is no such model or version.
        """


@dataclass(kw_only=True)
class Call:
    """A request to a model, as metrics and the inference log note it.

    Attributes:
        id: the id of the request.
        time_ms: the time at which the request came, in milliseconds since 1970.
        method: `predict`, `classify`, `regress` or `infer`.
        model: the name of the model; empty if there is no such model.
        version: the version that answered.
        signature: the name of the signature.
        rows: number of rows of the request.
        status: the status of the answer in HTTP.
        latency_ms: milliseconds from the request to the answer.
        batch: see `Result`.
        deadline: the time after which the request is answered with an error, on the clock
            `time.monotonic`; None for no such time.
        inputs: the inputs by name.
        outputs: the outputs by name.
    """

    id: str = field(default_factory=lambda: os.urandom(16).hex())
    time_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    started: float = field(default_factory=time.perf_counter)
    method: str = ""
    model: str = ""
    version: int | None = None
    signature: str = ""
    rows: int = 0
    status: int = 200
    latency_ms: float = 0.0
    batch: int | None = None
    deadline: float | None = None
    inputs: dict[str, Array] = field(default_factory=dict)
    outputs: dict[str, Array] = field(default_factory=dict)

    def end_within(self, timeout_s: float | None) -> None:
        """Set the deadline to some seconds from now, unless it is earlier."""
        self.deadline = earlier(self.deadline, timeout_s)

    def compute(
        self, servable: Servable, signature: Signature, arrays: Mapping[str, Array], rows: int
    ) -> dict[str, Array]:
        """Let a model compute the outputs, and note what it did.

        Raises:
            RequestError: if the inputs are wrong, too many requests wait, or the deadline passes.
        """
        self.note_inputs(signature, arrays, rows)
        result = servable.run(signature, arrays, self.deadline)
        self.note_outputs(result)
        return result.outputs

    def note_inputs(self, signature: Signature, arrays: Mapping[str, Array], rows: int) -> None:
        """Note the inputs.

        Raises:
            RequestError: if the inputs are wrong.
        """
        check_splits(signature, arrays)
        self.signature = signature.name
        self.rows = rows
        self.inputs = dict(arrays)

    def note_outputs(self, result: Result) -> None:
        """Note the outputs."""
        self.outputs = result.outputs
        self.batch = result.batch

    def note_version(self, servable: Servable) -> None:
        """Note the version that answers."""
        self.model = servable.name
        self.version = servable.version

    def note_status(self, status: int) -> None:
        """Note the status of the answer, and its latency."""
        self.status = status
        self.latency_ms = (time.perf_counter() - self.started) * 1000


@dataclass(frozen=True)
class Work:
    """A request that was read and has to be computed.

    Attributes:
        servable: the version that answers.
        signature: the signature.
        arrays: the inputs by name.
        rows: number of rows.
        reply: returns the answer for the outputs.
    """

    servable: Servable
    signature: Signature
    arrays: Mapping[str, Array]
    rows: int
    reply: Callable[[dict[str, Array]], Answer]


# Told of each request to a model, after its answer was computed.
Observer = Callable[[Call], None]


def call_of(client_id: str) -> Call:
    """Return the note of a request, with the id of the client if the id can be one.

    Example:
        >>> call_of("order-17").id
        'order-17'
    """
    return Call(id=client_id) if _ID.fullmatch(client_id) else Call()


def tell(observers: Sequence[Observer], call: Call) -> None:
    """Let observers note a request that was answered."""
    for observer in observers:
        try:
            observer(call)
        except Exception:
            # The answer is ready. What is noted of it must not take it away.
            _logger.exception("request %s cannot be noted", call.id)
