"""Every run leaves a report, however it ends."""

import re
import threading
from pathlib import Path
from typing import Any

import pytest

from sparkdl.cluster.plan import Role
from sparkdl.errors import SparkDLError
from sparkdl.files import storage
from sparkdl.runner.pipeline.execute import execute
from sparkdl.runs import Run
from sparkdl.runs.history import load
from tests.helpers.in_memory_cluster import Attempt, InMemoryCluster, Outcome, raised, returned
from tests.helpers.loops import request_of

pytestmark = pytest.mark.usefixtures("quick_polls")


def report_of(root: str) -> str:
    """The text of the report of the run, without scripts."""
    page = Path(root, "run", "report.html").read_text()
    return re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def ended(root: str, outcome: Any, num_trials: int = 1, num_slots: int = 2, **options: Any) -> Run:
    """A run that has ended in any state, read from its directory."""
    request = request_of(num_trials, root=root, **options)
    try:
        execute(request, InMemoryCluster(outcome, num_slots=num_slots))
    except SparkDLError:
        pass
    return load(f"{root}/run")


def test_a_short_run_of_one_trial_has_a_report(root: str) -> None:
    run = ended(root, lambda attempt: returned(accuracy=0.75, epochs=3), metric="accuracy")
    assert run.state == "COMPLETE"
    page = report_of(root)
    assert "<b>0.75</b> accuracy" in page
    assert "<dt>epochs</dt><dd>3</dd>" in page
    assert "<dt>x</dt><dd>0</dd>" in page
    # Without a figure the page needs no library of some megabytes.
    assert Path(run.path, "report.html").stat().st_size < 1_000_000


def test_a_failed_run_has_a_report_with_its_error(root: str) -> None:
    run = ended(root, lambda attempt: raised("ValueError: <b>too wide</b>"))
    assert run.state == "FAILED"
    page = report_of(root)
    assert "FAILED" in page
    assert "ValueError: &lt;b&gt;too wide&lt;/b&gt;" in page
    assert "Traceback ..." in page


@pytest.mark.parametrize("is_failing", [False, True])
def test_a_distributed_run_has_a_report(root: str, is_failing: bool) -> None:
    def outcome(attempt: Attempt) -> list[Outcome]:
        one = raised("RuntimeError: rank 1 stops") if is_failing else returned(loss=0.5)
        return [one, one]

    roles = [Role(name="worker", count=2)]
    run = ended(root, outcome, kind="allreduce", roles=roles, is_gang=True)
    assert run.is_distributed
    page = report_of(root)
    assert f"allreduce {run.id}" in page
    assert ("rank 1 stops" if is_failing else "<dt>loss</dt><dd>0.5</dd>") in page


def test_a_cancelled_run_has_a_report(root: str) -> None:
    begun = threading.Event()

    def outcome(attempt: Attempt) -> Outcome:
        begun.set()
        return attempt.wait()

    request = request_of(2, root=root, wait=False)
    run = execute(request, InMemoryCluster(outcome, num_slots=1))
    assert begun.wait(120)
    run.cancel()
    with pytest.raises(SparkDLError):
        run.wait()
    assert "<b>CANCELLED</b>" in report_of(root)


def test_a_report_that_cannot_be_written_harms_nothing(
    root: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = storage.write

    def refuse(url: str, *more: Any, **how: Any) -> None:
        if url.endswith("report.html"):
            raise OSError("disk full")
        write(url, *more, **how)

    monkeypatch.setattr(storage, "write", refuse)
    request = request_of(1, root=root, progress=True)
    run = execute(request, InMemoryCluster(lambda attempt: returned(0.5)))
    assert run.state == "COMPLETE"
    assert "Note: report.html could not be written: OSError: disk full" in capsys.readouterr().out
