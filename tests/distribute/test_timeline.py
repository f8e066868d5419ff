"""`timeline=True`: traces that add up, and a sentence that summarises them."""

import json
import os
import socket
import statistics
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from sparkdl import experiment
from sparkdl.cluster.plan import Plan, Role
from sparkdl.distribute.call_header import HEADER
from sparkdl.distribute.links import Link, Links
from sparkdl.distribute.ring import Ring
from sparkdl.distribute.timed_links import TimedLinks, make_links
from sparkdl.distribute.timeline import Collective, Recorder
from sparkdl.errors import ConfigError, TrainingFailedError
from sparkdl.runner.loop.step_time import TypicalStep, sentence, typical
from tests.distribute.test_ring import on_all
from tests.helpers.gang import launch
from tests.helpers.runs import quiet
from tests.programs.timeline import LATE_S, STEPS

Event = dict[str, Any]
PIECES = ("wait_ms", "send_ms", "receive_ms", "add_ms")


def events_of(trace: Path) -> list[Event]:
    """Return the events of a file, whose array is not closed."""
    found: list[Event] = json.loads(trace.read_text().rstrip().rstrip(",") + "]")
    return found


def bars_of(events: list[Event], track: str) -> list[Event]:
    tracks = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
    bars = [e for e in events if e["ph"] == "X" and e["tid"] == tracks[track]]
    return sorted(bars, key=lambda e: (e["ts"], -e["dur"]))


def check_nested(bars: list[Event]) -> None:
    """Assert that two bars are either nested or disjoint."""
    ends: list[int] = []
    for bar in bars:
        while ends and ends[-1] <= bar["ts"]:
            ends.pop()
        assert not ends or bar["ts"] + bar["dur"] <= ends[-1], bar
        ends.append(bar["ts"] + bar["dur"])


def timed_rings(folder: Path, count: int) -> list[Ring]:
    pairs = [socket.socketpair() for _ in range(count)]
    rings = []
    for rank in range(count):
        before, after = (rank - 1) % count, (rank + 1) % count
        links = (Link(before, pairs[before][1]), Link(after, pairs[rank][0]))
        recorder = Recorder(folder / f"worker-{rank}.json", rank, f"rank {rank}")
        rings.append(Ring(range(count), rank, TimedLinks(*links, 20.0, recorder)))
    return rings


def test_pieces_of_a_collective_add_up(tmp_path: Path) -> None:
    """Rank 1 is late, which only its successor, rank 2, records as `late`."""

    def call(ring: Ring, rank: int) -> None:
        time.sleep(0.6 if rank == 1 else 0.0)
        ring.allreduce(np.ones(3_000_000, np.float32))
        ring.barrier()
        ring.close()
        ring._links.recorder.flush()  # type: ignore[union-attr]

    assert on_all(timed_rings(tmp_path, 3), call) == [None] * 3
    waited_ms, late_ms = [0.0] * 3, [0.0] * 3
    for rank in range(3):
        events = events_of(tmp_path / f"worker-{rank}.json")
        assert {e["pid"] for e in events} == {rank}
        bars = bars_of(events, "ring")
        check_nested(bars)
        large, barrier = (e for e in bars if e["cat"] == "collective")
        told = large["args"]
        assert (large["name"], told["number"], told["bytes"]) == ("allreduce", 0, 12_000_000)
        assert told["waits_for"] == (rank - 1) % 3
        pieces_ms, whole_ms = sum(told[name] for name in PIECES), large["dur"] / 1e3
        assert pieces_ms <= whole_ms * 1.01
        # A busy machine may stop a thread between two pieces. Rank 1 waits for nobody, and has
        # some ms in all, so that such a stop is a large part of them.
        assert rank == 1 or pieces_ms > whole_ms * 0.6
        assert told["add_ms"] > 0
        waited_ms[rank], late_ms[rank] = told["wait_ms"], told["late_ms"]
        drawn = {e["name"] for e in bars if e["cat"] == "piece"}
        assert drawn <= {"wait", "send", "receive", "add"}
        assert "add" in drawn
        (compute,) = (e for e in bars if e["name"] == "compute")
        assert compute["ts"] == large["ts"] + large["dur"]
        assert compute["ts"] + compute["dur"] == barrier["ts"]
    # On a slow machine, all wait for each other a little.
    assert min(waited_ms[0], waited_ms[2]) > max(300, waited_ms[1])
    assert late_ms[2] > max(300, late_ms[0], late_ms[1])


def test_without_a_timeline_no_piece_of_a_collective_is_timed() -> None:
    ends = socket.socketpair()
    links = make_links(Link(1, ends[0]), Link(1, ends[1]), 1.0)
    links.close()
    assert type(links) is Links


