"""Runs on the driver. A model and the columns of a DataFrame that were found to match."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, IntegralType, StructField, StructType

from sparkdl import config
from sparkdl.data.column_selection import ColumnSelection
from sparkdl.data.dataframe.vectors import vectors_to_arrays
from sparkdl.errors import ConfigError, suggest
from sparkdl.inference import model_inputs, tensor_spec
from sparkdl.inference.declared_model import DeclaredModel, declare, declared_library
from sparkdl.inference.features import FeatureColumns
from sparkdl.inference.loader import LoadedModel
from sparkdl.inference.model_file import StoredModel
from sparkdl.inference.predict_task import PredictTask
from sparkdl.inference.resolve import model_of, resolve_model
from sparkdl.inference.tensor_spec import TensorSpec
from sparkdl.options import check_count
from sparkdl.spark.capabilities import parse_type
from sparkdl.spark.python import map_in_arrow


@dataclass(frozen=True, kw_only=True)
class PreparedModel:
    """A model and its feature columns, which were found to match.

    Attributes:
        model: the model.
        outputs: the outputs of the model.
        features: the feature columns of each input, at their positions in the DataFrame.
        max_tokens: see `predict`.
    """

    model: StoredModel
    outputs: tuple[TensorSpec, ...]
    features: FeatureColumns
    max_tokens: int | None = None

    def by_length(
        self, df: DataFrame, max_tokens: int | None, length_col: str | None
    ) -> "PreparedModel":
        """Return the model with calls of rows of similar lengths; for the arguments see `predict`.

        Raises:
            ConfigError: if an argument is invalid, or nothing tells the length of a row.
        """
        position = None
        if length_col is not None:
            position = _length_position(df, length_col)
        if max_tokens is not None:
            check_count("max_tokens", max_tokens)
            padded = zip(self.features.pads, self.features.inputs, strict=True)
            if position is None and all(pad is None or spec.ragged for pad, spec in padded):
                raise ConfigError(
                    f"max_tokens is {max_tokens}, but no feature column has arrays that are "
                    "padded, whose lengths would count. Pass length_col, the name of a column "
                    "with the number of tokens of each row, or pad for a column of arrays."
                )
        features = replace(self.features, length=position)
        return replace(self, features=features, max_tokens=max_tokens)

    def apply(
        self,
        df: DataFrame,
        outputs: Sequence[TensorSpec],
        names: Sequence[str],
        batch_size: int,
        keep: bool = True,
        errors: str = "raise",
    ) -> DataFrame:
        """Return the DataFrame with the outputs of the model.

        Args:
            df: the rows, with the feature columns.
            outputs: the outputs to add; their shapes and dtypes determine the types of the new
                columns.
            names: names of the new columns.
            batch_size: largest number of rows per call of the model.
            keep: True to keep the columns of the DataFrame, False for the new columns only.
            errors: see `predict`.

        Raises:
            ConfigError: if Spark has no column type for an output.
        """
        try:
            types = [tensor_spec.type_name(output) for output in outputs]
        except ValueError as exc:
            raise ConfigError(f"model {self.model.name}: {exc}") from exc
        added = [
            StructField(name, parse_type(type_name), nullable=True)
            for name, type_name in zip(names, types, strict=True)
        ]
        frame, positions = _vectors_to_arrays(df, self.features.positions, errors == "null")
        schema = StructType([*(df.schema.fields if keep else ()), *added])
        conf = df.sparkSession.conf
        task = PredictTask(
            model=self.model,
            features=replace(self.features, positions=positions),
            outputs=tuple(outputs),
            names=tuple(field.name for field in schema),
            batch_size=batch_size,
            max_tokens=self.max_tokens,
            null_for_errors=errors == "null",
            detect_gpus=config.resolve("detect_gpus", None, lambda key: conf.get(key, None)),
        )
        return map_in_arrow(frame, task, schema)


def prepare_model(
    df: DataFrame,
    model: Any,
    feature_cols: Any,
    *,
    signature: str,
    tags: tuple[str, ...] = (),
    fill: Mapping[str, Any] | None = None,
    decode: Mapping[str, str] | None = None,
    pad: Mapping[str, Any] | None = None,
    trained_pads: Mapping[str, Any] | None = None,
    outputs: str | DataType | None = None,
) -> PreparedModel:
    """Load a model and match the columns to its inputs; for the arguments see `predict`.

    `trained_pads` are values for columns that turn out to have arrays of different lengths.

    Raises:
        ConfigError: if the model does not exist, or the columns do not match its inputs.
    """
    requested = ColumnSelection.among(df.columns, feature_cols, None)
    columns = model_inputs.columns_of(df.schema, requested.names, fill=fill, decode=decode)
    stored, loaded = _resolve(model, requested.features, signature, tags, outputs)
    selection = ColumnSelection(model_inputs.columns_by_input(loaded, requested.features))
    keep_dtypes = stored.library.startswith(("function", "torch"))
    inputs = model_inputs.complete_inputs(loaded.inputs, selection, columns, keep_dtypes)
    features = FeatureColumns(
        columns=columns,
        positions=tuple(df.columns.index(name) for name in requested.names),
        selection=selection,
        inputs=inputs,
        pads=model_inputs.pads_of(loaded.inputs, selection, columns, pad, trained_pads or {}),
    )
    try:
        specs = loaded.trace(inputs).outputs
    except ValueError as exc:
        raise ConfigError(f"model {stored.name}: {exc}") from exc
    return PreparedModel(model=stored, outputs=specs, features=features)


def _resolve(
    model: Any, features: Any, signature: str, tags: tuple[str, ...], outputs: Any
) -> tuple[StoredModel, LoadedModel | DeclaredModel]:
    """Return a model as executors load it, and as the driver knows it."""
    model = model_of(model)
    if library := declared_library(model):
        return declare(model, library, features, outputs)
    if outputs is not None:
        raise ConfigError(
            f"outputs is {outputs!r}, but the model tells its own outputs. Leave it out: outputs "
            "is for functions and models of PyTorch."
        )
    stored, loaded = resolve_model(model, signature, tags)
    if isinstance(loaded, DeclaredModel):
        return stored, loaded
    return stored, model_inputs.with_ragged_inputs(loaded, features)


def _length_position(df: DataFrame, name: Any) -> int:
    """Return the position of the column that tells the length of each row."""
    if name not in df.columns:
        near = suggest(str(name), df.columns)
        raise ConfigError(f"length_col is {name!r}, which is no column of df.{near}")
    kind = df.schema[name].dataType
    if not isinstance(kind, IntegralType):
        raise ConfigError(
            f"length_col is {name!r}, a column of {kind.simpleString()}; expected whole numbers."
        )
    position: int = df.columns.index(name)
    return position


def _vectors_to_arrays(
    df: DataFrame, positions: Sequence[int], null_for_errors: bool
) -> tuple[DataFrame, tuple[int, ...]]:
    """Append a column of arrays to a DataFrame for each feature column of ML vectors.

    Returns:
        The DataFrame, and the position of each feature column in it. An appended column takes the
        place of its column of vectors.
    """
    # Numbered columns, because mapInArrow does not find a column with a dot in its name.
    frame = df.toDF(*(f"c{number}" for number in range(len(df.columns))))
    places = []
    for position in positions:
        if df.schema[position].dataType.typeName() == "vectorudt":
            # Nulls stay: `Arrays` reports them with the column's name.
            vectors = frame[f"c{position}"]
            array = vectors_to_arrays(vectors, df.columns[position], null_for_errors)
            position = len(frame.columns)
            frame = frame.withColumn(f"c{position}", array)
        places.append(position)
    return frame, tuple(places)
