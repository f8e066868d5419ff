"""Runs anywhere (pure). The plan of a run: its processes and their resources, before any starts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sparkdl.files.layout import LOG, log_of


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The resources of one process. None leaves a number to Spark's own configuration.

    Attributes:
        num_cpus: the number of CPU cores.
        num_gpus: the number of GPUs; a fraction for processes that share one.
        default_gpus: the GPUs of a process without `num_gpus` where Spark assigns none and the
            search for GPUs is on: `visible` leaves all of the host visible without reserving any,
            `share` reserves a share of the host's GPUs, `one` reserves at most one.
    """

    num_cpus: int | None = None
    num_gpus: float | None = None
    default_gpus: Literal["visible", "share", "one"] = "visible"

    def __str__(self) -> str:
        counts = {"CPUs": self.num_cpus, "GPUs": self.num_gpus}
        texts = [f"{count} {name}" for name, count in counts.items() if count is not None]
        return ", ".join(texts) or "one slot"


@dataclass(frozen=True, kw_only=True)
class Role:
    """A number of processes of one kind, each with the same resources.

    Attributes:
        name: the job name in `TF_CONFIG`: `worker`, `chief`, `master`, `ps` or `evaluator`.
        count: the number of processes; the largest number, if there is a `min_count`.
        resources: the resources of each process.
        trains: the processes train together: they divide the rows of DataFrames and of files among
            themselves. All other processes read all rows of files. Roles that train come first.
        in_ring: the processes take part in the collectives of the ring.
        in_world: the processes are counted in `context.world_size`.
        strategy: the strategy that `distribute.strategy()` returns: `multi_worker`,
            `parameter_server`, `local`, or `none` for processes that another one drives.
        runs_server: the processes run TensorFlow's server in place of the user's function.
        must_return: the run is complete when the processes of all such roles have returned; the
            processes of other roles are ended then.
        grace_s: seconds that the processes may go on when the run is complete.
        hides_gpus: the processes see no GPU, though Spark assigns some to their tasks.
        on_driver: the processes run on the driver. Such a role is the last one of a plan.
        has_horovod_variables: the processes get the variables that `horovodrun` sets.
        min_count: the number of processes with which a gang begins that grows into idle slots, up
            to `count`; None for a gang whose size is fixed.
    """

    name: str
    count: int
    resources: Resources = Resources()
    trains: bool = True
    in_ring: bool = False
    in_world: bool = True
    strategy: Literal["multi_worker", "parameter_server", "local", "none"] = "local"
    runs_server: bool = False
    must_return: bool = True
    grace_s: float = 0.0
    hides_gpus: bool = False
    on_driver: bool = False
    has_horovod_variables: bool = False
    min_count: int | None = None

    @property
    def first_count(self) -> int:
        """The number of processes at the beginning."""
        return self.count if self.min_count is None else self.min_count

    def __str__(self) -> str:
        least = "" if self.min_count is None else f"{self.min_count} to "
        return (
            f"{least}{self.count} {self.name}{'s' if self.count > 1 and self.name != 'ps' else ''}"
        )


@dataclass(frozen=True)
class Member:
    """A process of a gang.

    Attributes:
        rank: the number of the process in the gang, from 0.
        role: the role of the process.
        index: the number of the process in its role, from 0.
    """

    rank: int
    role: Role
    index: int

    @property
    def log(self) -> str:
        """The name of the log file of the process."""
        return log_of(self.role.name, self.index)

    def __str__(self) -> str:
        return f"{self.role.name} {self.index}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that one trial needs to run. Each verb builds a plan, and the rest follows from it.

    Attributes:
        kind: the verb, such as `launch`; only a label.
        roles: the processes of one trial.
        framework: `tensorflow`, `torch`, `jax`, or None for a program that imports none of them.
        env: environment variables of the training processes. Their values are never shown.
        secrets: texts that are masked in all that is stored or shown, see `known_secrets`.
        detect_gpus: let processes use GPUs that Spark did not assign to their tasks.
        shares_gpus: processes share a GPU, so that none may take all of its memory.
        fork_server: fork processes from a server that has imported the framework.
        trial_timeout_s: seconds in the training function after which a trial is ended.
        is_gang: the processes run at the same time and know of each other.
        start_timeout_s: seconds until every process of a gang must have started, and again until
            all must have joined each other.
        collective_timeout_s: seconds for which a rank may show no life in a collective of the ring.
        interface: the network interface, or address, at which the processes of a gang meet.
        elastic: the gang goes on without a process that is lost, and takes it in again.
        moves_slow_ranks: a slow process of an elastic gang goes on at a spare slot.
        client_silence_s: seconds without a sign of life of a Spark Connect client, after which the
            processes end.
        timeline: each rank of the ring records where the time of its collectives goes.
        ends_by_order: the driver orders the end of the gang; it does not end by itself.
        repeatable: the trial can be repeated and the run resumed; False if its rows are fed once.

    Example:
        >>> role = Role(name="worker", count=1, resources=Resources(num_gpus=1))
        >>> print(Plan(kind="launch", roles=(role,), framework="tensorflow"))
        launch, tensorflow: 1 worker with 1 GPUs
        >>> roles = (Role(name="worker", count=2), Role(name="evaluator", count=1, trains=False))
        >>> print(Plan(kind="allreduce", roles=roles, framework="tensorflow", is_gang=True))
        allreduce, tensorflow: 2 workers with one slot, 1 evaluator with one slot; a gang of 3 \
