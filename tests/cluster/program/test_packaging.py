"""The parts of a user's program that travel, and those that must be installed."""

import dataclasses
import functools
import importlib.util
import math
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

from sparkdl.cluster.plan import Plan, Role
from sparkdl.cluster.program import packaging, preloading
from sparkdl.cluster.program.local_modules import install
from sparkdl.cluster.program.packaging import Program, pack
from sparkdl.cluster.program.preloading import find_framework, preloadable
from sparkdl.cluster.start_conditions import start_of
from sparkdl.errors import FunctionError
from tests.cluster.process.test_import_order import end_of


def test_imports_of_the_body_and_of_what_it_refers_to() -> None:
    def helper() -> Any:
        import sklearn.datasets

        return sklearn.datasets

    def train() -> Any:
        from keras import layers

        return layers, helper, math.pi

    train.__module__ = helper.__module__ = "__main__"
    packed = pack(train)
    assert {"keras", "keras.layers", "sklearn.datasets", "math"} <= {*packed.imports}
    assert find_framework(packed.imports) == "tensorflow"
    loaded = preloadable(packed.imports, "tensorflow")
    assert loaded == ("sparkdl.cluster.process.child", "keras", "sklearn", "sklearn.datasets")
    assert "keras.layers" in pack(functools.partial(train)).imports


def test_names_that_only_the_body_of_a_class_uses() -> None:
    def train(x: int) -> Any:
        class Mine:
            limit: "Any" = Path("/") / str(x)

            def step(self, loss: Any = math.pi) -> Any:
                return loss

        return Mine

    for loaded in (cloudpickle.loads(pack(train).function),):
        made = loaded(x=3)
        assert (made.limit, made().step()) == (Path("/3"), math.pi)


def test_whatever_holds_the_reference(local_package: Path) -> None:
    import mine  # type: ignore[import-not-found]

    class Base(mine.Options):
        @staticmethod
        def help() -> Any:
            import tensorflow

            return tensorflow

    class Trainer:
        def __call__(self, x: Any = mine.Options.A) -> Any:
            return [mine.build(i) for i in range(2)]

        def method(self) -> Any:
            return (lambda: mine.build(1))()

    for function in (Trainer(), Trainer().method, Base, functools.partial(Trainer())):
        Base.__module__ = Trainer.__module__ = "__main__"
        packed = pack(function)
        assert "mine.net" in packed.modules, function
    assert "tensorflow" in pack(Base).imports


@pytest.fixture
def local_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "mine"
    package.mkdir()
    options = "class Options:\n    A = 1\n"
    (package / "__init__.py").write_text(f"from .net import build\n\n{options}")
    (package / "net.py").write_text("import json\n\ndef build(x):\n    return json.dumps(x)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("mine", "mine.net"):  # Of the test before.
        sys.modules.pop(name, None)
    return package


def test_local_modules_are_imported_from_memory(
    local_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mine  # type: ignore[import-not-found]

    packed = pack(mine.build)
    assert set(packed.modules) == {"mine", "mine.net"}
    assert "json" in packed.imports
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(local_package.parent)])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in ("mine", "mine.net"):
        monkeypatch.delitem(sys.modules, name)
    (local_package / "net.py").unlink()
    install(packed.modules)
    again = cloudpickle.loads(packed.function)
    assert again is not mine.build
    assert again([1]) == "[1]"
    assert sys.modules["mine.net"].__file__ == str(local_package / "net.py")


def test_relative_import_that_leaves_the_package_is_left_to_python(local_package: Path) -> None:
    with (local_package / "net.py").open("a") as file:
        file.write("\ndef legacy():\n    from ...elsewhere import thing\n    return thing\n")
    import mine

    packed = pack(mine.build)
    assert set(packed.modules) == {"mine", "mine.net"}


def test_a_large_function_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaging, "LARGE_BYTES", 1 << 20)
    small, table = b"x", bytes(2 << 20)

    def train() -> int:
        return len(table) + len(small)

    assert "most of it in 'table'" in (pack(train).warning or "")
    assert "most of it in 'x'" in (pack(functools.partial(print, x=table)).warning or "")
    both = bytes(700 << 10), bytes(701 << 10)
    assert "MiB large; each trial" in (pack(functools.partial(print, *both)).warning or "")
    assert pack(lambda: 0).warning is None


