"""The rules of docs/architecture.md: imports, places, sizes, and words of the modules."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).parents[1] / "sparkdl"
MODULES = sorted(PACKAGE.rglob("*.py"))
Nodes = dict[Path, list[Any]]

# Each room may import itself and what stands below it.
ROOMS = [
    {"cli"},
    {"hops", "horovod", "maggy", "mirrored_strategy_runner", "tfos"},
    {"databricks"},
    {"ml"},
    {"experiment", "monitoring"},
    {"doctor", "serving", "ui"},
    {"runner", "models"},
    {"board"},
    {"callbacks", "inference", "profiles", "search"},
    {"cluster", "huggingface", "keras", "lightning"},
    {"runs", "data", "tensorboard"},
    {"distribute"},
    {"options", "context", "devices"},
    {"checkpoints"},
    {"training"},
    {"files", "secrets"},
    {"config", "spark"},
    {"host"},
    {"errors", "_version"},
]


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


@pytest.fixture(scope="module")
def nodes() -> Nodes:
    """All nodes of each module, itself first; parsed once for all rules."""
    return {path: list(ast.walk(ast.parse(path.read_text()))) for path in MODULES}


def imports_of(nodes: Iterable[Any]) -> set[str]:
    """The modules of sparkdl that a file imports, without the `sparkdl.` before them."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sparkdl"):
            for alias in node.names:
                parts = [*(node.module or "").split(".")[1:], alias.name]
                is_module = PACKAGE.joinpath(*parts).with_suffix(".py").exists()
                found.add(".".join(parts if is_module else parts[:-1] or parts))
        elif isinstance(node, ast.Import):
            names = (alias.name for alias in node.names)
            found |= {
                name.removeprefix("sparkdl.") for name in names if name.startswith("sparkdl.")
            }
        elif isinstance(node, ast.Call) and (name := imported_by_call(node)):
            found.add(name)
    return found


def imported_by_call(node: ast.Call) -> str:
    """The module of sparkdl that `import_module("sparkdl.x")` or `__import__` imports, else ""."""
    called = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if called not in ("import_module", "__import__") or not node.args:
        return ""
    text = getattr(node.args[0], "value", "")
    is_ours = isinstance(text, str) and text.startswith("sparkdl.")
    return text.removeprefix("sparkdl.") if is_ours else ""


def level(name: str) -> int:
    room = name.split(".")[0]
    return next(i for i, rooms in enumerate(ROOMS) if room in rooms)


def test_imports_go_one_way(nodes: Nodes) -> None:
    found = []
    for path in MODULES[1:]:
        name = name_of(path)
        for imported in imports_of(nodes[path]):
            same_room = imported.split(".")[0] == name.split(".")[0]
            if not same_room and level(imported) <= level(name):
                found.append(f"{name} imports {imported}")
    assert not found


