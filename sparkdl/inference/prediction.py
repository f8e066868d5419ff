"""Runs on the driver. Implement `experiment.predict`: add a model's outputs to a DataFrame."""

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
from sparkdl.inference.trained_columns import TrainedColumns
from sparkdl.options import check_count
from sparkdl.spark.capabilities import parse_type
from sparkdl.spark.python import map_in_arrow
from sparkdl.spark.versions import check_session


def predict(
    model: Any,
    df: DataFrame,
    *,
    feature_cols: str | list[str] | tuple[Any, ...] | dict[str, Any] | None = None,
    prediction_col: str | Sequence[str] | Mapping[str, str] = "prediction",
    batch_size: int = 1024,
    max_tokens: int | None = None,
    length_col: str | None = None,
    signature: str = "serving_default",
    fill: Mapping[str, Any] | None = None,
    decode: Mapping[str, str] | None = None,
    pad: Mapping[str, Any] | None = None,
    outputs: str | DataType | None = None,
    errors: str = "raise",
) -> DataFrame:
    """Add the outputs of a model to the rows of a DataFrame.

    Rows are computed only when the DataFrame is used. Each Python worker of Spark loads the model
    once, with the GPU that Spark assigned to its task, and reuses the model for later partitions.
    All columns and rows are kept. The driver loads the model too, to check its inputs and outputs.

    Args:
        model: the path or URL of a Keras file (`.keras`, `.h5`) or of a SavedModel's folder; a
            Keras model; a trial, for the model among its outputs or in its last checkpoint; a run,
            for its best trial; or a version of an exported model. A model in memory is sent with
            the job; a path must be readable on the executors. Your own classes must be registered
            with Keras's `@keras.saving.register_keras_serializable()`.
            Also a function of NumPy arrays, which returns an array with one row for each row, a
            tuple of arrays, or a dict of arrays by name; or a class without arguments, of which
            each Python worker makes one instance and calls it like the function. Also a
            `torch.nn.Module`, a program of `torch.export` or TorchScript, or the path of such a
            program (`.pt2`, `.pt`); a pickled module is refused, since it runs any code.
        df: the rows.
        feature_cols: a column's name; or a list of names, whose values are put side by side in one
            tensor of shape (rows, n), including arrays and ML vectors. For several inputs, a tuple
            of these by position, or a dict by name of the input. The values of a row are reshaped
            to the shape of the input if their number is the same: 784 values to (28, 28, 1). A
            function or module is called with these arrays as arguments, by position, or for a dict
            by name. By default those that training has read, for a run, a trial or a version of
            an exported model; others in another order are refused.
        prediction_col: name of the new column. For several outputs: a prefix for the names
            `prediction_<output>`, a list of names, or a dict from output to column for some of the
            outputs. An output with one number per row becomes a column of numbers, an output with
            more numbers a column of arrays, and so on.
        batch_size: largest number of rows per call of the model.
        max_tokens: largest number of tokens per call of the model, padding included: the number of
            rows times the length of the longest. A longer row is computed alone. A model that takes
            a fixed number of rows gets that number.
        length_col: name of a column of whole numbers, the length of each row in tokens, for texts
            and other features that do not tell it. Rows of similar lengths are computed together.
            By default the length of a row is that of its longest array that is padded.
        signature: name of the function of a SavedModel.
        fill: replacements for nulls in feature columns, by column; for a run, a trial or a version,
            also those of the reader in training, for other columns. Without a replacement, a null
            raises an error when the rows are computed.
        decode: dtypes of binary feature columns that contain numbers, such as
            `{"image": "uint8"}`; also those of the training, as with `fill`.
        pad: for inputs of variable length, such as `Input((None,))`, whose arrays differ in length:
            the value that fills shorter arrays up to the longest one of a call, by column. By
            default the value of the training, as with `fill`, otherwise 0, the value that Keras's
            masks leave out, and "" for texts. Rows of similar lengths are computed together. An
            output with a value for each value of the array is cut to the row's own length. Models
            with ragged inputs get the arrays as they are. The outputs of functions and models of
            PyTorch are never cut: what returns a value for each value of the array cuts it itself,
            and returns a list of arrays of the rows' lengths.
        outputs: the outputs of a function or a model of PyTorch, which does not tell them: the type
            of one output in Spark, `float` or `array<float>`, or names and types of several,
            `label string, score float`.
        errors: treatment of rows that the model cannot take, because of a null, an array of another
            length, a number that the input cannot represent, or a value that an operation of the
            model refuses, such as an index that an embedding does not have; or for which a function
            raises `ValueError`: `raise` makes the job fail, `null` gives these rows null as
            prediction.

    Returns:
        The DataFrame, with the new columns at its end.

    Raises:
        ConfigError: if an argument is invalid, the model does not exist, or the columns do not
            match its inputs. No Spark job was started.

    Example:
        >>> import keras
        >>> from pyspark.sql import SparkSession
        >>> total = keras.layers.Dense(1, kernel_initializer="ones")
        >>> model = keras.Sequential([keras.layers.Input((2,)), total])
        >>> df = SparkSession.active().createDataFrame([(1.0, 2.0)], "a float, b float")
        >>> predict(model, df, feature_cols=["a", "b"]).first()
        Row(a=1.0, b=2.0, prediction=3.0)
        >>> predict(lambda a, b: a * b, df, feature_cols=("a", "b"), outputs="float").first()
        Row(a=1.0, b=2.0, prediction=2.0)
    """
    _check(df, prediction_col, batch_size)
    if errors not in ("raise", "null"):
        raise ConfigError(f"errors is {errors!r}; expected 'raise' or 'null'.")
    trained = TrainedColumns.of(model)
    chosen = trained.features() if feature_cols is None else feature_cols
    trained.check(df.schema, chosen)
    inputs = ColumnSelection(chosen).names
    fill, decode = trained.options(df.schema, inputs, fill, decode)
    prepared = prepare_model(
        df,
        model,
        chosen,
        signature=signature,
        fill=fill,
        decode=decode,
        pad=pad,
        trained_pads=trained.pads(inputs, pad),
        outputs=outputs,
    ).by_length(df, max_tokens, length_col)
    selected, names = _select_outputs(prepared.outputs, prediction_col)
    check_new_columns(names, df.columns)
    return prepared.apply(df, selected, names, batch_size, errors=errors)


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


