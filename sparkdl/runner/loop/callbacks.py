"""Runs on the driver. Call the callbacks of a run, each in a thread of its own."""

import copy
import logging
import math
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sparkdl.callbacks.callback import Callback
from sparkdl.errors import ConfigError, named_type, suggest
from sparkdl.runner.harmless import tolerated
from sparkdl.runner.loop.best_so_far import BestSoFar
from sparkdl.runs import Run, Trial
from sparkdl.runs.states import TrialState
from sparkdl.secrets.masks import mask_text

# Events that wait for a slow callback; further ones are left out.
MAX_WAITING = 1000

_END = "on_run_end"

_logger = logging.getLogger("sparkdl.runner")


def check_callbacks(callbacks: Any) -> None:
    """Validate the option `callbacks`.

    Raises:
        ConfigError: if it is no list of callbacks, or a callback has a method with a wrong name.
    """
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        raise ConfigError(
            f"callbacks is {named_type(callbacks)}; expected a list, such as "
            "callbacks=[Webhook(url)]."
        )
    methods = [name for name in dir(Callback) if name.startswith("on_")]
    for callback in callbacks:
        if not isinstance(callback, Callback):
            is_class = isinstance(callback, type) and issubclass(callback, Callback)
            name = callback.__name__ if is_class else type(callback).__name__
            text = f"the class {name}: create an object, {name}(...)" if is_class else f"a {name}"
            raise ConfigError(
                f"callbacks contains {text}. Expected objects of classes derived from "
                "sparkdl.callbacks.Callback."
            )
        for name in dir(type(callback)):
            if name.startswith("on_") and name not in methods:
                raise ConfigError(
                    f"the callback {type(callback).__name__} has a method {name}, which is never "
                    f"called.{suggest(name, methods)} Callbacks have {', '.join(methods)}."
                )


class CallbackObserver:
    """Calls the callbacks of a run; no method waits for a callback but `run_ended`.

    Args:
        run: the run.
        callbacks: the callbacks.
        secrets: values to mask in warnings.
    """

    def __init__(
        self, run: Run, callbacks: Sequence[Callback], secrets: Sequence[str] = ()
    ) -> None:
        self._threads = [CallbackThread(run, callback, secrets) for callback in callbacks]
        self._best = BestSoFar(run) if callbacks else None
        self._has_ended = False

    def trial_started(self, trial: Trial, attempt: int) -> None:
        """Let the callbacks know that an attempt at a trial has started."""
        self._send("on_trial_start", trial)

    def trial_ended(self, trial: Trial) -> None:
        """Let the callbacks know that a trial has ended, and if it is the new best one."""
        if trial.attempts == 0 and trial.state == TrialState.CANCELLED:
            return  # It has never started.
        self._send("on_trial_end", trial)
        if self._best and (best := self._best.update(trial)):
            self._send("on_best", best)

    def _send(self, method: str, trial: Trial) -> None:
        for thread in self._threads:
            thread.send(method, trial)

    def run_ended(self) -> None:
        """Let the callbacks know that the run has ended, and wait a while until they are done."""
        if self._has_ended:
            return
        self._has_ended = True
        begun_s = time.monotonic()
        for thread in self._threads:
            thread.send_end()
        for thread in self._threads:
            thread.wait(begun_s)

    @contextmanager
    def ending_if_raised(self) -> Iterator[None]:
        """Let the callbacks know that the run has ended if the block, which prepares it, raises."""
        try:
            yield
        except BaseException:
            with tolerated("call the callbacks at the end of the run"):
                self.run_ended()
            raise


class CallbackThread:
    """A thread that calls the methods of one callback, in the order of the events.

    Args:
        run: the run.
        callback: the callback.
        secrets: values to mask in warnings.
    """

    def __init__(self, run: Run, callback: Callback, secrets: Sequence[str]) -> None:
        self._run = run
        self._callback = callback
        self._name = type(callback).__name__
        self._secrets = tuple(secrets)
        self._events: queue.SimpleQueue[tuple[str, Trial | None]] = queue.SimpleQueue()
        self._num_left_out = 0
        self._warned: set[type[BaseException]] = set()
        # A server that does not answer must not keep the program alive.
        self._thread = threading.Thread(
            target=self._process, name=f"sparkdl-callback-{self._name}", daemon=True
        )
        self._thread.start()

    # ---- called by the loop of the run

    def send(self, method: str, trial: Trial) -> None:
        """Add an event, unless the callback does not define its method, or is too far behind."""
        defined = getattr(getattr(self._callback, method), "__func__", None)
        if defined is getattr(Callback, method):
            return
        if self._events.qsize() < MAX_WAITING:
            then = copy.copy(trial)
            then.spans, then.span_states = list(trial.spans), list(trial.span_states)
            self._events.put((method, then))
            return
        self._num_left_out += 1
        if self._num_left_out == 1:
            self._warn(f"is too slow: {MAX_WAITING} calls wait, so that further ones are left out")

    def send_end(self) -> None:
        """Add the end of the run."""
        self._events.put((_END, None))

    def wait(self, begun_s: float) -> None:
        """Wait until the callback has processed the end of the run, or its time is over.

        Args:
            begun_s: the beginning of the wait, on the monotonic clock.
        """
        limit_s = self._callback.end_timeout_s
        self._thread.join(max(0.0, begun_s + limit_s - time.monotonic()))
        if self._thread.is_alive():
            waiting = self._events.qsize()
            more = f", and {waiting} more wait" if waiting else ""
            self._warn(f"did not end its call within {limit_s:g} s after the run{more}")

    # ---- the thread

    def _process(self) -> None:
        interval_s = self._callback.interval_s or math.inf
        due_s = time.monotonic() + interval_s
        method = ""
        while method != _END:
            try:
                left_s = max(0.0, due_s - time.monotonic())
                method, trial = self._events.get(timeout=None if left_s == math.inf else left_s)
            except queue.Empty:
                method, trial = "", None
            if method:
                self._call(method, trial)
            if method != _END and time.monotonic() >= due_s:
                self._call("on_interval", None)
                due_s = time.monotonic() + interval_s

    def _call(self, method: str, trial: Trial | None) -> None:
        arguments = (self._run,) if trial is None else (self._run, trial)
        try:
            getattr(self._callback, method)(*arguments)
        except BaseException as exc:  # noqa: BLE001 Nothing that a callback does ends its thread.
            text = f"failed in {method}: {type(exc).__name__}: {exc}"
            if type(exc) in self._warned:
                _logger.debug("the callback %s %s", self._name, text)
                return
            self._warned.add(type(exc))
            self._warn(mask_text(text, self._secrets))

    def _warn(self, text: str) -> None:
        remedy = ""
        with tolerated(f"ask the callback {self._name} for a remedy"):
            remedy = self._callback.remedy(self._run)
        _logger.warning(f"the callback {self._name} {text}. The run goes on. {remedy}".strip())