def collective(at: int, number: int = 0, predecessor: int = 1) -> Collective:
    """Return a collective of one millisecond, half of it spent waiting."""
    header, ms = HEADER.pack(number, 0, 1, 0, 8, b""), 1_000_000
    return Collective(
        header=header,
        predecessor=predecessor,
        begin_ns=at,
        end_ns=at + ms,
        first_arrival_ns=at + ms // 2,
        other_threads_ns=2 * ms,
        pieces=[("wait", at, at + ms // 2), ("add", at, at)],
    )


def test_a_long_training_leaves_a_small_file(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "few.json", 0, "rank 0")
    for step in range(10_000):
        recorder.step()
        recorder.collective(collective(time.perf_counter_ns(), step))
    recorder.flush()
    bars = bars_of(events_of(tmp_path / "few.json"), "steps")
    numbers = [bar["args"]["step"] for bar in bars]
    assert numbers == [*range(100), *range(100, 1000, 10), *range(1000, 9999, 100)]
    recorder = Recorder(tmp_path / "many.json", 0, "rank 0")
    for number in range(10_000):
        recorder.collective(collective(time.perf_counter_ns(), number))
    recorder.flush()
    assert len(events_of(tmp_path / "many.json")) < 3 * (100 + 90 + 90) + 10


def test_a_rank_is_late_in_the_first_round_of_a_collective_only(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "worker-0.json", 0, "rank 0")
    recorder.step()
    for number, predecessor in ((0, 1), (0, 2), (0, 2), (1, 3), (2, 1)):
        recorder.collective(collective(time.perf_counter_ns(), number, predecessor))
    recorder.step()
    recorder.flush()
    (bar,) = bars_of(events_of(tmp_path / "worker-0.json"), "steps")
    found = {name: bar["args"][name] for name in ("late_ms", "wait_ms", "waits_for")}
    assert found == {"late_ms": 1.5, "wait_ms": 2.5, "waits_for": 1}


def test_recorder_continues_the_file_of_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.json"
    first = Recorder(path, 0, "the first")
    first.collective(collective(time.perf_counter_ns()))
    first.flush()
    with path.open("a") as file:
        file.write('{"name": "torn", "ar')
    assert typical(path.read_bytes()) is not None
    Recorder(path, 0, "the second").flush()
    names = [e["args"]["name"] for e in events_of(path) if e["name"] == "process_name"]
    assert names == ["the first", "the second"]


def test_a_full_disk_ends_only_the_timeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(tmp_path / "worker-0.json", 0, "rank 0")

    def full(*args: Any) -> int:
        raise OSError(28, "No space left on device")

    recorder.collective(collective(time.perf_counter_ns()))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        recorder.flush()
    recorder.collective(collective(time.perf_counter_ns()))
    recorder.flush()
    assert len(events_of(tmp_path / "worker-0.json")) == 4
    assert caplog.messages == ["the timeline ends here: [Errno 28] No space left on device"]


def test_typical_ignores_the_first_step_and_validations(tmp_path: Path) -> None:
    """The first step is longer, and so is a step before a validation."""
    recorder = Recorder(tmp_path / "worker-0.json", 0, "rank 0")
    begun = []
    for lasts_s in (0.2, *[0.02] * 10, 0.1, 0.0):
        begun.append(time.perf_counter())
        recorder.step()
        recorder.collective(collective(time.perf_counter_ns()))
        time.sleep(lasts_s)
    recorder.flush()
    one = typical((tmp_path / "worker-0.json").read_bytes())
    assert one is not None
    assert (one.rank, one.unit, one.waits_for) == (0, "step", 1)
    lasted_ms = [1e3 * (then - now) for now, then in pairwise(begun)][1:-1]
    # What another process takes between the two looks at the clock is in few of the steps.
    assert one.total_ms == pytest.approx(statistics.median(lasted_ms), rel=0.2)
    assert one.spent_ms["collectives"] == one.spent_ms["beside"] == pytest.approx(1.0)
    assert one.spent_ms["wait"] == one.spent_ms["late"] == pytest.approx(0.5)
    assert typical(b"[\n") is None


def test_sentence_names_a_late_rank_only_if_it_matters() -> None:
    spent = dict.fromkeys(("collectives", "wait", "late", "add", "beside"), 0.0)
    ranks = [
        TypicalStep(
            rank=rank,
            unit="step",
            total_ms=100.0,
            spent_ms={**spent, "late": 1.0},
            waits_for=1 - rank,
        )
        for rank in (0, 1)
    ]
    assert sentence(ranks).endswith(" No rank delays the others.")
    ranks[1].spent_ms.update(late=2.5, collectives=50.0, beside=30.0)
    said = sentence(ranks[::-1])
    assert said.startswith("Of a step of 100 ms rank 0 computed 100 %, ")
    assert said.endswith(". Most of the waiting is for rank 0: 2.5 ms per step.")
    assert "; meanwhile its other threads computed for 30 %" in sentence(ranks[1:])


def test_plan_names_the_timeline() -> None:
    roles = (Role(name="worker", count=2),)
    assert "timeline" not in str(Plan(kind="allreduce", roles=roles, is_gang=True))
    told = str(Plan(kind="allreduce", roles=roles, is_gang=True, timeline=True))
    assert told.endswith("; records a timeline")


@pytest.mark.parametrize("verb", [experiment.allreduce, experiment.horovod])
def test_timeline_of_wrong_type_is_rejected_before_the_run(verb: Any, root: str) -> None:
    with pytest.raises(ConfigError, match="timeline is 'yes'; expected True or False"):
        verb(lambda: 0, num_workers=2, timeline="yes", **quiet(root))
    assert list(Path(root).iterdir()) == []


@pytest.mark.slow
def test_steps_of_fit_add_up(tmp_path: Path) -> None:
    seconds = launch("timeline.fits", tmp_path, "worker", "worker", timeline=True)
    traces = [tmp_path / "timeline" / f"worker-{rank}.json" for rank in (0, 1)]
    for rank, trace in enumerate(traces):
        events = events_of(trace)
        steps, ring = bars_of(events, "steps"), bars_of(events, "ring")
        check_nested(steps)
        check_nested(ring)
        # The last step has no end.
        assert [bar["args"]["step"] for bar in steps] == list(range(STEPS - 1))
        for one, then in pairwise(steps):
            assert one["ts"] + one["dur"] == then["ts"]
        # The bars of the ring's track are contiguous.
        whole = [e for e in ring if e["cat"] in ("compute", "collective")]
        for one, then in pairwise(whole):
            assert one["ts"] + one["dur"] == then["ts"]
        step = steps[10]
        of_it = [e for e in whole if e["cat"] == "collective" and e["args"]["step"] == 10]
        # A bucket for each layer, and the vote on the next step.
        assert [e["name"] for e in of_it].count("vote") == 1
        assert len([e for e in of_it if e["args"]["bytes"] > 1 << 20]) == 3
        sum_ms = sum(e["dur"] for e in of_it) / 1e3
        assert step["args"]["collectives_ms"] == pytest.approx(sum_ms, abs=0.1)
        one_typical = typical(trace.read_bytes())
        assert one_typical is not None
        assert one_typical.total_ms == pytest.approx(median(seconds[rank]) * 1e3, rel=0.2)
    first, second = (typical(trace.read_bytes()) for trace in traces)
    assert first and second
    late_ms = first.spent_ms["late"]
    assert late_ms > max(0.8 * LATE_S * 1e3, second.spent_ms["late"])
    assert "Most of the waiting is for rank 1: " in sentence([first, second])


@pytest.mark.slow
@pytest.mark.parametrize(("program", "what"), [("sparse", "step"), ("by_hand", "collective")])
def test_timeline_of_sparse_gradients_and_plain_collectives(
    program: str, what: str, tmp_path: Path
) -> None:
    launch(f"timeline.{program}", tmp_path, "worker", "worker", timeline=True)
    for rank in (0, 1):
        one = typical((tmp_path / "timeline" / f"worker-{rank}.json").read_bytes())
        assert one is not None
        assert one.unit == what
        assert 0 < one.spent_ms["collectives"] <= one.total_ms


@pytest.mark.slow
def test_a_killed_rank_leaves_a_readable_timeline(tmp_path: Path) -> None:
    launch("ring.breaks", tmp_path, *["worker"] * 3, codes=(0, -9), timeline=True)
    for rank in range(3):
        events = events_of(tmp_path / "timeline" / f"worker-{rank}.json")
        check_nested(bars_of(events, "ring"))
        # The killed rank may have lost the events of its last half second, perhaps all.
        assert rank == 2 or [e for e in events if e.get("cat") == "collective"]


@pytest.mark.slow
def test_without_a_timeline_there_is_no_file(tmp_path: Path) -> None:
    launch("timeline.by_hand", tmp_path, "worker", "worker")
    assert not (tmp_path / "timeline").exists()


@pytest.mark.slow
def test_a_run_stores_its_timeline_and_resume_continues_it(
    spark: SparkSession, root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def train() -> None:
        import numpy as np

        from sparkdl import context, distribute

        for step in range(50):
            distribute.allreduce(np.ones(1000))
            if (context.attempt, context.rank, step) == (0, 1, 30):
                raise ValueError("as it was told")

    with pytest.raises(TrainingFailedError, match="as it was told"):
        experiment.allreduce(train, num_workers=2, timeline=True, root=root, run_id="timed")
    said = capsys.readouterr().out
    run = experiment.load(f"{root}/timed")
    assert run.timeline
    assert run.timeline.startswith("Of a collective of ")
    assert run.timeline in said
    run = experiment.resume(run, retry_failed=True, progress=False)
    assert run.state == "COMPLETE"
    assert run.timeline == experiment.load(run.path).timeline
    folder = Path(run.trials[0].path)
    for where in (folder, folder / "attempts" / "0"):
        names = sorted(path.name for path in (where / "timeline").iterdir())
        assert names == ["worker-0.json", "worker-1.json"]
        for path in (where / "timeline").iterdir():
            assert typical(path.read_bytes())
    alone = experiment.allreduce(train, num_workers=1, timeline=True, **quiet(root))
    assert "The timelines are empty: no collective ran in the ring" in (alone.timeline or "")
    plain = experiment.horovod(lambda: 0, num_workers=2, **quiet(root))
    assert plain.timeline is None
