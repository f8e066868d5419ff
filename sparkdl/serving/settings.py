"""Runs anywhere (pure). The settings of a model server, which all of its workers have."""

from dataclasses import dataclass
from typing import Any

from sparkdl.serving.batching import Batching

# The environment variable that names the folder into whose files prometheus_client writes metrics.
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a model server, which were checked.

    Attributes:
        batching: the options of batching; None computes each request alone.
        log: the inference log: a path or URL, `Log`, or None.
        token: the secret that a request has to carry; None for a server that only this host
            reaches.
        max_bytes: the size of the largest request, in bytes.
        timeout_s: the most seconds that a request may take; None for any time.
    """

    batching: Batching | None = None
    log: Any = None
    token: str | None = None
    max_bytes: int = 1 << 26
    timeout_s: float | None = None

    @property
    def warm_up_sizes(self) -> tuple[int, ...]:
        """The numbers of rows on which a version is called before it takes requests."""
        options = self.batching
        sizes = (options.allowed_batch_sizes or (options.max_batch_size,)) if options else ()
        return tuple(sorted({1, *sizes}))
