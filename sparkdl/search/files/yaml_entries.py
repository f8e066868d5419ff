"""Runs on the driver. Read YAML and JSON files into entries that know their line numbers."""

import math
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import yaml

from sparkdl.errors import ConfigError, suggest
from sparkdl.files import storage

T = TypeVar("T")

# The largest file to read, in bytes. Files that declare a search have a few thousand bytes; a
# larger one is probably a data file, passed by mistake.
MAX_BYTES = 2**20
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"[-+]?\d+", re.ASCII)
_KEYWORDS: dict[str, Any] = {"true": True, "false": False, "null": None, "~": None, "": None}


@dataclass(frozen=True)
class Entry:
    """A value in a YAML or JSON file.

    The methods that return the value raise ConfigError if the value has another type. Scalars
    follow the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema), which
    includes JSON: `no` is a string, and `1e-4` is a number. Anchors and aliases work.

    Attributes:
        path: path of the file.
        line: line number of the value's key, or of the list item; the first line is 1.
        name: name of the value in messages.
        node: the parsed node.
    """

    path: str
    line: int
    name: str
    node: yaml.Node

    def error(self, problem: str) -> ConfigError:
        """Return an error that names the file and the line."""
        return ConfigError(f"{self.path}, line {self.line}: {problem}")

    def fields(
        self,
        valid_keys: Collection[str] | None = None,
        required: Collection[str] = (),
        unsupported: Mapping[str, str] | None = None,
    ) -> "dict[str, Entry]":
        """Return the entries of a mapping, by key.

        Args:
            valid_keys: the valid keys; None if any key is valid.
            required: the keys that must be present.
            unsupported: keys that are not supported, with the text that tells what to do instead.
        """
        if not isinstance(self.node, yaml.MappingNode):
            raise self._type_error("names with values")
        entries: dict[str, Entry] = {}
        unsupported = unsupported or {}
        for key, node in self.node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            line = key.start_mark.line + 1
            entry = Entry(self.path, line, name, node)
            if name in entries:
                raise entry.error(f"{name} is defined twice, first on line {entries[name].line}.")
            if name in unsupported:
                raise entry.error(f"{name} is not supported. {unsupported[name]}")
            if valid_keys is not None and name not in valid_keys:
                names = ", ".join(valid_keys)
                raise entry.error(
                    f"unknown key {name!r} in {self.name}.{suggest(name, valid_keys)} Keys are "
                    f"{names}."
                )
            entries[name] = entry
        for name in required:
            if name not in entries:
                raise self.error(f"{self.name} has no {name}. Add it.")
        return entries

    def items(self) -> "list[Entry]":
        """Return the items of a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            raise self._type_error("a list")
        return [
            Entry(self.path, node.start_mark.line + 1, f"{self.name}[{i}]", node)
            for i, node in enumerate(self.node.value)
        ]

    def nonempty_items(self) -> "list[Entry]":
        """Return the items of a list that must not be empty."""
        items = self.items()
        if not items:
            raise self.error(f"{self.name} is empty; expected at least one item.")
        return items

    def scalar(self) -> Any:
        """Return a string, number or boolean; a value in quotes is a string."""
        if not isinstance(self.node, yaml.ScalarNode):
            raise self._type_error("a single value")
        text = str(self.node.value)
        if self.node.style is not None:
            return text
        if text.lower() in _KEYWORDS:
            if (value := _KEYWORDS[text.lower()]) is None:
                raise self._type_error("a value")
            return value
        return self.number() if _NUMBER.fullmatch(text) else text

    def text(self) -> str:
        """Return a string that is not empty."""
        if not isinstance(self.node, yaml.ScalarNode) or not self.node.value:
            raise self._type_error("a name")
        return str(self.node.value)

    def number(self) -> int | float:
        """Return a number, which may be in quotes; one without a decimal point is an `int`."""
        text = self.node.value if isinstance(self.node, yaml.ScalarNode) else ""
        if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
            raise self._type_error("a number")
        return int(text) if _WHOLE.fullmatch(text) else float(text)

    def whole(self, least: int | None = None) -> int:
        """Return a whole number of at least `least`; `1.0` and `1e3` are whole numbers too."""
        bound = "" if least is None else f" of at least {least}"
        number = self.number()
        if number != int(number) or (least is not None and number < least):
            raise self._type_error(f"a whole number{bound}")
        return int(number)

    def flag(self) -> bool:
        """Return a boolean."""
        return self.one_of({"true": True, "false": False}, lower=True)

    def one_of(self, choices: Mapping[str, T], lower: bool = False) -> T:
        """Return the value of the string in `choices`; `lower` ignores upper and lower case."""
        text = self.node.value if isinstance(self.node, yaml.ScalarNode) else ""
        name = text.lower() if lower else text
        if name not in choices:
            raise self._type_error(f"one of {', '.join(choices)}", suggest(name, choices))
        return choices[name]

    def _type_error(self, valid: str, hint: str = "") -> ConfigError:
        kinds = {yaml.SequenceNode: "a list", yaml.MappingNode: "names with values"}
        is_scalar = isinstance(self.node, yaml.ScalarNode)
        value = repr(self.node.value) if is_scalar else kinds[type(self.node)]
        return self.error(f"{self.name} is {value}; expected {valid}.{hint}")


def read_document(path: str | os.PathLike[str]) -> Entry:
    """Read a YAML or JSON file and return its root entry.

    Args:
        path: a local path, or a URL that fsspec understands.

    Raises:
        ConfigError: if the file cannot be read or parsed; the message has the line.
    """
    path = os.fspath(path)
    try:
        data = storage.read(storage.absolute(path), size=MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"the file has more than {MAX_BYTES} bytes")
        text = data.decode("utf-8-sig")
    except (OSError, ImportError, ValueError) as exc:
        raise ConfigError(
            f"{path} cannot be read: {exc}. Expected the path or URL of a YAML or JSON file."
        ) from exc
    if text.lstrip().startswith("{"):
        text = text.replace("\t", " ")  # YAML, unlike JSON, must not be indented with tabs.
    try:
        # compose only creates nodes of strings, so no object in the file is constructed.
        node = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as exc:
        raise ConfigError(f"{path}, {_reason(exc, text)}") from exc
    except RecursionError as exc:
        raise ConfigError(
            f"{path}: the lists are nested too deep for a file that declares a search."
        ) from exc
    if node is None:
        raise ConfigError(f"{path}, line 1: the file is empty.")
    return Entry(path, node.start_mark.line + 1, "the file", node)


def _reason(exc: yaml.YAMLError, text: str) -> str:
    if isinstance(exc, yaml.reader.ReaderError):
        return f"line {text.count(chr(10), 0, exc.position) + 1}: {exc.reason}. Is it a text file?"
    mark, context = exc.problem_mark, exc.context
    problem = ", ".join(part for part in (context, exc.problem) if part)
    return f"line {mark.line + 1}, column {mark.column + 1}: invalid YAML or JSON: {problem}."