def test_no_import_cycle(nodes: Nodes) -> None:
    graph = {name_of(p): imports_of(nodes[p]) for p in MODULES[1:]}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"cycle: {' -> '.join([*path, name])}"
        if name not in done:
            for imported in graph.get(name, ()):
                visit(imported, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


# Folders of a room that import each other.
CIRCLES = {
    ("data.readers", "data.tfexample"),
    ("tfos.cluster", "tfos.feed"),
    ("tfos.cluster", "tfos.node"),
}


def folder_of(name: str) -> str:
    """The folder within a room, such as `runner.loop`; "" for a module beside the folders."""
    room, *rest = name.split(".")
    is_folder = rest and PACKAGE.joinpath(room, rest[0]).is_dir()
    return f"{room}.{rest[0]}" if is_folder else ""


def test_folders_of_a_room_do_not_import_each_other(nodes: Nodes) -> None:
    arrows = set()
    for path in MODULES[1:]:
        folder = folder_of(name_of(path))
        others = {folder_of(name) for name in imports_of(nodes[path])} - {folder, ""}
        arrows |= {(folder, other) for other in others if folder}
    circles = {(a, b) for a, b in arrows if a < b and a.split(".")[0] == b.split(".")[0]}
    assert {(a, b) for a, b in circles if (b, a) in arrows} == CIRCLES


def test_module_says_where_it_runs(nodes: Nodes) -> None:
    docs = {path: ast.get_docstring(nodes[path][0]) or "" for path in MODULES}
    assert [path for path, doc in docs.items() if not doc] == []
    modules = [path for path in MODULES if path.name != "__init__.py"]
    assert [path for path in modules if not docs[path].startswith("Runs ")] == []


# A longer module, or function, is a question: is it one subject? If it is, it is listed here with
# the reason, and stays whole.
MODULE_LINES, FUNCTION_LINES = 400, 40
LONG_MODULES = {
    "runs.run": "one class, which users hold: its values, its events, its control, its files",
    "runs.events": "the list of all events of a journal",
}
LONG_FUNCTIONS = {
    "runner.loop.assembly.make_loop": "one line for each part of the loop, by keyword"
}


def long_functions(path: Path, nodes: Iterable[Any]) -> dict[str, int]:
    """The functions of a module whose bodies are long, with their lines."""
    lengths = {}
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            if lines > FUNCTION_LINES:
                lengths[f"{name_of(path)}.{node.name}"] = lines
    return lengths


def test_long_modules_and_functions_are_listed_with_a_reason(nodes: Nodes) -> None:
    modules = {name_of(path): len(path.read_text().splitlines()) for path in MODULES}
    long = {name: lines for name, lines in modules.items() if lines > MODULE_LINES}
    functions = {name: n for p in MODULES for name, n in long_functions(p, nodes[p]).items()}
    assert long.keys() == LONG_MODULES.keys(), f"split these, or list them with a reason: {long}"
    assert functions.keys() == LONG_FUNCTIONS.keys(), f"split these, or list them: {functions}"


def test_there_is_no_global_state(nodes: Nodes) -> None:
    found = [
        f"{path}:{node.lineno} has a global"
        for path in MODULES
        for node in nodes[path]
        if isinstance(node, ast.Global)
    ]
    assert not found


# "Return True if ..." says more than "Whether ...".
NO_BEGINNING = re.compile(r"(What|Whether|Who|Where|See that)\b")


def test_docstrings_begin_with_a_verb_or_a_noun(nodes: Nodes) -> None:
    found = []
    for path in MODULES:
        for node in nodes[path]:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                doc = ast.get_docstring(node) or ""
                if isinstance(node, ast.Module):
                    doc = re.sub(r"^Runs [^.]*\.\s*", "", doc)
                if NO_BEGINNING.match(doc):
                    found.append(f"{path}: {doc.splitlines()[0]}")
    assert not found


# The kind of a run is a label. What runs of different kinds differ in is a value of their plan.
KIND_COMPARED = re.compile(
    r"\b_?((run|plan|request|me|context|current\(\))\.kind|description\[.kind.\])"
    r"\s*(==|!=|in\b|not\b)"
)
KIND_IS_A_LABEL = {"runner", "search", "cluster", "distribute", "data", "runs"}


def test_no_room_compares_the_kind_of_a_run() -> None:
    modules = [path for path in MODULES if name_of(path).split(".")[0] in KIND_IS_A_LABEL]
    assert [path for path in modules if KIND_COMPARED.search(path.read_text())] == []


@pytest.mark.parametrize(("room", "words"), [("hops", r"\bhops\b"), ("tfos", "tfos")])
def test_no_room_below_these_names_them(room: str, words: str) -> None:
    modules = [path for path in MODULES[1:] if name_of(path).split(".")[0] != room]
    assert [path for path in modules if re.search(words, path.read_text())] == []


def test_a_logger_has_the_name_of_its_room() -> None:
    found = []
    for path in MODULES[1:]:
        room = name_of(path).split(".")[0]
        for name in re.findall(r"^_logger = logging.getLogger\((.*)\)", path.read_text(), re.M):
            if name != f'"sparkdl.{room}"':
                found.append(f"{path}: {name}")
    assert not found


# Spark Connect has no SparkContext and no Java objects. Users of TensorFlowOnSpark pass their own.
JAVA_NAMES = re.compile(
    r"_sc|_jsc|_jvm|_jdf|_j\w+_?[sS]ession|_active_spark_context|[sS]parkContext"
)


def names_in(node: ast.AST) -> list[str]:
    """The names that a node reads or imports, or has as a text."""
    if isinstance(node, ast.Attribute):
        return [node.attr]
    if isinstance(node, ast.ImportFrom):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]  # As in `getattr(spark, "_sc", None)`.
    return []


