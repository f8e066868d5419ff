"""One contract for every kind of storage: local disk, memory, S3."""

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from sparkdl.cluster.process.trial_folder import Mirror
from sparkdl.errors import ConfigError
from sparkdl.files import storage, stores
from tests.helpers.counting_store import CountingStore, counting_store  # noqa: F401
from tests.helpers.creators import winners_of
from tests.helpers.fake_stores import (
    ArrowHdfs,
    BrokenStore,
    Careless,
    Failure,
    LosesAnswers,
    Meets,
    fake_stores,
)

FAKES = ("sftp", "webhdfs", "smb", "hdfs")


@pytest.fixture(
    params=["local", "file", "memory", *FAKES, pytest.param("s3", marks=pytest.mark.slow)]
)
def place(request: pytest.FixtureRequest, root: str, tmp_path: Path) -> Iterator[str]:
    if request.param == "s3":
        yield f"{request.getfixturevalue('s3')}/{tmp_path.name} ü'"
    elif request.param in FAKES:
        with fake_stores():
            yield f"{request.param}://host/{uuid4().hex}"
    else:
        urls = {"local": root, "file": f"file://{root}", "memory": f"memory://{tmp_path}"}
        yield urls[request.param]


def test_storage_contract(place: str, tmp_path: Path) -> None:
    url = storage.join(place, "a folder", "ü.txt")
    assert not storage.exists(url)
    assert storage.list_names(place) == []
    with pytest.raises(FileNotFoundError):
        storage.read(url)
    storage.write(url, "héllo")
    storage.write(url, "héllo again")
    assert storage.read(url).decode() == "héllo again"
    assert storage.read(url, 1, 3) == "héllo".encode()[1:4]
    assert storage.read(url, 1000) == b""
    storage.append(url, b"!")
    storage.append(storage.join(place, "a folder", "new"), b"line\n")
    assert storage.read(url).decode() == "héllo again!"
    assert storage.list_names(storage.join(place, "a folder")) == ["new", "ü.txt"]
    storage.rename(url, storage.join(place, "moved", "x"))
    storage.rename(storage.join(place, "absent"), storage.join(place, "y"))
    assert storage.read(storage.join(place, "moved", "x")).decode() == "héllo again!"
    assert not storage.exists(url)
    storage.remove(storage.join(place, "moved"))
    assert not storage.exists(storage.join(place, "moved", "x"))
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "leaf").write_text("leaf")
    storage.copy(tmp_path / "tree", storage.join(place, "copy"))
    assert storage.read(storage.join(place, "copy", "sub", "leaf")) == b"leaf"


@pytest.mark.timeout(120)
def test_pipe_in_place_of_a_file_is_an_error_and_no_wait(tmp_path: Path) -> None:
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    for read in (storage.read, storage.size):
        with pytest.raises(OSError, match="a pipe or a device, where a file was expected") as e:
            read(pipe)
        assert e.value.filename == pipe
    with pytest.raises(OSError, match="a pipe"):
        storage.read_many([pipe])
    assert storage.read_new({pipe: 0}) == {}


