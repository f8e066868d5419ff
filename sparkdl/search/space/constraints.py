"""Runs anywhere (pure). Constraints of a search: expressions that its parameters must satisfy."""

import ast
import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl.errors import ConfigError, named_type, suggest

_logger = logging.getLogger("sparkdl.search")

# A constraint of many parameters is evaluated at so many ends of the space before a search starts.
MAX_CORNERS = 4096

# What an expression may contain: no attributes, no subscripts and no calls but of these functions.
_NODES = (
    *(ast.Expression, ast.Load, ast.Name, ast.Constant, ast.Tuple, ast.List, ast.Call),
    *(ast.BoolOp, ast.boolop, ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator),
    *(ast.Compare, ast.cmpop, ast.IfExp),
)
_FUNCTIONS = {"abs": abs, "len": len, "max": max, "min": min, "round": round}


class Constraints:
    """Expressions in the names of parameters, all of which must be true.

    An expression is text, so that the run directory can keep it for `resume`. An expression that
    names a parameter that does not exist in a trial does not apply to that trial.

    Args:
        texts: Python expressions of names, numbers, strings, operators, comparisons, `and`, `or`,
            `not`, `in`, and the functions abs, len, max, min and round.
        names: all parameters of the space.

    Raises:
        ConfigError: if a text is no such expression, or names something else.

    Example:
        >>> constraints = Constraints(["units * layers <= 256"], ["units", "layers"])
        >>> constraints.allow({"units": 64, "layers": 4}), constraints.allow({"units": 512})
        (True, True)
        >>> constraints.allow({"units": 128, "layers": 4})
        False
    """

    def __init__(self, texts: Sequence[str], names: Sequence[str]) -> None:
        self._parsed = [(text, *_parse(text, names)) for text in texts]
        # The first error of each constraint that cannot be evaluated everywhere.
        self._errors: dict[str, str] = {}

    @property
    def is_empty(self) -> bool:
        """True if there is no constraint."""
        return not self._parsed

    @property
    def first_error(self) -> str:
        """The first error of a constraint that could not be evaluated; empty if all could be."""
        return next(iter(self._errors.values()), "")

    def allow(self, params: Mapping[str, Any]) -> bool:
        """Return True if parameters, some of which may be missing, break no constraint."""
        return self.broken(params) is None

    def broken(self, params: Mapping[str, Any]) -> str | None:
        """Return the first constraint that parameters break; None if they break none.

        A constraint that cannot be evaluated, as it divides by zero, is broken; a warning in the
        log tells the first such case of each constraint.
        """
        for text, names, code in self._parsed:
            if names <= params.keys() and not self._is_true(text, code, params):
                return text
        return None

    def _is_true(self, text: str, code: Any, params: Mapping[str, Any]) -> bool:
        try:
            return bool(eval(code, {"__builtins__": {}, **_FUNCTIONS}, dict(params)))
        except (ArithmeticError, TypeError, ValueError, MemoryError) as exc:
            if text not in self._errors:
                self._errors[text] = (
                    f"the constraint {text!r} cannot be evaluated with {dict(params)!r}: "
                    f"{type(exc).__name__}: {exc}"
                )
                _logger.warning("%s. Such parameters are not tried.", self._errors[text])
            return False

    def try_ends(self, ends: Mapping[str, Sequence[Any]]) -> None:
        """Evaluate the constraints at the ends of the space, to tell early where this fails.

        Args:
            ends: extreme values of each parameter.
        """
        for text, names, code in self._parsed:
            used = sorted(names)
            corners = itertools.product(*(ends[name] for name in used))
            for corner in itertools.islice(corners, MAX_CORNERS):
                self._is_true(text, code, dict(zip(used, corner, strict=True)))


def _parse(text: Any, names: Sequence[str]) -> tuple[set[str], Any]:
    """Return the parameters in an expression, and its compiled code."""
    if not isinstance(text, str):
        raise ConfigError(
            f"constraints contains {text!r}, {named_type(text)}; expected an expression as "
            "text, such as 'units * layers <= 256', which the run directory can keep."
        )
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError) as exc:
        raise ConfigError(
            f"the constraint {text!r} is no Python expression: {exc}. Write for example "
            "'units * layers <= 256'."
        ) from exc
    used = set()
    calls = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            raise ConfigError(
                f"the constraint {text!r} contains {ast.unparse(node)!r}. Only parameters, "
                "numbers, texts, operators, comparisons, and, or, not, in, and the functions "
                f"{', '.join(_FUNCTIONS)} are allowed. For other rules, pass a function as space=."
            )
        if isinstance(node, ast.Name):
            used.add(_name(node.id, id(node) in calls, text, names))
    return used - {""}, compile(tree, "<constraint>", "eval")


def _name(name: str, is_called: bool, text: str, names: Sequence[str]) -> str:
    """Return the name of a parameter, and an empty text for a function."""
    if is_called and name in _FUNCTIONS:
        return ""
    if is_called or name not in names:
        valid_names = [*_FUNCTIONS] if is_called else [*dict.fromkeys(names)]
        kind = "functions are" if is_called else "parameters of the space are"
        raise ConfigError(
            f"the constraint {text!r} names {name!r}; the {kind} {', '.join(valid_names)}."
            f"{suggest(name, valid_names)}"
        )
    return name
