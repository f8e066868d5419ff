"""Runs on the driver and in Spark tasks. The hardware, the packages and Python of this host."""

import functools
import os
import platform
import re
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

# The version of a package that is not installed.
ABSENT = "absent"

_DISTRIBUTION = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+?)(-py[\d.]+)?\.(dist|egg)-info")


def hardware() -> dict[str, Any]:
    """Return the model of the CPU, the number of cores, and the models of the GPUs."""
    return {"cpu": _cpu(), "cores": os.cpu_count() or 0, "gpus": _gpus()}


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.machine()


def _gpus() -> list[str]:
    """Return the models of NVIDIA's GPUs, as its driver lists them."""
    models = []
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        match = re.search(r"^Model:\s*(.+)$", file.read_text(), re.MULTILINE)
        models.append(match[1].strip() if match else "unknown")
    return models


@functools.cache
def installed() -> Mapping[str, str]:
    """Return the version of every installed package, by its normalized name.

    The names of folders tell both; the files in them would take ten times as long.
    """
    versions: dict[str, str] = {}
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue  # An archive, or a folder that does not exist.
        for match in filter(None, map(_DISTRIBUTION.fullmatch, names)):
            versions.setdefault(_normalized(match["name"]), match["version"])
    return versions


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def packages_in(environment: str) -> dict[str, str]:
    """Return the packages of a file `environment.txt`, by their normalized names.

    Example:
        >>> packages_in("# Python 3.12.1 (main)\\nPyYAML==6.0\\nlast_one==1.5\\n")
        {'python': '3.12.1', 'pyyaml': '6.0', 'last-one': '1.5'}
    """
    python = re.match(r"# Python (\S+)", environment)
    pairs = (line.split("==", 1) for line in environment.splitlines() if "==" in line)
    versions = {_normalized(name): version for name, version in pairs}
    return {"python": python[1], **versions} if python else versions


def describe(driver: Mapping[str, str]) -> dict[str, Any]:
    """Return the facts of this host that a run keeps of its executors.

    Args:
        driver: the packages of the driver, of which only those are named that differ.
    """
    here = {"python": platform.python_version(), **installed()}
    packages = {
        name: here.get(name, ABSENT)
        for name in sorted({*here, *driver})
        if here.get(name) != driver.get(name)
    }
    return {"host": socket.gethostname(), **hardware(), "packages": packages}


def together(executors: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the facts of executors, those of equal ones once, with the names of their hosts.

    Example:
        >>> together([{"host": "b", "cores": 4}, {"host": "a", "cores": 4}])
        [{'hosts': ['a', 'b'], 'cores': 4}]
    """
    groups: list[tuple[dict[str, Any], set[str]]] = []
    for executor in executors:
        facts = {name: value for name, value in executor.items() if name != "host"}
        hosts = next((known for other, known in groups if other == facts), None)
        if hosts is None:
            groups.append((facts, {executor["host"]}))
        else:
            hosts.add(executor["host"])
    return [{"hosts": sorted(hosts), **facts} for facts, hosts in groups]
