"""Runs on the driver (pure). Judge the access of driver and executors to the root of the runs."""

from collections.abc import Collection, Iterator, Sequence

from sparkdl.doctor.executor_checks import where
from sparkdl.doctor.facts import Facts
from sparkdl.doctor.report import Check, fault, note, ok
from sparkdl.doctor.root_probe import RootProbe

SUBJECT = "Root"
# Each trial writes some files, and the driver some each second.
SLOW_S = 1.0

_SHARED = (
    "Set root=, SPARKDL_ROOT or spark.sparkdl.root to a folder that driver and executors share: "
    "NFS, HDFS or an object store."
)


def check_root(
    root: str, driver: RootProbe, executors: Sequence[Facts], unseen: Collection[str]
) -> Iterator[Check]:
    """Yield the checks of the root.

    Args:
        root: the folder of the runs.
        driver: the access of the driver.
        executors: the facts of the executors; without those, only the driver is judged.
        unseen: the names of files that executors have left, and that the driver does not see.
    """
    if driver.error:
        yield fault(SUBJECT, f"The driver {driver.error}", _access(driver.error))
        return
    probes = [(facts, facts.root) for facts in executors if facts.root]
    apart = [facts for facts, probe in probes if probe.sees_driver is False]
    hidden = [facts for facts, probe in probes if probe.name in unseen]
    broken = [(facts, probe) for facts, probe in probes if probe.error]
    if apart:
        yield fault(
            SUBJECT,
            f"{root} is not shared: a file that the driver has written there does not exist for "
            f"the executor(s) on {where(executors, apart)}.",
            _SHARED,
        )
    if hidden:
        yield fault(
            SUBJECT,
            f"{root} is not shared: the driver does not see files that executor(s) on "
            f"{where(executors, hidden)} have written there.",
            _SHARED,
        )
    for facts, probe in broken:
        text = f"The executor on {where(executors, [facts])} {probe.error}"
        yield fault(SUBJECT, text, _access(probe.error, facts.user))
    if not (apart or hidden or broken):
        yield _latency(root, driver, [probe for _, probe in probes])


def _access(error: str, user: str = "") -> str:
    if "TimeoutError" in error:
        return "Look at the network file system or the store, which does not answer."
    who = f"user {user}" if user else "this user"
    return (
        f"Let {who} write and delete there, with permissions or credentials, or name another "
        "root (root=, SPARKDL_ROOT)."
    )


def _latency(root: str, driver: RootProbe, executors: Sequence[RootProbe]) -> Check:
    texts = [f"{root}: {_times([driver])} on the driver"]
    if executors:
        texts.append(f"{_times(executors)} on executors")
    text = "; ".join(texts)
    slowest = max(s for probe in (driver, *executors) for s in probe.seconds.values())
    if slowest > SLOW_S:
        return note(
            SUBJECT, text, "Such a root delays the start of each trial; prefer a faster one."
        )
    return ok(SUBJECT, text)


def _times(probes: Sequence[RootProbe]) -> str:
    names = [name for name in ("write", "read", "delete") if name in probes[0].seconds]
    parts = []
    for name in names:
        times = [probe.seconds[name] for probe in probes]
        least, most = _ms(min(times)), _ms(max(times))
        parts.append(f"{name} {least if least == most else f'{least} to {most}'} ms")
    return ", ".join(parts)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.{0 if seconds > 0.01 else 1}f}"
