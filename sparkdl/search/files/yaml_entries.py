"""Runs on the driver. A YAML or JSON file, each value of which knows the line that it stands on."""

import math
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import yaml

from sparkdl import storage
from sparkdl.errors import ConfigError, suggest

__all__ = ["Entry", "read_document"]

T = TypeVar("T")

# In bytes. Files that declare a search have a few thousand; a data file was not meant.
LARGEST = 2**20
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"[-+]?\d+", re.ASCII)
_NAMED: dict[str, Any] = {"true": True, "false": False, "null": None, "~": None, "": None}


@dataclass(frozen=True)
class Entry:
    """A value in a file. What it is read as, it must be, or the reading raises ConfigError.

    Scalars are those of YAML 1.2's core schema (https://yaml.org/spec/1.2.2/#103-core-schema), of
    which JSON's are a part: `no` is a string, and `1e-4` is a number. Anchors and aliases work.

    Attributes:
        path: the file.
        line: where the value's key stands, or an item of a list; the first is 1.
        name: what messages call it.
        node: what the parser made of it.
    """

    path: str
    line: int
    name: str
    node: yaml.Node

    def wrong(self, problem: str) -> ConfigError:
        """The error that says what is wrong here."""
        return ConfigError(f"{self.path}, line {self.line}: {problem}")

    def fields(
        self,
        known: Collection[str] | None = None,
        required: Collection[str] = (),
        refused: Mapping[str, str] | None = None,
    ) -> "dict[str, Entry]":
        """The values of a mapping, by name.

        Args:
            known: the names that there may be; None for any.
            required: those that must be there.
            refused: from names that there may not be to what to write instead.
        """
        if not isinstance(self.node, yaml.MappingNode):
            raise self._expected("names with values")
        found: dict[str, Entry] = {}
        for key, node in self.node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            line = key.start_mark.line + 1
            entry = Entry(self.path, line, name, node)
            if name in found:
                raise entry.wrong(f"{name} is there twice, first on line {found[name].line}.")
            if name in (refused or {}):
                raise entry.wrong(f"{name} is not supported. {(refused or {})[name]}")
            if known is not None and name not in known:
                names = ", ".join(known)
                raise entry.wrong(
                    f"unknown key {name!r} in {self.name}.{suggest(name, known)} Keys are {names}."
                )
            found[name] = entry
        for name in required:
            if name not in found:
                raise self.wrong(f"{self.name} has no {name}. Add it.")
        return found

    def items(self) -> "list[Entry]":
        """The items of a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            raise self._expected("a list")
        return [
            Entry(self.path, node.start_mark.line + 1, f"{self.name}[{i}]", node)
            for i, node in enumerate(self.node.value)
        ]

    def some(self) -> "list[Entry]":
        """The items of a list that must have one."""
        items = self.items()
        if not items:
            raise self.wrong(f"{self.name} is empty; expected at least one.")
        return items

    def scalar(self) -> Any:
        """A string, number or boolean; what is in quotes is a string."""
        if not isinstance(self.node, yaml.ScalarNode):
            raise self._expected("a single value")
        text = str(self.node.value)
        if self.node.style is not None:
            return text
        if text.lower() in _NAMED:
            if (value := _NAMED[text.lower()]) is None:
                raise self._expected("a value")
            return value
        return self.number() if _NUMBER.fullmatch(text) else text

    def text(self) -> str:
        """A string that is not empty."""
        if not isinstance(self.node, yaml.ScalarNode) or not self.node.value:
            raise self._expected("a name")
        return str(self.node.value)

    def number(self) -> int | float:
        """A number, which may be in quotes; whole ones are `int` where written without a point."""
        text = self.node.value if isinstance(self.node, yaml.ScalarNode) else ""
        if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
            raise self._expected("a number")
        return int(text) if _WHOLE.fullmatch(text) else float(text)

    def whole(self, least: int | None = None) -> int:
        """A whole number of at least so much; `1.0` and `1e3` are whole too."""
        bound = "" if least is None else f" of at least {least}"
        number = self.number()
        if number != int(number) or (least is not None and number < least):
            raise self._expected(f"a whole number{bound}")
        return int(number)

    def flag(self) -> bool:
        """True or false."""
        return self.one_of({"true": True, "false": False}, lower=True)

    def one_of(self, choices: Mapping[str, T], lower: bool = False) -> T:
        """What `choices` has for the string; `lower` takes it in any case."""
        text = self.node.value if isinstance(self.node, yaml.ScalarNode) else ""
        name = text.lower() if lower else text
        if name not in choices:
            raise self._expected(f"one of {', '.join(choices)}", suggest(name, choices))
        return choices[name]

    def _expected(self, what: str, hint: str = "") -> ConfigError:
        kinds = {yaml.SequenceNode: "a list", yaml.MappingNode: "names with values"}
        is_scalar = isinstance(self.node, yaml.ScalarNode)
        found = repr(self.node.value) if is_scalar else kinds[type(self.node)]
        return self.wrong(f"{self.name} is {found}; expected {what}.{hint}")


def read_document(path: str | os.PathLike[str]) -> Entry:
    """The whole of a YAML or JSON file.

    Args:
        path: a local path, or a URL that fsspec understands.

    Raises:
        ConfigError: it cannot be read, or is no YAML; the message has the line.
    """
    path = os.fspath(path)
    try:
        data = storage.read(storage.absolute(path), size=LARGEST + 1)
        if len(data) > LARGEST:
            raise ValueError(f"it has more than {LARGEST} bytes")
        text = data.decode("utf-8-sig")
    except (OSError, ImportError, ValueError) as exc:
        raise ConfigError(
            f"{path} cannot be read: {exc}. Expected the path or URL of a YAML or JSON file."
        ) from exc
    if text.lstrip().startswith("{"):
        text = text.replace("\t", " ")  # JSON may be indented by tabs, YAML may not.
    try:
        # It makes nodes of strings: nothing in the file is built or run.
        node = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as exc:
        raise ConfigError(f"{path}, {_reason(exc, text)}") from exc
    except RecursionError as exc:
        raise ConfigError(f"{path}: its lists are nested too deep; it declares no search.") from exc
    if node is None:
        raise ConfigError(f"{path}, line 1: the file is empty.")
    return Entry(path, node.start_mark.line + 1, "the file", node)


def _reason(exc: yaml.YAMLError, text: str) -> str:
    if isinstance(exc, yaml.reader.ReaderError):
        return f"line {text.count(chr(10), 0, exc.position) + 1}: {exc.reason}. Is it a text file?"
    mark, context = exc.problem_mark, exc.context
    said = ", ".join(part for part in (context, exc.problem) if part)
    return f"line {mark.line + 1}, column {mark.column + 1}: no YAML or JSON: {said}."
