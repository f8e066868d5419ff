"""Runs on the driver. Implement `experiment.predict`: add a model's outputs to a DataFrame."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType

from sparkdl.data.column_selection import ColumnSelection
from sparkdl.errors import ConfigError, named_type
from sparkdl.inference.prepared_model import prepare_model
from sparkdl.inference.tensor_spec import TensorSpec
from sparkdl.inference.trained_columns import TrainedColumns
from sparkdl.inference.worker_python import check_worker_python
from sparkdl.options import check_count
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
        signature: name of the function of a SavedModel, or of a model with a loader.
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
        PreflightError: if PYSPARK_PYTHON is not set, and the executors' `python3` lacks sparkdl.

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
    check_worker_python(df.sparkSession)
    return prepared.apply(df, selected, names, batch_size, errors=errors)


def _check(df: Any, prediction_col: Any, batch_size: Any) -> None:
    check_dataframe(df, batch_size)
    if not isinstance(prediction_col, str | list | tuple | Mapping) or not prediction_col:
        raise ConfigError(
            f"prediction_col is {prediction_col!r}; expected a name, or a list or dict of names."
        )
    names = prediction_col.values() if isinstance(prediction_col, Mapping) else prediction_col
    check_new_columns([names] if isinstance(names, str) else names, df.columns)


def check_dataframe(df: Any, batch_size: Any) -> None:
    """Validate the arguments `df` and `batch_size`.

    Raises:
        ConfigError: if `df` is not a DataFrame or has columns with the same name, or if
            `batch_size` is not a whole number of at least 1; or if a version is not supported.
    """
    if not hasattr(df, "mapInArrow"):
        raise ConfigError(f"df is {named_type(df)}; expected a Spark DataFrame.")
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
