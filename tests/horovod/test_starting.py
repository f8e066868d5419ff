"""Functions and scripts started as by `horovod.run`, `horovod.spark.run` and `horovodrun`."""

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

import sparkdl.horovod
import sparkdl.horovod.spark
from sparkdl import experiment
from sparkdl.cli.main import main
from sparkdl.errors import ConfigError
from sparkdl.horovod.runner.common.util.timeout import TimeoutException

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys
from pathlib import Path

import sparkdl.horovod.tensorflow as hvd

def main():
    hvd.init()
    total = float(hvd.allreduce(float(sys.argv[2]), op=hvd.Sum, name="total"))
    Path(f"{sys.argv[1]}-{hvd.rank()}").write_text(str(total))
    return 0

if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.fixture(autouse=True)
def in_a_folder(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKDL_ROOT", str(tmp_path / "runs"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The options with which a run would be started; none is."""
    found: dict[str, Any] = {}

    def keep(*_: Any, **options: Any) -> Any:
        found.update(options)
        raise InterruptedError

    monkeypatch.setattr(experiment, "horovod", keep)
    return found


def train(factor: int, shift: int = 0) -> Any:
    import os

    import sparkdl.horovod.tensorflow as hvd

    hvd.init()
    weights = np.full((2, 2), hvd.rank() * factor + shift, "f4")
    places = {name: os.environ[f"HOROVOD_{name}"] for name in ("RANK", "SIZE", "LOCAL_SIZE")}
    hvd.shutdown()
    return {"weights": weights, "places": places, 3: (None, b"bytes")}


def test_run_returns_the_values_of_all_ranks() -> None:
    """The ranks have left the ring when they return."""
    for rank, told in enumerate(sparkdl.horovod.spark.run(train, (5,), {"shift": 1}, num_proc=2)):
        assert (told["weights"].dtype, told["weights"].shape) == (np.float32, (2, 2))
        assert told["weights"].max() == told["weights"].min() == rank * 5 + 1
        assert told["places"] == {"RANK": str(rank), "SIZE": "2", "LOCAL_SIZE": "2"}
        assert told[3] == (None, b"bytes")


def test_ranks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_workers is 0"):
        sparkdl.horovod.run(train, (1,), np=0)


def shout() -> int:
    import os
    import sys

    import sparkdl.horovod.tensorflow as hvd

    hvd.init()
    print(f"running fn {hvd.size()}")
    os.system("echo from a child")
    print("error line", file=sys.stderr)
    sys.stdout.write("no end")
    return int(hvd.rank())


def test_streams_have_the_lines_of_all_ranks() -> None:
    """The expressions are those of Horovod's own test of `stdout` and `stderr`."""
    streams = {"stdout": io.StringIO(), "stderr": io.StringIO()}
    assert sparkdl.horovod.spark.run(shout, num_proc=2, start_timeout=60, **streams) == [0, 1]
    out, err = (stream.getvalue() for stream in streams.values())
    for rank in range(2):
        assert re.findall(rf"\[{rank}\]<stdout>:(.*)", out)[:2] == ["running fn 2", "from a child"]
        assert f"[{rank}]<stderr>:error line\n" in err
        assert f"[{rank}]<stdout>:no end" in out
    assert "error line" not in out
    assert "running fn" not in err


def test_slots_are_waited_for_until_the_timeout() -> None:
    with pytest.raises(TimeoutException, match=r"^Timed out waiting for Spark tasks to start\."):
        sparkdl.horovod.spark.run(shout, num_proc=4000, start_timeout=1)


def test_the_size_of_an_elastic_run_is_what_has_slots() -> None:
    def size() -> int:
        import sparkdl.horovod.tensorflow as hvd

        hvd.init()
        print("size", hvd.size())
        return int(hvd.size())

    stream = io.StringIO()
    sizes = sparkdl.horovod.spark.run_elastic(
        size, num_proc=1, max_num_proc=2, stdout=stream, prefix_output_with_timestamp=True
    )
    assert sizes == [2, 2]
    assert len(re.findall(r"\d\d:\d\d:\d\d \d{4}\[[01]\]<stdout>:size 2\n", stream.getvalue())) == 2
    for numbers in ({"num_proc": 2, "min_num_proc": 3}, {"min_num_proc": 0}, {"max_num_proc": 0}):
        with pytest.raises(ConfigError, match=r"expected 1 <= min_num_proc <= num_proc <= max_num"):
            sparkdl.horovod.spark.run_elastic(size, **numbers)


@pytest.mark.parametrize(
    ("numbers", "num_workers"),
    [
        ({"np": 2, "min_np": 1}, 2),
        ({"np": 2, "max_np": 2}, 2),
        ({"num_proc": 2, "min_num_proc": 1, "max_num_proc": 5}, (2, 5)),
        ({"min_np": 2, "max_np": 5}, (2, 5)),
        ({"max_np": 3}, 3),
    ],
)
def test_an_elastic_run_grows_up_to_the_largest_number(
    numbers: dict[str, int], num_workers: Any, asked: dict[str, Any]
) -> None:
    with pytest.raises(InterruptedError):
        sparkdl.horovod.run(shout, **numbers)
    assert (asked["num_workers"], asked["elastic"]) == (num_workers, True)


@pytest.mark.parametrize(
    ("numbers", "num_workers"),
    [
        ({}, 2),
        ({"max_num_proc": 5}, (2, 5)),
        ({"max_np": 1}, 1),
        ({"num_proc": 1, "max_num_proc": 2}, 2),
        ({"num_proc": 3, "min_num_proc": 1, "max_num_proc": 4}, (2, 4)),
    ],
)
def test_an_elastic_run_begins_with_the_slots_that_there_are(
    numbers: dict[str, int], num_workers: Any, asked: dict[str, Any]
) -> None:
    with pytest.raises(InterruptedError):
        sparkdl.horovod.spark.run_elastic(shout, **numbers)
    assert (asked["num_workers"], asked["elastic"]) == (num_workers, True)


def test_numbers_of_ranks_out_of_order_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="min_num_proc is 1, num_proc 4 and max_num_proc 2"):
        sparkdl.horovod.run(shout, np=4, min_np=1, max_np=2)
    (tmp_path / "train.py").write_text("")
    words = ["-np", "2", "--min-np", "3", "python", str(tmp_path / "train.py")]
    assert main(["horovodrun", *words]) == 2
    assert "min_num_proc is 3, num_proc 2" in capfd.readouterr().err


def test_a_script_runs_in_all_ranks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script, timeline = tmp_path / "train.py", tmp_path / "timeline.json"
    script.write_text(SCRIPT)
    words = ["--timeline-filename", str(timeline), "python", str(script), "sum", "2.5"]
    assert main(["horovodrun", "-np", "2", *words]) == 0
    assert [(tmp_path / f"sum-{rank}").read_text() for rank in range(2)] == ["5.0", "5.0"]
    assert "COMPLETE" in capfd.readouterr().out
    events = json.loads(timeline.read_text().rstrip(",\n") + "]")
    assert "allreduce" in {event["name"] for event in events}


def test_a_script_that_fails_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise RuntimeError('no data today')")
    assert main(["horovodrun", "-np", "1", "python", "-u", str(script)]) == 1
    assert "no data today" in capfd.readouterr().err


def test_a_command_without_a_script_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["horovodrun", "-np", "1", "bash", "train.sh"])
    assert "expected python script.py, got bash train.sh" in capfd.readouterr().err
