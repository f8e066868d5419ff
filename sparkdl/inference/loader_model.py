"""Runs anywhere. A model of any framework: a folder of files, and the function that loads them.

```
<folder>/loader.json  the name of the loader, the inputs and the outputs
        /files/...    the files that the loader gets
        /code/...     the user's own modules that the loader imports
```

A loader is a function `module:function` of the user, which gets the folder of the files and returns
a function of arrays, or a dict of these by the name of their signature; or one of
`loaders.LOADERS`, which reads a format without running code of it.
"""

import functools
import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sparkdl.cluster.program.local_modules import Source
from sparkdl.files.model_formats import LOADER_FILE
from sparkdl.inference.loaders import LOADERS, Loaded
from sparkdl.inference.own_modules import OwnModules
from sparkdl.inference.returned_arrays import arrays_of
from sparkdl.inference.tensor_spec import TensorSpec, fit_rows
from sparkdl.inference.traced_model import TracedModel

FILES = "files"
CODE = "code"
_FORMAT = 1
# The format of a model with several functions.
_FORMAT_OF_SEVERAL = 2
# The signature of a request that names none.
DEFAULT = "serving_default"
Call = Callable[[Sequence[Any]], Any]
# The dtypes whose arrays have objects, with an empty one of each.
TEXTS: Mapping[str, str | bytes] = {"string": "", "bytes": b""}


