"""Runs in the training process. Train the module of a `TorchEstimator` on the rows of this rank."""

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparkdl.data.exact_numbers import first_inexact
from sparkdl.inference.tensor_spec import TensorSpec, fit_rows
from sparkdl.inference.torch_objects import float_dtype
from sparkdl.ml.params import CLASSIFICATION
from sparkdl.ml.tasks import check_outputs
from sparkdl.ml.torch_losses import loss_by_row, name_of
from sparkdl.ml.training import Training

_CHECKPOINT = "checkpoint.pt"
WEIGHTS = "weights"


@dataclass(frozen=True, kw_only=True)
class TorchTraining(Training):
    """The training function of `TorchEstimator.fit`.

    The class is at module level so that it can be pickled by reference.

    Attributes:
        make_model: returns the module and its optimizer.
        loss: a function of the outputs and the labels.
        metrics: further functions of these, by name.
        task: `classification` or `regression`.
    """

    make_model: Callable[[], tuple[Any, Any]]
    loss: Callable[..., Any]
    metrics: Mapping[str, Callable[..., Any]]
    task: str

    def __call__(self) -> dict[str, Any]:
        """Train, and return the last metrics, the model, and the file of its weights."""
        import torch
        from torch import distributed

        has_gpu = torch.cuda.is_available()
        if has_gpu:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        distributed.init_process_group("nccl" if has_gpu else "gloo")
        try:
            return _Loop(self, torch.device("cuda" if has_gpu else "cpu")).fit()
        finally:
            distributed.destroy_process_group()


