"""Versions of models that were trained on given rows are named, and never a wrong no."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl import models
from sparkdl.cli.main import main
from sparkdl.data.row_keys import KeyLog
from sparkdl.errors import ConfigError, ModelNotFoundError
from sparkdl.files import storage
from sparkdl.files.layout import RunPaths
from sparkdl.runs.description import RunDescription
from sparkdl.runs.events import RunEnded, TrialChanged
from sparkdl.runs.opening import open_run
from sparkdl.runs.states import RunState, TrialState

INTEGERS = pa.int64()


def run_of(root: str, name: str, num_trials: int = 1, **request: Any) -> RunPaths:
    """A run that has ended."""
    description = RunDescription(
        id=name,
        name=name,
        kind="launch",
        description=None,
        metric=None,
        direction="max",
        params=[{}] * num_trials,
        seed=1,
        secrets=(),
        facts={"request": request, "preload": request.pop("preload", False)},
    )
    opened = open_run(root, description, "error")
    for number in range(num_trials):
        done = TrialChanged(number=number, state=TrialState.COMPLETE, attempt=0)
        opened.journal.write([done])
    opened.journal.write([RunEnded(state=RunState.COMPLETE, duration_s=1.0)])
    opened.journal.close()
    opened.owner.release()
    return opened.paths


def saw(
    folder: str,
    ids: Sequence[Any],
    *,
    data: str = "train",
    rank: int = 0,
    readers: int = 1,
    kind: pa.DataType = INTEGERS,
) -> None:
    """Record rows of a trial, as its training process does."""
    schema = pa.schema([("id", kind)])
    log = KeyLog(Path(folder, "row-keys"), rank, data, ["id"], schema, readers)
    log.add(pa.record_batch([pa.array(ids, kind)], schema=schema))
    log.close()


def version_of(
    root: str, name: str, number: int, run: RunPaths | None, trial: int | None = 0
) -> None:
    content = {
        "format": 1,
        "name": name,
        "version": number,
        "metrics": {},
        "run": run and Path(run.folder).name,
        "trial": run and trial,
        "lineage": {"run_path": run.folder} if run else {},
    }
    storage.write(f"{root}/models/{name}/{number}/model.json", json.dumps(content))


def answers(root: str, rows: Any, **options: Any) -> dict[str, str]:
    found = models.affected(rows, root=root, **{"key": "id", **options})
    return {f"{each.name}/{each.version}": each.answer for each in found}


def test_versions_are_named_as_a_merge_of_pandas_names_them(root: str, tmp_path: Path) -> None:
    trained = {
        1: pd.DataFrame({"id": range(100)}),
        2: pd.DataFrame({"id": range(50, 150)}),
        3: pd.DataFrame({"id": range(200, 300)}),
    }
    run = run_of(root, "nightly", num_trials=3)
    for number, frame in trained.items():
        trial = run.trial(number - 1).folder
        # Two ranks have a part each.
        for rank in (0, 1):
            saw(trial, frame.id[rank::2].tolist(), rank=rank, readers=2)
        version_of(root, "loans", number, run, number - 1)
    for ids in ([75, 400], [10], [400], [0, 149, 200], [299]):
        asked = pd.DataFrame({"id": ids, "other": 1.5})
        pq.write_table(pa.Table.from_pandas(asked), tmp_path / "ids.parquet")
        merged = {n: asked.merge(frame, on="id").id.nunique() for n, frame in trained.items()}
        for rows in (asked, str(tmp_path / "ids.parquet"), pa.Table.from_pandas(asked), ids):
            found = models.affected(rows, key="id", root=root)
            assert {each.version: each.num_rows for each in found} == merged
            assert {e.version: e.answer for e in found} == {
                n: "yes" if count else "no" for n, count in merged.items()
            }
    assert found[2].data == ("train",) and str(found[0]) == "loans/1: no"


def test_what_was_not_recorded_is_unknown(root: str) -> None:
    with_rows = run_of(root, "with")
    saw(with_rows.trial(0).folder, [1, 2])
    version_of(root, "a", 1, with_rows)
    version_of(root, "b", 1, run_of(root, "without"))
    version_of(root, "c", 1, None)
    version_of(root, "d", 1, RunPaths(f"{root}/gone"))
    storage.write(f"{root}/models/e/1/model.json", "{")
    storage.write(f"{root}/models/f/1/saved_model.pb", "is being written")
    found = {each.name: each for each in models.affected([3], key="id", root=root)}
    assert {name: each.answer for name, each in found.items()} == {
        "a": "no",
        **dict.fromkeys("bcde", "unknown"),
    }
    assert "has recorded no rows, see row_key=" in found["b"].reason
    assert "no run" in found["c"].reason and "is gone" in found["d"].reason


def test_a_part_that_is_missing_is_unknown_but_a_row_that_is_there_is_seen(root: str) -> None:
    run = run_of(root, "gang")
    saw(run.trial(0).folder, [1, 2], rank=0, readers=2)
    version_of(root, "a", 1, run)
    assert answers(root, [1]) == {"a/1": "yes"}
    (answer,) = models.affected([3], key="id", root=root)
    assert answer.answer == "unknown" and "rank 1" in answer.reason
    saw(run.trial(0).folder, [3], rank=1, readers=2)
    assert answers(root, [3]) == {"a/1": "yes"}
    assert answers(root, [4]) == {"a/1": "no"}
    # The validation data, too.
    saw(run.trial(0).folder, [5], data="validation", rank=0, readers=2)
    saw(run.trial(0).folder, [5], data="validation", rank=1, readers=2)
    (answer,) = models.affected([5], key="id", root=root)
    assert (answer.answer, answer.data, answer.num_rows) == ("yes", ("validation",), 1)


def test_other_keys_and_kinds_are_unknown(root: str) -> None:
    run = run_of(root, "run")
    saw(run.trial(0).folder, ["7", "8"], kind=pa.string())
    version_of(root, "a", 1, run)
    (answer,) = models.affected([7], key="id", root=root)
    assert answer.answer == "unknown" and "id is text in train, and integer" in answer.reason
    assert answers(root, ["7"]) == {"a/1": "yes"}
    assert answers(root, ["x"]) == {"a/1": "no"}
    (answer,) = models.affected(["7"], key="customer", root=root)
    assert answer.answer == "unknown" and "recorded by id, and not by customer" in answer.reason


def test_a_version_has_seen_the_rows_of_the_trials_it_began_with(root: str) -> None:
    base = run_of(root, "base", num_trials=2)
    saw(base.trial(1).folder, [1, 2])
    for name, url in {
        "trial": base.trial(1).folder,
        "checkpoint": f"{base.trial(1).checkpoints}/000004",
    }.items():
        tuned = run_of(root, name, init_from=url)
        saw(tuned.trial(0).folder, [8, 9])
        version_of(root, name, 1, tuned)
    again = run_of(root, "again", init_from=RunPaths(f"{root}/trial").initial)
    saw(again.trial(0).folder, [10])
    version_of(root, "again", 1, again)
    every = dict.fromkeys(("again/1", "checkpoint/1", "trial/1"), "yes")
    assert answers(root, [1]) == every
    assert answers(root, [3]) == dict.fromkeys(every, "no")
    # Of a trial that has recorded nothing, or is gone, nothing is known.
    for number, url in enumerate((base.trial(0).folder, "/gone/trials/0", "/weights/w")):
        tuned = run_of(root, f"unknown{number}", init_from=url)
        saw(tuned.trial(0).folder, [8])
        version_of(root, f"unknown{number}", 1, tuned)
        assert answers(root, [3], name=f"unknown{number}") == {f"unknown{number}/1": "unknown"}


def test_weights_of_unknown_origin_are_unknown(root: str) -> None:
    loaded = run_of(root, "loaded", preload=True)
    resource = run_of(root, "resource")
    manifest = {"base": {"source": "/base", "files": {"base/model.safetensors": "sha"}}}
    storage.write(f"{resource.folder}/resources.json", json.dumps(manifest))
    for run in (loaded, resource):
        saw(run.trial(0).folder, [1])
        version_of(root, Path(run.folder).name, 1, run)
    assert answers(root, [2]) == {"loaded/1": "unknown", "resource/1": "unknown"}
    assert answers(root, [1]) == {"loaded/1": "yes", "resource/1": "yes"}


def test_the_rows_of_lost_attempts_were_seen(root: str) -> None:
    run = run_of(root, "run")
    paths = run.trial(0)
    saw(paths.folder, [1])
    saw(paths.superseded(0), [2])
    version_of(root, "a", 1, run)
    assert answers(root, [2]) == {"a/1": "yes"}
    assert answers(root, [3]) == {"a/1": "no"}
    # An attempt that has read without a record.
    storage.write(f"{paths.superseded(1)}/data.jsonl", "{}\n")
    assert answers(root, [3]) == {"a/1": "unknown"}


def test_a_damaged_record_is_unknown(root: str) -> None:
    run = run_of(root, "run")
    saw(run.trial(0).folder, [1])
    version_of(root, "a", 1, run)
    (file,) = Path(run.trial(0).row_keys).glob("*.md5")
    file.write_bytes(file.read_bytes() + b"x")
    assert answers(root, [2]) == {"a/1": "unknown"}
    file.unlink()
    assert answers(root, [2]) == {"a/1": "unknown"}
    file.with_suffix(".json").write_text("{")
    assert answers(root, [2]) == {"a/1": "unknown"}


@pytest.mark.parametrize(
    ("rows", "key", "message"),
    [
        ([], "id", "rows has no rows"),
        ([1, None], "id", "has 1 nulls"),
        ([1.5], "id", "is double; expected integers"),
        ([1], None, "with key= and the name of a single column"),
        ([1, "a"], "id", "cannot be read as values of 'id'"),
        (pd.DataFrame({"ids": [1]}), "id", "rows has no column 'id'. Did you mean 'ids'"),
        ("/nowhere/ids.parquet", None, "which does not exist"),
        ("ids.txt", None, "expected a file that ends in .parquet or .csv"),
        ([1], 3, "key is 3; expected the name"),
    ],
)
def test_bad_rows_are_refused(root: str, rows: Any, key: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        models.affected(rows, key=key, root=root)
    with pytest.raises(ModelNotFoundError):
        models.affected([1], key="id", name="absent", root=root)


def test_the_exit_code_of_the_command_is_the_answer(
    root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(root, "run")
    saw(run.trial(0).folder, [1, 2])
    version_of(root, "a", 1, run)
    ids = tmp_path / "ids.csv"
    words = ["models", "affected", "--root", root, "--rows", str(ids)]
    ids.write_text("id\n2\n1\n9\n")
    assert main(words) == 1
    assert capsys.readouterr().out == "a/1: yes, 2 rows in train\n"
    ids.write_text("id\n9\n")
    assert main([*words, "--json", "--key", "id"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert (answer["name"], answer["version"], answer["answer"]) == ("a", 1, "no")
    version_of(root, "b", 1, None)
    assert main(words) == 2
    ids.write_text("id\n2\n")
    assert main(words) == 1
    assert main([*words[:-1], "/nowhere.csv"]) == 2
