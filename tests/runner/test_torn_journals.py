"""A journal that ends anywhere is read as its whole lines say, whatever kind of run wrote it."""

import json
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkdl.cluster.plan import Role
from sparkdl.files.jsonl import to_json
from sparkdl.runner.loop.trial_loop import TrialLoop
from sparkdl.runs.events import EventKind
from sparkdl.runs.journal import scan_journal
from sparkdl.search.settings import SearchSettings
from sparkdl.search.space.spaces import Float, Space
from tests.helpers.in_memory_cluster import Attempt, InMemoryCluster, Outcome, raised, returned
from tests.helpers.loops import background, new_loop, request_of
from tests.helpers.runs import segments
from tests.helpers.schedules import Training, loop_of

pytestmark = pytest.mark.usefixtures("quick_polls")

REPORTS = str(EventKind.REPORTS)

# So many cuts of a journal are checked, those at the ends of its lines included.
NUM_CUTS = 400


def launch(root: str) -> TrialLoop:
    cluster = InMemoryCluster(lambda a: raised("ValueError: no") if a.number == 2 else returned(1))
    return new_loop(root, cluster, request_of(4))


def gang(root: str) -> TrialLoop:
    roles = (Role(name="worker", count=2),)
    cluster = InMemoryCluster(lambda a: [returned(1.0), returned(2.0)])
    return new_loop(root, cluster, request_of(1, kind="allreduce", roles=roles))


def pruned_search(root: str) -> TrialLoop:
    def train(attempt: Attempt) -> Outcome:
        x = attempt.task.trial.params["x"]
        for epoch in range(3):
            attempt.report(epoch, score=x if epoch else float("nan") if x > 0.9 else x)
        return returned(score=x)

    search = SearchSettings(
        space=Space.of({"x": Float(0.0, 1.0)}),
        num_trials=24,
        pruner={"median": {"startup": 12}},
    )
    return new_loop(root, InMemoryCluster(train), request_of(search=search, metric="score", seed=1))


def scheduled(name: str) -> Callable[[str], TrialLoop]:
    return lambda root: loop_of(root, InMemoryCluster(Training()), name)


RUNS = {
    "launch": launch,
    "allreduce": gang,
    "search": pruned_search,
    **{name: scheduled(name) for name in ("asha", "bohb", "pbt")},
}


def whole_lines(data: bytes) -> dict[int, dict[str, Any]]:
    """The lines that parse, by their number: each is an event, or begins the session."""
    lines = {}
    for text in data.split(b"\n"):
        try:
            line = json.loads(text)
        except ValueError:
            continue
        lines[line.pop("seq")] = line
    return lines


def check(folder: Path, data: bytes) -> None:
    """Check what is read from a journal with this content."""
    Path(folder, "0001-000000.jsonl").write_bytes(data)
    lines = whole_lines(data)
    expected = [line for _, line in sorted(lines.items()) if line["event"] != "session"]
    for with_reports in (True, False):
        content = scan_journal(str(folder), with_reports)
        read = [json.loads(to_json(event.to_dict())) for event in content.events]
        assert read == [e for e in expected if with_reports or e["event"] != REPORTS]
        assert content.last == ({1: max(lines)} if lines else {})
        assert content.num_lost == (max(lines) + 1 - len(lines) if lines else 0)


def cuts_of(data: bytes) -> list[int]:
    """Every length of a short journal; of a long one those near the ends of lines, and others."""
    ends = [i for i, byte in enumerate(data) if byte == ord("\n")]
    near = {end - back for end in ends for back in range(-1, 3)}
    others = random.Random(0).sample(range(len(data)), min(len(data), NUM_CUTS))
    return sorted({*others[: max(0, NUM_CUTS - len(near))], *near})


@pytest.mark.parametrize("kind", RUNS)
def test_a_journal_that_ends_anywhere_is_read_as_its_whole_lines_say(
    root: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    caplog.set_level(logging.ERROR, "sparkdl.runs")
    with background(RUNS[kind](root)) as loop:
        pass
    (segment,) = segments(loop.run.path)
    data = segment.read_bytes()
    assert (REPORTS.encode() in data) == (kind in ("search", "asha", "bohb"))
    for size in cuts_of(data):
        check(tmp_path, data[:size])
    # A write that was cut short, with the next one behind it.
    lines = data.splitlines(keepends=True)
    chance = random.Random(0)
    for number in chance.sample(range(1, len(lines) - 1), min(len(lines) - 2, 50)):
        short = lines[number][: chance.randrange(len(lines[number]))]
        for torn in (short, short + b"\n", lines[number][:-2], lines[number][:-2] + b"\n"):
            check(tmp_path, b"".join([*lines[:number], torn, *lines[number + 1 :]]))
