"""Where it runs: anywhere (pure). The plan: who will run where with what, before anything runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Plan", "Resources", "Role"]


@dataclass(frozen=True)
class Resources:
    """What one process needs. None leaves it to Spark's own configuration."""

    num_cpus: int | None = None
    num_gpus: int | None = None

    def __str__(self) -> str:
        asked = {"CPUs": self.num_cpus, "GPUs": self.num_gpus}
        texts = [f"{count} {what}" for what, count in asked.items() if count is not None]
        return ", ".join(texts) or "one slot"


@dataclass(frozen=True)
class Role:
    """So many processes of one kind, each with the same resources."""

    name: str
    count: int
    resources: Resources


@dataclass(frozen=True)
class Plan:
    """What one trial needs to run. Every verb builds one, and everything else follows from it.

    Attributes:
        kind: the verb, such as `launch`.
        roles: the processes of one trial.
        framework: `tensorflow`, `torch`, `jax`, or None for a program that imports none.
        env: environment variables of the training processes. Values are never shown.
        detect_gpus: let a process see GPUs that Spark did not assign to its task.
        fork_server: start from a process that has imported the framework.
        trial_timeout_s: seconds after which a trial is ended, from the start of its function.

    Example:
        >>> print(Plan("launch", (Role("worker", 1, Resources(num_gpus=1)),), "tensorflow"))
        launch, tensorflow: 1 worker with 1 GPUs
    """

    kind: str
    roles: tuple[Role, ...]
    framework: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    detect_gpus: bool = False
    fork_server: bool = True
    trial_timeout_s: float | None = None

    @property
    def resources(self) -> Resources:
        """What each process gets."""
        return self.roles[0].resources

    def __str__(self) -> str:
        roles = ", ".join(f"{r.count} {r.name} with {r.resources}" for r in self.roles)
        env = f"; sets {', '.join(sorted(self.env))}" if self.env else ""
        return f"{self.kind}, {self.framework or 'no framework'}: {roles}{env}"