def test_mirror_uploads_changed_files(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    (folder / "sub").mkdir(parents=True)
    (folder / "log.txt").write_text("one")
    mirror = Mirror(folder, place)
    if storage.is_local(place):
        pytest.skip("a local place is written to directly")
    mirror.sync()
    assert storage.read(storage.join(place, "log.txt")) == b"one"
    (folder / "log.txt").write_text("one two")
    (folder / "sub" / "x").write_text("x")
    mirror.close()
    assert storage.read(storage.join(place, "log.txt")) == b"one two"
    assert storage.read(storage.join(place, "sub", "x")) == b"x"
    assert not folder.exists()


def test_a_name_is_never_taken_for_a_pattern(place: str) -> None:
    if "hdfs://" in place:
        pytest.skip("the server of HDFS removes by the exact name; the fake one does not")
    for name in ("data1.csv", "data[1].csv", "d1/x", "d[1]/x", "any", "*"):
        storage.write(f"{place}/{name}", name)
    storage.rename(f"{place}/data[1].csv", f"{place}/new.csv")
    assert storage.read(f"{place}/new.csv") == b"data[1].csv"
    storage.remove(f"{place}/d[1]")
    storage.remove(f"{place}/*")
    assert storage.list_names(place) == ["any", "d1", "data1.csv", "new.csv"]
    assert storage.list_names(f"{place}/d1") == ["x"]


def test_write_that_fails_leaves_the_old_file(root: str) -> None:
    url = storage.join(root, "f")
    storage.write(url, "old")
    with pytest.raises(TypeError):
        storage.write(url, 5)  # type: ignore[arg-type]
    assert storage.read(url) == b"old"
    assert os.listdir(root) == ["f"]


def test_absolute_and_is_local() -> None:
    assert storage.absolute("runs") == f"{os.getcwd()}/runs"
    assert storage.absolute("s3://b/x/") == "s3://b/x"
    assert storage.absolute("file:///data/x") == "/data/x"
    assert storage.is_local("/a b/c:d") and not storage.is_local("hdfs://n/x")


def test_urls_as_spark_and_databricks_print_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert storage.absolute("file:/data/x") == "/data/x"
    assert storage.local_path("file:/data/x") == Path("/data/x")
    assert not storage.is_local("simplecache::s3://bucket/x")
    assert storage.is_local("a::b") and storage.is_local("/data/a::b/c")
    assert not storage.is_local("dbfs:/x")
    with pytest.raises(ConfigError, match="no folder /dbfs"):
        storage.read("dbfs:/x")
    monkeypatch.setattr(stores, "_DBFS_MOUNT", Path("/tmp"))
    assert storage.absolute("dbfs:/x/y") == "/tmp/x/y"
    for module in ("hdfs_native", "hdfs_native.fsspec"):  # As if it were not installed.
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(_registry, "viewfs", raising=False)
    with pytest.raises(ConfigError, match=r"sparkdl-platform\[hdfs\]"):
        storage.read("viewfs://cluster/x")
    with pytest.raises(ConfigError, match="nosuch://"):
        storage.write("nosuch://x", b"")


@pytest.mark.parametrize("url", ["gs://b/x", "gcs://b/x", "az://b/x", "abfs://b/x", "abfss://b/x"])
def test_clouds_without_their_packages_name_the_extra(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("gcsfs", "adlfs"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(_registry, url.split(":")[0], raising=False)
    extra = "gs" if url.startswith("g") else "azure"
    with pytest.raises(ConfigError, match=rf"\[{extra}\]"):
        storage.read(url)


def test_azure_without_an_account_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("adlfs")
    for name in list(os.environ):
        if name.startswith("AZURE_STORAGE_"):
            monkeypatch.delenv(name)
    with pytest.raises(ConfigError, match=r"no storage account\. Write abfss://<container>@<acc"):
        storage.read("az://box/x")


def test_chained_url_is_read_through_its_chain(tmp_path: Path) -> None:
    storage.write(f"memory://chain/{tmp_path.name}", b"12345")
    assert storage.read(f"simplecache::memory://chain/{tmp_path.name}", 1, 2) == b"23"


# ---- errors


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Failure("Could not connect to the endpoint URL"), OSError),
        (Failure("not found", status_code=404), FileNotFoundError),
        (Failure("no", code="403"), PermissionError),
        (Failure("no", response={"ResponseMetadata": {"HTTPStatusCode": 401}}), PermissionError),
        (type("ReadTimeoutError", (Exception,), {})("slow"), TimeoutError),
        (type("NoCredentialsError", (Exception,), {})("none"), PermissionError),
        # Of azure-core and azure-identity, and of gcsfs.
        (type("ClientAuthenticationError", (Exception,), {})("none"), PermissionError),
        (type("CredentialUnavailableError", (Exception,), {})("none"), PermissionError),
        (OSError("Forbidden: bucket/file no access"), PermissionError),
        (FileNotFoundError("gone"), FileNotFoundError),
        (OSError(errno.EIO, "bad"), OSError),
    ],
)
def test_every_exception_of_a_store_is_an_os_error(
    error: Exception, kind: type[OSError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BrokenStore, "error", error)
    (tmp_path / "file").write_text("x")
    url = "broken://host/file"
    calls: list[Callable[[], object]] = [
        lambda: storage.read(url),
        lambda: storage.read_many([url]),
        lambda: storage.size(url),
        lambda: storage.exists(url),
        lambda: storage.list_names(url),
        lambda: storage.write(url, b""),
        lambda: storage.create(url, b""),
        lambda: storage.append(url, b""),
        lambda: storage.rename(url, url + "2"),
        lambda: storage.remove(url),
        lambda: storage.copy(tmp_path, url),
        lambda: storage.put(tmp_path, "file", url),
        lambda: storage.download(url, tmp_path),
    ]
    with fake_stores():
        assert storage.read_new({url: 3}) == {}
        for call in calls:
            try:
                call()
            except OSError as exc:
                assert type(exc) is kind
                if not isinstance(error, OSError):
                    assert url.split("/file")[0] in str(exc)
                    assert type(error).__name__ in str(exc)
                    assert exc.__cause__ is error
            else:
                assert kind is FileNotFoundError


def test_error_of_a_full_disk_names_the_file_and_what_to_do(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    with pytest.raises(OSError, match="/dev/full") as raised:
        storage.append("/dev/full", b"x")
    assert storage.advice(raised.value) == "The disk is full: free some space."


def test_append_that_meets_the_end_of_the_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """The limit of the file size stands for the end of the disk; the kernel writes a part first."""
    code = """
import resource, signal, sys
from sparkdl.files import storage
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
storage.append(sys.argv[1], b"first\\n")
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
try:
    storage.append(sys.argv[1], b"second\\n")
except OSError as exc:
    print(exc)
"""
    path = tmp_path / "lines"
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert str(path) in done.stdout
    assert path.read_bytes() == b"first\n"


def test_write_fully_writes_what_the_system_takes_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    storage.append(str(tmp_path / "file"), b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


# ---- files that exist once


def test_create_succeeds_once(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "CLAIM_S", 0.01)
    url = storage.join(place, "owner", "1.json")
    storage.create(url, "first")
    with pytest.raises(FileExistsError):
        storage.create(url, "second")
    assert storage.read(url) == b"first"
    assert storage.list_names(storage.join(place, "owner")) == ["1.json"]


@pytest.mark.parametrize("has_links", [True, False])
def test_create_has_one_winner(root: str, has_links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_links:

        def refuse(*args: Any) -> None:
            raise OSError(errno.EPERM, "no links here")

        monkeypatch.setattr(os, "link", refuse)
    winners = winners_of(f"{root}/one")
    assert [storage.read(f"{root}/one").decode()] == winners
    assert os.listdir(root) == ["one"]


def test_create_where_the_store_cannot_refuse_is_read_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with fake_stores():
        url = f"smb://host/{uuid4().hex}"
        # Another process writes while this one waits to read the file back.
        monkeypatch.setattr(stores.time, "sleep", lambda _: storage.write(url, "another"))
        with pytest.raises(FileExistsError):
            storage.create(url, "mine")


def test_create_sees_through_a_store_that_ignores_the_condition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with fake_stores(Careless):
        url = f"gcs://host/{uuid4().hex}"
        monkeypatch.setattr(stores, "CLAIM_S", 0.1)
        storage.create(f"{url}-alone", "mine")
        monkeypatch.setattr(stores.time, "sleep", lambda _: storage.write(url, "another"))
        with pytest.raises(FileExistsError):
            storage.create(url, "mine")


def test_create_whose_answer_was_lost_has_succeeded() -> None:
    """The library of the store has sent the request again, which the store has refused."""
    with fake_stores(LosesAnswers):
        url = f"gcs://host/{uuid4().hex}"
        storage.create(url, "mine")
        with pytest.raises(FileExistsError):
            storage.create(url, "another")
        assert storage.read(url) == b"mine"


def test_create_of_a_store_that_takes_overwrite_is_one_request() -> None:
    """As adlfs does, for Azure."""

    class Azure(MemoryFileSystem):  # type: ignore[misc]
        protocol = "az"
        asked: list[bool] = []

        def pipe_file(self, path: str, value: bytes, overwrite: bool = True, **kwargs: Any) -> None:
            self.asked.append(overwrite)
            super().pipe_file(path, value, "overwrite" if overwrite else "create")

    with fake_stores(Azure):
        url = f"az://box/{uuid4().hex}"
        storage.create(url, "mine")
        with pytest.raises(FileExistsError):
            storage.create(url, "another")
        assert storage.read(url) == b"mine"
        assert Azure.asked and not any(Azure.asked)


def test_create_is_repeated_where_two_requests_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(Meets, "meetings", 1)
    with fake_stores(Meets):
        storage.create(f"gcs://host/{uuid4().hex}", "mine")


def test_a_rename_that_does_not_replace_is_never_used(tmp_path: Path) -> None:
    with fake_stores(ArrowHdfs):
        url = f"hdfs://host/{uuid4().hex}"
        for text in ("old", "new"):
            storage.write(url, text)
            assert storage.read(url).decode() == text


def test_a_folder_whose_files_are_removed_meanwhile_is_renamed() -> None:
    class Vanishing(MemoryFileSystem):  # type: ignore[misc]
        protocol = "gcs"
        store: dict[str, Any] = {}

        def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
            if path1.endswith("/gone"):
                self.rm_file(path1)
            super().cp_file(path1, path2, **kwargs)

    with fake_stores(Vanishing):
        for name in ("gone", "kept"):
            storage.write(f"gcs://bucket/old/{name}", name)
        storage.rename("gcs://bucket/old", "gcs://bucket/new/old")
        assert storage.list_names("gcs://bucket/new/old") == ["kept"]
        assert not storage.exists("gcs://bucket/old")


@pytest.mark.parametrize("name", ["folder", "fol[d]er"])
def test_azure_has_copied_a_file_before_the_original_is_removed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azure may answer while it copies; a copy whose original is removed stays empty."""

    class Azure(MemoryFileSystem):  # type: ignore[misc]
        protocol = "az"
        store: dict[str, Any] = {}
        pending: dict[str, str] = {}

        def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
            if self.isfile(path1):
                self.pipe_file(path2, b"")
                self.pending[path2] = path1

        def go_on(self, seconds: float) -> None:
            for target, source in self.pending.items():
                self.pipe_file(target, self.cat_file(source))

    with fake_stores(Azure):
        storage.write(f"az://box/{name}/file", "content")
        monkeypatch.setattr(stores.time, "sleep", Azure().go_on)
        storage.rename(f"az://box/{name}", "az://box/new")
        assert storage.read("az://box/new/file") == b"content"
        assert not storage.exists(f"az://box/{name}")
        storage.write(f"az://box/{name}/file", "content")
        monkeypatch.setattr(stores.time, "sleep", lambda seconds: None)
        monkeypatch.setattr(stores, "COPY_S", 0.01)
        with pytest.raises(TimeoutError, match=r"not copied within 0\.01 s: .*box/newer/file"):
            storage.rename(f"az://box/{name}", "az://box/newer")
        assert storage.read(f"az://box/{name}/file") == b"content"


def test_a_rename_that_the_store_refuses_in_silence_is_an_error() -> None:
    with fake_stores():
        url = f"webhdfs://host/{uuid4().hex}"
        storage.write(f"{url}/a", "a")
        storage.rename(f"{url}/a", f"{url}/b")
        assert storage.read(f"{url}/b") == b"a"


# ---- requests


def test_reads_and_writes_of_a_store_are_one_request(counting_store: CountingStore) -> None:  # noqa: F811
    url, requests = counting_store.url("deep", "folder", "file"), counting_store.requests
    storage.make_directory(counting_store.url("deep", "folder"))
    storage.write(url, "12345")
    # The second request shows that the store refuses to write the file again.
    storage.create(counting_store.url("deep", "other"), "x")
    storage.read(url)
    storage.read(url, 1, 2)
    assert [request.split()[0] for request in requests] == ["PUT", "PUT", "PUT", "GET", "GET"]


def test_a_range_behind_the_end_is_empty_where_the_store_refuses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(BrokenStore, "error", Failure("InvalidRange", status=416))
    with fake_stores():
        assert storage.read("broken://host/file", 10) == b""
        assert storage.read_many(["broken://host/file"]) == {"broken://host/file": b""}


def test_new_content_is_read_although_stat_is_out_of_date(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of NFS keeps the attributes of a file for up to a minute."""
    url = f"{root}/file"
    storage.write(url, "12")
    old = os.stat(url)
    storage.append(url, b"345")
    monkeypatch.setattr(os, "stat", lambda *args, **kwargs: old)
    assert storage.read_new({url: 2}) == {url: b"345"}
    assert storage.size(url) == 5


def test_files_that_cannot_be_read_are_no_new_content(root: str) -> None:
    os.mkdir(f"{root}/folder")
    storage.write(f"{root}/file", "x")
    urls = {f"{root}/folder": 0, f"{root}/file": 0, f"{root}/none": 0, f"{root}/file/x": 0}
    assert storage.read_new(urls) == {f"{root}/file": b"x"}
    assert storage.read_many(list(urls)[1:]) == {f"{root}/file": b"x"}
    with pytest.raises(IsADirectoryError):
        storage.read_many(urls)


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_run_on_s3(s3: str, tmp_path: Path) -> None:
    """The driver and three trials share nothing but a bucket."""
    from sparkdl import experiment, tensorboard

    def train(x: int) -> dict[str, object]:
        print("hello", x)
        Path(tensorboard.logdir(), "events").write_text("e")
        (tmp_path / f"{x}").mkdir()
        model = tmp_path / f"{x}" / "model.txt"
        model.write_text(f"weights {x}")
        return {"score": x, "model": model}

    options = {"root": f"{s3}/runs", "progress": False}
    run = experiment.launch(train, {"x": [1, 2, 3]}, metric="score", **options)
    again = experiment.load(run.path)
    assert again.best.value == 3
    assert storage.read(f"{again.best.path}/log.txt") == b"hello 3\n"
    assert storage.read(f"{again.best.path}/tensorboard/events") == b"e"
    assert storage.read(f"{again.best.path}/{again.best.outputs['model']}") == b"weights 3"
    assert experiment.history(f"{s3}/runs")["state"].tolist() == ["COMPLETE"]


def test_folders_and_files_of_a_shared_folder_are_shared(tmp_path: Path) -> None:
    shared, secret = tmp_path / "shared", tmp_path / "secret"
    storage.make_directory(str(shared), 0o2770)
    storage.make_directory(str(secret), 0o700)
    (tmp_path / "model.keras").write_bytes(b"1")
    umask = os.umask(0o077)
    try:
        for folder in (shared, secret):
            storage.append(f"{folder}/trials/0/metrics.jsonl", b"1\n")
            storage.write(f"{folder}/journal/0.jsonl", b"1\n")
            storage.create(f"{folder}/journal/1.jsonl", b"1\n")
            storage.put(tmp_path, "model.keras", f"{folder}/models")
    finally:
        os.umask(umask)

    def group_may(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode) & 0o070

    assert [group_may(shared / name) for name in ("trials", "trials/0", "journal")] == [0o070] * 3
    files = ("trials/0/metrics.jsonl", "journal/0.jsonl", "journal/1.jsonl", "models/model.keras")
    assert [group_may(shared / name) for name in files] == [0o060] * 4
    assert [group_may(secret / name) for name in ("trials/0", *files)] == [0] * 5


def test_folders_below_a_folder_like_tmp_are_the_owners(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "all").chmod(0o1777)
    storage.make_directory(str(tmp_path / "all/runs"))
    assert not (tmp_path / "all/runs").stat().st_mode & 0o022