def test_one_module_uses_the_spark_context(nodes: Nodes) -> None:
    found = []
    for path in MODULES[1:]:
        name = name_of(path)
        if name in (
            "cluster.spark_context",
            "spark.capabilities",
            "spark.python",
        ) or name.startswith("tfos."):
            continue
        for node in nodes[path]:
            used = [text for text in names_in(node) if JAVA_NAMES.fullmatch(text)]
            found += [f"{path}:{node.lineno} uses {text}" for text in used]
    assert not found, "see cluster/spark_context.py"


def test_jobs_of_a_users_session_run_a_python_with_sparkdl(nodes: Nodes) -> None:
    found = [
        f"{path}:{node.lineno} uses mapInArrow"
        for path in MODULES[1:]
        if name_of(path) not in ("spark.capabilities", "spark.python")
        for node in nodes[path]
        if getattr(node, "attr", "") == "mapInArrow"
    ]
    assert not found, "see spark/python.py"


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_import_is_light() -> None:
    done = run_python(
        "import sparkdl, sys; print([m for m in ('tensorflow', 'keras', 'pyspark', 'pandas') "
        "if m in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stderr


# These are made of what Keras, TensorFlow and PyTorch have.
FRAMEWORK = (
    *("keras", "horovod.keras", "horovod.tensorflow", "horovod.torch"),
    *("databricks.log_callback", "huggingface", "lightning", "maggy.callbacks"),
)
# These are other modules under another name, or raise an error.
OTHER_NAMES = "databricks.names"


def test_driver_and_task_modules_need_no_framework() -> None:
    not_here = (*FRAMEWORK, OTHER_NAMES)
    names = [f"sparkdl.{name_of(p)}" for p in MODULES[1:] if not name_of(p).startswith(not_here)]
    done = run_python(
        "import sys\n"
        "for name in ('tensorflow', 'keras', 'torch', 'jax'): sys.modules[name] = None\n"
        "import importlib\n"
        f"for name in {[n.removesuffix('.') for n in names]!r}: importlib.import_module(name)"
    )
    assert done.returncode == 0, done.stderr


def test_task_side_imports_no_driver_room() -> None:
    """Executors load little: no optuna, no tqdm, no pandas."""
    done = run_python(
        "import sparkdl.cluster.process.fork_server, sys\n"
        "heavy = {'numpy', 'pandas', 'pyspark', 'pyarrow', 'fsspec', 'cloudpickle'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_the_interface_for_pytorch_tells_how_to_install_it() -> None:
    done = run_python("import sys; sys.modules['torch'] = None; import sparkdl.horovod.torch")
    assert done.returncode == 1
    assert "sparkdl.horovod.torch needs the package torch" in done.stderr
    assert "'sparkdl-platform[torch]'" in done.stderr


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_the_interface_for_pytorch_loads_no_other_framework() -> None:
    done = run_python(
        "import sparkdl.horovod.torch, sys\n"
        "print([m for m in ('tensorflow', 'keras', 'pyspark') if m in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stderr
