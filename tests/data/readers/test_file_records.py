"""The files that readers read are recorded, so that a later run can tell other files."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparkdl import context
from sparkdl.data.readers.delta_log import newest_version
from sparkdl.data.readers.file_records import compare_files
from sparkdl.data.readers.file_records import record as write_record
from sparkdl.data.readers.paths import find
from sparkdl.files.layout import FILES


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("a", "b"):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / f"{name}.csv").write_text("x\n1\n")
    monkeypatch.delenv(context.VARIABLE, raising=False)
    trial = tmp_path / "trial"
    trial.mkdir()
    with context.acting_as(context.Context(run="one", folder=str(trial))):
        find(str(tmp_path / "data"))
        find([str(tmp_path / "data/a.csv"), str(tmp_path / "data/b.csv")])
    find(str(tmp_path / "data/a.csv"))
    return str(trial / FILES)


def test_urls_with_credentials_are_not_recorded(tmp_path: Path) -> None:
    with context.acting_as(context.Context(run="one", folder=str(tmp_path))):
        for url in ("https://host/a.csv?token=1", "ftp://ann:pass@host/a.csv"):
            write_record([SimpleNamespace(root=url)])
    assert not (tmp_path / FILES).exists()


def test_other_files_are_named(record: str, tmp_path: Path) -> None:
    assert len(Path(record).read_text().splitlines()) == 2
    assert list(compare_files(record, find, newest_version)) == []
    os.utime(tmp_path / "data/b.csv", (1, 1))
    folder, both = (words for _, _, words in compare_files(record, find, newest_version))
    assert folder == both == "the same names and sizes, written at other times"
    (tmp_path / "data/c.csv").write_text("x\n22\n")
    (paths, before, now), _ = compare_files(record, find, newest_version)
    assert paths == str(tmp_path / "data")
    assert (before, now) == ("2 file(s) of 8 bytes", "3 file(s) of 13 bytes")
    for file in (tmp_path / "data").iterdir():
        file.unlink()
    assert {now for *_, now in compare_files(record, find, newest_version)} == {
        "nothing that this driver can read"
    }
