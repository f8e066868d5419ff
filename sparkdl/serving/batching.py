"""Runs anywhere (pure). The options of batching: how rows of several requests are put together."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sparkdl.errors import ConfigError

MAX_TIMEOUT_MS = 60_000


@dataclass(frozen=True, kw_only=True)
class Batching:
    """The options of batching.

    Attributes:
        max_batch_size: the most rows that the model computes at once.
        timeout_ms: milliseconds for which the first row of a batch waits for others.
        max_enqueued_batches: number of batches that may wait; further requests get status 503.
        allowed_batch_sizes: ascending sizes to which a batch is padded, for models that are
            compiled for a size; the last one is `max_batch_size`. None pads nothing.
        num_threads: number of batches that are computed at the same time.

    Example:
        >>> Batching(max_batch_size=8).timeout_ms
        1.0
    """

    max_batch_size: int = 32
    timeout_ms: float = 1.0
    max_enqueued_batches: int = 100
    allowed_batch_sizes: tuple[int, ...] | None = None
    num_threads: int = 1


def batching_of(value: Any) -> Batching | None:
    """Return the options that the user passed.

    Args:
        value: None or False for no batching, True for the defaults, a dict of options, or
            `Batching`.

    Raises:
        ConfigError: if an option does not exist, or has a wrong value.
    """
    if value is None or value is False:
        return None
    if value is True:
        return Batching()
    names = ", ".join(field.name for field in fields(Batching))
    if isinstance(value, Mapping):
        try:
            value = Batching(**value)
        except TypeError:
            keys = ", ".join(map(repr, value))
            raise ConfigError(f"batching has {keys}; expected some of {names}.") from None
    if not isinstance(value, Batching):
        raise ConfigError(f"batching is {value!r}; expected True, or a dict with some of {names}.")
    for name in ("max_batch_size", "max_enqueued_batches", "num_threads"):
        number = getattr(value, name)
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ConfigError(f"batching has {name} {number!r}; expected a number of at least 1.")
    timeout = value.timeout_ms
    if not isinstance(timeout, int | float) or not 0 <= timeout <= MAX_TIMEOUT_MS:
        raise ConfigError(
            f"batching has timeout_ms {timeout!r}; expected milliseconds, at most {MAX_TIMEOUT_MS}."
        )
    sizes = value.allowed_batch_sizes
    if sizes is not None and (
        list(sizes) != sorted({*sizes}) or [*sizes][-1:] != [value.max_batch_size]
    ):
        raise ConfigError(
            f"batching has allowed_batch_sizes {sizes!r}; expected ascending numbers, the last of "
            f"them max_batch_size, which is {value.max_batch_size}."
        )
    return value