def test_what_cannot_be_pickled_is_named() -> None:
    import threading

    lock = threading.Lock()
    with pytest.raises(FunctionError, match="it uses 'lock', a lock"):
        pack(lambda: lock)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Run the text of a script as `__main__` would be, with modules of its own beside it."""
    for name in ("first_of_mine", "second_of_mine"):
        (tmp_path / f"{name}.py").write_text("def call(x):\n    return x\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(text: str) -> Any:
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(textwrap.dedent(text), names)  # noqa: S102
        return names["train"]

    yield run
    for name in ("first_of_mine", "second_of_mine"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("order", [("first_of_mine", "second_of_mine"), ("second_of_mine", "np")])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_pack_finds_each_module_that_a_function_names(
    script: Callable[[str], Any], order: tuple[str, ...], is_reversed: bool
) -> None:
    first, second = reversed(order) if is_reversed else order
    train = script(
        f"""
        import first_of_mine, second_of_mine
        import numpy as np

        def train(x):
            return {first}.call(x), {second}.call(x)
        """
    )
    packed = pack(train)
    assert set(packed.modules) == {name for name in order if name != "np"}
    assert ("numpy" in packed.imports) is ("np" in order)


def test_pack_finds_the_modules_of_functions_that_a_function_holds(
    script: Callable[[str], Any],
) -> None:
    train = script(
        """
        import first_of_mine, second_of_mine
        import numpy as np

        def helper(x):
            return np.zeros(x), first_of_mine.call(x)

        def other(x):
            def inner():
                import colorsys
                return second_of_mine.call(x), colorsys
            return np.ones(x), inner

        steps = {"a": [helper], "b": lambda x: other(x)}

        def train(x):
            return np, steps["a"], steps["b"](x)
        """
    )
    packed = pack(train)
    assert set(packed.modules) == {"first_of_mine", "second_of_mine"}
    assert {"numpy", "colorsys"} <= {*packed.imports}
    assert "__main__" not in packed.imports


def test_framework_is_found_behind_another_module(
    script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "keras", ModuleType("keras"))  # Keras itself takes seconds.
    train = script(
        """
        import keras
        import numpy as np

        def build():
            return np.zeros(1), keras.Sequential()

        def train(x):
            return np.ones(1), build()
        """
    )
    assert find_framework(pack(train).imports) == "tensorflow"
    assert find_framework(["sparkdl.keras", "numpy"]) == "tensorflow"
    assert find_framework(["kerastuner", "numpy"]) is None


@pytest.mark.parametrize(
    "body",
    [
        'os.environ["KERAS_BACKEND"] = "jax"',
        'os.environ.update(KERAS_BACKEND="jax")',
        "os.environ.update(SETTINGS)",
        "backends.call(1)",
    ],
)
def test_backend_that_the_program_chooses_is_not_fixed_before_it(
    script: Callable[[str], Any], tmp_path: Path, body: str
) -> None:
    """A fork server that has imported Keras has fixed its backend."""
    (tmp_path / "first_of_mine.py").write_text('def call(x):\n    return "KERAS_BACKEND"\n')
    train = script(
        f"""
        import os
        import numpy
        {"import first_of_mine as backends" if "backends" in body else ""}
        SETTINGS = {{"KERAS_BACKEND": "jax"}}

        def train():
            {body}
            import keras
            from sparkdl.keras import Report
            return numpy, keras, Report
        """
    )
    packed = pack(train)
    assert packed.backend_variables({}) == ("KERAS_BACKEND",)
    assert packed.backend_variables({"KERAS_BACKEND": "jax"}) == ()
    assert Program.from_dict(packed.to_dict()).backend_variables({}) == ("KERAS_BACKEND",)
    role = Role(name="worker", count=1)
    plan = Plan(kind="launch", roles=(role,), framework="tensorflow")
    start = start_of(plan, packed, "app")
    assert start.preload == ("sparkdl.cluster.process.child", "numpy")
    assert start.order == ()  # Not the server of runs whose backend is TensorFlow.
    start = start_of(dataclasses.replace(plan, env={"KERAS_BACKEND": "jax"}), packed, "app")
    assert start.order == ("tensorflow",)
    assert {"keras", "sparkdl.keras"} <= set(start.preload)


def test_modules_of_namespace_packages_travel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ours` has an `__init__.py`; `ours.tools` and `theirs` are folders without one."""
    files = {
        "ours/__init__.py": "",
        "ours/tools/scale.py": "from theirs import unit\n\nscale = unit.ONE.__mul__\n",
        "theirs/unit.py": "ONE = 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))

    def train(x: int) -> Any:
        from ours.tools import scale  # type: ignore[import-not-found]

        return scale.scale(x)

    packed = pack(train)
    assert set(packed.modules) == {
        "ours",
        "ours.tools",
        "ours.tools.scale",
        "theirs",
        "theirs.unit",
    }
    assert not {"ours", "theirs"} & {name.partition(".")[0] for name in packed.imports}
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    shutil.rmtree(tmp_path / "ours"), shutil.rmtree(tmp_path / "theirs")
    install(packed.modules)
    try:
        assert train(3) == 3
    finally:
        for name in packed.modules:
            sys.modules.pop(name, None)


LAZY = (
    "def __getattr__(name):\n    if name == 'Trainer':\n        from transformers import trainer\n"
    "        return trainer.Trainer\n    raise AttributeError(name)\n"
)


@pytest.mark.parametrize(
    "body",
    [
        "from transformers import Trainer",
        "import transformers\n    transformers.Trainer",
        'import os\n    os.environ["HF_HOME"] = "/x"\n    from transformers import Trainer',
    ],
)
def test_a_lazy_package_is_imported_with_what_the_program_takes_from_it(
    script: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    folder = tmp_path / "site-packages/transformers"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(LAZY)
    (folder / "trainer.py").write_text("class Trainer:\n    pass\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    packed = pack(script(f"def train():\n    {body}\n"))
    plan = Plan(kind="launch", roles=(Role(name="worker", count=1),))
    start = start_of(plan, packed, "app")
    if "HF_HOME" in body:
        assert packed.hub_variables({}) == ("HF_HOME",)
        assert start.preload == ("sparkdl.cluster.process.child",)
        start = start_of(dataclasses.replace(plan, env={"HF_HOME": "/x"}), packed, "app")
    assert start.preload[1:] == ("transformers", "transformers.Trainer")

    def train() -> bool:
        return "transformers.trainer" in sys.modules

    alone = dataclasses.replace(start, shared=False)
    end = end_of(alone, pack(train), tmp_path)
    assert end.outcome and end.outcome.outputs == {"value": True}


def test_neutral_packages_import_nothing_whose_order_matters() -> None:
    """Their import in a new process draws in none of the packages that are imported in order."""
    ordered = {*preloading._ONLY_TOP, *preloading._WITH_SUBMODULES}
    installed = [name for name in preloading._NEUTRAL if importlib.util.find_spec(name)]
    assert {"cloudpickle", "pytest", "requests", "yaml"} <= {*installed}
    program = f"import sys, {', '.join(installed)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ordered.isdisjoint(done.stdout.split())
