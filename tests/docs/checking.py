"""Check calls in the documentation against the signatures of the functions that they name."""

import ast
import builtins
import contextlib
import importlib
import importlib.util
import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from tests.docs.names import MODULES

__all__ = ["Checker", "is_about", "parse_span"]

BUILTINS = frozenset(dir(builtins))
# Programs in the pages use them; they need not be installed.
OPTIONAL = ("lightning", "peft", "torch", "transformers")
_FILE = re.compile(r"[\w/]+\.(json|jsonl|py|md|txt|html|yaml|keras)")


@contextlib.contextmanager
def _optional() -> Iterator[None]:
    """Leave the block where it needs a package that need not be installed."""
    try:
        yield
    except ModuleNotFoundError as exc:
        if exc.name not in OPTIONAL:
            raise


class Instance:
    """Some object of a class."""

    def __init__(self, kind: type) -> None:
        self.kind = kind


UNKNOWN = object()


def parse_span(text: str) -> list[ast.expr]:
    """Return the expressions in a piece of code, such as `run.pause(), unpause()`; else nothing."""
    if _FILE.fullmatch(text):
        return []
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        return []
    return list(tree.elts) if isinstance(tree, ast.Tuple) else [tree]


def is_about(expression: ast.expr, names: Mapping[str, Any]) -> bool:
    """Return True if an expression begins with one of these names, and goes on with a dot."""
    node, depth = expression, 0
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        depth += isinstance(node, ast.Attribute)
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and node.id in names and depth > 0


class Checker:
    """Finds names, attributes and arguments that do not exist.

    Args:
        introduced: the names that the surrounding text introduces, with a class, a module or None.
    """

    def __init__(self, introduced: Mapping[str, Any]) -> None:
        self.names: dict[str, Any] = {
            name: Instance(kind) if isinstance(kind, type) else UNKNOWN if kind is None else kind
            for name, kind in introduced.items()
        }
        self.problems: list[str] = []

    def check_block(self, text: str) -> None:
        """Check the statements of a block; what it defines is known to later blocks."""
        tree = ast.parse(text)
        self.names |= dict.fromkeys(_defined(tree), UNKNOWN)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node)
        for node in tree.body:
            self._learn_class(node)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                if node.id not in self.names and node.id not in BUILTINS:
                    self.problems.append(f"{node.id} is not defined")
            elif isinstance(node, ast.Attribute | ast.Call):
                self.value_of(node)
        self.problems = list(dict.fromkeys(self.problems))

    def value_of(self, node: ast.expr) -> Any:
        """Return the object that an expression names, an `Instance`, or UNKNOWN."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, UNKNOWN)
        if isinstance(node, ast.Attribute):
            return self._attribute(self.value_of(node.value), node)
        if isinstance(node, ast.Call):
            return self._call(self.value_of(node.func), node)
        return UNKNOWN

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.split(".")[0]
            module = node.module if isinstance(node, ast.ImportFrom) else alias.name
            self.names[name] = UNKNOWN
            if not (module or "").startswith("sparkdl"):
                package = (module or "").split(".")[0]
                if package not in OPTIONAL and importlib.util.find_spec(package) is None:
                    self.problems.append(f"there is no module {module}")
            elif isinstance(node, ast.Import):
                if importlib.util.find_spec(alias.name) is None:
                    self.problems.append(f"there is no module {alias.name}")
                self.names[name] = _Module(alias.name if alias.asname else "sparkdl")
            else:
                with _optional():
                    thing = importlib.import_module(module or "")
                    self.names[name] = self._attribute(thing, ast.Attribute(node, alias.name))

    def _learn_class(self, node: ast.stmt) -> None:
        """Remember the class of `run` in `run = experiment.launch(...)`."""
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            self.names[node.targets[0].id] = self.value_of(node.value)

    def _attribute(self, base: Any, node: ast.Attribute) -> Any:
        if base is UNKNOWN:
            return UNKNOWN
        owner = base.kind if isinstance(base, Instance) else base
        if isinstance(base, Instance) and node.attr in _fields(owner):
            return UNKNOWN
        try:
            if isinstance(base, _Module):
                owner = base = importlib.import_module(base.name)
            if inspect.ismodule(owner) and not hasattr(owner, node.attr):
                # A module inside another one is its attribute once anything has imported it.
                path = f"{owner.__name__}.{node.attr}"
                if hasattr(owner, "__path__") and importlib.util.find_spec(path):
                    return importlib.import_module(path)
            member = getattr(owner, node.attr)
        except ModuleNotFoundError as exc:
            if exc.name not in OPTIONAL:
                raise
            return UNKNOWN
        except AttributeError:
            self.problems.append(f"{_name(owner)} has no {node.attr!r}")
            return UNKNOWN
        if isinstance(base, Instance) and isinstance(member, property):
            return _returned(member.fget)
        if isinstance(base, Instance) and inspect.isfunction(member):
            return _Method(member)
        return member

    def _call(self, function: Any, node: ast.Call) -> Any:
        is_method = isinstance(function, _Method)
        called = function.function if is_method else function
        if called is UNKNOWN or isinstance(called, Instance) or not callable(called):
            return UNKNOWN
        try:
            signature = inspect.signature(called)
        except ValueError:
            return UNKNOWN
        is_partial = any(map(_is_hole, node.args)) or any(k.arg is None for k in node.keywords)
        positional = [None for argument in node.args if not _is_hole(argument)]
        keywords = {keyword.arg: None for keyword in node.keywords if keyword.arg}
        bind = signature.bind_partial if is_partial or not node.args + node.keywords else None
        try:
            (bind or signature.bind)(*([None] if is_method else []), *positional, **keywords)
        except TypeError as error:
            self.problems.append(f"{_name(called)}{signature}: {error}")
        return Instance(called) if isinstance(called, type) else _returned(called)


class _Module:
    """A module that is imported only if a block uses it: some import Keras."""

    def __init__(self, name: str) -> None:
        self.name = name


class _Method:
    def __init__(self, function: Any) -> None:
        self.function = function


def _is_hole(argument: ast.expr) -> bool:
    is_dots = isinstance(argument, ast.Constant) and argument.value is ...
    return is_dots or isinstance(argument, ast.Starred)


def _returned(function: Any) -> Any:
    """Return an instance of the class that a function returns, if the annotation tells it."""
    try:
        kind = typing.get_type_hints(function).get("return")
    except (NameError, TypeError):
        return UNKNOWN
    is_own = isinstance(kind, type) and kind.__module__.startswith("sparkdl")
    return Instance(kind) if is_own else UNKNOWN


def _fields(kind: type) -> set[str]:
    """Return the attributes that instances of a class have beside its methods."""
    return {name for base in kind.__mro__ for name in inspect.get_annotations(base)}


def _defined(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg


def _name(thing: Any) -> str:
    return getattr(thing, "__qualname__", None) or getattr(thing, "__name__", repr(thing))


def standard_names() -> dict[str, Any]:
    """Return the public modules, by the names that programs give them."""
    return {name: importlib.import_module(module) for name, module in MODULES.items()}
