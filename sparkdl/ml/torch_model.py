"""Runs on the driver. A trained module of PyTorch as a transformer of Spark ML."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.ml.param import TypeConverters
from pyspark.sql import DataFrame

from sparkdl.errors import ConfigError, named_type
from sparkdl.host.optional_packages import require
from sparkdl.host.variables import set_variables
from sparkdl.inference.prediction import predict
from sparkdl.inference.torch_files import torch_format
from sparkdl.inference.torch_model import WEIGHTS_ONLY
from sparkdl.inference.torch_objects import is_torch
from sparkdl.ml.stage_files import read_file, write_file
from sparkdl.ml.stages import OUTPUT, PredictingStage
from sparkdl.models.example_rows import example_of
from sparkdl.models.loader_files import write_torch
from sparkdl.spark.ml import accessors, param

_FILE = "model.pt2"


class TorchModel(PredictingStage):
    """A module of PyTorch that adds columns of predictions to a DataFrame.

    `transform` keeps all rows and columns. A regression gets the column `prediction`; a
    classification also has `probability` and `rawPrediction`, which are vectors, for Spark's
    evaluators. The module returns a tensor with a number or an array of numbers for each row.

    Args:
        torch_model: a `torch.nn.Module`, or a program of `torch.export`.
        **params: params by name. `task` is required.

    Attributes:
        torch_model: the module; after `load` a program of `torch.export`, whose `module()` is
            called like the module.

    Raises:
        ConfigError: if the model is none of PyTorch, or a param is invalid.

    Example:
        >>> import torch
        >>> from pyspark.sql import SparkSession
        >>> net = torch.nn.Linear(2, 1, bias=False)
        >>> _ = torch.nn.init.ones_(net.weight)
        >>> model = TorchModel(net, featuresCol=["a", "b"], outputs="double", task="regression")
        >>> spark = SparkSession.builder.getOrCreate()
        >>> df = spark.createDataFrame([(1.0, 2.0)], "a float, b float")
        >>> model.transform(df).first()
        Row(a=1.0, b=2.0, prediction=3.0)
    """

    outputs = param(
        "outputs",
        "type of the output, as experiment.predict takes it: double for one number for each row",
        TypeConverters.toString,
    )
    setOutputs, getOutputs = accessors("outputs")
    inputs = param(
        "inputs",
        "name, dtype and shape of a row of each input, with which the model is saved",
        TypeConverters.toList,
    )
    setInputs, getInputs = accessors("inputs")

    def __init__(self, torch_model: Any, **params: Any) -> None:
        super().__init__()
        if not is_torch(torch_model):
            raise ConfigError(
                f"torch_model is {named_type(torch_model)}; expected a torch.nn.Module, or a "
                "program of torch.export."
            )
        self.torch_model = torch_model
        self._setDefault(outputs="array<double>", inputs=None)
        self.setParams(**params)

    def _with_output(self, dataset: DataFrame) -> DataFrame:
        return predict(
            self.torch_model,
            dataset,
            feature_cols=self.getFeaturesCol(),
            prediction_col=[OUTPUT],
            batch_size=self.getPredictBatchSize(),
            outputs=self.getOutputs(),
        )

    def _save(self, path: str, spark: Any) -> Mapping[str, Any]:
        if not self.getInputs():
            raise ConfigError(
                "the param inputs is not set: the model is saved as a program of torch.export, "
                "which needs its inputs. Set it to a list of name, dtype and shape of a row, such "
                'as [["features", "float32", [4]]]; fit does.'
            )
        rows = {name: np.zeros((2, *shape), dtype) for name, dtype, shape in self.getInputs()}
        by_name = isinstance(self.getFeaturesCol(), Mapping)
        example = example_of(rows if by_name else list(rows.values()))
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, _FILE)
            advice = "Keep the run, whose weights.pt has the weights."
            write_torch(self.torch_model, file, example, advice)
            write_file(file, path, spark)
        return {}

    @classmethod
    def _load(cls, extra: Mapping[str, Any], path: str, spark: Any) -> "TorchModel":
        require("torch", "TorchModel")
        import torch

        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, _FILE)
            read_file(file, path, spark)
            try:
                kind = torch_format(file)
            except ValueError as exc:
                raise ConfigError(f"the model in {path} cannot be loaded: {exc}") from exc
            with set_variables(WEIGHTS_ONLY):
                is_program = kind == "torch.export"
                return cls(torch.export.load(file) if is_program else torch.jit.load(file))
