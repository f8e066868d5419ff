"""Paths, GPUs, the environment of one process, and shared queues."""

import multiprocessing
import os
import socket
import stat
import sys
from multiprocessing.managers import RemoteError
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparkdl import devices, tfos
from sparkdl.tfos import TFManager, gpu_info, paths, reservation, util

# ---- names


def test_a_name_that_is_none_names_the_right_ones() -> None:
    with pytest.raises(AttributeError, match=r"'TFClusters'.*TFCluster, TFManager"):
        tfos.TFClusters  # noqa: B018


def test_names_that_programs_import_from_other_modules() -> None:
    from sparkdl.tfos.marker import EndPartition, Marker
    from sparkdl.tfos.TFSparkNode import TFNodeContext

    assert issubclass(EndPartition, Marker)
    ctx = TFNodeContext(executor_id=1, cluster_spec={"worker": ["a:1", "b:1"], "ps": ["c:1"]})
    assert (ctx.worker_num, ctx.num_workers, ctx.job_name) == (1, 2, "")
    assert tfos.TFCluster.tf_status == {}
    assert {*dir(tfos)} > {"TFSparkNode", "marker"}


@pytest.mark.parametrize("name", ["next_batch", "batch_results", "terminate"])
def test_functions_that_tensorflowonspark_has_removed(name: str) -> None:
    with pytest.raises(RuntimeError, match=rf"Use feed = ctx.get_data_feed\(\) and feed.{name}"):
        getattr(tfos.TFNode, name)(None, *([8] if name != "terminate" else []))


def test_columns_of_batches() -> None:
    rows = [(1, bytearray(b"x")), (2, b"y"), (3, b"z"), None, (4, b"w")]
    found = list(tfos.pipeline.yield_batch(iter(rows), 2, 2))
    assert found == [[[1, 2], [b"x", b"y"]], [[3], [b"z"]]]
    assert list(tfos.pipeline.yield_batch([], 2)) == []


