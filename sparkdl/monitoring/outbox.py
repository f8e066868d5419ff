"""Runs on the driver. Send alerts to places that may be down: each alert until it was taken."""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkdl.models.watch_files import ResultFiles
from sparkdl.monitoring.alerts import Alert, AlertRefusedError, AlertTarget

# Seconds that a batch waits for the places that take alerts.
LIMIT_S = 30.0
# Times that a function of the user may fail with an alert.
MAX_TRIES = 10

_logger = logging.getLogger("sparkdl.monitoring")


@dataclass
class Outbox:
    """The alerts of a watch on their way to their places.

    An alert is in the files of the watch before it is sent, beside the names of the places that
    have taken it. A place that fails gets the alert with a later batch. An alert that a place
    refuses for good is counted, and not sent to this place again; so is one with which a function
    of the user has failed ten times.

    Attributes:
        files: the files of the watch.
        targets: the places.
        limit_s: seconds that a call of `deliver` waits at most.
    """

    files: ResultFiles
    targets: tuple[AlertTarget, ...] = ()
    limit_s: float = LIMIT_S
    _threads: dict[str, threading.Thread] = field(default_factory=dict, repr=False)
    _lock: Any = field(default_factory=threading.Lock, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        # Through Spark Connect, the server sends the alerts.
        return {name: getattr(self, name) for name in ("files", "targets", "limit_s")}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def add(self, batch: int, alerts: Sequence[Alert]) -> None:
        """Write the alerts of a batch, unless they are there, because Spark repeats the batch."""
        if not alerts or self.files.has_alerts(batch):
            return
        for alert in alerts:
            _logger.warning("%s", alert["text"])
        if self.targets:
            self.files.write_taken(batch, {})
        self.files.write_alerts(batch, alerts)

    def deliver(self) -> None:
        """Send all alerts to the places that have not taken them, and wait for a limited time.

        All places are asked at once. A place that fails is asked again by the next call only.
        """
        unsent = self._unsent_alerts() if self.targets else {}
        if not unsent:
            return
        new_threads: dict[str, threading.Thread] = {}
        end = time.monotonic() + self.limit_s
        for name, target in self._targets_by_name():
            before = self._threads.get(name)
            if before is not None and before.is_alive():
                continue  # A place that hangs since an earlier call is waited for no more.
            thread = threading.Thread(target=self._send, args=(name, target, unsent), daemon=True)
            self._threads[name] = new_threads[name] = thread
            thread.start()
        for name, thread in new_threads.items():
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                _logger.warning(
                    "an alert was not taken by %s within %g seconds", name, self.limit_s
                )

    def _targets_by_name(self) -> list[tuple[str, AlertTarget]]:
        """Return the places by their names, which contain no secrets and differ."""
        names = [target.name for target in self.targets]
        return [
            (f"{name} {names[:number].count(name) + 1}", target)
            for number, (name, target) in enumerate(zip(names, self.targets, strict=True))
        ]

    def _unsent_alerts(self) -> dict[int, list[tuple[Alert, list[str]]]]:
        """Return the batches with alerts that some place has not taken."""
        alerts_by_batch = {batch: self._alerts_with_places(batch) for batch in self.files.unsent()}
        for batch in [
            batch for batch, alerts in alerts_by_batch.items() if not any(n for _, n in alerts)
        ]:
            # The places that are missing are no longer places of the watch.
            self.files.remove_taken(batch)
            del alerts_by_batch[batch]
        return alerts_by_batch

    def _alerts_with_places(self, batch: int) -> list[tuple[Alert, list[str]]]:
        """Return the alerts of a batch, each with the names of the places still to be told."""
        deliveries = self.files.read_taken(batch)
        names = [name for name, _ in self._targets_by_name()]
        alerts: list[tuple[Alert, list[str]]] = []
        for alert in self.files.read_alerts_of(batch):
            places = deliveries.get(str(alert["id"]), {}).get("places", ())
            alerts.append((alert, [name for name in names if name not in places]))
        return alerts

    def _send(
        self,
        name: str,
        target: AlertTarget,
        unsent: Mapping[int, Sequence[tuple[Alert, Sequence[str]]]],
    ) -> None:
        """Send alerts to a place until it fails.

        One alert that the place, or a function of the user, cannot take holds up no later ones.
        """
        for batch, alerts in unsent.items():
            for alert, names in alerts:
                if name not in names:
                    continue
                try:
                    target.send(alert)
                except AlertRefusedError as exc:
                    self._refuse(name, exc)
                except OSError as exc:
                    _logger.warning("an alert could not be sent: %s", exc)
                    return
                except Exception:
                    _logger.exception("an alert could not be sent")
                    if self._count_try(batch, str(alert["id"]), name) < MAX_TRIES:
                        continue
                    self._refuse(name, f"{name} has failed {MAX_TRIES} times")
                self._note(batch, str(alert["id"]), name)

    def _refuse(self, name: str, reason: object) -> None:
        """Count an alert that a place has refused for good."""
        with self._lock:
            num = self.files.add_refused(name)
        _logger.error(
            "an alert was refused for good, and is not sent again (%d so far): %s", num, reason
        )

    def _count_try(self, batch: int, alert: str, name: str) -> int:
        """Count a time that a place has failed with an alert, and return the number so far."""
        with self._lock:
            deliveries = self.files.read_taken(batch)
            tries = deliveries.setdefault(alert, {}).setdefault("tries", {})
            tries[name] = tries.get(name, 0) + 1
            self.files.write_taken(batch, deliveries)
        return int(tries[name])

    def _note(self, batch: int, alert: str, name: str) -> None:
        """Write that a place has taken or refused an alert; nothing is left once all have all."""
        with self._lock:
            deliveries = self.files.read_taken(batch)
            deliveries.setdefault(alert, {}).setdefault("places", []).append(name)
            self.files.write_taken(batch, deliveries)
            if not any(names for _, names in self._alerts_with_places(batch)):
                self.files.remove_taken(batch)
