"""Runs on the driver (pure). Find the packages that a function or script needs.

Only statements that every call runs are considered, up to the first branch that may leave the
function: an import in a branch, or one whose failure is caught, may never be needed.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

from sparkdl.host.optional_packages import EXTRAS
from sparkdl.training.script import Script

# Packages behind names of sparkdl, and behind methods of the rows of its readers.
_NAMES = {
    "sparkdl.data.images": "tensorflow",
    "sparkdl.distribute.strategy": "tensorflow",
    "sparkdl.horovod.keras": "tensorflow",
    "sparkdl.horovod.tensorflow": "tensorflow",
    "sparkdl.horovod.torch": "torch",
    "sparkdl.huggingface": "transformers",
    "sparkdl.keras": "keras",
    "sparkdl.lightning": "lightning",
}
# The import of these needs nothing, but each call does.
_FUNCTIONS = ("sparkdl.data.images", "sparkdl.distribute.strategy")
_METHODS = {"as_torch": "torch", "as_jax": "jax"}

# Statements with blocks that may not run.
_BRANCHES = (ast.If, ast.For, ast.While, ast.Try, ast.Match, ast.AsyncFor)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_LEAVING = (ast.Return, ast.Raise)


def first_imports(function: Callable[..., Any]) -> list[str]:
    """Return the top-level modules that a function or script imports before anything else.

    What comes later may have changed `sys.path`, or have installed the module.

    Example:
        >>> def train():
        ...     import numpy as np
        >>> first_imports(train)  # doctest: +SKIP
        ['numpy']
    """
    names: list[str] = []
    for statement in _statements(_inner(function)):
        if isinstance(statement, ast.Import):
            names += [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and not statement.level:
            names.append(statement.module or "")
        elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            break
    return list(dict.fromkeys(name.partition(".")[0] for name in names))


def needed_packages(function: Callable[..., Any]) -> dict[str, str]:
    """Return the optional packages without which every call of a function fails.

    Args:
        function: the function; nothing is found in a script, or where the source is unknown.

    Returns:
        What needs a package, as the function names it, by the top-level module of the package.

    Example:
        >>> def train():
        ...     import tensorflow as tf
        ...     import torch
        >>> needed_packages(train)  # doctest: +SKIP
        {'tensorflow': 'import tensorflow', 'torch': 'import torch'}
    """
    inner = _inner(function)
    if isinstance(inner, Script):
        return {}  # It may exit, or find packages on a path of its own, before it imports them.
    names = getattr(inner, "__globals__", {})
    modules = {n: v.__name__ for n, v in names.items() if isinstance(v, ModuleType)}
    users: dict[str, str] = {}
    for node in _certain(_statements(inner)):
        for package, user in _needs(node, modules):
            users.setdefault(package, user)
    return users


def _inner(function: Callable[..., Any]) -> Any:
    return inspect.unwrap(getattr(function, "func", function))


def _statements(inner: Any) -> list[ast.stmt]:
    """Return what a function or a script does; nothing if its source is unknown."""
    try:
        if isinstance(inner, Script):
            return ast.parse(inner.source).body
        if not isinstance(inner, FunctionType):
            return []
        first = ast.parse(textwrap.dedent(inspect.getsource(inner))).body[0]
    except (OSError, TypeError, SyntaxError):
        return []
    return first.body if isinstance(first, ast.FunctionDef) else []


def _needs(node: ast.AST, modules: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield packages and what needs them; add the names that an import defines to `modules`."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.partition(".")[0]
            modules[alias.asname or top] = alias.name if alias.asname else top
            yield from _behind(alias.name, f"import {alias.name}")
    elif isinstance(node, ast.ImportFrom) and not node.level:
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            modules[alias.asname or alias.name] = full
            yield from _behind(full, f"from {node.module} import {alias.name}")
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
        if isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
            yield _METHODS[node.func.attr], f"{node.func.attr}()"
        yield from _behind(_full_name(node.func, modules), f"{ast.unparse(node.func)}()")


def _behind(full: str, user: str) -> Iterator[tuple[str, str]]:
    top = full.partition(".")[0]
    if top in EXTRAS:
        yield top, user
    for name, package in _NAMES.items():
        is_called = user.endswith("()") or name not in _FUNCTIONS
        if f"{full}.".startswith(f"{name}.") and is_called:
            yield package, user


def _full_name(node: ast.expr, modules: Mapping[str, str]) -> str:
    """Return the dotted name of an expression such as `data.images`; empty for any other."""
    if isinstance(node, ast.Name):
        return modules.get(node.id, "")
    if isinstance(node, ast.Attribute) and (base := _full_name(node.value, modules)):
        return f"{base}.{node.attr}"
    return ""


def _certain(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the nodes of a body that each call reaches, in order."""
    for statement in body:
        if isinstance(statement, ast.With):
            for item in statement.items:
                yield from _evaluated(item.context_expr)
            if "suppress" in ast.unparse(statement.items[0]):
                continue
            yield from _certain(statement.body)
        elif isinstance(statement, _BRANCHES):
            first = getattr(statement, "iter", None) or getattr(statement, "test", None)
            if first is not None:
                yield from _evaluated(first)
        elif not isinstance(statement, _DEFINITIONS):
            yield from _evaluated(statement)
        if any(isinstance(node, _LEAVING) for node in ast.walk(statement)):
            return


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and its parts that are evaluated whenever the node is."""
    yield node
    if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        yield from _evaluated(node.generators[0].iter)
    elif isinstance(node, ast.IfExp):
        yield from _evaluated(node.test)
    elif isinstance(node, ast.BoolOp):
        yield from _evaluated(node.values[0])
    elif not isinstance(node, _DEFINITIONS):
        for child in ast.iter_child_nodes(node):
            yield from _evaluated(child)
