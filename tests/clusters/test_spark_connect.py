"""Every verb through Spark Connect, with a real server, and clients that have no Java."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters.connect import ConnectServer, connect_server, missing_package
from tests.clusters.standalone import Driver
from tests.clusters.test_examples import needs
from tests.helpers.logs import write_log
from tests.helpers.processes import eventually, is_alive

SLOTS = 3
MASTER = f"local-cluster[{SLOTS},1,1024]"
RUNS = "tests.clusters.programs.connected"
GANGS = "tests.clusters.programs.gangs"
MEMORY = {"spark__executor__memory": "1g"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not shutil.which("java"), reason="the server needs Java"),
    pytest.mark.skipif(
        missing_package() is not None,
        reason=f"{missing_package()} is not installed: pip install 'sparkdl-platform[connect]'",
    ),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with connect_server(tmp_path_factory.mktemp("connect"), MASTER, **MEMORY) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ConnectServer) -> Iterator[Driver]:
    with server.client() as client:
        yield client


def pids_of_trials(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in folder.glob("trial-*")]


def have_ended(folder: Path, seconds: float = 120.0) -> object:
    return eventually(lambda: not any(map(is_alive, pids_of_trials(folder))), seconds)


def test_demo_grid_runs(client: Driver) -> None:
    run = client.call("tests.clusters.programs.trials:digits")
    assert run["states"] == ["COMPLETE"] * 4
    assert run["accuracy"] > 0.9


def test_client_has_no_spark_context_and_does_not_wait_for_executors(client: Driver) -> None:
    seen = client.call(f"{RUNS}:without_context")
    assert not seen["has_context"] and seen["master"] == MASTER
    assert seen["waited_s"] < 4


def test_executors_have_a_package_that_the_client_lacks(client: Driver) -> None:
    assert client.call(f"{RUNS}:lacks_a_package") == 0.5


def test_search_in_a_root_given_by_url_prunes_trials(client: Driver, tmp_path: Path) -> None:
    run = client.call(f"{RUNS}:pruned_search", root=f"file://{tmp_path}/runs")
    assert run["state"] == "COMPLETE"
    assert set(run["states"]) == {"COMPLETE", "PRUNED"}
    assert run["path"].endswith(f"{tmp_path}/runs/{Path(run['path']).name}")


@pytest.mark.parametrize("verb", ["ring", "fed", "elastic"])
def test_gang_ends_with_equal_weights(verb: str, client: Driver, tmp_path: Path) -> None:
    run = client.call(f"{GANGS}:{verb}", folder=str(tmp_path))
    assert run["state"] == "COMPLETE"
    assert len(run["digests"]) == 1
    assert run.get("rows", 600) == 600


def test_parameter_servers_train(client: Driver, tmp_path: Path) -> None:
    run = client.call(f"{GANGS}:servers", folder=str(tmp_path), steps=16)
    assert run["state"] == "COMPLETE"


def test_horovod_and_mirrored_train(client: Driver) -> None:
    assert client.call(f"{RUNS}:horovod") == 1.5
    assert client.call(f"{RUNS}:mirrored") == 1.0


def test_resumed_run_repeats_the_failed_trial(client: Driver, tmp_path: Path) -> None:
    run = client.call(f"{RUNS}:resumed", folder=str(tmp_path))
    assert run == {
        "before": ["COMPLETE", "FAILED"],
        "after": ["COMPLETE", "COMPLETE"],
        "tried": ["0", "1", "1"],
    }


def test_predictions_are_those_of_the_model(client: Driver, tmp_path: Path) -> None:
    seen = client.call(f"{GANGS}:predict", folder=str(tmp_path))
    assert seen["count"] == 3000 and seen["worst"] < 1e-3


def test_trials_share_what_a_host_has_loaded_once(client: Driver) -> None:
    seen = client.call(f"{RUNS}:preloaded", trials=SLOTS + 1)
    assert seen == {"values": [0, 5, 10, 15], "servers": 1}


def test_trials_on_an_executor_share_a_copy_of_the_rows(client: Driver, tmp_path: Path) -> None:
    """No process and no folder of the copies is left at the end of the server."""
    seen = client.call(f"{RUNS}:shared_rows", folder=str(tmp_path), trials=SLOTS + 1)
    assert seen["sums"] == [2.0 * sum(range(2000))] * (SLOTS + 1)
    files = [tuple(line["file"]) for line in seen["notes"]]
    assert len(files) == SLOTS + 1 and len({*files}) <= SLOTS
    # The last trial finds a process that holds the file for it.
    assert [line["is_held"] for line in seen["notes"] if line["number"] == SLOTS] == [True]


def test_tfrecord_files_are_written_and_read(client: Driver, tmp_path: Path) -> None:
    row = client.call(f"{RUNS}:records", folder=str(tmp_path))
    assert list(row.values()) == [100, 4950, 9900.0]


def test_a_log_is_watched(client: Driver, tmp_path: Path) -> None:
    write_log(tmp_path / "log", [False, True])
    (tmp_path / "log" / "other.jsonl").write_text("no JSON\n")
    found = client.call(f"{RUNS}:watched", folder=str(tmp_path))
    # The clock has ended the second window, and the server has written the files.
    assert found == {"statuses": ["ok", "drift"], "alerts": 1, "unreadable": 1, "again": 0}


@pytest.mark.parametrize(
    "name", ["keras_stages", pytest.param("torch_stages", marks=needs("torch"))]
)
def test_stages_of_spark_ml_train_and_are_saved(name: str, client: Driver, tmp_path: Path) -> None:
    seen = client.call(f"{RUNS}:{name}", folder=str(tmp_path))
    assert seen["is_same"] and seen["last"] == pytest.approx(1.75, abs=0.2)
    assert "save cannot overwrite" in seen["error"]


def test_tensorflowonspark_is_refused_with_a_sentence(client: Driver) -> None:
    text = client.call(f"{RUNS}:tensorflowonspark")
    assert "TFCluster.run cannot run through Spark Connect" in text


def test_run_of_more_trials_than_slots_is_cancelled_at_once(client: Driver, tmp_path: Path) -> None:
    run = client.call(f"{RUNS}:cancelled", folder=str(tmp_path), slots=SLOTS)
    assert run["states"] == ["CANCELLED"] * 2 * SLOTS
    assert run["seconds"] < 20
    assert have_ended(tmp_path)


def test_run_of_more_trials_than_slots_ends_at_its_time_limit(
    client: Driver, tmp_path: Path
) -> None:
    run = client.call(f"{RUNS}:timed_out", folder=str(tmp_path), slots=SLOTS, limit_s=4)
    assert run["states"] == ["CANCELLED"] * 2 * SLOTS
    assert "timeout_s=4 is over" in run["reason"]
    assert run["seconds"] < 60
    assert have_ended(tmp_path)


def test_run_behind_another_ends_at_its_time_limit(client: Driver, tmp_path: Path) -> None:
    call = f"{RUNS}:timed_out_behind_another"
    run = client.call(call, folder=str(tmp_path), slots=SLOTS)
    assert run["states"] == ["CANCELLED"]
    assert "timeout_s=1 is over" in run["reason"]
    assert run["seconds"] < 120
    assert have_ended(tmp_path)


def test_trials_of_a_killed_client_end_after_its_silence(
    server: ConnectServer, tmp_path: Path
) -> None:
    with server.client(SPARKDL_CLIENT_SILENCE_S="20") as client:
        client.start(f"{RUNS}:held", folder=str(tmp_path), trials=SLOTS + 1)
        assert eventually(lambda: len(pids_of_trials(tmp_path)) == SLOTS, 90)
        os.kill(client.pid, signal.SIGKILL)
        assert any(map(is_alive, pids_of_trials(tmp_path)))
        assert have_ended(tmp_path)


def test_server_with_one_core_refuses_what_does_not_fit(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Spark divides a range into 8 partitions there, which are not slots."""
    folder = tmp_path_factory.mktemp("one-core")
    settings = {"spark__default__parallelism": "8"}
    with connect_server(folder, "local[1]", **settings) as server, server.client() as client:
        for elastic in (False, True):
            refused = client.call(f"{RUNS}:too_large", size=2, elastic=elastic)
            assert refused["error"].startswith("SlotsError: allreduce needs 2 slots at once")
            assert "Spark has 1" in refused["error"]
            assert refused["seconds"] < 5
        with server.client(SPARKDL_CLIENT_SILENCE_S="5") as other:
            refused = other.call(f"{RUNS}:too_large", size=1)
            assert "SPARKDL_CLIENT_SILENCE_S is '5'; expected at least 20" in refused["error"]
