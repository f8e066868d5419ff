"""Runs anywhere. Load models of formats that hold no code: PyTorch, scikit-learn, XGBoost, ONNX."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sparkdl.errors import named_type
from sparkdl.files.model_objects import read_model_object
from sparkdl.host.optional_packages import require
from sparkdl.host.variables import set_variables
from sparkdl.inference.torch_files import torch_format
from sparkdl.inference.torch_model import WEIGHTS_ONLY, load_program, to_numpy


@dataclass(frozen=True)
class Loaded:
    """A model in memory.

    Attributes:
        model: the object of the library.
        function: takes arrays, by position or by name, and returns an array, a tuple or a dict.
        num_rows: the number of rows that the function takes at once; None for any number.
    """

    model: Any
    function: Callable[..., Any]
    num_rows: int | None = None


def _load_torch_export(folder: Path) -> Loaded:
    require("torch", "the model")
    import torch

    path = folder / "model.pt2"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with set_variables(WEIGHTS_ONLY):
        module, num_rows = load_program(torch_format(path), path, device)

    def call(*arrays: Any, **named: Any) -> Any:
        tensors = [torch.tensor(array, device=device) for array in arrays]
        by_name = {name: torch.tensor(array, device=device) for name, array in named.items()}
        with torch.inference_mode():
            returned = module(*tensors, **by_name)
        if isinstance(returned, Mapping):
            # Models of transformers return None for the loss.
            pairs = [(name, value) for name, value in returned.items() if value is not None]
            return {str(name): _array(value) for name, value in pairs}
        if isinstance(returned, list | tuple):
            return tuple(_array(value) for value in returned if value is not None)
        return _array(returned)

    return Loaded(module, call, num_rows)


def _array(value: Any) -> Any:
    if isinstance(value, list | tuple):
        raise TypeError(
            f"the module has returned {named_type(value)} of {len(value)} inside its outputs; "
            "expected tensors. Return them side by side, or by name in a dict."
        )
    return to_numpy(value)


def _load_sklearn(folder: Path) -> Loaded:
    estimator = read_model_object(folder / "model.skops", "sklearn")

    def call(*arrays: Any, **named: Any) -> Any:
        (rows,) = (*arrays, *named.values())
        outputs = {"prediction": estimator.predict(rows)}
        if hasattr(estimator, "predict_proba"):
            probabilities = estimator.predict_proba(rows)
            # Of several targets, it is a list of arrays.
            if not isinstance(probabilities, list):
                outputs["probabilities"] = probabilities
        return outputs

    return Loaded(estimator, call)


def _load_xgboost(folder: Path) -> Loaded:
    require("xgboost", "the model")
    xgboost = importlib.import_module("xgboost")
    booster = xgboost.Booster(model_file=str(folder / "model.ubj"))

    def call(*arrays: Any, **named: Any) -> Any:
        (rows,) = (*arrays, *named.values())
        # The rows have no names of columns.
        return {"prediction": booster.predict(xgboost.DMatrix(rows), validate_features=False)}

    return Loaded(booster, call)


def _load_onnx(folder: Path) -> Loaded:
    require("onnxruntime", "the model")
    onnxruntime = importlib.import_module("onnxruntime")
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    names = [output.name for output in session.get_outputs()]
    sizes = {node.shape[0] for node in session.get_inputs() if node.shape}
    fixed = {size for size in sizes if isinstance(size, int)}

    def call(**arrays: Any) -> Any:
        return dict(zip(names, session.run(names, arrays), strict=True))

    return Loaded(session, call, max(fixed, default=None))


LOADERS: Mapping[str, Callable[[Path], Loaded]] = MappingProxyType(
    {
        "torch.export": _load_torch_export,
        "sklearn": _load_sklearn,
        "xgboost": _load_xgboost,
        "onnx": _load_onnx,
    }
)
