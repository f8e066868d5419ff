"""Runs on the driver (pure). Judge the settings of Spark, its executors, slots and GPUs."""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from sparkdl.cluster.slots import Slots
from sparkdl.cluster.spark_settings import SparkSettings
from sparkdl.config import SETTINGS, resolve
from sparkdl.doctor.executor_checks import where
from sparkdl.doctor.facts import Facts
from sparkdl.doctor.report import Check, check_of, fault, in_short, not_checked, note, ok
from sparkdl.errors import ConfigError
from sparkdl.host.loopback import is_loopback
from sparkdl.spark.versions import deviations

PREFIX = "SPARKDL_"
# Variables of sparkdl that are no settings of the user.
_INTERNAL = {"SPARKDL_CONTEXT", "SPARKDL_NODES", "SPARKDL_PROCESS", "SPARKDL_RUN"}

_START_REMEDIES = {
    r"JAVA_GATEWAY_EXITED|Java gateway process exited": (
        "Look at what Java has printed above: often the master URL or a setting is wrong."
    ),
    r"UnknownHostException|Cannot assign requested address|could not bind": (
        "Set SPARK_LOCAL_IP, or spark.driver.bindAddress, to an address of this host."
    ),
    r"HADOOP_CONF_DIR|YARN_CONF_DIR": (
        "Set HADOOP_CONF_DIR to the folder with the configuration of the Hadoop cluster."
    ),
    r"All masters are unresponsive|Connection refused|UNAVAILABLE": (
        "Start the master, or correct its URL, which --master or spark.master names. A master of "
        "another release of Spark than the driver's does not answer either."
    ),
}


def start_failure(error: str) -> Check:
    """Return the check of a Spark session that cannot be started.

    Args:
        error: the error of Spark.
    """
    remedies = (text for pattern, text in _START_REMEDIES.items() if re.search(pattern, error))
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    causes = [line for line in lines if re.search(r"(Exception|Error): ", line)]
    text = (causes or lines or ["no message"])[0].removeprefix(": ")[:400]
    remedy = next(remedies, "Correct the settings of Spark that the message names.")
    return fault("Spark", f"Spark cannot be started: {text}", remedy)


def task_failure(error: str, driver_python: str, who: str = "The executors") -> Check:
    """Return the check of executors on which no Python function of sparkdl can run.

    Args:
        error: the error of a task, or of the Spark job.
        driver_python: the version of Python on the driver.
        who: the executors.

    Example:
        >>> error = "ModuleNotFoundError: No module named 'pyarrow'"
        >>> print(task_failure(error, "3.12.1", "The executor 2 on 10.0.0.7").text)
        The executor 2 on 10.0.0.7 cannot import pyarrow.
    """
    if match := re.search(r"different version: (\S+) than that in driver: (\S+?),", error):
        return fault(
            "Python",
            f"{who} cannot run the functions of the driver: Python {match[1]} there, and "
            f"{driver_python} on the driver.",
            f"Set PYSPARK_PYTHON (spark.pyspark.python) to a Python {match[2]} that all executors "
            "have.",
        )
    if match := re.search(r"Cannot run program \"([^\"]+)\"", error):
        return fault(
            "Python",
            f"{who} cannot start Python: there is no program {match[1]}.",
            "Set PYSPARK_PYTHON (spark.pyspark.python) to a Python that all executors have.",
        )
    if match := re.search(r"No module named '([\w.]+)'", error):
        return fault(
            "Packages",
            f"{who} cannot import {match[1]}.",
            "Install sparkdl with its requirements on the executors, in the version of the driver, "
            "or ship an environment with --archives.",
        )
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    text = (lines or ["no message"])[0][:400]
    return fault(
        "Executors",
        f"{who} cannot run a task: {text}",
        "Look at the log of that executor, which Spark's web interface links.",
    )


def check_version(spark: str, is_connect: bool) -> Iterator[Check]:
    """Yield the checks of the version of Spark, and of the PySpark that drives it.

    Args:
        spark: the version of Spark, of which a vendor's may have more parts.
        is_connect: PySpark is a client of Spark Connect.
    """
    checks = [check_of("Spark", found) for found in deviations(spark, is_connect)]
    yield from [check for check in checks if check] or [ok("Spark", f"Spark {spark}")]


