"""Pack what executors need into an archive, as venv-pack and conda-pack do, for bare hosts."""

import importlib.metadata
import io
import os
import re
import sys
import tarfile
from pathlib import Path

from sparkdl._version import DISTRIBUTION
from tests.clusters.standalone import REPOSITORY

__all__ = ["pack_environment"]

# Trials of these tests need neither, and both are large. Spark ships its own Python files.
LEFT_OUT = {"plotly", "pyspark"}


def pack_environment(archive: Path) -> Path:
    """Write sparkdl, hdfs-native and what they need, but no framework, as a virtual environment.

    The archive has no interpreter: `bin/python` leads to that of the system, as in an archive of
    venv-pack.
    """
    home = Path(sys.base_prefix, "bin")
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for link, target in (("python", name), (name, str(home / name))):
            entry = tarfile.TarInfo(f"bin/{link}")
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
        settings = f"home = {home}\ninclude-system-site-packages = false\n".encode()
        entry = tarfile.TarInfo("pyvenv.cfg")
        entry.size = len(settings)
        tar.addfile(entry, io.BytesIO(settings))
        packages = f"lib/{name}/site-packages"
        tar.add(REPOSITORY / "sparkdl", f"{packages}/sparkdl", filter=_without_caches)
        for distribution in _distributions([DISTRIBUTION, "hdfs-native"]):
            for file in distribution.files or ():
                source = Path(os.path.normpath(str(distribution.locate_file(file))))
                if ".." not in file.parts and source.is_file() and source.suffix != ".pyc":
                    tar.add(source, f"{packages}/{file}", recursive=False)
    return archive


def _without_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in entry.name else entry


def _distributions(names: list[str]) -> list[importlib.metadata.Distribution]:
    """Return packages and all that they require, without extras; sparkdl itself is left out."""
    found: dict[str, importlib.metadata.Distribution | None] = dict.fromkeys(LEFT_OUT)
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:  # For other platforms.
            found[name] = None
            continue
        for requirement in found[name].requires or ():  # type: ignore[union-attr]
            if "extra ==" not in requirement:
                waiting.append(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])
    found.pop(DISTRIBUTION)
    return [distribution for distribution in found.values() if distribution]