@dataclass(frozen=True)
class ModelFunction:
    """A function of a model.

    Attributes:
        inputs: the inputs, in the order of the function's arguments.
        outputs: the outputs.
        by_name: True if the inputs are passed by name, not by position.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    by_name: bool


@dataclass(frozen=True, kw_only=True)
class LoaderModel:
    """The description of a model with a loader.

    Attributes:
        loader: `module:function`, or a name of `LOADERS`.
        inputs: the inputs, in the order of the function's arguments.
        outputs: the outputs.
        by_name: True if the inputs are passed by name, not by position.
        modules: the user's own modules that the loader imports, by name.
        others: further functions by the name of their signature, if the loader returns a dict of
            functions.
    """

    loader: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...] = ()
    by_name: bool = False
    modules: Mapping[str, Source] = field(default_factory=dict, repr=False)
    others: Mapping[str, ModelFunction] = field(default_factory=dict)

    @property
    def functions(self) -> dict[str, ModelFunction]:
        """All functions by the name of their signature."""
        return {DEFAULT: ModelFunction(self.inputs, self.outputs, self.by_name), **self.others}

    def load(self, folder: Path) -> tuple[Any, dict[str, Call]]:
        """Load the model.

        Args:
            folder: the local folder of the model.

        Returns:
            The object that the loader has made, and by the name of the signature functions that
            take one array for each input, of any number of rows, and return what the model returns.

        Raises:
            MissingPackageError: if the package of the format is not installed.
            Exception: whatever a loader of the user raises.
        """
        modules = OwnModules(self.modules)
        with modules.importable():
            loaded = self._loader()(folder / FILES)
        if isinstance(loaded, Loaded):
            call = _call_of(loaded.function, self.functions[DEFAULT], modules)
            if loaded.num_rows is not None:
                call = functools.partial(_in_batches, call, loaded.num_rows)
            return loaded.model, {DEFAULT: call}
        returned = loaded if isinstance(loaded, Mapping) else {DEFAULT: loaded}
        if missing := sorted(self.functions.keys() - returned.keys()):
            raise ValueError(
                f"the loader {self.loader} has returned functions for "
                f"{', '.join(map(str, returned)) or 'nothing'}, and none for {missing[0]!r}; "
                "expected a dict with a function for each signature."
            )
        calls = {
            name: _call_of(returned[name], function, modules)
            for name, function in self.functions.items()
        }
        if isinstance(loaded, Mapping):
            return {name: _with_modules(f, modules) for name, f in loaded.items()}, calls
        return _with_modules(loaded, modules), calls

    def trace(self, folder: Path) -> dict[str, TracedModel]:
        """Load the model as functions of arrays, whose outputs are as they were learnt."""
        _, calls = self.load(folder)
        return {
            name: TracedModel(function.outputs, _with_outputs(calls[name], function.outputs))
            for name, function in self.functions.items()
        }

    def _loader(self) -> Callable[[Path], Any]:
        if self.loader in LOADERS:
            return LOADERS[self.loader]
        module, _, name = self.loader.partition(":")
        function: Callable[[Path], Any] = getattr(importlib.import_module(module), name)
        return function

    def write(self, folder: Path) -> None:
        """Write the description and the user's modules into the folder of the model."""
        for name, source in self.modules.items():
            parts = [*name.split("."), *(["__init__"] if source.is_package else [])]
            file = folder.joinpath(CODE, *parts).with_suffix(".py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source.text, encoding="utf-8")
        content = {
            "format": _FORMAT,
            "loader": self.loader,
            **_function_to_dict(self.functions[DEFAULT]),
        }
        if self.others:
            others = {name: _function_to_dict(f) for name, f in self.others.items()}
            content |= {"format": _FORMAT_OF_SEVERAL, "signatures": others}
        (folder / LOADER_FILE).write_text(json.dumps(content, indent=1) + "\n")


def read_loader_model(folder: Path) -> LoaderModel:
    """Read the description of a model from its folder.

    Raises:
        ValueError: if it cannot be read, or has another format.
    """
    try:
        content = json.loads((folder / LOADER_FILE).read_text())
        if content["format"] not in (_FORMAT, _FORMAT_OF_SEVERAL):
            raise ValueError(
                f"it has format {content['format']}; this version reads {_FORMAT} and "
                f"{_FORMAT_OF_SEVERAL}"
            )
        main = _function_from_dict(content)
        others = content.get("signatures", {})
        return LoaderModel(
            loader=content["loader"],
            by_name=main.by_name,
            inputs=main.inputs,
            outputs=main.outputs,
            modules=dict(_read_modules(folder / CODE)),
            others={name: _function_from_dict(f) for name, f in others.items()},
        )
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ValueError(f"{folder / LOADER_FILE} cannot be read: {exc!r}") from exc


def _read_modules(folder: Path) -> list[tuple[str, Source]]:
    found = []
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(folder).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found.append((name, Source(file.read_text(encoding="utf-8"), str(file), is_package)))
    return found


def _function_to_dict(function: ModelFunction) -> dict[str, Any]:
    return {
        "by_name": function.by_name,
        "inputs": [_to_dict(spec) for spec in function.inputs],
        "outputs": [_to_dict(spec) for spec in function.outputs],
    }


def _function_from_dict(content: Mapping[str, Any]) -> ModelFunction:
    return ModelFunction(
        inputs=tuple(_from_dict(spec) for spec in content["inputs"]),
        outputs=tuple(_from_dict(spec) for spec in content["outputs"]),
        by_name=content["by_name"],
    )


def _to_dict(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape or ())}


