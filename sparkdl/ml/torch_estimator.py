"""Runs on the driver. Train a module of PyTorch as an estimator of Spark ML."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from sparkdl.errors import ConfigError
from sparkdl.host.optional_packages import require
from sparkdl.inference.prepared_model import prepare_model
from sparkdl.inference.resolve import trial_of
from sparkdl.inference.torch_objects import is_torch
from sparkdl.ml.hyperparameters import add_hyperparameters
from sparkdl.ml.saved_functions import load_function, reference_to
from sparkdl.ml.stages import TrainingStage
from sparkdl.ml.torch_losses import loss_by_row, name_of, task_and_logits
from sparkdl.ml.torch_model import TorchModel
from sparkdl.ml.torch_training import WEIGHTS, TorchTraining
from sparkdl.ml.training_rows import training_rows
from sparkdl.runs import Run

_EXPECTED = "a torch.nn.Module, or a function that returns a module and its optimizer"
_Function = Callable[[Any, Any], Any]


class TorchEstimator(TrainingStage):
    """An estimator that trains a PyTorch module on a DataFrame. `fit(df)` returns a `TorchModel`.

    `fit` is a run of `experiment.allreduce`: `numWorkers` processes train the module with
    `DistributedDataParallel`, each on an equal share of the rows. The run directory has the log,
    the metrics, the checkpoints and the trained module; `getRunPath()` of the `TorchModel` is its
    path.

    The model is either a module, whose weights are the first ones, with its optimizer; or a
    function that returns both. Each parameter of the function becomes a param of the stage, so that
    a `ParamGridBuilder` can vary it.

    Args:
        model: a `torch.nn.Module`, or a function that returns a module and its optimizer. To save
            the stage, it must be a function decorated with `@sparkdl.ml.saved_by_name`.
        loss: a function of the outputs and the labels, or a loss of `torch.nn`.
        optimizer: the optimizer of a module. It is not changed.
        metrics: functions of the outputs and the labels that return a number for a batch, in a list
            or by name. They are averaged over the rows.
        **params: params by name, see `explainParams()`, and parameters of the function.

    Attributes:
        model, loss, optimizer: the arguments.
        metrics: the functions by name.

    Raises:
        ConfigError: if an argument is invalid, or there is no such param.

    Example:
        >>> import torch
        >>> def build(units=4, learning_rate=0.1):
        ...     layers = [torch.nn.Linear(2, units), torch.nn.ReLU(), torch.nn.Linear(units, 1)]
        ...     net = torch.nn.Sequential(*layers)
        ...     return net, torch.optim.SGD(net.parameters(), learning_rate)
        >>> loss = torch.nn.functional.mse_loss
        >>> estimator = TorchEstimator(build, loss=loss, units=8, featuresCol=["a", "b"], epochs=3)
        >>> estimator.getOrDefault("learning_rate"), estimator.setBatchSize(64).getBatchSize()
        (0.1, 64)
        >>> from pyspark.ml.tuning import ParamGridBuilder
        >>> len(ParamGridBuilder().addGrid(estimator.units, [8, 16]).build())
        2
    """

    def __init__(
        self,
        model: Any,
        *,
        loss: _Function,
        optimizer: Any = None,
        metrics: Sequence[_Function] | Mapping[str, _Function] = (),
        **params: Any,
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.optimizer = optimizer
        self.metrics = _by_name(metrics)
        if not callable(loss) or isinstance(loss, type):
            raise ConfigError(
                f"loss is {loss!r}; expected a function of the outputs and the labels, such as "
                "torch.nn.functional.cross_entropy, or torch.nn.CrossEntropyLoss()."
            )
        self._hyperparameters = (
            () if self._has_module else add_hyperparameters(self, model, _EXPECTED)
        )
        if self._has_module != (optimizer is not None):
            raise ConfigError(
                f"optimizer is {optimizer!r} for model {name_of(model)!r}; expected an optimizer "
                "beside a module, and none beside a function, which returns the module and its "
                "optimizer."
            )
        self.setParams(**params)

    @property
    def _has_module(self) -> bool:
        """True if `model` is a module rather than a function."""
        return is_torch(self.model)

    def _fit(self, dataset: DataFrame) -> TorchModel:
        require("torch", "TorchEstimator")
        frames = training_rows(dataset, self)
        task, from_logits = task_and_logits(self.loss, self.getTask(), self.getFromLogits())
        if self.getWeightCol():
            loss_by_row(self.loss)
        make_model = self._make_model()
        # A module of a function is built here too, to find errors before Spark starts a job.
        module = _checked(make_model(), self.getFeaturesCol())
        prepared = prepare_model(
            dataset, module, self.getFeaturesCol(), signature="", outputs="double"
        )
        training = TorchTraining(
            make_model=make_model,
            loss=self.loss,
            metrics=self.metrics,
            task=task,
            **self._training_options(prepared, has_validation="validation" in frames),
        )
        run = self._train(training, frames, "torch", "torch-estimator")
        return self._model_of(run, module, {"task": task, "fromLogits": from_logits})

    def _make_model(self) -> Callable[[], tuple[Any, Any]]:
        if self._has_module:
            # One object, so that the optimizer is that of the module after pickling, too.
            return partial(tuple, (self.model, self.optimizer))
        return self._builder()

    def _model_of(self, run: Run, module: Any, decided: Mapping[str, Any]) -> TorchModel:
        import torch

        state = torch.load(trial_of(run).artifact(WEIGHTS), "cpu", weights_only=True)
        trained = copy.deepcopy(module).cpu().eval()
        trained.load_state_dict(state["model"])
        fitted: TorchModel = self._fitted(
            TorchModel(trained, runPath=run.path),
            inputs=state["inputs"],
            outputs="double" if state["output"][2] in ([], [1]) else "array<double>",
            **decided,
        )
        return fitted

    def _save(self, path: str, spark: Any) -> Mapping[str, Any]:
        if self._has_module:
            raise ConfigError(
                f"model is a module, {type(self.model).__name__}, which cannot be saved untrained: "
                "a saved stage contains no code. Pass a function that returns the module and its "
                "optimizer, decorated with @sparkdl.ml.saved_by_name."
            )
        return {
            "function": reference_to(self.model, "model"),
            "loss": reference_to(self.loss, "loss"),
            "metrics": {n: reference_to(f, f"metrics[{n!r}]") for n, f in self.metrics.items()},
        }

    @classmethod
    def _load(cls, extra: Mapping[str, Any], path: str, spark: Any) -> "TorchEstimator":
        metrics = {name: load_function(each) for name, each in extra["metrics"].items()}
        loss = load_function(extra["loss"])
        return cls(load_function(extra["function"]), loss=loss, metrics=metrics)


def _by_name(metrics: Any) -> dict[str, _Function]:
    """Return metrics by name."""
    named = metrics
    if isinstance(metrics, Sequence) and not isinstance(metrics, str):
        named = {name_of(each): each for each in metrics}
    is_valid = isinstance(named, Mapping) and len(named) == len(metrics) and "loss" not in named
    if not is_valid or not all(callable(each) for each in named.values()):
        raise ConfigError(
            f"metrics is {metrics!r}; expected functions of the outputs and the labels, in a list "
            "or by names, which differ from each other and from 'loss'."
        )
    return dict(named)


def _checked(built: Any, features: Any) -> Any:
    """Return the module of a module and its optimizer, which match.

    Raises:
        ConfigError: if it is something else.
    """
    import torch

    is_pair = isinstance(built, tuple) and len(built) == 2
    module, optimizer = built if is_pair else (built, None)
    if not isinstance(module, torch.nn.Module) or not isinstance(optimizer, torch.optim.Optimizer):
        found = " and ".join(type(each).__name__ for each in (built if is_pair else [built]))
        raise ConfigError(
            f"the model is {found}; expected a torch.nn.Module and an optimizer of torch.optim: "
            "return both from the function, or pass optimizer= beside the module."
        )
    own = {id(each) for each in module.parameters()}
    optimized = [each for group in optimizer.param_groups for each in group["params"]]
    if not all(id(each) in own for each in optimized):
        raise ConfigError(
            f"the optimizer has parameters that are not those of {type(module).__name__}; make it "
            "with the parameters of this very module: SGD(module.parameters(), lr=0.1)."
        )
    names = list(features) if isinstance(features, Mapping) else []
    arguments = inspect.signature(module.forward)
    try:
        arguments.bind(**dict.fromkeys(names)) if names else arguments.bind(None)
    except TypeError as exc:
        passed = f"by name: {', '.join(names)}" if names else "one tensor"
        raise ConfigError(
            f"featuresCol passes to {type(module).__name__}.forward {passed}. It takes "
            f"{arguments}: {exc}. Several inputs are a dict of columns by name."
        ) from exc
    return module