def check_num_executors(
    settings: SparkSettings, registered: int, num_expected: int, driver_host: str | None
) -> Check:
    """Check that executors have registered.

    Args:
        settings: the settings of Spark.
        registered: the number of executors that have registered.
        num_expected: the number of executors that the settings ask for.
        driver_host: the address of the driver that the executors were told.
    """
    if settings.is_embedded:
        return ok("Executors", f"Spark is embedded ({settings.master}): the driver runs the tasks")
    text = f"{registered} of {num_expected} executors of {settings.master} have registered"
    if settings.adds_executors:
        text = f"{registered} executors of {settings.master}, and more while tasks wait"
    if registered >= num_expected or (settings.adds_executors and registered):
        return ok("Executors", text)
    reasons = ["Look at the queue of the cluster and at the logs of its workers"]
    if driver_host and is_loopback(driver_host) and not settings.is_local:
        reasons = [
            f"The driver tells the executors its address {driver_host}, which other hosts cannot "
            "reach: unset SPARK_LOCAL_IP, or set spark.driver.host"
        ]
    elif settings.executor_gpus:
        reasons.append(
            f"each executor must find {settings.executor_gpus} GPU(s) by its discovery script "
            "(spark.executor.resource.gpu.discoveryScript)"
        )
    return fault("Executors", f"Only {text}.", f"{', and '.join(reasons)}.")


def check_slots(settings: SparkSettings, slots: Slots) -> Iterator[Check]:
    """Yield the checks of the slots.

    Args:
        settings: the settings of Spark.
        slots: the slots that were counted.
    """
    cores = settings.executor_cores
    cpus = settings.task_cpus
    if slots.count < 1:
        yield fault(
            "Slots",
            f"No trial can run: {slots.reason}; a task takes {cpus} core(s) (spark.task.cpus).",
            "Lower spark.task.cpus to at most spark.executor.cores, or add executors.",
        )
        return
    yield ok("Slots", f"{slots.count} trial(s) at once ({slots.reason})")
    if cores and cores % cpus:
        yield note(
            "Slots",
            f"{cores % cpus} of {cores} cores of each executor stay idle, as a task takes {cpus} "
            "(spark.task.cpus).",
            "Let spark.executor.cores be a multiple of spark.task.cpus.",
        )
    gpus = settings.executor_gpus
    per_task = settings.task_gpus
    if gpus and per_task and cores and cores // cpus < gpus / per_task:
        yield note(
            "Slots",
            f"An executor has {gpus} GPUs and runs only {cores // cpus} task(s) at once, each "
            f"with {per_task:g}.",
            "Raise spark.executor.cores, or lower spark.task.cpus.",
        )


def check_settings(settings: SparkSettings, environ: Mapping[str, str]) -> Iterator[Check]:
    """Yield the checks of Spark's settings that matter to sparkdl, and of sparkdl's own.

    Args:
        settings: the settings of Spark.
        environ: the environment variables of the driver.
    """
    conf = settings.conf
    count = 0
    for check in (
        *_risky(conf, settings.adds_executors),
        *_unknown(environ),
        *_invalid(conf),
    ):
        count += 1
        yield check
    if not count:
        yield ok("Settings", "no speculation, no dynamic allocation, no unknown setting")


def _risky(conf: Callable[[str], str | None], adds_executors: bool) -> Iterator[Check]:
    if conf("spark.speculation") == "true":
        yield fault(
            "Settings",
            "spark.speculation is true: Spark may start a second copy of a slow trial or rank.",
            "Start Spark with spark.speculation=false.",
        )
    if conf("spark.executor.pyspark.memory"):
        yield fault(
            "Settings",
            "spark.executor.pyspark.memory is set: training processes inherit the limit of the "
            "address space, and TensorFlow does not start under it.",
            "Unset it, and limit memory by spark.executor.memoryOverhead.",
        )
    if adds_executors:
        yield note(
            "Settings",
            "spark.dynamicAllocation.enabled is true: Spark then refuses gangs (allreduce, "
            "parameter_server), unless they are elastic.",
            "For gangs start Spark with spark.dynamicAllocation.enabled=false.",
        )


def _unknown(environ: Mapping[str, str]) -> Iterator[Check]:
    variables = {name.upper(): setting.variable for name, setting in SETTINGS.items()}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in {*variables.values(), *_INTERNAL}:
            continue
        near = difflib.get_close_matches(variable.removeprefix(PREFIX), variables, n=1, cutoff=0.8)
        if near:
            text = f"{variable} is no setting of sparkdl."
            yield note("Settings", text, f"Did you mean {variables[near[0]]}?")


def _invalid(conf: Callable[[str], str | None]) -> Iterator[Check]:
    for name in SETTINGS:
        try:
            resolve(name, None, conf)
        except ConfigError as exc:
            text, _, remedy = str(exc).partition(". ")
            yield fault("Settings", f"{text}.", remedy)


# ---- GPUs and network