def _from_dict(content: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(content["name"], tuple(content["shape"]), content["dtype"])


def _call_of(called: Any, function: ModelFunction, modules: OwnModules) -> Call:
    """Return a function of one array for each input."""
    names = [spec.name for spec in function.inputs]

    def call(arrays: Sequence[Any]) -> Any:
        fitted = [_fit(array, spec) for array, spec in zip(arrays, function.inputs, strict=True)]
        with modules.importable():
            if function.by_name:
                return called(**dict(zip(names, fitted, strict=True)))
            return called(*fitted)

    return call


def _with_outputs(call: Call, outputs: Sequence[TensorSpec]) -> Call:
    return lambda arrays: arrays_of(call(arrays), outputs)


def _fit(array: Any, spec: TensorSpec) -> Any:
    """Return rows as the function takes them, which it may change."""
    if spec.dtype not in TEXTS:
        array = fit_rows(array, spec, np.dtype(spec.dtype))
    return array if array.flags.writeable else array.copy()


def _in_batches(
    call: Callable[[Sequence[Any]], Any], num_rows: int, arrays: Sequence[Any]
) -> dict[str, Any]:
    """Compute as many rows at a time as a model takes; the last batch is filled up with its own."""
    parts = []
    for begin in range(0, max(len(arrays[0]), 1), num_rows):
        batch = [array[begin : begin + num_rows] for array in arrays]
        filled = [np.resize(array, (num_rows, *array.shape[1:])) for array in batch]
        parts.append(_by_name(call(filled)))
    rows = slice(len(arrays[0]))
    return {name: np.concatenate([part[name] for part in parts])[rows] for name in parts[0]}


def _with_modules(loaded: Any, modules: OwnModules) -> Any:
    """Return a function that finds the user's own modules when it is called."""
    if not inspect.isfunction(loaded):
        return loaded

    @functools.wraps(loaded)
    def function(*arguments: Any, **named: Any) -> Any:
        with modules.importable():
            return loaded(*arguments, **named)

    return function


# ---- the outputs


def learn_outputs(
    call: Callable[[Sequence[Any]], Any], batches: Sequence[Sequence[Any]]
) -> tuple[TensorSpec, ...]:
    """Return the outputs of a function, as it returns them for batches of rows.

    An axis whose length differs between the batches, or between the rows of one, is variable.

    Args:
        call: takes one array for each input.
        batches: arrays for the inputs; at least one batch.

    Raises:
        ValueError: if what it returns is no array with a row for each row of the batch.
    """
    learnt: dict[str, TensorSpec] = {}
    for batch in batches:
        returned = call(batch)
        if not (named := _by_name(returned)):
            raise ValueError("the model has returned no output.")
        for name, value in named.items():
            spec = _spec_of(name, value, len(batch[0]))
            before = learnt.get(name, spec)
            shapes = (before.shape or ()), (spec.shape or ())
            if len(shapes[0]) != len(shapes[1]):
                raise ValueError(f"the output {name!r} has {before} and then {spec}.")
            shape = tuple(a if a == b else None for a, b in zip(*shapes, strict=True))
            learnt[name] = TensorSpec(name, shape, spec.dtype)
        arrays_of(returned, tuple(learnt.values()))  # As each request does.
    return tuple(learnt.values())


def _by_name(returned: Any) -> dict[str, Any]:
    if isinstance(returned, Mapping):
        return {str(name): value for name, value in returned.items()}
    if isinstance(returned, tuple):
        return {f"output_{number}": value for number, value in enumerate(returned)}
    return {"output_0": returned}


def _spec_of(name: str, value: Any, num_rows: int) -> TensorSpec:
    if isinstance(value, tuple):
        raise ValueError(f"the output {name!r} is a tuple; expected an array.")
    is_list = isinstance(value, list) and len(value) == num_rows
    if is_list and all(isinstance(row, list | np.ndarray) and np.ndim(row) for row in value):
        # Rows in a list may have other lengths next time.
        filled = [np.asarray(row) for row in value if len(row)] or [np.zeros(1)]
        return TensorSpec(name, (None, *filled[0].shape[1:]), _dtype_of(name, filled[0]))
    rows = np.asarray(value)
    if rows.ndim == 0 or len(rows) != num_rows:
        raise ValueError(
            f"the output {name!r} has the shape {list(rows.shape)} for {num_rows} rows of input; "
            "expected one row of output for each row of input."
        )
    return TensorSpec(name, rows.shape[1:], _dtype_of(name, rows))


def _dtype_of(name: str, array: "np.ndarray[Any, Any]") -> str:
    if array.dtype.kind == "U" or (
        array.dtype == object and all(isinstance(value, str) for value in array.flat)
    ):
        return "string"
    if array.dtype == object and all(isinstance(value, bytes) for value in array.flat):
        return "bytes"
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"the output {name!r} is an array of {array.dtype}; expected numbers, booleans, text "
            "or bytes."
        )
    return str(array.dtype.name)
