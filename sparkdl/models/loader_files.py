"""Runs on the driver. Write a model with a loader into the folder of a version."""

import importlib
import inspect
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sparkdl.cluster.program.local_modules import Source
from sparkdl.cluster.program.packaging import pack
from sparkdl.errors import ConfigError, MissingPackageError
from sparkdl.files.model_objects import library_of_model, write_model_object
from sparkdl.host.optional_packages import require
from sparkdl.inference.loader_model import (
    DEFAULT,
    FILES,
    LoaderModel,
    ModelFunction,
    learn_outputs,
    read_loader_model,
)
from sparkdl.inference.tensor_spec import TensorSpec
from sparkdl.inference.torch_files import TORCH_FILES
from sparkdl.inference.torch_objects import float_dtype, is_torch, on_cpu, save_program
from sparkdl.models.example_rows import Example, example_of, lengths_of, zeros_of
from sparkdl.models.layout import check_name

# The file of each format that is read without running code.
_FORMATS = {
    **dict.fromkeys(TORCH_FILES, ("torch.export", "model.pt2")),
    ".skops": ("sklearn", "model.skops"),
    ".ubj": ("xgboost", "model.ubj"),
    ".onnx": ("onnx", "model.onnx"),
}

Loader = str | Callable[[Path], Any]


def format_of(model: Any) -> str | None:
    """Return the loader for a model of PyTorch, scikit-learn or XGBoost, or for the path of one.

    Returns:
        The name of the loader; None for any other object or path.
    """
    if isinstance(model, str | os.PathLike):
        return _FORMATS.get(Path(os.fspath(model)).suffix, ("", ""))[0] or None
    names = {(base.__module__, base.__name__) for base in type(model).__mro__}
    if names & {("xgboost.core", "Booster"), ("xgboost.sklearn", "XGBModel")}:
        return "xgboost"
    if is_torch(model):
        return "torch.export"
    return "sklearn" if library_of_model(model) == "sklearn" else None


def write_format(model: Any, loader: str, folder: Path, signature: Any) -> None:
    """Write a model of a format that holds no code, with its description.

    Args:
        model: the model, or the local path of its file.
        loader: see `format_of`.
        folder: the folder of the version.
        signature: see `example_of`.

    Raises:
        ConfigError: if the inputs are not described, or the model cannot be written or called.
    """
    files = folder / FILES
    files.mkdir(parents=True)
    if isinstance(model, Path):
        shutil.copyfile(model, files / _FORMATS[model.suffix][1])
        if loader == "onnx" and signature is None:
            example = _onnx_example(files)
        else:
            example = example_of(signature)
    else:
        example = example_of(signature)
        if loader == "torch.export" and not hasattr(model, "graph_signature"):
            example = _in_dtype_of(model, example)
        _write_object(model, loader, files, example)
    described = LoaderModel(loader=loader, inputs=example.inputs, by_name=example.by_name)
    _write_described(described, folder, {DEFAULT: example})


def _write_object(model: Any, loader: str, files: Path, example: Example) -> None:
    if loader == "torch.export":
        advice = "Save its weights to a folder, and pass it with loader=, a function that loads it."
        write_torch(model, files / "model.pt2", example, advice)
    elif loader == "sklearn":
        write_model_object(model, "sklearn", files)
    else:
        _booster_of(model).save_model(files / "model.ubj")


def _in_dtype_of(module: Any, example: Example) -> Example:
    """Return rows whose floats have the dtype of the weights of a module, as in training."""
    kind = float_dtype(module)
    inputs = tuple(
        replace(spec, dtype=kind) if spec.dtype in ("float32", "float64") else spec
        for spec in example.inputs
    )
    batches = [
        [rows if spec.dtype == "string" else rows.astype(spec.dtype) for rows, spec in pairs]
        for pairs in (zip(batch, inputs, strict=True) for batch in example.batches)
    ]
    return replace(example, inputs=inputs, batches=batches)


def _booster_of(model: Any) -> Any:
    """Return the booster by which an estimator of XGBoost predicts."""
    if not hasattr(model, "get_booster"):
        return model
    if model.missing is not None and not np.isnan(model.missing):
        raise ConfigError(
            f"the model takes {model.missing} for a missing value, which its file does not keep. "
            "Train it with NaN for missing values, or pass loader=."
        )
    booster = model.get_booster()
    best = getattr(model, "best_iteration", None) if model.early_stopping_rounds else None
    return booster if best is None else booster[: best + 1]


def write_torch(model: Any, file: Path, example: Example, advice: str) -> None:
    """Write a model of PyTorch as a program, for any number of rows.

    Args:
        model: a module, or a program.
        file: the file.
        example: rows with which the module is called.
        advice: what to do where that is not possible, for the message.

    Raises:
        ConfigError: if `torch.export` makes no program of the module.
    """
    import torch

    if save_program(model, file):
        return
    if any(spec.dtype == "string" for spec in example.inputs):
        raise ConfigError("a module of PyTorch takes numbers; signature has text. Pass loader=.")
    # PyTorch takes one row for a constant number.
    batch = [np.concatenate([a, a]) if len(a) == 1 else a for a in example.batches[-1]]
    tensors = [torch.as_tensor(array) for array in batch]
    rows = torch.export.Dim("rows")
    axes = [_dynamic_axes(spec, rows) for spec in example.inputs]
    names = [spec.name for spec in example.inputs]
    model = on_cpu(model)
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        if example.by_name:
            named = dict(zip(names, tensors, strict=True))
            shapes = dict(zip(names, axes, strict=True))
            program = torch.export.export(model, (), named, dynamic_shapes=shapes)
        else:
            program = torch.export.export(model, tuple(tensors), dynamic_shapes=tuple(axes))
    except Exception as exc:
        raise ConfigError(
            f"torch.export cannot make a program of {type(model).__name__}: {exc} {advice}"
        ) from exc
    finally:
        for module, is_training in modes:
            module.training = is_training
    torch.export.save(program, file)


