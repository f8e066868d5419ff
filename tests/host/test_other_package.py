"""The package of 2018 that is called sparkdl too, as pip leaves it beside this one."""

import sys
from pathlib import Path

import pytest

from sparkdl.doctor.version_checks import check_other_package
from sparkdl.host.other_package import other_package
from sparkdl.spark.versions import check_packages


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def install(folder: Path, *files: str, name: str = "sparkdl") -> None:
    metadata = folder / f"{name.replace('-', '_')}-0.2.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.2.2\n")
    for file in files:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).touch()
    (metadata / "RECORD").write_text("".join(f"{file},,\n" for file in files))


def test_the_other_package_is_named_by_verbs_and_by_doctor(folder: Path) -> None:
    install(folder, "sparkdl/__init__.py", "sparkdl/transformers/tf_image.py")
    text = rf"sparkdl 0\.2\.2 in {folder}.*pip uninstall sparkdl;.*--no-deps sparkdl-platform"
    with pytest.warns(UserWarning, match=text):
        check_packages()
    (check,) = check_other_package()
    assert (check.subject, check.state.value) == ("Packages", "note")
    assert f"sparkdl 0.2.2 in {folder}" in check.text


def test_this_package_and_editable_ones_are_not_reported(folder: Path) -> None:
    install(folder, "sparkdl/__init__.py", name="sparkdl-platform")
    install(folder, "__editable__.sparkdl-0.1.0.pth")
    built = folder / "sparkdl.egg-info"
    built.mkdir()
    (built / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: sparkdl\nVersion: 0.1.0\n")
    (built / "SOURCES.txt").write_text("sparkdl/__init__.py\n")
    assert other_package() is None
    check_packages()
    assert list(check_other_package()) == []
