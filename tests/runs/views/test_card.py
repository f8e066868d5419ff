"""The card of a run has what the run was made of, and what came out."""

import hashlib
import html
import json
from pathlib import Path

import pytest

from sparkdl.cli.main import main
from sparkdl.errors import ConfigError
from sparkdl.files.jsonl import to_json
from sparkdl.files.layout import place_of_verifications
from sparkdl.runs.differences import Difference
from sparkdl.runs.verification.causes import Cause, CauseKind
from sparkdl.runs.verification.mismatch import Mismatch
from sparkdl.runs.verification.trials import Compared
from sparkdl.runs.verification.verification import (
    Verdict,
    Verification,
    read_verifications,
    write_verification,
)
from tests.helpers.runs import run_with_outputs


def verification(verdict: Verdict, time: str) -> Verification:
    return Verification(
        run="one",
        trial=1,
        verdict=verdict,
        mismatches=[Mismatch(what="metric <acc>", before="1.0", now="2.0", step=3, largest=1.0)],
        causes=[Cause(kind=CauseKind.DATA, text="files of /data")],
        differences=[Difference(subject="GPUs", before="none", now="A100", lines=("a", "b"))],
        compared=Compared(num_steps=3, metrics=["acc"], files=["artifacts/model/w"], num_bytes=2),
        ignored=["epoch_s"],
        trainings=["/new"],
        time=time,
        versions={"python": "3.11"},
    )


def test_a_card_has_results_files_and_verifications(root: str, tmp_path: Path) -> None:
    files = []
    for number in (0, 1):
        files.append(tmp_path / f"w{number}")
        files[-1].write_text(f"weights {number}")
    run = run_with_outputs(root, {"acc": [0.5, 0.75]}, {"model": files})
    run.tag("<b>")
    old, new = (verification(v, t) for v, t in (("different", "2026-01"), ("equal", "2026-02")))
    for name, each in (("b", new), ("a", old)):
        write_verification(place_of_verifications(run.path), name, each)
    Path(place_of_verifications(run.path), "damaged.json").write_text("{}")
    assert [to_json(each.to_dict()) for each in read_verifications(run.path)] == [
        to_json(each.to_dict()) for each in (old, new)
    ]
    card = run.card(tmp_path / "card.json")
    assert json.loads((tmp_path / "card.json").read_text()) == json.loads(json.dumps(card))
    result = card["result"]
    assert (result["trial"], result["value"], result["params"]) == (1, 0.75, {"lr": 0.2})
    ((name, facts),) = result["files"].items()
    assert name == "artifacts/model/w1"
    assert facts == {"bytes": 9, "sha256": hashlib.sha256(b"weights 1").hexdigest()}
    assert card["code"]["git_commit"] == "abc"
    assert [each["verdict"] for each in card["verifications"]] == ["different", "equal"]
    assert card["run"]["tags"] == ["<b>"]
    run.card(tmp_path / "card.html")
    page = (tmp_path / "card.html").read_text()
    for text in (facts["sha256"], "bit-equal", "files of /data", "0.75"):
        assert text in page
    assert html.escape("metric <acc>") in page and "<acc>" not in page
    with pytest.raises(ConfigError, match=r"expected a file that ends in .html or .json"):
        run.card(tmp_path / "card.pdf")


def test_the_command_writes_and_prints_the_card(
    root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_with_outputs(root, {"acc": [0.5]}, {})
    monkeypatch.chdir(tmp_path)
    assert main(["card", run.path]) == 0
    assert capsys.readouterr().out == "one.html\n"
    assert "No trial was verified" in (tmp_path / "one.html").read_text()
    assert main(["card", run.path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["id"] == "one"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["one.html"]