def _dynamic_axes(spec: TensorSpec, rows: Any) -> dict[int, Any]:
    import torch

    axes = {0: rows}
    for axis, length in enumerate(spec.shape or (), start=1):
        if length is None:
            axes[axis] = torch.export.Dim(f"{spec.name}_{axis}")
    return axes


def _onnx_example(files: Path) -> Example:
    """Return the inputs that an ONNX model describes itself."""
    require("onnxruntime", "a model of ONNX")
    import onnxruntime  # type: ignore[import-not-found]

    try:
        session = onnxruntime.InferenceSession(str(files / "model.onnx"))
    except Exception as exc:
        raise ConfigError(
            f"the file cannot be loaded: {exc} If its weights are in files beside it, export their "
            "folder with loader=."
        ) from exc
    kinds = {"float": "float32", "double": "float64", "float16": "float16", "bool": "bool"}
    specs = []
    for node in session.get_inputs():
        kind = node.type.removeprefix("tensor(").removesuffix(")")
        shape = tuple(n if isinstance(n, int) else None for n in node.shape[1:])
        specs.append(TensorSpec(node.name, shape, kinds.get(kind, kind)))
    batches = [[zeros_of(spec, length) for spec in specs] for length in lengths_of(specs)]
    return Example(tuple(specs), True, batches)


def write_loaded(
    source: Path | None,
    loader: Loader,
    folder: Path,
    signature: Any,
    signatures: Mapping[str, Any] | None = None,
) -> None:
    """Write the files of a model, the user's loader and the modules that it imports.

    Args:
        source: the file or the folder of the model; None for a loader that needs no files.
        loader: the function, or its name `module:function`.
        folder: the folder of the version.
        signature: see `example_of`.
        signatures: the same for further functions, by name.

    Raises:
        ConfigError: if the loader is no function of a module, or fails.
    """
    name, modules = _find_loader(loader)
    example = example_of(signature)
    others = {check_name(key, "signature"): example_of(s) for key, s in (signatures or {}).items()}
    if DEFAULT in others:
        raise ConfigError(f"signatures has {DEFAULT!r}; pass its rows as signature=.")
    files = folder / FILES
    files.mkdir(parents=True)
    if source is not None and source.is_dir():
        _copy_folder(source, files)
    elif source is not None:
        shutil.copyfile(source, files / source.name)
    described = LoaderModel(
        loader=name,
        inputs=example.inputs,
        by_name=example.by_name,
        modules=modules,
        others={key: ModelFunction(e.inputs, (), e.by_name) for key, e in others.items()},
    )
    _write_described(described, folder, {DEFAULT: example, **others})


def _copy_folder(source: Path, files: Path) -> None:
    if files.resolve().is_relative_to(source.resolve()):
        raise ConfigError(
            f"the folder {source} holds the registry itself, {files.parents[2]}. Pass a folder "
            "with the files of the model alone, or another root=."
        )
    try:
        shutil.copytree(source, files, dirs_exist_ok=True)
    except shutil.Error as exc:
        raise ConfigError(f"the folder {source} cannot be copied: {exc}") from exc


def _find_loader(loader: Loader) -> tuple[str, Mapping[str, Source]]:
    """Return the name of a loader, and the user's own modules that it imports."""
    advice = (
        "Write it into a module beside the program, and pass the function or 'module:function'."
    )
    if isinstance(loader, str):
        module, _, name = loader.partition(":")
        if not module or not name or module == "__main__":
            raise ConfigError(f"loader is {loader!r}; expected 'module:function'. {advice}")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as exc:
            raise ConfigError(f"loader is {loader!r}, which cannot be imported: {exc}.") from exc
        return loader, pack(found).modules
    if not inspect.isfunction(loader) or not loader.__qualname__.isidentifier():
        raise ConfigError(f"loader is {loader!r}; expected a function of a module. {advice}")
    if loader.__module__ == "__main__":
        raise ConfigError(
            f"loader is {loader.__qualname__!r} of this program itself, which a model cannot "
            f"import. {advice}"
        )
    return _find_loader(f"{loader.__module__}:{loader.__qualname__}")


def _write_described(model: LoaderModel, folder: Path, examples: Mapping[str, Example]) -> None:
    """Load the model from its files, call it, and write what it was found to return."""
    model.write(folder)
    name = DEFAULT
    learnt = {}
    try:
        _, calls = read_loader_model(folder).load(folder)
        for name, example in examples.items():
            learnt[name] = learn_outputs(calls[name], example.batches)
    except (ConfigError, MissingPackageError):
        raise
    except (Exception, SystemExit) as exc:
        hint = "" if ":" in model.loader else " Save its files to a folder, and pass loader=."
        rows = "signature" if name == DEFAULT else f"signatures[{name!r}]"
        raise ConfigError(
            f"the model cannot be loaded and called with the rows of {rows}: "
            f"{type(exc).__name__}: {exc}{hint}"
        ) from exc
    others = {name: replace(f, outputs=learnt[name]) for name, f in model.others.items()}
    replace(model, outputs=learnt[DEFAULT], others=others).write(folder)


def signatures_of(folder: Path) -> dict[str, Any]:
    """Return the inputs and outputs of a model as `model.json` has them."""
    return {
        name: {"inputs": _described(f.inputs), "outputs": _described(f.outputs)}
        for name, f in read_loader_model(folder).functions.items()
    }


def _described(specs: Sequence[TensorSpec]) -> dict[str, Any]:
    return {s.name: {"dtype": s.dtype, "shape": [None, *(s.shape or ())]} for s in specs}
