"""The outcomes that nodes leave in the run directory, which others may write to."""

import base64
import json
from dataclasses import replace
from pathlib import Path

import cloudpickle

from sparkdl.cluster.outcome import Outcome, Status
from sparkdl.files.rank_files import RankFiles
from sparkdl.runs.states import Failure
from sparkdl.tfos.cluster.node_files import OUTCOME, post_outcome, read_outcome

FAILED = Outcome(
    status=Status.FAILED,
    error="ValueError: mine",
    failure=Failure.EXCEPTION,
    exception=b"a pickled exception",
)


def test_read_outcome_returns_the_exception_of_a_node_that_knows_the_secret(tmp_path: Path) -> None:
    files = RankFiles(str(tmp_path))
    post_outcome(files, 0, FAILED, b"secret")
    assert read_outcome(files, 0, b"secret") == FAILED
    assert read_outcome(files, 0) == FAILED.without_exception()
    assert read_outcome(files, 0, b"another") == FAILED.without_exception()


def test_post_outcome_leaves_no_exception_without_a_secret(tmp_path: Path) -> None:
    files = RankFiles(str(tmp_path))
    post_outcome(files, 0, FAILED, b"")
    assert read_outcome(files, 0, b"secret") == FAILED.without_exception()


def test_read_outcome_ignores_an_exception_without_proof(tmp_path: Path) -> None:
    """A forged outcome with the exception inside must not reach the driver's unpickling."""
    files = RankFiles(str(tmp_path))
    files.post(0, OUTCOME, json.dumps({"outcome": FAILED.to_json()}))
    assert read_outcome(files, 0, b"secret").exception is None
    forged = {"outcome": FAILED.to_json(), "exception": "Zm9yZ2Vk", "proof": "00"}
    files.post(0, OUTCOME, json.dumps(forged))
    assert read_outcome(files, 0, b"secret").exception is None


def test_post_outcome_leaves_no_exception_that_has_a_credential_in_it(tmp_path: Path) -> None:
    files = RankFiles(str(tmp_path))
    secret = "hunter22hunter22"
    raised = replace(FAILED, exception=cloudpickle.dumps(ValueError(f"no access with {secret}")))
    post_outcome(files, 0, raised, b"secret", [secret])
    assert read_outcome(files, 0, b"secret") == FAILED.without_exception()
    assert base64.b64encode(b"no access")[:-3] not in (tmp_path / f"0.{OUTCOME}").read_bytes()
    post_outcome(files, 1, raised, b"secret", ["another-value"])
    assert read_outcome(files, 1, b"secret") == raised