def check_gpus(
    settings: SparkSettings, detects: bool, executors: Sequence[Facts]
) -> Iterator[Check]:
    """Yield the checks of the GPUs: those of Spark, those of the driver library, and locks.

    Args:
        settings: the settings of Spark.
        detects: trials see GPUs that Spark did not assign (`SPARKDL_DETECT_GPUS`).
        executors: the facts of the executors.
    """
    scheduled = settings.executor_gpus
    per_task = settings.task_gpus
    with_gpus = [facts for facts in executors if facts.gpus]
    if settings.is_embedded and per_task:
        yield fault(
            "GPUs",
            f"spark.task.resource.gpu.amount is {per_task:g}, but embedded Spark "
            f"({settings.master}) schedules no GPUs and would wait indefinitely.",
            "Unset that setting, and set SPARKDL_DETECT_GPUS=1.",
        )
    elif scheduled:
        yield from _check_scheduled(scheduled, per_task, executors)
    elif not with_gpus:
        yield ok("GPUs", "none, and none were asked for")
    elif detects:
        yield ok("GPUs", f"{_counts(executors, with_gpus)}; trials share them by locks")
    else:
        yield note(
            "GPUs",
            f"{_counts(executors, with_gpus)}, but Spark schedules none, so that no trial "
            "uses them.",
            "Start Spark with GPU scheduling, see conf/README.md, or set SPARKDL_DETECT_GPUS=1.",
        )
    yield from _check_holders(executors)


def _check_scheduled(
    scheduled: int, per_task: float, executors: Sequence[Facts]
) -> Iterator[Check]:
    fewer = [facts for facts in executors if len(facts.gpus) < scheduled]
    without = [facts for facts in executors if not facts.assigned_gpus]
    if fewer:
        yield fault(
            "GPUs",
            f"Spark schedules {scheduled} GPU(s) per executor, and the driver library shows "
            f"{_counts(executors, fewer)}.",
            "Run nvidia-smi there: repair the NVIDIA driver, or correct the discovery script "
            "(conf/gpu_discovery.sh) and spark.executor.resource.gpu.amount.",
        )
    elif without and per_task:
        yield fault(
            "GPUs",
            f"Spark has assigned no GPU to a task on {where(executors, without)}.",
            "Set spark.task.resource.gpu.amount and the discovery script, see conf/README.md.",
        )
    elif not per_task:
        yield note(
            "GPUs",
            f"Executors have {scheduled} GPU(s), but spark.task.resource.gpu.amount is not set, "
            "so that tasks get none unless num_gpus= asks for some.",
            "Set spark.task.resource.gpu.amount=1, or pass num_gpus=.",
        )
    else:
        yield ok("GPUs", f"{scheduled} per executor, {per_task:g} per task")


def _counts(executors: Sequence[Facts], some: Sequence[Facts]) -> str:
    counts = sorted({len(facts.gpus) for facts in some})
    return "; ".join(
        f"{n or 'no'} GPU(s) on {where(executors, [f for f in some if len(f.gpus) == n])}"
        for n in counts
    )


def _check_holders(executors: Sequence[Facts]) -> Iterator[Check]:
    for host in dict.fromkeys(facts.host for facts in executors):
        facts = next(facts for facts in executors if facts.host == host)
        texts = [f"GPU {gpu} is held by {who}" for gpu, who in facts.held_gpus.items()]
        busy = [gpu for gpu in facts.busy_gpus if gpu not in facts.held_gpus]
        texts += [f"a process computes on GPU {gpu}" for gpu in busy]
        if texts:
            yield note(
                "GPUs",
                f"On {host}: {'; '.join(texts)}.",
                "Trials that need these GPUs wait, or share them: see nvidia-smi.",
            )


def check_network(
    settings: SparkSettings, driver_host: str | None, executors: Sequence[Facts]
) -> Check:
    """Check the addresses at which processes of different hosts meet.

    Args:
        settings: the settings of Spark.
        driver_host: the address of the driver that the executors were told.
        executors: the facts of the executors.
    """
    if settings.is_local:
        return ok("Network", "all processes are on this host")
    if not executors:
        return not_checked("Network", "no executor has answered")
    alone = [facts for facts in executors if facts.local_ip and is_loopback(facts.local_ip)]
    if alone and len({facts.host for facts in executors}) > 1:
        addresses = in_short(str(facts.local_ip) for facts in alone)
        return fault(
            "Network",
            f"SPARK_LOCAL_IP is {addresses} on {where(executors, alone)}, an address that only "
            "that host can reach: the processes of a gang would not find each other.",
            "Unset SPARK_LOCAL_IP on the executors, or set it to an address that the other hosts "
            "reach.",
        )
    place = f" at {driver_host}" if driver_host else ""
    return ok("Network", f"executors reach the driver{place}")