processes, each in a Spark slot of its own, rank 0 (worker 0) is chief
    """

    kind: str
    roles: tuple[Role, ...]
    framework: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    detect_gpus: bool = False
    shares_gpus: bool = False
    fork_server: bool = True
    trial_timeout_s: float | None = None
    is_gang: bool = False
    start_timeout_s: float = 300.0
    collective_timeout_s: float = 600.0
    client_silence_s: float = 300.0
    interface: str | None = None
    elastic: bool = False
    moves_slow_ranks: bool = False
    timeline: bool = False
    ends_by_order: bool = False
    repeatable: bool = True

    def __post_init__(self) -> None:
        if self.readers != tuple(range(len(self.readers))):
            raise ValueError(
                f"the roles that train must come first; got {', '.join(map(str, self.roles))}"
            )

    @property
    def resources(self) -> Resources:
        """The resources of each process: Spark gives all tasks of a gang the same."""
        return self.roles[0].resources

    @property
    def members(self) -> tuple[Member, ...]:
        """Every process that a trial may have, by rank."""
        places = [(role, index) for role in self.roles for index in range(role.count)]
        return tuple(Member(rank, role, index) for rank, (role, index) in enumerate(places))

    @property
    def readers(self) -> tuple[int, ...]:
        """The ranks that divide the rows of DataFrames and files; they come before all others."""
        return tuple(member.rank for member in self.members if member.role.trains)

    @property
    def ring(self) -> tuple[int, ...]:
        """The ranks that take part in the ring."""
        return tuple(member.rank for member in self.members if member.role.in_ring)

    @property
    def logs(self) -> dict[str, str]:
        """The log files of the processes of a trial, by the name of the process."""
        return {str(m): m.log for m in self.members} if self.is_gang else {"": LOG}

    @property
    def size(self) -> int:
        """The number of processes of one trial that Spark runs, at the beginning."""
        return sum(role.first_count for role in self.roles if not role.on_driver)

    @property
    def grows(self) -> bool:
        """True if the gang takes in more processes while slots are idle."""
        return any(role.min_count is not None for role in self.roles)

    @property
    def world_size(self) -> int:
        """The number of processes that `context.world_size` counts."""
        return sum(role.count for role in self.roles if role.in_world)

    def __str__(self) -> str:
        roles = ", ".join(
            f"{r} with {r.resources}{' (served)' if r.runs_server else ''}" for r in self.roles
        )
        env = f"; sets {', '.join(sorted(self.env))}" if self.env else ""
        most = f" to {len(self.members)}" if self.grows else ""
        gang = (
            f"; {'an elastic' if self.elastic else 'a'} gang of {self.size}{most} processes, each "
            f"in a Spark slot of its own, rank 0 ({self.members[0]}) is chief"
            if self.is_gang
            else ""
        )
        timeline = "; records a timeline" if self.timeline else ""
        moves = "; moves slow ranks to spare slots" if self.moves_slow_ranks else ""
        what = f"{self.kind}, {self.framework or 'no framework'}"
        return f"{what}: {roles}{gang}{moves}{env}{timeline}"
