"""SECURITY.md: its tests exist, and what it says of all modules holds."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
MODULES = sorted((REPOSITORY / "sparkdl").rglob("*.py"))
PAGE = (REPOSITORY / "SECURITY.md").read_text()

# What each module unpickles was written by the same user, or by an executor of the application.
UNPICKLE = {
    "cluster/process/child.py": "the function of the user, from the task",
    "cluster/process/preload_call.py": "the same",
    "cluster/spark_broadcasts.py": "broadcasts of Spark",
    "data/readers/petastorm/materialize.py": "the schema of a dataset, which is a pickle",
    "databricks/local_ranks.py": "the function of the user, from the parent process",
    "horovod/torch/objects.py": "objects of other ranks",
    "inference/function_model.py": "the function of the user, from the driver",
    "inference/model_cache.py": "classes of the user, from the driver",
    "inference/torch_model.py": "a module of PyTorch, from the driver",
    "ml/keras_training.py": "classes of the user, from the driver",
    "runner/again/one_trial.py": "the function of a run that is reproduced",
    "runner/loop/conclusion.py": "an exception, from an executor",
    "runner/pipeline/kept_program.py": "the space of a run that is resumed",
    "serving/channel.py": "calls between a model server and its own workers",
    "serving/worker.py": "the settings of the server, from it",
    "tfos/feed/inbox.py": "rows, from a task of the same user",
    "tfos/feed/task.py": "results, from the node of the same user",
    "tfos/ml/persistence.py": "functions of a saved stage",
}
SECRET = re.compile(r"(^|_)(token|secret|proof|password)$")


def calls(path: Path) -> Iterator[str]:
    """The dotted names of the functions that a module calls."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


def name_of(path: Path) -> str:
    return path.relative_to(REPOSITORY / "sparkdl").as_posix()


def test_each_threat_names_tests_that_exist() -> None:
    part = PAGE[PAGE.index("## Threats and their tests") : PAGE.index("## What is not protected")]
    rows = [line for line in part.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 30
    texts = [path.read_text() for path in (REPOSITORY / "tests").rglob("test_*.py")]
    existing = {name for text in texts for name in re.findall(r"^def (test_\w+)", text, re.M)}
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named, f"no test is named: {row}"
        assert not {*named} - existing, row


@pytest.mark.parametrize("heading", re.findall(r"^## (.+)$", PAGE, re.MULTILINE))
def test_each_section_is_in_the_list(heading: str) -> None:
    assert f"- [{heading}](#{heading.lower().replace(' ', '-')})" in PAGE


def test_pickles_are_read_in_known_modules_only() -> None:
    found = set()
    for path in MODULES:
        names = {call.rsplit(".", 1)[-1]: call for call in calls(path)}
        loads = [names.get(name, "") for name in ("load", "loads")]
        is_pickle = any("pickle" in name for name in loads) or "Unpickler" in names
        if is_pickle or "allow_pickle=True" in path.read_text():
            found.add(name_of(path))
    assert found == UNPICKLE.keys()


def test_no_archive_is_unpacked() -> None:
    unpacking = {"extractall", "extract", "unpack_archive"}
    for path in MODULES:
        assert "tarfile" not in path.read_text(), name_of(path)
        found = [call for call in calls(path) if call.rsplit(".", 1)[-1] in unpacking]
        assert found == [], name_of(path)


def test_no_secret_is_compared_by_its_operators() -> None:
    """`==` ends at the first letter that differs; `hmac.compare_digest` does not."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
                sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
                assert not [side for side in sides if SECRET.search(side)], (name_of(path), sides)
