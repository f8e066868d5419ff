"""Runs on the driver (pure). Judge the facts of the executors against those of the driver."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from sparkdl._version import DISTRIBUTION
from sparkdl.cluster.preflight import PROGRAM_PACKAGES
from sparkdl.doctor.facts import Facts
from sparkdl.doctor.report import Check, fault, in_short, note, ok
from sparkdl.runs.machine import ABSENT

# Packages whose objects or files pass between driver and executors, or that decide on results.
COMPARED = {
    *("cloudpickle", "fsspec", "h5py", "hdfs-native", "jaxlib", "keras", "ml-dtypes"),
    *("numpy", "pandas", "protobuf", "pyarrow", "s3fs", "tensorflow", "tensorflow-cpu"),
    *("tf-keras", DISTRIBUTION, *PROGRAM_PACKAGES),
}
# A clock that differs by less makes no difference to sparkdl.
MAX_SKEW_S = 5.0
MIN_OPEN_FILES = 1024
MIN_FREE_MB = 1024
# What the processes of TensorFlow and of NCCL share needs more than a container's 64 MiB.
MIN_SHARED_MB = 1024

_INSTALL = (
    "Install the driver's versions on the executors, ship an environment with --archives, or set "
    "PYSPARK_PYTHON (spark.pyspark.python) to a Python that has them."
)


def check_executors(
    driver: Facts, executors: Sequence[Facts], begun_s: float, ended_s: float, num_slots: int
) -> Iterator[Check]:
    """Yield the checks of Python, packages, clocks and limits.

    Args:
        driver: the facts of the driver.
        executors: the facts of the executors, each one once.
        begun_s: the time by the clock of the driver before the facts were collected.
        ended_s: the time afterwards.
        num_slots: the number of tasks that Spark runs at once.
    """
    yield _check_python(driver, executors)
    yield from _check_packages(driver, executors)
    if executors:
        yield _check_clocks(executors, begun_s, ended_s)
    yield _check_open_files(driver, executors, num_slots)
    yield _check_space(driver, executors)
    yield from _check_memory(executors)


def where(executors: Sequence[Facts], some: Iterable[Facts]) -> str:
    """Return the hosts of some of the executors, and their folders if a host has several.

    Args:
        executors: all executors.
        some: the executors to name.
    """
    hosts = [facts.host for facts in executors]
    return in_short(
        f"{f.host} (in {f.folder})" if hosts.count(f.host) > 1 else f.host for f in some
    )


def _group(
    executors: Sequence[Facts], key: Callable[[Facts], str | None]
) -> dict[str, list[Facts]]:
    """Return the executors by what is to be said of them; None is nothing."""
    groups: dict[str, list[Facts]] = {}
    for facts in executors:
        if (text := key(facts)) is not None:
            groups.setdefault(text, []).append(facts)
    return groups


def _describe(executors: Sequence[Facts], groups: Mapping[str, list[Facts]]) -> str:
    return "; ".join(f"{text} on {where(executors, some)}" for text, some in groups.items())


# ---- Python and packages


def _check_python(driver: Facts, executors: Sequence[Facts]) -> Check:
    """Spark itself refuses another minor version, see `task_failure`."""
    here = driver.packages["python"]
    groups = _group(executors, lambda facts: facts.packages.get("python"))
    if not groups:
        place = "driver and executors" if executors else "driver"
        return ok("Python", f"Python {here} on {place}")
    text = f"Python {_describe(executors, groups)}; the driver has {here}."
    return note("Python", text, "Equal minor versions are enough, equal versions are better.")


def _one_tensorflow(packages: Mapping[str, str]) -> dict[str, str]:
    """Return packages of which `tensorflow-cpu`, a build of TensorFlow, is named `tensorflow`."""
    present = {name: version for name, version in packages.items() if version != ABSENT}
    build = present.pop("tensorflow-cpu", None)
    return present if build is None else {"tensorflow": build, **present}


def _with_one_tensorflow(driver: Facts, facts: Facts) -> Facts:
    """Return the facts of an executor with the packages that differ, whichever the build."""
    here = _one_tensorflow(driver.packages)
    there = _one_tensorflow({**driver.packages, **facts.packages})
    names = sorted({*facts.packages, "tensorflow"} - {"tensorflow-cpu"})
    differing = {n: there.get(n, ABSENT) for n in names if there.get(n) != here.get(n)}
    return dataclasses.replace(facts, packages=differing)


def _check_packages(driver: Facts, executors: Sequence[Facts]) -> Iterator[Check]:
    executors = [_with_one_tensorflow(driver, facts) for facts in executors]
    driver = dataclasses.replace(driver, packages=_one_tensorflow(driver.packages))

    def missing(facts: Facts) -> str | None:
        return _names(facts, lambda name, there: there == ABSENT and name in COMPARED)

    def other(facts: Facts) -> str | None:
        texts = (
            f"{name} {there} (driver: {driver.packages.get(name, ABSENT)})"
            for name, there in facts.packages.items()
            if name in COMPARED and ABSENT not in (there, driver.packages.get(name, ABSENT))
        )
        return ", ".join(texts) or None

    def spark(facts: Facts) -> str | None:
        return None if facts.pyspark == driver.pyspark else f"pyspark {facts.pyspark}"

    is_healthy = True
    for key, begin, end in (
        (missing, "The driver has packages that are absent on executors: ", "."),
        (other, "Versions differ: ", "."),
        (spark, "Versions differ: ", f"; the driver has pyspark {driver.pyspark}."),
    ):
        if groups := _group(executors, key):
            is_healthy = False
            yield fault("Packages", f"{begin}{_describe(executors, groups)}{end}", _INSTALL)
    if is_healthy:
        names = [DISTRIBUTION, "pyspark", "tensorflow", "keras", "pyarrow", "numpy", "cloudpickle"]
        versions = {**driver.packages, "pyspark": driver.pyspark}
        text = ", ".join(f"{name} {versions[name]}" for name in names if name in versions)
        place = "driver and executors" if executors else "driver"
        yield ok("Packages", f"{text} on {place}")
    others = {
        name for facts in executors for name in facts.packages if name not in {*COMPARED, "python"}
    }
    if others:
        text = (
            f"{len(others)} other packages differ between driver and executors: {in_short(others)}"
        )
        yield note("Packages", text, "Make them equal if your training function uses them.")


def _names(facts: Facts, condition: Callable[[str, str], bool]) -> str | None:
    return ", ".join(n for n, there in facts.packages.items() if condition(n, there)) or None


# ---- clocks and limits


def _check_clocks(executors: Sequence[Facts], begun_s: float, ended_s: float) -> Check:
    """The clock of an executor lies between those of the driver before and after the job."""
    skews = {id(f): max(begun_s - f.time_s, f.time_s - ended_s, 0.0) for f in executors}
    groups = _group(
        executors,
        lambda f: (
            f"{skews[id(f)]:.0f} s {'behind' if f.time_s < begun_s else 'ahead'}"
            if skews[id(f)] > MAX_SKEW_S
            else None
        ),
    )
    if groups:
        text = f"The clock differs from the driver's by at least {_describe(executors, groups)}."
        return fault("Clocks", text, "Let the hosts get their time from NTP (chrony or ntpd).")
    seconds = max(skews.values()) + ended_s - begun_s
    return ok("Clocks", f"equal, as far as a job of {seconds:.0f} s can tell")


def _check_open_files(driver: Facts, executors: Sequence[Facts], num_slots: int) -> Check:
    groups = _group(
        executors,
        lambda facts: (
            f"{facts.open_files[0]} open files"
            if facts.open_files[0] is not None and facts.open_files[0] < MIN_OPEN_FILES
            else None
        ),
    )
    if groups:
        text = f"A process may have only {_describe(executors, groups)}."
        return fault(
            "Open files",
            text,
            f"Start Spark's workers with a limit of {MIN_OPEN_FILES} or more (ulimit -n, or "
            "LimitNOFILE= of their service).",
        )
    # As in `runner.loop.concurrency`: each running trial and each trial that waits has a Spark job.
    need = 128 + 3 * (num_slots + num_slots // 4)
    hard = driver.open_files[1]
    if hard is not None and hard < max(need, MIN_OPEN_FILES):
        text = f"The driver may have only {hard} open files, and {num_slots} slots need {need}."
        return fault(
            "Open files", text, "Raise the hard limit of the driver's user (ulimit -Hn) before it."
        )
    limits = [f.open_files[0] for f in executors if f.open_files[0] is not None]
    text = f"at most {'unlimited' if hard is None else hard} on the driver"
    more = f", {min(limits)} or more on executors" if limits else ""
    return ok("Open files", text + more)


def _check_space(driver: Facts, executors: Sequence[Facts]) -> Check:
    def full(facts: Facts) -> str | None:
        texts = (f"{mb} MiB in {d}" for d, mb in facts.free_mb.items() if mb < MIN_FREE_MB)
        return ", ".join(texts) or None

    groups = _group(executors, full)
    on_driver = full(driver)
    if not groups and not on_driver:
        least = min((mb for f in (driver, *executors) for mb in f.free_mb.values()), default=0)
        return ok("Disk space", f"{least >> 10} GiB or more are free for temporary files")
    places = [f"{on_driver} on the driver"] if on_driver else []
    places += [_describe(executors, groups)] if groups else []
    return fault(
        "Disk space",
        f"Little space is free for temporary files: {'; '.join(places)}.",
        "Free some space, or set TMPDIR and spark.local.dir to larger disks.",
    )


def _check_memory(executors: Sequence[Facts]) -> Iterator[Check]:
    limited = _group(
        executors,
        lambda f: None if f.address_space_mb is None else f"{f.address_space_mb} MiB",
    )
    if limited:
        yield fault(
            "Memory",
            "The address space of Python is limited, in which TensorFlow may not be loaded: "
            f"{_describe(executors, limited)}.",
            "Unset spark.executor.pyspark.memory, and limits of ulimit -v.",
        )
    small = [
        facts
        for facts in executors
        if len(facts.gpus) > 1 and (facts.shared_memory_mb or 0) < MIN_SHARED_MB
    ]
    if small:
        sizes = in_short(f"{facts.shared_memory_mb or 0} MiB" for facts in small)
        yield note(
            "Memory",
            f"/dev/shm has {sizes} on {where(executors, small)}, through which GPUs of a host "
            "exchange gradients.",
            "Start the containers with a larger one, such as --shm-size=8g.",
        )
    if executors and not limited and not small:
        yield ok("Memory", "no limit of the address space")