def _check(df: Any, prediction_col: Any, batch_size: Any) -> None:
    check_dataframe(df, batch_size)
    if not isinstance(prediction_col, str | list | tuple | Mapping) or not prediction_col:
        raise ConfigError(
            f"prediction_col is {prediction_col!r}; expected a name, or a list or dict of names."
        )
    names = prediction_col.values() if isinstance(prediction_col, Mapping) else prediction_col
    check_new_columns([names] if isinstance(names, str) else names, df.columns)


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


def check_dataframe(df: Any, batch_size: Any) -> None:
    """Validate the arguments `df` and `batch_size`.

    Raises:
        ConfigError: if `df` is not a DataFrame or has columns with the same name, or if
            `batch_size` is not a whole number of at least 1; or if a version is not supported.
    """
    if not hasattr(df, "mapInArrow"):
        raise ConfigError(f"df is a {type(df).__name__}; expected a Spark DataFrame.")
    lower = [name.lower() for name in df.columns]
    duplicates = sorted({name for name in df.columns if lower.count(name.lower()) > 1})
    if duplicates:
        raise ConfigError(
            f"df has columns with the same name: {', '.join(duplicates)}. Rename them."
        )
    check_count("batch_size", batch_size)
    check_session(df.sparkSession)


def check_new_columns(names: Any, columns: Sequence[str]) -> None:
    """Validate the names of new columns; names are compared without case, as in Spark.

    Raises:
        ConfigError: if a name is not a string, is used twice, or is a column already.
    """
    used = {name.lower() for name in columns}
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"prediction_col holds {name!r}; expected names of columns.")
        if name.lower() in used:
            raise ConfigError(
                f"the column {name!r} already exists. Choose another prediction_col, or drop the "
                "column."
            )
        used.add(name.lower())


def _select_outputs(
    outputs: tuple[TensorSpec, ...], prediction_col: Any
) -> tuple[tuple[TensorSpec, ...], tuple[str, ...]]:
    """Return the outputs to add, and the names of their columns."""
    if isinstance(prediction_col, Mapping):
        by_name = {output.name: output for output in outputs}
        outputs = ()
        for name in prediction_col:
            if name not in by_name:
                raise ConfigError(
                    f"prediction_col names the output {name!r}; the model has the outputs "
                    f"{', '.join(map(repr, by_name))}."
                )
            outputs = (*outputs, by_name[name])
        names = tuple(prediction_col.values())
    elif not isinstance(prediction_col, str):
        names = tuple(prediction_col)
        if len(names) != len(outputs):
            raise ConfigError(
                f"prediction_col={prediction_col!r} names {len(names)} column(s); the model has "
                f"{len(outputs)} output(s): {', '.join(map(str, outputs))}."
            )
    elif len(outputs) == 1:
        names = (prediction_col,)
    else:
        names = tuple(f"{prediction_col}_{output.name}" for output in outputs)
    return outputs, names


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
