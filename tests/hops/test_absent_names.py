"""The interface of hops-util-py 2.5: every name is here, or its error says what to write."""

import importlib
import json
from pathlib import Path

import pytest

from sparkdl.hops.absent_names import INSTEAD
from tests.helpers.signatures import differences

# Written from the source of the tag v2.5.0.0.
TABLE = Path(__file__).parent / "hops_util_py_2_5.json"


def test_functions_have_the_arguments_and_defaults_of_the_tag() -> None:
    assert differences("sparkdl.hops", TABLE, INSTEAD) == []


def test_the_comparison_finds_what_differs(tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text(
        json.dumps(
            {
                "devices": {"get_num_gpus": [["unit"]], "get_names": []},
                "hdfs": {"ls": [["hdfs_path"], ["recursive", True]], "exists": []},
            }
        )
    )
    found = differences("sparkdl.hops", tmp_path / "table.json", {})
    assert [line.split(":")[0] for line in found] == [
        "devices.get_num_gpus",
        "devices.get_names",
        "hdfs.ls",
        "hdfs.exists",
    ]


def test_a_name_that_is_refused_is_not_there_but_in_the_tag() -> None:
    tag = json.loads(TABLE.read_text())
    assert set(INSTEAD[""]) <= set(tag)
    for module, names in INSTEAD.items():
        ours = importlib.import_module(f"sparkdl.hops.{module}".rstrip("."))
        assert not [name for name in names if name in vars(ours)]


@pytest.mark.parametrize(
    ("line", "way_out"),
    [
        ("from sparkdl.hops import tls", "KAFKA_PROPERTIES"),
        ("from sparkdl.hops import featurestore", "hsfs"),
        ("from sparkdl.hops.hdfs import get_fs", "hdfs.open_file"),
        ("from sparkdl.hops.serving import get_predictor", "no predictors"),
        ("from sparkdl.hops.model import download_model", "sparkdl.models.get"),
        ("from sparkdl.hops.experiment import lagom", "grid_search"),
        ("from sparkdl.hops import jbos", "experiment, hdfs"),
    ],
)
def test_import_of_a_missing_name_says_what_to_write(line: str, way_out: str) -> None:
    with pytest.raises(ImportError, match=way_out) as failed:
        exec(line, {})  # noqa: S102
    assert "docs/hopsml.md" in str(failed.value)
    module, _, name = line.removeprefix("from ").partition(" import ")
    # Code that looks for a name finds that it is not there.
    assert not hasattr(importlib.import_module(module), name)
