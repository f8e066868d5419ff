"""The supported versions, by setup.cfg and the compatibility page, and the installed ones."""

import importlib.metadata
import re
import subprocess
import sys
import warnings
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

from sparkdl.errors import ConfigError
from sparkdl.host import supported_versions
from sparkdl.host.supported_versions import (
    WINDOWS,
    check_versions,
    deviation,
    installed,
    parts_of,
    report,
)

ROOT = Path(__file__).parents[2]
PACKAGES = [name for name in WINDOWS if name != "python"]


def oldest_in_setup() -> dict[str, str]:
    """The lower bounds of setup.cfg, in the requirements of the package and of its extras."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = [f"python {setup['options']['python_requires']}"]
    lines += setup["options"]["install_requires"].splitlines()
    for extra in setup["options.extras_require"].values():
        lines += extra.splitlines()
    found = (re.match(r"([\w-]+) *>=([\d.]+)", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def test_the_oldest_versions_are_those_of_setup_cfg() -> None:
    bounds = oldest_in_setup()
    assert {n: w.oldest for n, w in WINDOWS.items()} == {n: bounds[n] for n in WINDOWS}


def test_the_newest_versions_are_those_of_the_compatibility_page() -> None:
    page = (ROOT / "docs/compatibility.md").read_text().partition("<!-- end of results -->")[0]
    table = re.findall(r"^\|(.+)\|$", page, re.MULTILINE)
    head, _, *lanes = [[cell.strip().lower() for cell in row.split("|")] for row in table]
    newest = {name: max(parts_of(lane[head.index(name)]) for lane in lanes) for name in WINDOWS}
    assert {name: parts_of(WINDOWS[name].newest) for name in WINDOWS} == {
        name: version[:2] for name, version in newest.items()
    }


def test_installed_versions_are_those_of_the_metadata() -> None:
    known = importlib.metadata.packages_distributions()
    names = {name: known[name][0] for name in PACKAGES if name in known}
    assert "pyspark" in names
    assert {name: installed(name) for name in names} == {
        name: importlib.metadata.version(distribution) for name, distribution in names.items()
    }


def ask(path: Path | None, code: str) -> str:
    """Return what a new Python prints whose path begins with a folder or an archive."""
    lines = ["import sys", f"sys.path.insert(0, {str(path)!r})" if path else ""]
    lines += ["from sparkdl.host.supported_versions import *", code]
    run = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True
    )
    return run.stdout.strip()


FAILS = "raise RuntimeError('this package was imported')\n"


def test_packages_without_metadata_or_under_other_names_are_found(tmp_path: Path) -> None:
    for file, text in {
        "pyspark/__init__.py": FAILS,
        "pyspark/version.py": "__version__: str = '3.4.1'\n",
        "keras/__init__.py": FAILS,
        "keras/src/version.py": '__version__ = "3.0.0"\n',
        "tensorflow/__init__.py": FAILS,
        "tensorflow_cpu-2.9.1.dist-info/METADATA": "Name: tensorflow-cpu\nVersion: 2.9.1\n",
        "pyarrow/nothing.txt": "",
    }.items():
        path = tmp_path / "packages" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    code = "print(*[installed(n) for n in ('pyspark', 'keras', 'tensorflow')])"
    assert ask(tmp_path / "packages", code) == "3.4.1 3.0.0 2.9.1"
    # As Spark's own `python/lib/pyspark.zip`.
    with zipfile.ZipFile(tmp_path / "spark.zip", "w") as archive:
        archive.write(tmp_path / "packages/pyspark/__init__.py", "pyspark/__init__.py")
        archive.write(tmp_path / "packages/pyspark/version.py", "pyspark/version.py")
    assert ask(tmp_path / "spark.zip", "print(installed('pyspark'))") == "3.4.1"


def test_packages_that_are_absent_or_tell_nothing_are_not_reported(tmp_path: Path) -> None:
    for name in ("keras", "tensorflow"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(FAILS)
    code = "check_versions('keras', 'tensorflow'); print(installed('keras'))"
    assert ask(tmp_path, code) == "None"
    code = "sys.modules['keras'] = None; check_versions('keras'); print(installed('keras'))"
    assert ask(None, code) == "None"


def test_a_check_loads_no_package() -> None:
    code = "check_versions(*WINDOWS); print({*WINDOWS, 'numpy', 'pandas'} & {*sys.modules})"
    assert ask(None, code) == "set()"


def with_versions(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    monkeypatch.setattr(supported_versions, "installed", versions.get)


def test_versions_that_are_too_old_are_refused_together(monkeypatch: pytest.MonkeyPatch) -> None:
    with_versions(
        monkeypatch, pyspark="3.4.1", pyarrow="10.0.1", keras="3.0.5", tensorflow="2.16.1"
    )
    with pytest.raises(ConfigError) as error:
        check_versions("pyspark", "pyarrow", "tensorflow", "keras")
    spark, arrow, keras = str(error.value).splitlines()
    oldest, newest = WINDOWS["pyspark"].bounds
    assert spark.startswith("pyspark 3.4.1 (")
    assert f"is too old for sparkdl, which supports {oldest} to {newest}. Use a clu" in spark
    assert spark.endswith(f"pip install 'pyspark=={oldest}.*'")
    assert f"pip install 'pyarrow>={WINDOWS['pyarrow'].oldest}'" in arrow
    assert f"pip install 'keras>={WINDOWS['keras'].oldest}'" in keras


@pytest.mark.parametrize("name", WINDOWS)
def test_newer_versions_are_reported_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    major, minor = parts_of(WINDOWS[name].newest)
    with_versions(monkeypatch, **{name: f"{major}.{minor}.99"})
    check_versions(name)
    with_versions(monkeypatch, **{name: f"{major}.{minor + 1}.0"})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            check_versions(name)
    (warning,) = caught
    assert f"is newer than {WINDOWS[name].newest}, the newest" in str(warning.message)
    assert Path(warning.filename) == Path(__file__)


@pytest.mark.parametrize(("tensorflow", "is_allowed"), [("2.15.1", True), ("2.21.0", False)])
def test_keras_2_is_allowed_with_its_tensorflow(
    tensorflow: str, is_allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_versions(monkeypatch, tensorflow=tensorflow, keras="2.15.0")
    assert (deviation("keras") is None) is is_allowed
    assert deviation("tensorflow") is None


def test_parts_of_versions() -> None:
    texts = ["3.5.1-amzn-0", "3.5.0.dev0", "2.21.0rc1", "4", "3.5.1.7.2.18", "", "main"]
    assert [*map(parts_of, texts)] == [
        *((3, 5, 1), (3, 5, 0), (2, 21, 0), (4,), (3, 5, 1, 7, 2, 18)),
        *((), ()),
    ]


def test_versions_that_are_unknown_or_supported_are_not_reported() -> None:
    report([None])
    assert supported_versions.judge("Spark main", "main", ("3.5", "4.3"), "") is None


def test_python_that_is_too_old_is_named_at_the_import() -> None:
    """An older Python cannot even compile most modules."""
    python = next(Path.home().glob(".pyenv/versions/3.8.*/bin/python"), None)
    if python is None:
        pytest.skip("no Python 3.8")
    run = subprocess.run([python, "-c", "import sparkdl"], cwd=ROOT, capture_output=True, text=True)
    assert "sparkdl needs Python 3.10 or newer, and this is Python 3.8" in run.stderr
