"""Runs on the driver. Functions and models of PyTorch, whose outputs the user declares."""

import hashlib
import inspect
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql.types import DataType, StructType

from sparkdl.cluster.program.packaging import pack
from sparkdl.cluster.spark import shares_environment
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.files.model_formats import library_of_object
from sparkdl.inference import tensor_spec
from sparkdl.inference.model_file import StoredModel, read_files
from sparkdl.inference.tensor_spec import TensorSpec
from sparkdl.inference.torch_files import TORCH_FILES, torch_format
from sparkdl.inference.torch_objects import is_torch, on_cpu, save_program
from sparkdl.spark.capabilities import parse_type


@dataclass(frozen=True)
class DeclaredModel:
    """The inputs and outputs of a model that does not tell them.

    Attributes:
        inputs: the inputs, whose shapes and dtypes are those of their columns.
        by_name: True if the inputs are passed by name, not by position.
        outputs: the outputs.
        takes_text: True if inputs may be text.
    """

    inputs: tuple[TensorSpec, ...]
    by_name: bool
    outputs: tuple[TensorSpec, ...]
    takes_text: bool

    def trace(self, inputs: Sequence[TensorSpec]) -> "DeclaredModel":
        """Return this model, without calling it.

        Raises:
            ValueError: if an input is text, which a tensor of PyTorch cannot hold.
        """
        if not self.takes_text:
            for spec in inputs:
                if spec.dtype == "string":
                    raise ValueError(
                        f"the model's input {spec.name!r} would be text, but models of PyTorch "
                        "take numbers. Encode the column before."
                    )
        return self


def declared_library(model: Any) -> str | None:
    """Return `function` or `torch` for a model whose outputs must be declared; None otherwise."""
    if library_of_object(model):
        return None
    if isinstance(model, str | os.PathLike):
        return "torch" if os.fspath(model).endswith(TORCH_FILES) else None
    if is_torch(model):
        return "torch"
    return "function" if callable(model) else None


def declare(
    model: Any, library: str, features: Any, outputs: Any
) -> tuple[StoredModel, DeclaredModel]:
    """Return a model as executors load it, and its inputs and outputs.

    Args:
        model: a function, a class of callables, a module of PyTorch, or the path of a program.
        library: see `declared_library`.
        features: the feature columns: a tuple for arguments by position, a dict for arguments by
            name, anything else for one argument.
        outputs: the outputs, see `prediction.predict`.

    Raises:
        ConfigError: if the outputs are not declared, or the model cannot be used.
    """
    described = _outputs(outputs)
    by_name = isinstance(features, dict)
    names = list(features) if by_name else []
    if not by_name:
        count = len(features) if isinstance(features, tuple) else 1
        names = [f"input_{number}" for number in range(count)]
    options: dict[str, Any] = {"outputs": described, "by_name": by_name}
    if library == "function":
        _check_arguments(model, names, by_name)
        stored = _pack_model("function", model, model, options)
    elif isinstance(model, str | os.PathLike):
        stored = _torch_file(storage.absolute(model), options)
    else:
        stored = _torch_object(model, options)
    inputs = tuple(TensorSpec(str(name), None, "") for name in names)
    return stored, DeclaredModel(inputs, by_name, described, library == "function")


def _outputs(outputs: Any) -> tuple[TensorSpec, ...]:
    if outputs is None:
        raise ConfigError(
            "outputs is missing: a function or a model of PyTorch does not tell what it returns. "
            "Pass the type of one output, outputs='float' or outputs='array<float>', or names and "
            "types of several, outputs='label string, score float'."
        )
    try:
        kind = parse_type(outputs) if isinstance(outputs, str) else outputs
    except PySparkException as exc:
        raise ConfigError(f"outputs is {outputs!r}, which is no type of Spark: {exc}") from exc
    if not isinstance(kind, DataType):
        raise ConfigError(f"outputs is {outputs!r}; expected a type of Spark, such as 'float'.")
    fields = [(f.name, f.dataType) for f in kind] if isinstance(kind, StructType) else []
    try:
        return tuple(tensor_spec.from_spark(*f) for f in fields or [("output", kind)])
    except ValueError as exc:
        raise ConfigError(f"outputs is {outputs!r}: {exc}") from exc


def _check_arguments(model: Any, names: list[str], by_name: bool) -> None:
    """Validate that a function takes the features, as far as it tells its arguments."""
    function: Callable[..., Any] = model
    try:
        if inspect.isclass(model):
            inspect.signature(model).bind()
            signature = inspect.signature(model.__call__)
            instance: tuple[Any, ...] = (None,)
        else:
            signature = inspect.signature(function)
            instance = ()
    except ValueError:  # Some builtin functions do not tell their arguments.
        return
    except TypeError as exc:
        raise ConfigError(
            f"the class {model.__name__} is called without arguments in each Python worker: {exc}."
        ) from exc
    try:
        if by_name:
            signature.bind(*instance, **dict.fromkeys(names))
        else:
            signature.bind(*instance, *names)
    except TypeError as exc:
        passed = f"by name: {', '.join(names)}" if by_name else f"{len(names)} by position"
        raise ConfigError(
            f"feature_cols are passed to the function as arguments, {passed}. It takes "
            f"{signature}: {exc}."
        ) from exc


def _pack_model(library: str, model: Any, value: Any, options: dict[str, Any]) -> StoredModel:
    """Return a function or module with the user's own modules that it imports."""
    program = pack(value)
    if shares_environment(None):
        program.check_packages()
    return _stored_model(library, model, program.function, options | {"modules": program.modules})


def _stored_model(library: str, model: Any, data: bytes, options: dict[str, Any]) -> StoredModel:
    name = getattr(model, "__name__", type(model).__name__)
    digest = hashlib.sha256(data + repr(options.get("modules")).encode()).hexdigest()
    return StoredModel(name=repr(name), library=library, digest=digest, data=data, **options)


def _torch_object(model: Any, options: dict[str, Any]) -> StoredModel:
    with io.BytesIO() as file:
        if library := save_program(model, file):
            return _stored_model(library, model, file.getvalue(), options)
    return _pack_model("torch", model, on_cpu(model), options)


def _torch_file(url: str, options: dict[str, Any]) -> StoredModel:
    library, digest = read_files(url, torch_format)
    return StoredModel(name=url, library=library, digest=digest, url=url, **options)
