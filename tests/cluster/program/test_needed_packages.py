"""The packages that a function needs in every call; the oracle is a call with them blocked."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkdl import data, distribute
from sparkdl.cluster.program.needed_packages import first_imports, needed_packages
from sparkdl.cluster.program.packaging import pack
from sparkdl.errors import MissingPackageError
from sparkdl.training.script import Script

ROWS: Any = None  # What the functions below use is never made.


def imports() -> None:
    import tensorflow  # noqa: F401


def imports_a_part() -> None:
    from torch import nn  # noqa: F401


def imports_late(size: int = 3) -> int:
    total = sum(range(size))
    for _ in range(size):
        total += 1
    import jax  # noqa: F401

    return total


def imports_in_a_block() -> None:
    with open("/dev/null"):
        import keras  # noqa: F401


def uses_callbacks() -> None:
    from sparkdl.keras import Checkpoint  # noqa: F401


def uses_horovod() -> None:
    import sparkdl.horovod.torch as hvd  # noqa: F401


def builds_a_model() -> None:
    with distribute.strategy().scope():
        pass


def uses_a_name() -> None:
    from sparkdl.distribute import strategy as chosen

    chosen()


def reads_images() -> None:
    data.images("/nowhere", size=(2, 2), batch_size_per_worker=1)


NEEDS = {
    imports: "tensorflow",
    imports_a_part: "torch",
    imports_late: "jax",
    imports_in_a_block: "keras",
    uses_callbacks: "keras",
    uses_horovod: "torch",
    builds_a_model: "tensorflow",
    uses_a_name: "tensorflow",
    reads_images: "tensorflow",
}


def caught() -> None:
    try:
        import tensorflow  # noqa: F401
    except ImportError:
        pass


def suppressed() -> None:
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401


def in_a_branch(framework: str = "") -> None:
    if framework == "torch":
        import torch  # noqa: F401


def after_a_return(early: bool = True) -> None:
    if early:
        return
    import jax  # noqa: F401


def in_an_inner_function() -> Callable[[], None]:
    def inner() -> None:
        import keras  # noqa: F401

    return inner


def chosen_by_a_condition() -> Any:
    return distribute.strategy() if len("") else None


def only_imports_a_name() -> None:
    from sparkdl.distribute import strategy  # noqa: F401


def needs_nothing() -> list[int]:
    return [len(str(item)) for item in (1, 2)]


NEEDS_NOT = [
    caught,
    suppressed,
    in_a_branch,
    after_a_return,
    in_an_inner_function,
    chosen_by_a_condition,
    only_imports_a_name,
    needs_nothing,
]


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorflow", "keras", "torch", "jax"):
        for module in [name, *(m for m in sys.modules if m.startswith(f"{name}."))]:
            monkeypatch.setitem(sys.modules, module, None)
    for module in ("sparkdl.keras", "sparkdl.horovod.torch"):
        monkeypatch.delitem(sys.modules, module, raising=False)


@pytest.mark.parametrize(
    ("function", "package"), NEEDS.items(), ids=lambda p: getattr(p, "__name__", p)
)
def test_a_function_that_fails_without_a_package_is_refused(
    function: Callable[[], Any], package: str, blocked: None
) -> None:
    with pytest.raises(ImportError):
        function()
    assert list(needed_packages(function)) == [package]
    extra = "torch" if package == "torch" else "jax" if package == "jax" else "tensorflow"
    program = pack(function)
    with pytest.raises(MissingPackageError, match=rf"'sparkdl-platform\[{extra}\]'"):
        program.check_packages()
    assert package in program.imports  # The preflight asks executors of another environment.


@pytest.mark.parametrize("function", NEEDS_NOT, ids=lambda f: str(f.__name__))
def test_a_function_that_runs_without_packages_is_packed(
    function: Callable[[], Any], blocked: None
) -> None:
    function()
    assert needed_packages(function) == {}
    pack(function).check_packages()


def test_methods_of_rows_are_known() -> None:
    def trains() -> None:
        for _ in ROWS.map(len).as_torch():
            pass

    def sums() -> float:
        return sum(1.0 for _ in ROWS.as_jax(prefetch=2))

    assert needed_packages(trains) == {"torch": "as_torch()"}
    assert needed_packages(sums) == {"jax": "as_jax()"}
    assert needed_packages(lambda: ROWS.as_torch()) == {}
    assert needed_packages(print) == {}


def imports_then_installs() -> None:
    """Train."""
    import json

    import lightgbm.sklearn  # type: ignore[import-not-found]
    from catboost import Pool  # type: ignore[import-not-found]

    json.dumps([lightgbm, Pool])
    import installed_meanwhile  # type: ignore[import-not-found] # noqa: F401


def test_only_imports_before_all_else_are_sure_to_fail() -> None:
    assert first_imports(imports_then_installs) == ["json", "lightgbm", "catboost"]
    assert first_imports(print) == []
    imports = pack(imports_then_installs).imports
    assert {"lightgbm", "catboost"} <= set(imports)
    assert "installed_meanwhile" not in imports


def test_imports_of_a_script_are_found_like_those_of_a_function(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import lightgbm\n")
    path = tmp_path / "train.py"
    path.write_text(
        '"""Trains."""\nimport json\nimport beside\nimport catboost\nimport torch\n'
        "json.dumps(beside)\nimport later\n"
    )
    script = Script.read(path, [])
    assert first_imports(script) == ["json", "beside", "catboost", "torch"]
    assert needed_packages(script) == {}
    program = pack(script)
    assert {"catboost", "torch"} <= set(program.imports)
    assert {"beside", "later"}.isdisjoint(program.imports)
    assert "beside" in program.modules
