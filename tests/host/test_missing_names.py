"""An import of a module that a package does not have says what to write in its place."""

import importlib.util

import pytest

from sparkdl.hops.absent_names import INSTEAD

PAGES = {"hops": "hopsml", "maggy": "maggy", "tfos": "tensorflowonspark", "horovod": "horovod"}
# Modules of hops-util-py 2.5, maggy 1.1 and Horovod 0.28, and one of each that nobody has.
ABSENT = [
    *(f"hops.{name}" for name in sorted(INSTEAD[""])),
    *(f"maggy.{name}" for name in ("util", "trial", "pruner", "constants", "pruner.hyperband")),
    *("horovod.runner.launch", "horovod.spark.driver", "hops.jbos", "maggy.jbos", "tfos.jbos"),
]


@pytest.mark.parametrize("module", ABSENT)
def test_import_by_a_dotted_name_says_what_to_write(module: str) -> None:
    page = PAGES[module.partition(".")[0]]
    with pytest.raises(ModuleNotFoundError, match=rf"See docs/{page}\.md") as failed:
        exec(f"import sparkdl.{module}", {})  # noqa: S102
    parent, _, name = (failed.value.name or "").rpartition(".")
    assert f"sparkdl.{module}.".startswith(f"{parent}.{name}.")
    # Tests of each package say what this statement is to tell.
    with pytest.raises(ImportError) as of_from:
        exec(f"from {parent} import {name}", {})  # noqa: S102
    assert str(failed.value) == str(of_from.value)


def test_modules_that_are_there_are_found_as_before() -> None:
    assert importlib.util.find_spec("sparkdl.hops.hdfs") is not None
    # A package whose names have no advice.
    with pytest.raises(ModuleNotFoundError, match=r"^No module named"):
        exec("import sparkdl.host.jbos", {})  # noqa: S102
