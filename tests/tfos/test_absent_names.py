"""The interface of TensorFlowOnSpark 2.2.5: a name is here, or its error says what to write."""

from pathlib import Path

import pytest

from sparkdl.tfos.absent_names import INSTEAD
from tests.helpers.signatures import differences

# Written from the source of the tag v2.2.5.
TABLE = Path(__file__).parent / "tensorflowonspark_2_2_5.json"

# Classes that only say what replaces them.
REFUSED = {"reservation": dict.fromkeys(("Client", "Server"), "raises NotImplementedError")}


def test_functions_have_the_arguments_and_defaults_of_the_tag() -> None:
    refused = {module: {**names} for module, names in INSTEAD.items()}
    for module, names in REFUSED.items():
        refused[module] |= names
    assert differences("sparkdl.tfos", TABLE, refused) == []


@pytest.mark.parametrize(
    ("line", "way_out"),
    [
        ("from sparkdl.tfos.TFSparkNode import run", "TFCluster.run"),
        ("from sparkdl.tfos.reservation import Reservations", "ctx.cluster_spec"),
        ("from sparkdl.tfos.TFNode import DataFeeder", "DataFeed,"),
        ("from sparkdl.tfos import TFClusters", "TFCluster,"),
    ],
)
def test_import_of_a_missing_name_says_what_to_write(line: str, way_out: str) -> None:
    with pytest.raises(ImportError, match=way_out) as failed:
        exec(line, {})  # noqa: S102
    assert "docs/tensorflowonspark.md" in str(failed.value)