def test_the_environment_of_a_process_with_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["old"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    tfos.pipeline.single_node_env(tfos.pipeline.Namespace({"num_gpus": 0}))
    assert (sys.argv, os.environ["CUDA_VISIBLE_DEVICES"]) == (["old"], "")
    tfos.pipeline.single_node_env(["new", "--x"])
    assert sys.argv == ["new", "--x"]


# ---- paths


@pytest.mark.parametrize(
    ("default", "path", "expected"),
    [
        ("hdfs://nn:8020", "/data/x", "hdfs://nn:8020/data/x"),
        ("hdfs://nn:8020", "data/x", "hdfs://nn:8020/user/me/data/x"),
        ("viewfs://nn", "data/x", "viewfs://nn/user/me/data/x"),
        ("file://", "data/x", "file:///work/data/x"),
        ("file:///", "data/x", "file:///work/data/x"),
        ("file:///", "/data/x", "file:///data/x"),
        ("s3a://bucket", "data/x", "s3a://bucket/data/x"),
        *(
            ("hdfs://nn:8020", f"{scheme}://there/data/x", f"{scheme}://there/data/x")
            for scheme in ("adl", "file", "hdfs", "oss", "s3", "s3a", "s3n", "swift", "viewfs")
        ),
        ("hdfs://nn:8020", "wasb://there/x", "wasb://there/x"),
        ("hdfs://nn:8020", "gs://there/x", "gs://there/x"),
    ],
)
def test_paths_are_made_absolute(
    default: str, path: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "me")
    ctx = SimpleNamespace(defaultFS=default, working_dir="/work")
    assert paths.hdfs_path(ctx, path) == expected


# ---- GPUs


def eight_gpus(monkeypatch: pytest.MonkeyPatch, busy: set[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    monkeypatch.setattr(devices, "is_busy", busy.__contains__)


def test_nodes_of_a_host_get_different_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    eight_gpus(monkeypatch, {"0", "5"})
    assert [gpu_info.get_gpus(2, i) for i in range(4)] == ["1,2", "3,4", "6,7", "1,2"]
    assert gpu_info.get_gpus(4, 1, gpu_info.AS_LIST) == ["6", "7", "1", "2"]
    some = gpu_info.get_gpus(6, format="list")
    assert set(some) == {"1", "2", "3", "4", "6", "7"}


def test_too_few_free_gpus_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = {str(i) for i in range(8)}
    eight_gpus(monkeypatch, busy)
    slept = []
    monkeypatch.setattr(gpu_info.time, "sleep", slept.append)
    with pytest.raises(RuntimeError, match=r"Unable to find 1 free GPU.*\[\] of these are free"):
        gpu_info.get_gpus()
    assert slept == [30, 60, 90]
    monkeypatch.setattr(gpu_info.time, "sleep", lambda _: busy.discard("3"))
    assert gpu_info.get_gpus() == "3"


def test_a_wrong_format_is_refused() -> None:
    with pytest.raises(ValueError, match="'tuple'; expected 'string' or 'list'"):
        gpu_info.get_gpus(0, format="tuple")


def test_the_environment_of_a_process_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    eight_gpus(monkeypatch, set())
    nodes = ["10.0.0.1:1", "10.0.0.10:1", "10.0.0.1:2"]  # One begins like another.
    util.single_node_env(2, 2, nodes)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"
    eight_gpus(monkeypatch, set())
    util.single_node_env(1, 1, nodes)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
    util.single_node_env(0)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_there_is_no_gpu_where_there_is_no_driver() -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this host has one")
    with pytest.raises(ValueError, match="no NVIDIA driver"):
        devices.is_busy("0")


# ---- one process


def test_hadoops_jars_are_added_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hadoop = tmp_path / "bin" / "hadoop"
    hadoop.parent.mkdir()
    hadoop.write_text('#!/bin/sh\necho "/jars/a.jar:/jars/b.jar $*"\n')
    hadoop.chmod(0o755)
    monkeypatch.setenv("HADOOP_PREFIX", str(tmp_path))
    monkeypatch.setenv("CLASSPATH", "/mine.jar")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("TFOS_CLASSPATH_UPDATED", raising=False)
    for _ in range(2):
        util.single_node_env()
        assert os.environ["CLASSPATH"] == "/mine.jar:/jars/a.jar:/jars/b.jar classpath --glob"
    monkeypatch.delenv("TFOS_CLASSPATH_UPDATED")


def test_this_hosts_address_is_its_own() -> None:
    with socket.socket() as probe:
        probe.bind((util.get_ip_address(), 0))


def test_an_executor_id_that_nobody_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"write_executor_id.*ctx\.executor_id"):
        util.read_executor_id()
    util.write_executor_id(7)
    assert util.read_executor_id() == 7


# ---- reservations


@pytest.mark.parametrize("name", ["Server", "Client"])
def test_what_replaces_the_server_is_told(name: str) -> None:
    with pytest.raises(NotImplementedError, match=r"ctx\.cluster_spec"):
        getattr(reservation, name)(3)


# ---- queues


def feed(address: str, key: bytes) -> None:
    manager = TFManager.connect(address, key)
    queue = manager.get_queue("input")
    for number in range(3):
        queue.put(number)
    queue.join()
    manager.set("state", "terminating")


def test_two_processes_share_queues_and_values() -> None:
    manager = TFManager.start(b"key", ["input", "error"])
    assert stat.S_IMODE(os.stat(os.path.dirname(manager.address)).st_mode) == 0o700
    spawn = multiprocessing.get_context("spawn")
    child = spawn.Process(target=feed, args=(manager.address, b"key"))
    child.start()
    queue = manager.get_queue("input")
    for number in range(3):
        assert queue.get(timeout=120) == number
        queue.task_done()
    child.join(120)
    assert child.exitcode == 0
    assert str(manager.get("state")) == "'terminating'"
    assert manager.get("state")._getvalue() == "terminating"
    assert str(manager.get_queue("output")) == "None"
    with pytest.raises(RemoteError, match="KeyError"):
        manager.get("nothing")


def test_nobody_gets_in_without_the_key() -> None:
    manager = TFManager.start(b"key", ["input"])
    with pytest.raises(multiprocessing.AuthenticationError):
        TFManager.connect(manager.address, b"another")
    with pytest.raises(ValueError, match="'remote'; expected 'local'"):
        TFManager.start(b"key", ["input"], "remote")
