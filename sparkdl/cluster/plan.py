"""Runs anywhere (pure). The plan: who will run where with what, before anything runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Member", "Plan", "Resources", "Role"]


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
    """So many processes of one kind, each with the same resources.

    Attributes:
        name: `worker`, `chief`, `ps` or `evaluator`.
        count: how many.
        resources: what each gets.
        served: we run TensorFlow's server in them, instead of the person's function.
        needed: the run is complete only when these have returned; others are ended with it.
        hides_gpus: they see no GPU, though Spark gives their tasks as many as the others.
        on_driver: the driver runs them itself; the last of a plan's roles.
    """

    name: str
    count: int
    resources: Resources
    served: bool = False
    needed: bool = True
    hides_gpus: bool = False
    on_driver: bool = False

    def __str__(self) -> str:
        return f"{self.count} {self.name}{'s' if self.count > 1 and self.name != 'ps' else ''}"


@dataclass(frozen=True)
class Member:
    """One process of a gang: its rank, its role and its place among those of its role."""

    rank: int
    role: Role
    index: int

    @property
    def log(self) -> str:
        """The name of the file that it prints into."""
        return f"log-{self.role.name}-{self.index}.txt"

    def __str__(self) -> str:
        return f"{self.role.name} {self.index}"


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
        is_gang: its processes run at the same time and know of each other.
        start_timeout_s: seconds until every process of a gang must have started, and again
            until they must have found each other.
        collective_timeout_s: seconds for which a rank may be silent in a collective of the ring.
        interface: the network interface, or address, at which a gang's processes meet.
        elastic: a gang goes on without a process that is lost, and takes it in again.
        timeline: each rank of the ring records where the time of its collectives goes.
        kept: the processes that train go on when the Spark job that started them has ended.

    Example:
        >>> print(Plan("launch", (Role("worker", 1, Resources(num_gpus=1)),), "tensorflow"))
        launch, tensorflow: 1 worker with 1 GPUs
        >>> roles = (Role("worker", 2, Resources()), Role("evaluator", 1, Resources()))
        >>> print(Plan("allreduce", roles, "tensorflow", is_gang=True))
        allreduce, tensorflow: 2 workers with one slot, 1 evaluator with one slot; a gang of 3 \
processes, each in a Spark slot of its own, rank 0 (worker 0) is chief
    """

    kind: str
    roles: tuple[Role, ...]
    framework: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    detect_gpus: bool = False
    fork_server: bool = True
    trial_timeout_s: float | None = None
    is_gang: bool = False
    start_timeout_s: float = 300.0
    collective_timeout_s: float = 600.0
    interface: str | None = None
    elastic: bool = False
    timeline: bool = False
    kept: bool = False

    @property
    def resources(self) -> Resources:
        """What each process gets: Spark gives the tasks of a gang all the same."""
        return self.roles[0].resources

    @property
    def members(self) -> tuple[Member, ...]:
        """Every process of a trial, by rank."""
        places = [(role, index) for role in self.roles for index in range(role.count)]
        return tuple(Member(rank, role, index) for rank, (role, index) in enumerate(places))

    @property
    def readers(self) -> tuple[int, ...]:
        """The ranks that train, and get the rows of DataFrames."""
        apart = ("ps", "evaluator")
        members = (m for m in self.members if not m.role.served and m.role.name not in apart)
        return tuple(member.rank for member in members)

    @property
    def ring(self) -> tuple[int, ...]:
        """The ranks that are in the ring; none where each has another part to play."""
        return self.readers if self.is_gang and self.kind != "parameter_server" else ()

    @property
    def meets_by_files(self) -> bool:
        """Whether the ranks meet by files in the run directory, which a secret cannot stand in."""
        return self.elastic or self.kind == "tfos"

    @property
    def logs(self) -> dict[str, str]:
        """The files that the processes of a trial print into, by the process's name."""
        return {str(m): m.log for m in self.members} if self.is_gang else {"": "log.txt"}

    @property
    def size(self) -> int:
        """How many processes of one trial Spark runs."""
        return sum(role.count for role in self.roles if not role.on_driver)

    @property
    def world_size(self) -> int:
        """How many of them train; an evaluator stands outside."""
        apart = ("ps", "evaluator") if self.kind == "tfos" else ("evaluator",)
        return sum(role.count for role in self.roles if role.name not in apart)

    def __str__(self) -> str:
        roles = ", ".join(
            f"{r} with {r.resources}{' (served)' if r.served else ''}" for r in self.roles
        )
        env = f"; sets {', '.join(sorted(self.env))}" if self.env else ""
        gang = (
            f"; {'an elastic' if self.elastic else 'a'} gang of {self.size} processes, each in a "
            f"Spark slot of its own, rank 0 ({self.members[0]}) is chief"
            if self.is_gang
            else ""
        )
        timeline = "; records a timeline" if self.timeline else ""
        return f"{self.kind}, {self.framework or 'no framework'}: {roles}{gang}{env}{timeline}"
