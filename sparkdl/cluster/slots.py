"""Runs anywhere (pure). The number of processes that fit at once, and advice if too few do."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from sparkdl.cluster.plan import Plan
from sparkdl.errors import SlotsError


@dataclass(frozen=True)
class Slots:
    """The slots of a cluster.

    Attributes:
        count: the number of processes that fit at once.
        cores: the number of CPU cores of all slots together.
        reason: the origin of the number, for messages.
        on_demand: the cluster adds executors while processes wait; the number is the largest.
    """

    count: int
    cores: int
    reason: str
    on_demand: bool = False


def check_gang(plan: Plan, slots: Slots, conf: Callable[[str], str | None], master: str) -> None:
    """Validate that all processes of a gang fit at once. Spark itself would wait for ten minutes.

    Args:
        plan: the plan of the gang.
        slots: the slots that Spark has now.
        conf: looks up a setting of Spark.
        master: Spark's master URL.

    Raises:
        SlotsError: if there are too few slots; the message names the setting to change.

    Example:
        >>> from sparkdl.cluster.plan import Role
        >>> plan = Plan(kind="allreduce", roles=(Role(name="worker", count=5),), is_gang=True)
        >>> check_gang(plan, Slots(3, 3, "3 slots of local[3]"), {}.get, "local[3]")
        Traceback (most recent call last):
        sparkdl.errors.SlotsError: allreduce needs 5 slots at once (5 workers), and Spark has 3 \
(3 slots of local[3]). Start Spark with master local[5], or ask for fewer processes.
    """
    if conf("spark.dynamicAllocation.enabled") == "true" and not plan.elastic:
        raise SlotsError(
            f"{plan.kind} needs {plan.size} slots at the same moment, and Spark refuses that with "
            "dynamic allocation (SPARK-24942). Start this application with "
            "spark.dynamicAllocation.enabled=false and spark.executor.instances="
            f"{plan.size} (times spark.executor.cores must be at least {plan.size})."
        )
    if slots.count < plan.size:
        roles = ", ".join(map(str, plan.roles))
        raise SlotsError(
            f"{plan.kind} needs {plan.size} slots at once ({roles}), and Spark has {slots.count} "
            f"({slots.reason}). {_remedy(plan.size, master)}, or ask for fewer processes."
        )


def _remedy(need: int, master: str) -> str:
    if master.startswith("local-cluster"):
        return f"Start Spark with master {re.sub(r'[0-9]+', str(need), master, count=1)}"
    if master.startswith("local"):
        return f"Start Spark with master local[{need}]"
    product = "spark.executor.instances x spark.executor.cores / spark.task.cpus"
    if master.startswith("spark://"):
        product = "spark.cores.max / spark.task.cpus"
    return f"Start Spark with {product} of at least {need} (and as many GPUs as they need)"
