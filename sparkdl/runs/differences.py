"""Runs on the driver. The differences between a run and the run that it reproduces."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sparkdl.files import storage
from sparkdl.files.jsonl import from_json, naming_damage, to_json
from sparkdl.files.layout import RunPaths, TrialPaths
from sparkdl.runs.machine import ABSENT, packages_in

# The number of packages, and of lines of code, that are printed.
MAX_PACKAGES = 20
MAX_LINES = 20


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that differs.

    Attributes:
        subject: the thing, such as `package numpy`, `GPUs`, `git commit` or `code model.py`.
        before: its value in the earlier run.
        now: its value in the new run, or at its start.
        where: `driver`, `executors`, or both; empty for what both have in common.
        lines: the changed lines of code, as a diff has them.
    """

    subject: str
    before: str
    now: str
    where: str = ""
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        shown = [f"\n      {line}" for line in self.lines[:MAX_LINES]]
        if hidden := len(self.lines) - len(shown):
            shown.append(f"\n      ... and {hidden} more lines")
        return f"{self.subject}{place}: {self.before} before, {self.now} now{''.join(shown)}"


class Differences(list[Difference]):
    """A list of differences, which is printed one below the other."""

    def __str__(self) -> str:
        packages = [one for one in self if one.subject.startswith("package ")]
        hidden = packages[MAX_PACKAGES:]
        lines = [f"  {one}" for one in self if one not in hidden]
        if hidden:
            lines.append(f"  ... and {len(hidden)} more packages: run.differences has them all")
        return "\n".join(lines) or "  nothing"


def read_differences(path: str) -> Differences:
    """Return the differences of a run from the run that it reproduces; any other run has none.

    Args:
        path: the directory of the run.
    """
    try:
        items = json.loads(storage.read(RunPaths(path).differences))
    except FileNotFoundError:
        return Differences()
    return Differences(Difference(**{**item, "lines": tuple(item["lines"])}) for item in items)


def write_differences(path: str, differences: Iterable[Difference]) -> None:
    """Write the differences of a run, for `read_differences`."""
    storage.write(RunPaths(path).differences, to_json([asdict(one) for one in differences], 1))


def read_environment(path: str) -> dict[str, str]:
    """Return the packages of the driver of a run, and its Python; empty if they are unknown."""
    try:
        return packages_in(storage.read(RunPaths(path).environment).decode())
    except FileNotFoundError:
        return {}


def read_executors(path: str) -> list[dict[str, Any]]:
    """Return the facts of the executors of a run, see `runs.machine`; empty if they are unknown.

    Of a gang, the facts of the executor of its chief.

    Raises:
        RunDamagedError: if they are damaged.
    """
    paths = RunPaths(path)
    try:
        text = storage.read(paths.executors)
    except FileNotFoundError:
        chief = _executor_of(paths.trial(0))
        return [_relative_to(read_environment(path), chief)] if chief else []
    with naming_damage(paths.executors):
        return [dict(facts) for facts in from_json(text)]


def _executor_of(trial: TrialPaths) -> dict[str, Any] | None:
    url = trial.attempt(trial.num_attempts() - 1)
    try:
        text = storage.read(url)
    except FileNotFoundError:
        return None
    with naming_damage(url):
        executor: dict[str, Any] | None = from_json(text).get("executor")
        return executor


def _relative_to(driver: Mapping[str, str], executor: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of an executor with only the packages that differ from the driver's."""
    here = executor["packages"]
    versions = {name: here.get(name, ABSENT) for name in sorted({*driver, *here})}
    differing = {name: v for name, v in versions.items() if v != driver.get(name)}
    return {**executor, "packages": differing}


def compare(
    before: Mapping[str, Any], now: Mapping[str, Any], subjects: Mapping[str, str], where: str = ""
) -> Iterator[Difference]:
    """Yield the facts that differ; a fact that an earlier version of sparkdl did not keep is none.

    Args:
        before, now: the facts by name.
        subjects: what the facts are called in differences, by name.
        where: see `Difference`.

    Example:
        >>> facts = {"cpu": "Xeon", "cores": 8}
        >>> [str(one) for one in compare(facts, {**facts, "cores": 4}, {"cores": "CPU cores"})]
        ['CPU cores: 8 before, 4 now']
    """
    for name, subject in subjects.items():
        if name in before and before[name] != now.get(name):
            texts = [_text(facts.get(name)) for facts in (before, now)]
            yield Difference(subject=subject, before=texts[0], now=texts[1], where=where)


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def compare_executors(
    before: tuple[Mapping[str, str], list[dict[str, Any]]],
    now: tuple[Mapping[str, str], list[dict[str, Any]]],
) -> Iterator[Difference]:
    """Yield the packages and the hardware that differ, on the driver and on executors.

    A package that differs in the same way on both is one difference.

    Args:
        before, now: the packages of the driver, and the facts of its executors.
    """
    on_executors = _versions(*before), _versions(*now)
    names = {*before[0], *now[0], *on_executors[0], *on_executors[1]}
    for name in sorted(names) if before[0] else ():
        driver = before[0].get(name, ABSENT), now[0].get(name, ABSENT)
        executors = driver
        if before[1] and now[1]:
            executors = on_executors[0].get(name, driver[0]), on_executors[1].get(name, driver[1])
        yield from _changed_package(name, driver, executors, knows_both=bool(before[1] and now[1]))
    if before[1] and now[1]:
        for key, subject in {"cpu": "CPU", "cores": "CPU cores", "gpus": "GPUs"}.items():
            values = [sorted({_text(e.get(key)) for e in side[1]}) for side in (before, now)]
            if values[0] != values[1]:
                texts = [" or ".join(value) for value in values]
                yield Difference(subject=subject, before=texts[0], now=texts[1], where="executors")


def _versions(driver: Mapping[str, str], executors: list[dict[str, Any]]) -> dict[str, str]:
    """Return the versions of packages that differ from the driver's on at least one executor."""
    names = {name for executor in executors for name in executor["packages"]}
    return {
        name: " or ".join(
            sorted({e["packages"].get(name, driver.get(name, ABSENT)) for e in executors})
        )
        for name in names
    }


def _changed_package(
    name: str, driver: tuple[str, str], executors: tuple[str, str], knows_both: bool
) -> Iterator[Difference]:
    subject = "Python" if name == "python" else f"package {name}"
    places = [("driver", driver), *([("executors", executors)] if knows_both else [])]
    changed = [(where, versions) for where, versions in places if versions[0] != versions[1]]
    if len({versions for _, versions in changed}) == 1:
        changed = [(", ".join(where for where, _ in changed), changed[0][1])]
    for where, versions in changed:
        yield Difference(subject=subject, before=versions[0], now=versions[1], where=where)


def compare_fingerprints(
    before: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]
) -> Iterator[Difference]:
    """Yield the datasets whose schema, number of rows or hash differ.

    Example:
        >>> [str(one) for one in compare_fingerprints(
        ...     {"train": {"schema": "x: int64", "rows": 3}},
        ...     {"train": {"schema": "x: int64", "rows": 4}})]
        ['data train, rows: 3 before, 4 now']
    """
    for name in sorted({*before, *now}):
        if name not in before or name not in now:
            words = ["absent" if name not in side else "present" for side in (before, now)]
            yield Difference(subject=f"data {name}", before=words[0], now=words[1])
            continue
        for part in ("schema", "rows", "hash"):
            old, new = before[name].get(part), now[name].get(part)
            if old is not None and new is not None and old != new:
                subject = f"data {name}, {part}"
                yield Difference(subject=subject, before=str(old), now=str(new))
