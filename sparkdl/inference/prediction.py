"""Runs on the driver. `experiment.predict`: a DataFrame with what a model computes of its rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.functions import when
from pyspark.sql.types import DataType, StructField, StructType

from sparkdl import config
from sparkdl.data.column_selection import ColumnSelection
from sparkdl.data.schema import Column
from sparkdl.errors import ConfigError
from sparkdl.inference import model_inputs, tensor_spec
from sparkdl.inference.model_file import Stored
from sparkdl.inference.predict_task import PredictTask
from sparkdl.inference.resolve import find
from sparkdl.inference.tensor_spec import Tensor

__all__ = ["Ready", "check_new", "check_rows", "predict", "ready_for"]


def predict(
    model: Any,
    df: DataFrame,
    *,
    feature_cols: str | list[str] | tuple[Any, ...] | dict[str, Any],
    prediction_col: str | Sequence[str] | Mapping[str, str] = "prediction",
    batch_size: int = 1024,
    signature: str = "serving_default",
    fill: Mapping[str, Any] | None = None,
    decode: Mapping[str, str] | None = None,
) -> DataFrame:
    """The same DataFrame with what a model computes of its rows.

    Nothing is computed before the DataFrame is used, as with any other. Each Python worker of
    Spark loads the model once, shows it the GPU that Spark gave its task, and keeps it for the
    next partitions. All columns and rows stay as they are. The model is opened on the driver too,
    to see what goes in and comes out.

    Args:
        model: the path or URL of a Keras file (`.keras`, `.h5`) or of a SavedModel's folder; a
            Keras model; a trial, for the model file among what its function returned, or else in
            its last checkpoint; or a run, for its best trial. A model in memory travels with the
            job; a path must be visible on the executors. Classes of your own need Keras's
            `@keras.saving.register_keras_serializable()`.
        df: the rows.
        feature_cols: a column's name; or a list of names, for one tensor (rows, n) with their
            values side by side, arrays and ML vectors among them. For several inputs a tuple of
            these by position, or a dict by the inputs' names. A row's values are given the shape
            of the input, if it holds as many: 784 go into (28, 28, 1).
        prediction_col: the new column; for several outputs the beginning of their names, as in
            `prediction_<output>`, or a list of names, or a dict from output to column for some of
            them. A row of one number makes a column of numbers, a longer one an array, and so on.
        batch_size: how many rows the model gets at once, at most.
        signature: which function of a SavedModel.
        fill: what stands for a null in a feature column, by column; without it, a null is an
            error when the rows are computed.
        decode: binary feature columns that hold numbers, with their dtype, such as
            `{"image": "uint8"}`.

    Returns:
        A DataFrame, with the new columns last.

    Raises:
        ConfigError: an argument is wrong, there is no such model, or the columns do not go into
            it. No Spark job was started.

    Example:
        >>> import keras
        >>> from pyspark.sql import SparkSession
        >>> total = keras.layers.Dense(1, kernel_initializer="ones")
        >>> model = keras.Sequential([keras.layers.Input((2,)), total])
        >>> df = SparkSession.active().createDataFrame([(1.0, 2.0)], "a float, b float")
        >>> predict(model, df, feature_cols=["a", "b"]).first()
        Row(a=1.0, b=2.0, prediction=3.0)
    """
    _check(df, prediction_col, batch_size)
    ready = ready_for(df, model, feature_cols, signature=signature, fill=fill, decode=decode)
    outputs, names = _chosen(ready.outputs, prediction_col)
    check_new(names, df.columns)
    return ready.run(df, outputs, names, batch_size)


@dataclass(frozen=True)
class Ready:
    """A model and the columns that go into it, seen to fit.

    Attributes:
        stored: the model.
        inputs, outputs: what goes into it and comes out.
        columns: how each feature column becomes an array.
        wanted: how they become inputs: a tuple of these.
        chosen: which column goes where, as the person said it.
    """

    stored: Stored
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    columns: tuple[Column, ...]
    wanted: ColumnSelection
    chosen: ColumnSelection

    def run(
        self,
        df: DataFrame,
        outputs: Sequence[Tensor],
        names: Sequence[str],
        batch_size: int,
        keep: bool = True,
    ) -> DataFrame:
        """The DataFrame with what the model computes; or that alone, without `keep`.

        Args:
            df: the rows, with the columns that go in.
            outputs: those of the model that are wanted; their shapes and dtypes say what the new
                columns hold.
            names: of the new columns.
            batch_size: how many rows the model gets at once.
            keep: keep the DataFrame's own columns.

        Raises:
            ConfigError: Spark has no column for an output.
        """
        try:
            types = [tensor_spec.type_name(output) for output in outputs]
        except ValueError as exc:
            raise ConfigError(f"model {self.stored.name}: {exc}") from exc
        added = [
            StructField(name, DataType.fromDDL(kind), nullable=True)
            for name, kind in zip(names, types, strict=True)
        ]
        frame, places = _with_arrays(df, self.chosen.names)
        schema = StructType([*(df.schema.fields if keep else ()), *added])
        conf = df.sparkSession.conf
        task = PredictTask(
            stored=self.stored,
            inputs=self.inputs,
            outputs=tuple(outputs),
            columns=self.columns,
            places=places,
            wanted=self.wanted,
            names=tuple(field.name for field in schema),
            batch_size=batch_size,
            detect_gpus=config.resolve("detect_gpus", None, lambda key: conf.get(key, None)),
        )
        return frame.mapInArrow(task, schema)


def ready_for(
    df: DataFrame,
    model: Any,
    feature_cols: Any,
    *,
    signature: str,
    tags: tuple[str, ...] = (),
    fill: Mapping[str, Any] | None = None,
    decode: Mapping[str, str] | None = None,
) -> Ready:
    """Find a model and see that the columns go into it; for the arguments see `predict`.

    Raises:
        ConfigError: there is no such model, or they do not.
    """
    chosen = ColumnSelection.among(df.columns, feature_cols, None)
    columns = model_inputs.columns_of(df.schema, chosen.names, fill=fill, decode=decode)
    stored, found = find(model, signature, tags)
    wanted = ColumnSelection(model_inputs.by_input(found, chosen.features))
    inputs = model_inputs.settled(found.inputs, wanted, columns)
    try:
        outputs = found.trace(inputs).outputs
    except ValueError as exc:
        raise ConfigError(f"model {stored.name}: {exc}") from exc
    return Ready(stored, inputs, outputs, columns, wanted, chosen)


def _check(df: Any, prediction_col: Any, batch_size: Any) -> None:
    check_rows(df, batch_size)
    if not isinstance(prediction_col, str | list | tuple | Mapping) or not prediction_col:
        raise ConfigError(
            f"prediction_col is {prediction_col!r}; expected a name, or a list or dict of names."
        )
    names = prediction_col.values() if isinstance(prediction_col, Mapping) else prediction_col
    check_new([names] if isinstance(names, str) else names, df.columns)


def check_rows(df: Any, batch_size: Any) -> None:
    """Refuse what is no DataFrame, or has two columns of one name, or a wrong batch size.

    Raises:
        ConfigError: it is one of these.
    """
    if not hasattr(df, "mapInArrow"):
        raise ConfigError(f"df is a {type(df).__name__}; expected a Spark DataFrame.")
    lower = [name.lower() for name in df.columns]
    twice = sorted({name for name in df.columns if lower.count(name.lower()) > 1})
    if twice:
        raise ConfigError(f"df has columns of the same name: {', '.join(twice)}. Rename them.")
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size!r}; expected a whole number of at least 1.")


def check_new(names: Any, columns: Sequence[str]) -> None:
    """Refuse names of new columns that are there; Spark tells columns apart without regard to case.

    Raises:
        ConfigError: one is there, or twice, or is no name.
    """
    taken = {name.lower() for name in columns}
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"prediction_col holds {name!r}; expected names of columns.")
        if name.lower() in taken:
            raise ConfigError(
                f"the column {name!r} is there already. Choose another prediction_col, or drop it."
            )
        taken.add(name.lower())


def _chosen(
    outputs: tuple[Tensor, ...], prediction_col: Any
) -> tuple[tuple[Tensor, ...], tuple[str, ...]]:
    """The outputs that are wanted, and the names of the columns that hold them."""
    if isinstance(prediction_col, Mapping):
        known = {output.name: output for output in outputs}
        outputs = ()
        for name in prediction_col:
            if name not in known:
                raise ConfigError(
                    f"prediction_col names the output {name!r}; the model's are "
                    f"{', '.join(map(repr, known))}."
                )
            outputs = (*outputs, known[name])
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


def _with_arrays(df: DataFrame, names: Sequence[str]) -> tuple[DataFrame, tuple[int, ...]]:
    """The DataFrame with ML vectors as arrays after it, and where each feature column is then."""
    from pyspark.ml.functions import vector_to_array

    # By number: mapInArrow does not find a column with a dot in its name.
    frame = df.toDF(*(f"c{number}" for number in range(len(df.columns))))
    places = []
    for name in names:
        place = df.columns.index(name)
        if df.schema[place].dataType.typeName() == "vectorudt":
            vector = frame[f"c{place}"]  # A null has no array; we say so ourselves.
            place = len(frame.columns)
            array = when(vector.isNotNull(), vector_to_array(vector, "float32"))
            frame = frame.withColumn(f"c{place}", array)
        places.append(place)
    return frame, tuple(places)
