"""Runs anywhere. Find credentials in a function and in the objects that travel with it."""

import dis
import functools
import inspect
import pickletools
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from sparkdl.errors import named_type
from sparkdl.secrets.masks import is_secret, mask_text

# A function that holds a model may hold a million objects; credentials are not that deep.
MAX_OBJECTS = 100_000

# A longer text is data, of which the beginning is searched.
MAX_CHARS = 1_000_000

_Held = Iterator[tuple[str, Any, str]]


def find_credential(function: Callable[..., Any], secrets: Iterable[str] = ()) -> str | None:
    """Return a phrase about the first credential that a function holds; None if it holds none.

    The function is searched with all that is pickled with it: its source code, global and closure
    variables, default values, the arguments of a `functools.partial`, and the attributes of its
    objects.

    Args:
        function: the function, before it is pickled.
        secrets: values known to be secret, see `known_secrets`.

    Example:
        >>> find_credential(functools.partial(print, sep=" ", password="hunter22"))
        "'password', an argument of the partial"
    """
    return _Search(tuple(secrets)).run(function)


def find_in_pickle(pickled: bytes, secrets: Iterable[str] = ()) -> str | None:
    """Return a phrase about the first text of a pickle that holds a credential; None if none does.

    Args:
        pickled: a pickled object, which is not loaded.
        secrets: values known to be secret, see `known_secrets`.
    """
    secrets = tuple(secrets)
    for opcode, argument, _ in pickletools.genops(pickled):
        if "UNICODE" in opcode.name:
            text = str(argument)[:MAX_CHARS]
            if mask_text(text, secrets) != text:
                return "a text in the pickled function"
    return None


class _Search:
    """A search through the objects that a function holds.

    Args:
        secrets: values known to be secret.
    """

    def __init__(self, secrets: tuple[str, ...]) -> None:
        self._secrets = secrets
        self._visited: dict[int, Any] = {}

    def run(self, function: Any) -> str | None:
        """Return a phrase about the first credential."""
        queue: deque[tuple[str, Any, str]] = deque([("", function, "the function")])
        while queue and len(self._visited) < MAX_OBJECTS:
            name, thing, phrase = queue.popleft()
            if thing is None or isinstance(thing, int | float | complex):
                continue
            if isinstance(thing, str | bytes):
                start = thing[:MAX_CHARS]
                text = start if isinstance(start, str) else start.decode("latin-1")
                if is_secret(name, text) or self._holds_secret(text):
                    return phrase
            elif id(thing) not in self._visited:
                self._visited[id(thing)] = thing  # Kept alive, so that no other object has its id.
                if isinstance(thing, FunctionType) and (problem := self._in_code_of(thing)):
                    return problem
                queue += _held_by(thing, phrase)
        return None

    def _holds_secret(self, text: str, is_code: bool = False) -> bool:
        return mask_text(text, self._secrets, is_code=is_code) != text

    def _in_code_of(self, function: FunctionType) -> str | None:
        """Return a phrase about a credential in the text of a function that travels as a whole."""
        if not _by_value(function):
            return None
        name = function.__name__
        try:
            # The lines of a lambda are those of the call around it.
            source = "" if name == "<lambda>" else inspect.getsource(function)
        except (OSError, TypeError):
            source = ""
        if source and self._holds_secret(source, is_code=True):
            return f"the source code of {name}"
        for variable, value in _assigned(function.__code__):
            if is_secret(variable, value) or self._holds_secret(value):
                return f"{variable!r}, set in {name}"
        return None


def _held_by(thing: Any, phrase: str) -> _Held:
    """Yield what is pickled with an object: the name of each value, the value, and a phrase."""
    if isinstance(thing, functools.partial):
        yield "", thing.func, phrase
        yield from _with_phrases(_arguments(thing), "an argument of the partial")
    elif isinstance(thing, MethodType):
        yield "", thing.__func__, phrase
        yield "", thing.__self__, phrase
    elif isinstance(thing, FunctionType):
        yield from _held_by_function(thing) if _by_value(thing) else ()
    elif isinstance(thing, type):
        yield from (
            _with_phrases(vars(thing), f"an attribute of {thing.__name__}")
            if _by_value(thing)
            else ()
        )
    elif isinstance(thing, Mapping):
        named = {key: value for key, value in thing.items() if isinstance(key, str)}
        yield from _with_phrases(named, f"a key in {phrase}")
        yield from (("", value, phrase) for key, value in thing.items() if key not in named)
    elif isinstance(thing, tuple) and hasattr(thing, "_asdict"):
        yield from _with_phrases(thing._asdict(), f"a field of {named_type(thing)}")
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from (("", value, phrase) for value in thing)
    elif not isinstance(thing, ModuleType):
        kind = type(thing).__name__
        yield from _with_phrases(_attributes(thing), f"an attribute of a {kind}")


