"""Small changes of a module, each of which a test should notice.

Changed are comparisons, operators, numbers, conditions and returned values. What only a reader sees
is left alone: docstrings, annotations, messages of errors and of logs, `__all__`, and what only
type checkers run.
"""

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["Mutation", "mutations"]

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_NOT_RUN = ("annotation", "returns", "decorator_list", "type_params")
_LOGS = ("debug", "info", "warning", "error", "exception", "warn")
_TEXTS = (ast.Tuple, ast.List, ast.Set)
_WIDTH = 90


@dataclass(frozen=True)
class Mutation:
    """A changed module.

    Attributes:
        line: the line of the change.
        before: the code that was changed.
        after: what it became.
        source: the whole module with the change.
    """

    line: int
    before: str
    after: str
    source: str


def mutations(source: str) -> list[Mutation]:
    """Return all mutations of a module, in the order of its lines."""
    tree = ast.parse(source)
    found = []
    for parent, node, put in list(_places(tree)):
        shown = parent if isinstance(node, ast.Constant) else node
        before, line = ast.unparse(shown), getattr(node, "lineno", 0)
        for changed in [*_changes(node), *_negated(parent, node)]:
            put(changed)
            after = ast.unparse(parent if isinstance(node, ast.Constant) else changed)
            found.append(Mutation(line, *_cut(before, after), ast.unparse(tree)))
        put(node)
    return sorted(found, key=lambda mutation: mutation.line)


def _places(parent: ast.AST) -> Iterator[tuple[ast.AST, ast.AST, Callable[[ast.AST], None]]]:
    """Return each node that may be changed, with its parent and the function that replaces it."""
    for name, value in ast.iter_fields(parent):
        if name in _NOT_RUN:
            continue
        for number, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST) or _is_for_readers(child):
                continue
            if _is_error(parent) and not isinstance(child, ast.Constant):
                continue

            def put(
                new: ast.AST, name: str = name, value: object = value, number: int = number
            ) -> None:
                if isinstance(value, list):
                    value[number] = new
                else:
                    setattr(parent, name, new)

            yield parent, child, put
            yield from _places(child)


def _is_for_readers(node: ast.AST) -> bool:
    """Return whether a node has texts only, or does not run."""
    match node:
        case ast.JoinedStr() | ast.Assert():
            return True
        case ast.If(test=ast.Name("TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name("__all__" | "__slots__")]):
            return True
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in _LOGS
    return False


def _is_error(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(name) | ast.Attribute(attr=name)):
            return name.endswith(("Error", "Warning"))
    return False


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """Return what a node may become."""
    match node:
        case ast.Compare():
            for number, operator in enumerate(node.ops):
                for other in _COMPARISONS[type(operator)]:
                    changed = copy.deepcopy(node)
                    changed.ops[number] = other()
                    yield changed
            yield from _other_texts(node)
        case ast.MatchValue(ast.Constant(str(text))):
            yield ast.MatchValue(ast.Constant(text + "x"))
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.BinOp(left, operator, right) if not _is_text(left) and not _is_text(right):
            if other_operator := _OPERATORS.get(type(operator)):
                yield ast.BinOp(left, other_operator(), right)
        case ast.AugAssign(target, operator, value) if not _is_text(value):
            if other_operator := _OPERATORS.get(type(operator)):
                yield ast.AugAssign(target, other_operator(), value)
        case ast.Constant(bool(truth)):
            yield ast.Constant(not truth)
        case ast.Constant(int(number) | float(number)):
            yield from (ast.Constant(number + 1), ast.Constant(number - 1))
        case ast.Call(ast.Name(name), arguments, keywords) if name in _FUNCTIONS:
            yield ast.Call(ast.Name(_FUNCTIONS[name]), arguments, keywords)
        case ast.Return(value) if value and not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Continue():
            yield ast.Break()


def _other_texts(node: ast.Compare) -> Iterator[ast.AST]:
    """Return a comparison with each of its texts changed."""
    for number in range(sum(isinstance(part, ast.Constant) for part in ast.walk(node))):
        changed = copy.deepcopy(node)
        sides = [changed.left, *changed.comparators]
        sides += [part for side in sides if isinstance(side, _TEXTS) for part in side.elts]
        texts = [side for side in sides if _is_text(side)]
        if number < len(texts):
            texts[number].value += "x"  # type: ignore[attr-defined]
            yield changed


def _negated(parent: ast.AST, node: ast.AST) -> Iterator[ast.AST]:
    """Return the opposite of a condition, unless `_changes` has it already."""
    match parent, node:
        case _, ast.Compare(ops=[_]) | ast.UnaryOp(ast.Not()):
            return
        case ast.If(test=test) | ast.IfExp(test=test) if test is node:
            yield ast.UnaryOp(ast.Not(), test)
        case ast.comprehension(ifs=tests), ast.expr() if node in tests:
            yield ast.UnaryOp(ast.Not(), node)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _cut(before: str, after: str) -> tuple[str, str]:
    """Shorten two texts to one line each that shows where they differ."""
    before, after = " ".join(before.split()), " ".join(after.split())
    both = zip(before, after, strict=False)
    first = next((place for place, (old, new) in enumerate(both) if old != new), 0)
    start = max(0, first - _WIDTH // 2) if max(len(before), len(after)) > _WIDTH else 0
    return before[start : start + _WIDTH], after[start : start + _WIDTH]
