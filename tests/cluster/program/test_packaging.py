"""The parts of a user's program that travel, and those that must be installed."""

import functools
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from sparkdl.cluster.program import packaging
from sparkdl.cluster.program.local_modules import install
from sparkdl.cluster.program.packaging import find_framework, pack, preloadable
from sparkdl.errors import FunctionError


def test_imports_of_the_body_and_of_what_it_refers_to() -> None:
    def helper() -> Any:
        import sklearn.datasets

        return sklearn.datasets

    def train() -> Any:
        from keras import layers

        return layers, helper, math.pi

    train.__module__ = helper.__module__ = "__main__"
    packed = pack(train)
    assert {"keras", "keras.layers", "sklearn.datasets", "math"} <= packed.imports
    assert find_framework(packed.imports) == "tensorflow"
    loaded = preloadable(packed.imports, "tensorflow")
    assert loaded[:2] == ("sparkdl.cluster.process.child", "tensorflow")
    assert "sklearn.datasets" in loaded
    assert "math" not in loaded
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
def local_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    package = tmp_path / "mine"
    package.mkdir()
    options = "class Options:\n    A = 1\n"
    (package / "__init__.py").write_text(f"from .net import build\n\n{options}")
    (package / "net.py").write_text("import json\n\ndef build(x):\n    return json.dumps(x)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield package
    for name in ("mine", "mine.net"):
        sys.modules.pop(name, None)


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


def test_a_large_function_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaging, "LARGE_BYTES", 1 << 20)
    small, table = b"x", bytes(2 << 20)

    def train() -> int:
        return len(table) + len(small)

    assert "most of it in 'table'" in (pack(train).warning or "")
    assert pack(lambda: 0).warning is None


def test_what_cannot_be_pickled_is_named() -> None:
    import threading

    lock = threading.Lock()
    with pytest.raises(FunctionError, match="it uses 'lock', a lock"):
        pack(lambda: lock)
