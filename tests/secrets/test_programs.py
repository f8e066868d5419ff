"""A program that holds a credential is found, wherever in it the credential is."""

import base64
import functools
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import pytest

from sparkdl.errors import ConfigError
from sparkdl.files.layout import RunPaths
from sparkdl.runs.provenance import read_program, write_program
from sparkdl.secrets.programs import find_credential, find_in_pickle

WORD = "hunter" + "22"
FORM = "sk" + "_live_" + "F4ke0nly" * 2


@dataclass
class Database:
    """A class of an imported module: only its attributes travel."""

    host: str
    password: str


class Login(NamedTuple):
    """A tuple whose fields have names."""

    user: str
    password: str


def with_named_tuple() -> Callable[[], Any]:
    login = [Login("ann", WORD)]
    return lambda: login


def with_variable() -> Callable[[], Any]:
    db_password = WORD
    return lambda: len(db_password)


def with_default() -> Callable[..., Any]:
    def train(x: int, password: str = WORD, *, lr: float = 0.1) -> int:
        return x

    return train


def with_keyword_default() -> Callable[..., Any]:
    def train(*, api_key: str = WORD) -> str:
        return api_key

    return train


def with_global() -> Callable[..., Any]:
    names: dict[str, Any] = {"DB_PASSWORD": WORD, "__name__": "__main__"}
    exec("def train():\n    return len(DB_PASSWORD)", names)  # noqa: S102
    train: Callable[..., Any] = names["train"]
    return train


def with_helper() -> Callable[..., Any]:
    helper = with_global()
    return lambda: helper()


def with_object() -> Callable[..., Any]:
    database = Database("db", WORD)
    return lambda: database.host


def with_nested_dict() -> Callable[..., Any]:
    config = {"db": [{"host": "x", "password": WORD}]}
    return lambda: config


def with_form() -> Callable[..., Any]:
    word = FORM
    return lambda: word


def from_text(body: str) -> Callable[..., Any]:
    """A function without source code, as one that is typed in."""
    names: dict[str, Any] = {"os": os, "__name__": "__main__"}
    exec(f"def train(x=0):\n    {body}\n    return x", names)  # noqa: S102
    train: Callable[..., Any] = names["train"]
    return train


HOLDERS: dict[str, tuple[Callable[[], Any], str]] = {
    "variable": (with_variable, "'db_password', a variable that <lambda> captures"),
    "default": (with_default, "'password', a default value of train"),
    "keyword default": (with_keyword_default, "'api_key', a default value of train"),
    "global": (with_global, "'DB_PASSWORD', a global variable that train uses"),
    "helper": (with_helper, "'DB_PASSWORD', a global variable that train uses"),
    "object": (with_object, "'password', an attribute of a Database"),
    "dict": (with_nested_dict, "'password', a key in"),
    "named tuple": (with_named_tuple, "'password', a field of a Login"),
    "form": (with_form, "'word', a variable that <lambda> captures"),
    "partial": (lambda: functools.partial(print, password=WORD), "an argument of the partial"),
    "positional": (
        lambda: functools.partial(lambda x, password: x, 1, WORD),
        "'password', an argument of the partial",
    ),
    "connection": (
        lambda: from_text(f"x = 'host=db password={WORD} user=ann'"),
        "'x', set in train",
    ),
    "method": (lambda: functools.partial(Database("x", WORD).__repr__), "attribute of a Database"),
    "assignment": (lambda: from_text(f"password = '{WORD}'"), "'password', set in train"),
    "environ": (lambda: from_text(f"os.environ['HF_TOKEN'] = '{WORD}'"), "'HF_TOKEN', set in"),
    "setdefault": (lambda: from_text(f"os.environ.setdefault('HF_TOKEN', '{WORD}')"), "HF_TOKEN"),
    "keyword": (lambda: from_text(f"dict(a=x, password='{WORD}')"), "'password', set in train"),
    "literal": (lambda: from_text(f"y = {{'host': x, 'password': '{WORD}'}}"), "'password'"),
    "attribute": (lambda: from_text(f"os.password = '{WORD}'"), "'password', set in train"),
    "inner": (lambda: from_text(f"def f():\n        api_key = '{WORD}'"), "'api_key', set in"),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_credentials_are_found_wherever_they_are(name: str) -> None:
    make, phrase = HOLDERS[name]
    problem = find_credential(make())
    assert problem
    assert phrase in problem
    assert WORD not in problem


def test_a_known_secret_is_found_under_any_name() -> None:
    greeting = "tea" + "pot"
    assert find_credential(lambda: greeting) is None
    assert find_credential(lambda: greeting, ["teapot"])


def test_ordinary_functions_hold_no_credential() -> None:
    tokens = {"pad_token": "[PAD]", "mask_token": "<mask>", "pooling_token": "cls"}
    backend = "tensorflow"

    def train(x: int, token: str = "cls", password: str | None = None) -> Any:
        os.environ["KERAS_BACKEND"] = backend
        key = os.environ["DB_PASSWORD"]
        return tokens, key, f"postgres://{x}:{password}@db/x", token

    assert find_credential(train) is None
    assert find_credential(functools.partial(train, 1)) is None
    assert find_in_pickle(cloudpickle.dumps(train)) is None


def test_a_cycle_of_objects_ends_the_search() -> None:
    first: list[Any] = []
    first.append({"again": first})
    assert find_credential(lambda: first) is None


def program_of(function: Callable[..., Any]) -> dict[str, Any]:
    pickled = base64.b64encode(cloudpickle.dumps(function)).decode()
    return {"function": pickled, "modules": {}, "imports": []}


def test_a_program_with_a_credential_is_not_written_and_the_reason_is(tmp_path: Path) -> None:
    paths = RunPaths(str(tmp_path))
    for name, (make, phrase) in HOLDERS.items():
        function = make()
        reason = write_program(paths.program, program_of(function), function, ())
        assert reason, name
        assert phrase in reason
        assert WORD not in Path(paths.program).read_text()
        with pytest.raises(ConfigError, match="was not kept, because") as raised:
            read_program(paths.program)
        assert reason in str(raised.value)
        assert "Pass train=" in str(raised.value)


def test_a_module_with_a_credential_is_not_written(tmp_path: Path) -> None:
    paths = RunPaths(str(tmp_path))
    modules = {"mine": [f"API_KEY = '{WORD}'", "mine.py", False]}
    reason = write_program(paths.program, {**program_of(len), "modules": modules}, len, ())
    assert reason == "it contains what looks like a credential: the module mine"
    modules = {"mine": ["tokenizer.pad_token = 'PAD'", "mine.py", False]}
    assert write_program(paths.program, {**program_of(len), "modules": modules}, len, ()) is None
    assert json.loads(Path(paths.program).read_text())["modules"] == modules
