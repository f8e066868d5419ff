"""Runs anywhere. The versions of Python and packages that sparkdl supports, and the installed ones.

The oldest versions are those of `setup.cfg`, the newest those of docs/compatibility.md. They are
written here too because sparkdl may be used from its source, without the metadata of a package.
"""

import importlib.util
import os
import platform
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec

from sparkdl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Window:
    """The versions of a package that sparkdl supports.

    Attributes:
        oldest: the oldest version; an older one is refused.
        newest: the newest release that the tests ran with; a newer one is only reported.
        distributions: the names under which the package is installed.
        file: the file of the package with the version, if the package has one.
        remedy: the way to a supported version; `{}` stands for the oldest one.
    """

    oldest: str
    newest: str
    distributions: tuple[str, ...] = ()
    file: str | None = None
    remedy: str = ""

    @property
    def bounds(self) -> tuple[str, str]:
        """The oldest and the newest version."""
        return self.oldest, self.newest


WINDOWS = {
    "python": Window(
        oldest="3.10",
        newest="3.13",
        remedy="Use a Python from {} on, for the driver and the executors.",
    ),
    "pyspark": Window(
        oldest="3.5",
        newest="4.3",
        distributions=("pyspark", "pyspark-client", "pyspark-connect"),
        file="version.py",
        remedy="Use a cluster with Spark {} or newer, and install the PySpark of its version, for "
        "example: pip install 'pyspark=={}.*'",
    ),
    "pyarrow": Window(oldest="19.0.1", newest="26.0", file="_generated_version.py"),
    "tensorflow": Window(
        oldest="2.16",
        newest="2.21",
        distributions=(
            *("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-macos"),
            *("tensorflow-rocm", "intel-tensorflow", "tf-nightly", "tf-nightly-cpu"),
        ),
    ),
    "keras": Window(
        oldest="3.5",
        newest="3.15",
        distributions=("keras", "keras-nightly"),
        file="src/version.py",
    ),
}

# The last TensorFlow with `tf.estimator`, with its Keras; see docs/estimators.md.
_ESTIMATORS = {"tensorflow": (2, 15), "keras": (2, 15)}


@dataclass(frozen=True)
class Deviation:
    """A version outside the supported ones.

    Attributes:
        text: the version, and the supported ones.
        remedy: the way to a supported version.
        is_refused: True for a version that is too old, False for one that is newer than tested.
    """

    text: str
    remedy: str
    is_refused: bool

    def __str__(self) -> str:
        return f"{self.text} {self.remedy}"


def check_versions(*names: str) -> None:
    """Refuse installed versions that are too old, and warn of those that are newer than tested.

    No package is imported. A package that is not installed is not reported.

    Args:
        *names: keys of `WINDOWS`.

    Raises:
        ConfigError: if a version is too old; the message names the supported versions.

    Example:
        >>> check_versions("python", "pyspark")
    """
    report(map(deviation, names))


def report(deviations: Iterable[Deviation | None]) -> None:
    """Refuse versions, or warn of them; None stands for a version that is supported.

    Raises:
        ConfigError: if at least one version is refused.
    """
    problems = [deviation for deviation in deviations if deviation]
    if refused := [str(deviation) for deviation in problems if deviation.is_refused]:
        raise ConfigError("\n".join(refused))
    for deviation in problems:
        warnings.warn(str(deviation), stacklevel=3)  # Python shows the same text once.


@contextmanager
def explained_by_versions() -> Iterator[None]:
    """Refuse installed versions that are too old if one of them may be why an import fails.

    Raises:
        ConfigError: in place of an `ImportError`.
    """
    try:
        yield
    except ImportError as exc:
        refused = [found for name in WINDOWS if (found := deviation(name)) and found.is_refused]
        if not refused:
            raise
        raise ConfigError("\n".join(map(str, refused))) from exc


def deviation(name: str) -> Deviation | None:
    """Return how an installed version deviates from the supported ones; None if it does not.

    Args:
        name: a key of `WINDOWS`.
    """
    version = installed(name)
    if version is None or _is_for_estimators(name):
        return None
    window = WINDOWS[name]
    remedy = window.remedy or f"Install a supported version: pip install '{name}>={{}}'"
    remedy = remedy.replace("{}", window.oldest)
    return judge(_titled(name, version), version, window.bounds, remedy)


