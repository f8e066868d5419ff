"""Google's and Azure's object stores, as emulators: the contract of storage, and a search."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl.files import storage
from tests.clusters.cloud_stores import STORES
from tests.clusters.standalone import REPOSITORY

# The contract that the stores of tests/files fulfil, with the fixture `place` of this module.
from tests.files.test_storage import (  # noqa: F401
    test_a_name_is_never_taken_for_a_pattern,
    test_create_succeeds_once,
    test_mirror_uploads_changed_files,
    test_storage_contract,
)
from tests.helpers.creators import winners_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=sorted(STORES))
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, dict[str, str]]]:
    with STORES[request.param](tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture
def place(store: tuple[str, dict[str, str]]) -> str:
    return f"{store[0]}/{uuid4().hex} ü'"


def test_create_has_one_winner_without_waiting(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store itself refuses all but one, so that none has to read the content back."""
    monkeypatch.setattr("sparkdl.files.stores._check_claim", lambda *args: pytest.fail("unsafe"))
    winners = winners_of(f"{place}/one")
    assert [storage.read(f"{place}/one").decode()] == winners


def test_new_content_is_polled_without_a_word(place: str, caplog: pytest.LogCaptureFixture) -> None:
    url = f"{place}/log.txt"
    storage.write(url, "12345")
    assert storage.read_new({url: 5, f"{place}/absent": 0}) == {}
    assert storage.read_new({url: 3}) == {url: b"45"}
    storage.write(f"{place}/empty", b"")
    assert storage.read(f"{place}/empty") == b""
    assert caplog.text == ""


def test_files_are_removed_together_although_one_is_gone(place: str) -> None:
    urls = [f"{place}/{number}" for number in range(3)]
    for url in (*urls, f"{place}/kept"):
        storage.write(url, "x")
    storage.remove(urls[1])
    storage.remove_files(urls)
    assert storage.list_names(place) == ["kept"]


def test_sizes_are_those_of_the_files_down_to_a_depth(place: str) -> None:
    for name in ("a", "folder/bb", "folder/deep/ccc"):
        storage.write(f"{place}/{name}", name)
    assert storage.file_sizes(place) == {"a": 1, "folder/bb": 9, "folder/deep/ccc": 15}
    assert storage.file_sizes(place, max_depth=1) == {"a": 1}
    assert storage.file_sizes(f"{place}/folder", max_depth=2) == {"bb": 9, "deep/ccc": 15}


def test_listing_shows_what_another_process_writes(place: str) -> None:
    storage.write(f"{place}/a", "x")
    assert storage.list_names(place) == ["a"]
    code = "import sys; from sparkdl.files import storage; storage.write(sys.argv[1], 'y')"
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, "-c", code, f"{place}/b"], env=env, check=True)
    assert storage.list_names(place) == ["a", "b"]
    assert storage.exists(f"{place}/b")


def test_bucket_that_does_not_exist_is_a_missing_file(store: tuple[str, dict[str, str]]) -> None:
    url = store[0].replace("bucket", "nowhere").replace("container", "nowhere")
    with pytest.raises(FileNotFoundError):
        storage.write(f"{url}/x", "x")
    assert storage.list_names(url) == []


def test_search_has_its_run_and_its_data_in_the_store(
    store: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    url, env = store
    for part in range(2):
        table = pa.table({"a": [float(n) for n in range(part * 10, part * 10 + 10)]})
        pq.write_table(table, tmp_path / "part.parquet")
        storage.copy(tmp_path / "part.parquet", f"{url}/table/part-{part}.parquet")
    command = [sys.executable, "-m", "tests.clusters.programs.cloud", url]
    done = subprocess.run(
        command,
        env={**os.environ, **env, "PYTHONPATH": str(REPOSITORY)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["states"] == ["COMPLETE"] * 3
    assert found["best"] == 3 * sum(range(20))
    assert found["path"].startswith(f"{url}/runs/")
    assert found["checkpoint"].startswith(found["path"])
    assert (found["histories"], found["listed"]) == ([3] * 3, ["COMPLETE"])
    assert [line for line in found["logged"] if "Traceback" in line or "416" in line] == []
    assert "AccountKey" not in done.stdout + done.stderr
