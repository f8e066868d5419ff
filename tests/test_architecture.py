"""The rules of docs/architecture.md: imports, places, sizes, and words of the modules."""

import ast
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "sparkdl"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Each room may import itself and what stands below it.
ROOMS = [
    {"cli"},
    {"hops", "horovod", "mirrored_strategy_runner", "ml", "tfos"},
    {"experiment", "monitoring"},
    {"doctor", "serving", "ui"},
    {"runner", "models", "request_logs"},
    {"callbacks", "inference", "profiles", "search"},
    {"cluster", "keras"},
    {"runs", "data", "tensorboard"},
    {"distribute"},
    {
        *("options", "context", "devices", "late_imports", "os_processes"),
        "tensorboard_server",
    },
    {"reporter", "resources", "identity"},
    {"checkpoints"},
    {"metric_names"},
    {
        "attempts",
        "folders",
        "jsonl",
        "kafka_topic",
        "model_formats",
        "rank_files",
        "tensorflow_noise",
    },
    {"polling"},
    {"storage"},
    {"local_files", "stores"},
    {"config", "spark_ml", "spark_python"},
    {"cuda_visibility", "errors", "loopback", "pickler", "_version"},
]


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports_of(path: Path) -> set[str]:
    """The modules of sparkdl that a file imports, without the `sparkdl.` before them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
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


def ids(path: Path) -> str:
    return name_of(path) or "sparkdl"


@pytest.mark.parametrize("path", MODULES[1:], ids=ids)
def test_imports_go_one_way(path: Path) -> None:
    name = name_of(path)
    for imported in imports_of(path):
        same_room = imported.split(".")[0] == name.split(".")[0]
        assert same_room or level(imported) > level(name), f"{name} imports {imported}"


def test_no_import_cycle() -> None:
    graph = {name_of(p): imports_of(p) for p in MODULES[1:]}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"cycle: {' -> '.join([*path, name])}"
        if name not in done:
            for imported in graph.get(name, ()):
                visit(imported, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_module_says_where_it_runs_and_is_small(path: Path) -> None:
    text = path.read_text()
    doc = ast.get_docstring(ast.parse(text)) or ""
    if path.name != "__init__.py":
        assert doc.startswith("Runs "), path
    assert doc
    assert len(text.splitlines()) <= 400, f"{path} is too long"


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_functions_fit_a_screen_and_there_is_no_global_state(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        assert not isinstance(node, ast.Global), f"{path}:{node.lineno} has a global"
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            assert lines <= 40, f"{path}:{node.lineno} {node.name} has {lines} lines"


# "Return True if ..." says more than "Whether ...".
NO_BEGINNING = re.compile(r"(What|Whether|Who|Where|See that)\b")


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_docstrings_begin_with_a_verb_or_a_noun(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            doc = ast.get_docstring(node) or ""
            if isinstance(node, ast.Module):
                doc = re.sub(r"^Runs [^.]*\.\s*", "", doc)
            assert not NO_BEGINNING.match(doc), f"{path}: {doc.splitlines()[0]}"


# The kind of a run is a label. What runs of different kinds differ in is a value of their plan.
KIND_COMPARED = re.compile(
    r"\b_?(run|plan|request|me|context|current\(\))\.kind\s*(==|!=|in\b|not\b)"
)
KIND_IS_A_LABEL = {"runner", "search", "cluster", "distribute", "data", "runs"}


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_no_room_compares_the_kind_of_a_run(path: Path) -> None:
    if name_of(path).split(".")[0] in KIND_IS_A_LABEL:
        assert not KIND_COMPARED.search(path.read_text()), path


@pytest.mark.parametrize("path", MODULES[1:], ids=ids)
@pytest.mark.parametrize(("room", "words"), [("hops", r"\bhops\b"), ("tfos", "tfos")])
def test_no_room_below_these_names_them(path: Path, room: str, words: str) -> None:
    if name_of(path).split(".")[0] != room:
        assert not re.search(words, path.read_text()), path


# Spark Connect has no SparkContext and no Java objects. Users of TensorFlowOnSpark pass their own.
JAVA_NAMES = re.compile(
    r"_sc|_jsc|_jvm|_jdf|_j\w+_?[sS]ession|_active_spark_context|[sS]parkContext"
)


@pytest.mark.parametrize("path", MODULES[1:], ids=ids)
def test_one_module_uses_the_spark_context(path: Path) -> None:
    if name_of(path) in ("cluster.spark_context", "spark_python"):
        return
    if name_of(path).startswith("tfos."):
        return
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]  # As in `getattr(spark, "_sc", None)`.
        used = [name for name in names if JAVA_NAMES.fullmatch(name)]
        assert not used, f"{path}:{node.lineno} uses {used[0]}; see cluster/spark_context.py"


@pytest.mark.parametrize("path", MODULES[1:], ids=ids)
def test_jobs_of_a_users_session_run_a_python_with_sparkdl(path: Path) -> None:
    if name_of(path) in ("cluster.spark", "spark_python"):
        return
    nodes = ast.walk(ast.parse(path.read_text()))
    used = [node.lineno for node in nodes if getattr(node, "attr", "") == "mapInArrow"]
    assert not used, f"{path}:{used[0]} uses mapInArrow; see spark_python.py"


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_import_is_light() -> None:
    done = run_python(
        "import sparkdl, sys; print([m for m in ('tensorflow', 'keras', 'pyspark', 'pandas') "
        "if m in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stderr


# These are made of what Keras, TensorFlow and PyTorch have.
FRAMEWORK = ("keras", "horovod.keras", "horovod.tensorflow", "horovod.torch")


def test_driver_and_task_modules_need_no_framework() -> None:
    names = [f"sparkdl.{name_of(p)}" for p in MODULES[1:] if not name_of(p).startswith(FRAMEWORK)]
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
    assert "sparkdl.horovod.torch needs PyTorch" in done.stderr
    assert "pip install torch" in done.stderr


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_the_interface_for_pytorch_loads_no_other_framework() -> None:
    done = run_python(
        "import sparkdl.horovod.torch, sys\n"
        "print([m for m in ('tensorflow', 'keras', 'pyspark') if m in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stderr
