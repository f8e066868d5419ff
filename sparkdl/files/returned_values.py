"""Runs anywhere. Keep what a training function has returned, and give it back.

Numbers, text, bytes, arrays, lists, tuples, sets and dicts are kept as typed JSON. A model is kept
as a file in the format of its library. Of any other object, its type and a remedy are kept, and
reading it raises.
"""

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sparkdl.errors import NotKeptError
from sparkdl.files.layout import ARTIFACTS
from sparkdl.files.model_objects import (
    LIBRARIES,
    library_of_model,
    read_model_object,
    write_model_object,
)
from sparkdl.files.typed_json import Where, decoded, encoded, is_plain, plain

_KEPT = (
    "Numbers, text, bytes, arrays, lists, tuples, sets, dicts and models of Keras, PyTorch and "
    "scikit-learn are kept."
)


@dataclass
class KeptValue:
    """A value as it is kept.

    Attributes:
        typed: typed JSON, see `typed_json`, with the forms `model` and `lost` in addition.
        notes: a remark about each part that is not kept.
        models: the path of the file of each model, relative to the folder.
    """

    typed: Any = None
    notes: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        """True if ordinary JSON is the value itself."""
        return is_plain(self.typed)

    def plain(self) -> Any:
        """Return ordinary JSON, with the path of its file for a model.

        Raises:
            TypeError: if there is no such form of a part.
        """
        return plain(_with_paths(self.typed))


def unmasked(name: str, text: str) -> str:
    """Return a text as it is."""
    return text


def keep(
    value: Any,
    name: str,
    folder: Path,
    mask: Callable[[str, str], str] = unmasked,
    libraries: Collection[str] = LIBRARIES,
) -> KeptValue:
    """Return the form in which a value is kept; write its models into the folder of the trial.

    Args:
        value: the value.
        name: the name of the value, for messages and files.
        folder: the folder of the trial.
        mask: returns a text, given its name, with credentials masked.
        libraries: the libraries whose models are written.
    """
    kept = KeptValue()

    def other(obj: Any, where: Where) -> Any:
        part = ".".join((name, *where))
        library = library_of_model(obj)
        try:
            if library is None or library not in libraries:
                raise TypeError(_remedy(obj))
            target = _new_folder(folder / ARTIFACTS / quote(part, safe=""))
            path = write_model_object(obj, library, target).relative_to(folder).as_posix()
        except Exception as exc:  # noqa: BLE001 A library may raise anything; training is over.
            remedy = str(exc) if library is None else _remedy_for(library, name, exc)
            kind = type(obj).__name__
            kept.notes.append(f"the returned {part!r}, of type {kind}, is not kept: {remedy}")
            return {"lost": [part, kind, remedy]}
        kept.models.append(path)
        return {"model": [library, path]}

    def text(where: Where, text: str) -> str:
        # The items of a list have its name.
        return mask(next((part for part in reversed(where) if not part.isdecimal()), name), text)

    try:
        kept.typed = encoded(value, other, text)
    except RecursionError:
        remedy = "it contains itself, or is too deep"
        kept.typed = {"lost": [name, type(value).__name__, remedy]}
        kept.notes.append(f"the returned {name!r} is not kept: {remedy}")
    return kept


def _new_folder(folder: Path) -> Path:
    """Return a folder that does not exist: `{"a.b": x, "a": {"b": y}}` has two values `a.b`."""
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([folder], numbered) if not each.exists())


def _remedy(value: Any) -> str:
    """Return how the user can keep an object that is neither data nor a model."""
    for cls in type(value).__mro__:
        is_keras = cls.__module__.split(".")[0] in ("keras", "tf_keras")
        if is_keras and cls.__name__ == "History":
            return "return its numbers, such as history.history['loss'][-1]"
    return "return numbers, or save the object to a file and return its path to keep an artifact"


def _remedy_for(library: str, name: str, exc: Exception) -> str:
    reason = f"{type(exc).__name__}: {exc}"
    if library == "torch":
        return (
            f"PyTorch cannot write it ({reason}). Define its class outside of the function, or "
            f"torch.save(model.state_dict(), '{name}.pt') and return '{name}.pt'"
        )
    if library == "sklearn":
        return f"{reason}; or save it with joblib and return the path of the file"
    return f"Keras cannot save it ({reason}). Build it, or return its weights"


def _with_paths(typed: Any) -> Any:
    """Return typed JSON with the path of its file in the place of each model."""
    if isinstance(typed, list):
        return [_with_paths(item) for item in typed]
    if isinstance(typed, dict):
        ((kind, items),) = typed.items()
        return items[1] if kind == "model" else {kind: _with_paths(items)}
    return typed


def give_back(typed: Any, fetch: Callable[[str], str]) -> Any:
    """Return the value that `keep` got.

    Args:
        typed: the typed JSON of the value.
        fetch: returns the local path of a file, whose path relative to the trial it gets.

    Raises:
        NotKeptError: if a part was not kept, or its model cannot be read.
    """

    def other(kind: str, items: Any) -> Any:
        if kind == "lost":
            part, cls, remedy = items
            raise NotKeptError(
                f"the returned {part!r}, of type {cls}, is not kept: {remedy}. {_KEPT} The other "
                "values are in `trial.outputs`."
            )
        library, path = items
        file = Path(fetch(path))
        try:
            return read_model_object(file, library)
        except Exception as exc:
            raise NotKeptError(
                f"the returned model of {library} is kept in {file}, which cannot be read "
                f"({type(exc).__name__}: {exc}). Define or import the classes of the model before "
                "reading the result, or load the file yourself if you trust it."
            ) from exc

    return decoded(typed, other)