def judge(
    title: str,
    version: str,
    bounds: tuple[str, str],
    remedy: str,
    user: str = "sparkdl",
    ends: bool = False,
) -> Deviation | None:
    """Return how a version deviates from the supported ones; None if it does not.

    Args:
        title: the version with its name, for the text.
        version: the version; a vendor's may have more parts.
        bounds: the oldest supported version, and the newest tested one in as many parts as count.
        remedy: the way to a supported version.
        user: the program that supports these versions.
        ends: True to refuse a newer version too.

    Example:
        >>> print(judge("Java 11", "11.0.2", ("17", "21"), "Install Java 17.", user="Spark"))
        Java 11 is too old for Spark, which supports 17 to 21. Install Java 17.
        >>> judge("Java 17", "17.0.15", ("17", "21"), "Install Java 17.")
    """
    parts, oldest, newest = map(parts_of, (version, *bounds))
    supported = f"for {user}, which supports {bounds[0]} to {bounds[1]}."
    if parts < oldest[: len(parts)]:
        return Deviation(f"{title} is too old {supported}", remedy, is_refused=True)
    if parts[: len(newest)] <= newest:
        return None
    if ends:
        return Deviation(f"{title} is too new {supported}", remedy, is_refused=True)
    text = f"{title} is newer than {bounds[1]}, the newest that {user} was tested with."
    return Deviation(text, "If a call fails, try that version.", is_refused=False)


def parts_of(version: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version; empty if it does not begin with one.

    Example:
        >>> parts_of("3.5.1-amzn-0"), parts_of("2.22.0.dev20261101")
        ((3, 5, 1), (2, 22, 0))
    """
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _is_for_estimators(name: str) -> bool:
    return name in _ESTIMATORS and all(
        parts_of(installed(other) or "")[:2] == parts for other, parts in _ESTIMATORS.items()
    )


def _titled(name: str, version: str) -> str:
    """Return a name with its version, and with its place if it is not of the environment."""
    if name == "python":
        return f"Python {version} ({sys.executable})"
    folder = os.path.dirname(folder_of(name) or "")
    return f"{name} {version} ({folder})" if folder else f"{name} {version}"


# ---- the installed versions


def installed(name: str) -> str | None:
    """Return the version of a package that this process has imported, or would import.

    The package is not imported. The version is that of the files which Python finds: Spark's own
    PySpark has no metadata, and another PySpark may be installed beside it.

    Args:
        name: a key of `WINDOWS`.

    Returns:
        None if the package is not installed, or does not tell its version.

    Example:
        >>> installed("python").startswith("3.")
        True
    """
    if name == "python":
        return platform.python_version()
    return _from_file(name) or _from_listing(name)


def folder_of(name: str) -> str | None:
    """Return the folder of a package that is installed, without importing it."""
    spec = _spec_of(name)
    return next(iter(spec.submodule_search_locations or ()), None) if spec else None


def _spec_of(name: str) -> ModuleSpec | None:
    with suppress(ImportError, ValueError):  # An imported module without a specification.
        return importlib.util.find_spec(name)
    return None


def _from_file(name: str) -> str | None:
    """Return the version in the package's own file, which may be in an archive."""
    spec, folder, file = _spec_of(name), folder_of(name), WINDOWS[name].file
    read = getattr(spec and spec.loader, "get_data", None)
    if folder is None or file is None or read is None:
        return None
    with suppress(OSError):
        text = read(os.path.join(folder, file)).decode(errors="replace")
        if match := re.search(r"""^__version__\b.*?=\s*["']([^"']+)["']""", text, re.MULTILINE):
            return match[1]
    return None


def _from_listing(name: str) -> str | None:
    """Return the version in the name of the metadata's folder, beside that of the package."""
    names = "|".join(WINDOWS[name].distributions or (name,)).replace("-", "[-_.]")
    metadata = re.compile(
        rf"({names})-(?P<version>[^-]+)(-py[\d.]+)?\.(dist|egg)-info", re.IGNORECASE
    )
    with suppress(OSError):  # An archive, or no package.
        matches = map(metadata.fullmatch, os.listdir(os.path.dirname(folder_of(name) or "")))
        return next((match["version"] for match in matches if match), None)
    return None
