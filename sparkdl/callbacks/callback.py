"""Runs on the driver. The protocol of callbacks: what a user's program learns of a run."""

from typing import Any

from sparkdl.runs import Run, Trial


class Callback:
    """The base class of callbacks, which follow a run: `launch(..., callbacks=[MyCallback()])`.

    A subclass defines the methods that it needs. Each callback has a thread on the driver in which
    its methods are called one after the other, so that a slow callback never holds the run up. An
    exception of a callback is logged, once for each type of exception, and the run goes on.

    In all methods, `run` is the run as it is now: its trials may have gone on since the event.
    `trial` is a copy of the trial as it was at the event. `run.cancel()`, `run.set(...)` and the
    other commands work in all methods but `on_run_end`.

    Attributes:
        interval_s: seconds between two calls of `on_interval`; None for no calls.
        end_timeout_s: seconds that the end of the run waits for calls that are not over. After
            them, a warning is logged, and the calls go on as long as the program does.

    Example:
        >>> class Show(Callback):
        ...     def on_best(self, run, trial):
        ...         print("best so far:", trial.params, trial.value)
        >>> experiment.launch(train, {"x": [1, 2]}, callbacks=[Show()])  # doctest: +SKIP
    """

    interval_s: float | None = None
    end_timeout_s: float = 30.0

    def on_trial_start(self, run: Run, trial: Trial) -> None:
        """Process the start of an attempt at a trial; `trial.attempts` counts the attempts."""

    def on_trial_end(self, run: Run, trial: Trial) -> None:
        """Process the end of a trial that has started, in any state, after its last attempt."""

    def on_best(self, run: Run, trial: Trial) -> None:
        """Process a new best trial, after its `on_trial_end`.

        In a run with several metrics, the trial is new on the Pareto front.
        """

    def on_interval(self, run: Run) -> None:
        """Process the run every `interval_s` seconds while the run goes on."""

    def on_run_end(self, run: Run) -> None:
        """Process the end of the run, in any state. The last call for the run."""

    def describe(self) -> dict[str, Any]:
        """Return the facts about the callback that `run.json` keeps, without credentials."""
        return {"callback": type(self).__name__}

    def remedy(self, run: Run) -> str:
        """Return a sentence for the warning about a callback that has failed or is too slow."""
        return ""