def _arguments(partial: "functools.partial[Any]") -> dict[str, Any]:
    """Return the arguments that a partial has fixed, by name, or by number without a name."""
    try:
        names = list(inspect.signature(partial.func).parameters)
    except (TypeError, ValueError):
        names = []
    names += [str(number) for number in range(len(names), len(partial.args))]
    return {**dict(zip(names, partial.args, strict=False)), **partial.keywords}


def _attributes(thing: Any) -> dict[str, Any]:
    """Return the attributes that an object holds itself, with those in slots."""
    held = inspect.getattr_static(thing, "__dict__", None) and vars(thing)
    slots = getattr(type(thing), "__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    in_slots = {name: getattr(thing, name) for name in names if hasattr(thing, name)}
    return {**in_slots, **(held if isinstance(held, Mapping) else {})}


def _with_phrases(values: Mapping[str, Any], where: str) -> _Held:
    yield from ((name, value, f"{name!r}, {where}") for name, value in dict(values).items())


def _held_by_function(function: FunctionType) -> _Held:
    code, name = function.__code__, function.__name__
    names = _names(code)
    variables = {n: value for n, value in function.__globals__.items() if n in names}
    yield from _with_phrases(variables, f"a global variable that {name} uses")
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    closure = {n: cell.cell_contents for n, cell in cells if cell != CellType()}
    yield from _with_phrases(closure, f"a variable that {name} captures")
    defaults = function.__defaults__ or ()
    arguments = code.co_varnames[: code.co_argcount]
    by_name = dict(zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True))
    by_name |= function.__kwdefaults__ or {}
    yield from _with_phrases(by_name, f"a default value of {name}")
    yield from _with_phrases(vars(function), f"an attribute of {name}")


def _by_value(thing: type | FunctionType) -> bool:
    """Return True if cloudpickle writes a class or function as a whole, not by its name."""
    module = getattr(thing, "__module__", None)
    return module in (None, "__main__") or module not in sys.modules or "<" in thing.__qualname__


def _names(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _assigned(code: CodeType) -> Iterator[tuple[str, str]]:
    """Yield the names to which bytecode assigns string constants, and these constants.

    The operands of each instruction are followed roughly; the source code of a function, where it
    is known, is searched as well.
    """
    stack: list[Any] = []
    for step in dis.get_instructions(code):
        yield from (
            (n, v) for n, v in _pairs(step, stack) if isinstance(n, str) and isinstance(v, str)
        )
        if step.opname in ("LOAD_CONST", "KW_NAMES"):
            stack.append(code.co_consts[step.arg or 0])
        elif step.opname.startswith("LOAD_") and step.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            stack += [None] * step.opname.count("LOAD_")
        elif step.opname.startswith(("STORE_", "CALL", "POP_", "RETURN", "BUILD_")):
            stack.clear()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _assigned(constant)


def _pairs(step: dis.Instruction, stack: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the names and values that an instruction brings together."""
    top = stack[-1] if stack else None
    if step.opname in ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF"):
        yield step.argval, top
    elif step.opname == "STORE_ATTR":
        yield step.argval, stack[-2] if len(stack) > 1 else None
    elif step.opname == "STORE_SUBSCR" and len(stack) > 2:
        yield top, stack[-3]
    elif step.opname == "BUILD_MAP" and step.argval:
        items = stack[-2 * step.argval :]
        yield from zip(items[::2], items[1::2], strict=False)
    elif step.opname.startswith(("CALL", "BUILD_CONST_KEY_MAP")) and isinstance(top, tuple):
        values = stack[:-1][-len(top) :] if top else []
        yield from zip(top, values, strict=False)
    elif step.opname.startswith("CALL") and len(stack) > 1:
        yield stack[-2], top
