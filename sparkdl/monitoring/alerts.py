"""Runs on the driver. Tell people and programs of windows with drift."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sparkdl.callbacks import Webhook
from sparkdl.callbacks.webhook import PostRefusedError
from sparkdl.errors import ConfigError
from sparkdl.files.jsonl import to_json
from sparkdl.monitoring.drift_table import as_text
from sparkdl.serving.kafka_topic import SCHEME, KafkaTopic, Sender

# An alert as a value for JSON.
Alert = Mapping[str, Any]


class AlertRefusedError(OSError):
    """A place refuses an alert, and would refuse it again."""


class AlertTarget(ABC):
    """A place that takes alerts."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the place in logs and files, without secrets."""

    @abstractmethod
    def send(self, alert: Alert) -> None:
        """Take an alert.

        Raises:
            AlertRefusedError: if the place will never take it.
            OSError: if the place does not take it now.
        """


@dataclass(frozen=True)
class WebhookTarget(AlertTarget):
    """A URL that alerts are posted to."""

    webhook: Webhook

    @property
    def name(self) -> str:
        """The host of the URL."""
        return str(self.webhook.describe()["url"])

    def send(self, alert: Alert) -> None:
        """Post an alert, see `AlertTarget`."""
        try:
            self.webhook.post({"time": time.time(), **alert})
        except PostRefusedError as exc:
            raise AlertRefusedError(str(exc)) from exc


@dataclass(frozen=True)
class TopicTarget(AlertTarget):
    """A topic of Kafka. The key of a record is the id of the alert."""

    topic: KafkaTopic

    @property
    def name(self) -> str:
        """The URL of the topic."""
        return f"{SCHEME}{self.topic.brokers}/{self.topic.name}"

    def send(self, alert: Alert) -> None:
        """Send an alert, see `AlertTarget`. Alerts are rare: none keeps a connection open."""
        if Sender(self.topic).send([(str(alert["id"]), to_json(alert).encode())]):
            raise AlertRefusedError(f"{self.name} does not take a record of this size")


@dataclass(frozen=True)
class FunctionTarget(AlertTarget):
    """A function of the user."""

    function: Callable[[Alert], Any]

    @property
    def name(self) -> str:
        """The name of the function."""
        return (
            f"the function {getattr(self.function, '__qualname__', type(self.function).__name__)}"
        )

    def send(self, alert: Alert) -> None:
        """Call the function, see `AlertTarget`."""
        self.function(alert)


def check_targets(targets: Any) -> tuple[AlertTarget, ...]:
    """Return the places that alerts go to.

    Args:
        targets: a URL of http(s) or Kafka, a `callbacks.Webhook`, a function, or a list of these.

    Raises:
        ConfigError: if one of them is anything else.
    """
    some = targets if isinstance(targets, list | tuple) else [targets]
    return tuple(map(_target, some))


def _target(value: Any) -> AlertTarget:
    if isinstance(value, AlertTarget):
        return value
    if isinstance(value, Webhook):
        return WebhookTarget(value)
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        return WebhookTarget(Webhook(value))
    if isinstance(value, str) and value.startswith(SCHEME):
        target = TopicTarget(KafkaTopic.of(value))
        Sender(target.topic)  # It raises where the package is missing.
        return target
    if callable(value):
        return FunctionTarget(value)
    # A text may be the address of a webhook, which is a secret.
    text = "a text" if isinstance(value, str) else repr(value)
    raise ConfigError(
        f"alerts has {text}; expected an http(s) URL, kafka://host:9092/topic, a "
        "callbacks.Webhook, or a function that takes an alert."
    )


def alerts_of(rows: Sequence[Mapping[str, Any]], model: str) -> list[dict[str, Any]]:
    """Return an alert for each window and version with drift.

    Args:
        rows: the rows of the table of `results`.
        model: the model whose training data is the reference, such as `loans/3`.
    """
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["window"], row["window_end"], row["version"]), []).append(row)
    alerts = []
    for (start, end, version), group in groups.items():
        if drifted := [row for row in group if row["status"] == "drift"]:
            names = list(dict.fromkeys(row["feature"] for row in drifted))
            num = len({row["feature"] for row in group})
            verb = "has" if len(names) == 1 else "have"
            # The name of a version is there already; a profile may be that of several.
            of = model if "/" in model or version is None else f"{model}, version {version}"
            alerts.append(
                {
                    "event": "drift",
                    "id": f"{model} {start.isoformat()} {version}",
                    "text": f"{of}: {len(names)} of {num} features {verb} drifted from "
                    f"{_span(start, end)}: {as_text(names)}",
                    "model": model,
                    "version": version,
                    "window": [start.isoformat(), end.isoformat()],
                    "rows": max(row["rows"] for row in group),
                    "features": [
                        {name: row[name] for name in ("feature", "role", "metric")}
                        | {name: row[name] for name in ("value", "threshold")}
                        for row in drifted
                    ],
                }
            )
    return alerts


def _span(start: datetime, end: datetime) -> str:
    """Return the time of a window.

    Example:
        >>> _span(datetime(2026, 11, 23, 10), datetime(2026, 11, 23, 11))
        '2026-11-23 10:00 to 11:00 UTC'
        >>> _span(datetime(2026, 11, 23, 23, 59, 58), datetime(2026, 11, 24))
        '2026-11-23 23:59:58 to 2026-11-24 00:00:00 UTC'
    """
    time = "%H:%M" if not (start.second or end.second) else "%H:%M:%S"
    day = "" if start.date() == end.date() else f"{end:%Y-%m-%d} "
    return f"{start:%Y-%m-%d} {start:{time}} to {day}{end:{time}} UTC"