class _Loop:
    """The epochs of a rank."""

    def __init__(self, training: TorchTraining, device: Any) -> None:
        from torch.nn.parallel import DistributedDataParallel

        self._training = training
        self._device = device
        self._module, self._optimizer = training.make_model()
        self._module.to(device)
        self._floats = float_dtype(self._module)
        # A state that the optimizer has already goes to the device of the parameters.
        self._optimizer.load_state_dict(self._optimizer.state_dict())
        self._inputs = training.inputs
        self._output: TensorSpec | None = None
        self._metrics: dict[str, float] = {}
        self._first = self._restore()
        self._model = DistributedDataParallel(self._module)
        self._loss = loss_by_row(training.loss) if training.weight else training.loss

    def fit(self) -> dict[str, Any]:
        from sparkdl import context

        training = self._training
        train = training.rows("train", training.shuffle).as_numpy()
        train.set_epoch(self._first)
        validation = None
        if training.has_validation:
            validation = training.rows("validation", shuffle=False).without_repeats.as_numpy()
        for epoch in range(self._first, training.epochs):
            self._module.train()
            self._metrics = self._average(map(self._step, train))
            if validation is not None:
                found = self._validate(validation)
                self._metrics |= {f"val_{name}": value for name, value in found.items()}
            self._report(epoch)
        return {**self._metrics, **(self._save() if context.current().is_chief else {})}

    # ---- the steps

    def _step(self, batch: Any) -> list[Any]:
        inputs, label, weight = self._taken(batch)
        self._optimizer.zero_grad()
        outputs, loss, labels = self._outputs(self._model, inputs, label, weight)
        loss.backward()
        self._optimizer.step()
        return self._values(outputs, loss, labels)

    def _validate(self, rows: Iterable[Any]) -> dict[str, float]:
        import torch
        from torch import distributed

        for buffer in self._module.buffers():
            distributed.broadcast(buffer, 0)  # As the next step would begin.
        self._module.eval()

        def values(batch: Any) -> list[Any]:
            with torch.inference_mode():
                # Without DistributedDataParallel: ranks may have different numbers of batches.
                return self._values(*self._outputs(self._module, *self._taken(batch)))

        return self._average(map(values, rows))

    def _outputs(self, model: Any, inputs: Any, label: Any, weight: Any) -> tuple[Any, Any, Any]:
        """Return the outputs, the loss and the labels as the loss takes them."""
        outputs = model(**inputs) if isinstance(inputs, dict) else model(inputs)
        self._check(outputs, len(label))
        labels = self._labels(label, outputs)
        loss = self._loss(outputs, labels)
        if weight is not None:
            weights = self._tensor(weight, _dtype_of(loss), self._training.weight or "")
            loss = (loss.reshape(len(weights), -1).mean(dim=1) * weights).mean()
        return outputs, loss, labels

    def _values(self, outputs: Any, loss: Any, labels: Any) -> list[Any]:
        """Return the number of rows, the loss and the metrics."""
        metrics = self._training.metrics.values()
        return [len(outputs), loss.detach(), *(f(outputs.detach(), labels) for f in metrics)]

    def _average(self, batches: Iterable[list[Any]]) -> dict[str, float]:
        """Return the averages of the values over the rows of all ranks."""
        import torch
        from torch import distributed

        names = ["loss", *self._training.metrics]
        totals = torch.zeros(1 + len(names), dtype=torch.float64, device=self._device)
        for num_rows, *values in batches:
            for number, value in enumerate((1.0, *values)):
                totals[number] += num_rows * value
        distributed.all_reduce(totals)
        num_rows, *sums = totals.tolist()
        return {name: value / num_rows for name, value in zip(names, sums, strict=True)}

    # ---- tensors

    def _taken(self, batch: Any) -> tuple[Any, Any, Any]:
        """Return the inputs as tensors, and the labels and the weights as arrays."""
        import torch

        features, label, *weights = batch
        by_name = isinstance(self._training.features, Mapping)
        arrays = {
            spec.name: fit_rows(
                features[spec.name] if by_name else features, spec, self._dtype(spec)
            )
            for spec in self._training.inputs
        }
        self._inputs = tuple(
            TensorSpec(name, array.shape[1:], str(array.dtype)) for name, array in arrays.items()
        )
        tensors = {n: torch.from_numpy(array).to(self._device) for n, array in arrays.items()}
        inputs = tensors if by_name else next(iter(tensors.values()))
        return inputs, label, next(iter(weights), None)

    def _dtype(self, spec: TensorSpec) -> str:
        """Return the dtype of an input; floats have that of the weights."""
        return self._floats if spec.dtype.startswith("float") else spec.dtype

    def _labels(self, label: Any, outputs: Any) -> Any:
        """Return labels as losses of PyTorch take them: numbers of classes, or as the outputs."""
        is_class = self._training.task == CLASSIFICATION and label.ndim == 1
        if is_class and outputs.ndim == 2 and outputs.shape[1] > 1:
            return self._tensor(label, "int64", self._training.label)
        labels = self._tensor(label, _dtype_of(outputs), self._training.label)
        # A loss that subtracts (rows, 1) from (rows,) would compare all rows with each other.
        return labels.reshape(outputs.shape) if labels.numel() == outputs.numel() else labels

    def _tensor(self, values: Any, dtype: str, column: str) -> Any:
        import torch

        in_numpy = "float32" if dtype == "bfloat16" else dtype  # NumPy has no bfloat16.
        if (value := first_inexact(values, in_numpy)) is not None:
            raise ValueError(
                f"column {column!r} has {value}, which the loss takes as {dtype}, where it is "
                "another number. Scale the column, or cast whole numbers to double, to round them."
            )
        return torch.from_numpy(np.asarray(values)).to(self._device, getattr(torch, dtype))

    def _check(self, outputs: Any, num_rows: int) -> None:
        import torch

        if self._output is not None:
            return
        is_tensor = isinstance(outputs, torch.Tensor)
        if not is_tensor or not outputs.ndim or len(outputs) != num_rows:
            kind = f"tensor {list(outputs.shape)}" if is_tensor else type(outputs).__name__
            raise TypeError(
                f"the module has returned a {kind} for {num_rows} rows; expected a tensor with a "
                "number or an array of numbers for each row. For other modules use "
                "experiment.allreduce and experiment.predict."
            )
        spec = TensorSpec("output", tuple(outputs.shape[1:]), _dtype_of(outputs))
        check_outputs([spec], self._training.task, name_of(self._training.loss))
        self._output = spec

    # ---- files

    def _restore(self) -> int:
        """Take over the last checkpoint, and return the number of the next epoch."""
        import torch

        from sparkdl import context

        if (folder := context.get_checkpoint()) is None:
            return 0
        state = torch.load(Path(folder, _CHECKPOINT), self._device, weights_only=True)
        self._module.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._metrics = state["metrics"]
        self._inputs = tuple(as_spec(each) for each in state["inputs"])
        self._output = as_spec(state["output"])
        return int(state["epoch"]) + 1

    def _report(self, epoch: int) -> None:
        import torch

        from sparkdl import context

        interval = self._training.checkpoint_interval
        is_last = epoch + 1 == self._training.epochs
        is_due = interval > 0 and (is_last or (epoch + 1) % interval == 0)
        if not is_due or not context.current().is_chief:
            context.report(self._metrics, step=epoch)
            return
        optimizer = self._optimizer.state_dict()
        state = {"optimizer": optimizer, "epoch": epoch, "metrics": self._metrics}
        with tempfile.TemporaryDirectory() as folder:
            torch.save(self._state() | state, Path(folder, _CHECKPOINT))
            context.report(self._metrics, step=epoch, checkpoint=folder)

    def _save(self) -> dict[str, Any]:
        """Return the model, and the file of its weights, inputs and output."""
        import torch

        self._module.cpu().eval()
        torch.save(self._state(), f"{WEIGHTS}.pt")
        return {WEIGHTS: f"{WEIGHTS}.pt", "model": self._module}

    def _state(self) -> dict[str, Any]:
        return {
            "model": self._module.state_dict(),
            "inputs": [_as_list(each) for each in self._inputs],
            "output": self._output and _as_list(self._output),
        }


def _as_list(spec: TensorSpec) -> list[Any]:
    return [spec.name, spec.dtype, list(spec.shape or ())]


def as_spec(values: Sequence[Any]) -> TensorSpec:
    """Return an input or output of which a file has the name, the dtype and the shape."""
    name, dtype, shape = values
    return TensorSpec(name, tuple(shape), dtype)


def _dtype_of(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")
