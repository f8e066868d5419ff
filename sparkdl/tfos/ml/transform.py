"""Runs on the driver. Apply a SavedModel to a DataFrame, with the types of TensorFlowOnSpark."""

import dataclasses
from typing import Any

from pyspark.sql import DataFrame

from sparkdl.errors import ConfigError, suggest
from sparkdl.inference.prediction import check_dataframe, check_new_columns
from sparkdl.inference.prepared_model import prepare_model
from sparkdl.inference.tensor_spec import TensorSpec

_SIGNATURE = "serving_default"


def transform(df: DataFrame, args: Any) -> DataFrame:
    """Return a DataFrame with only the columns that a model computes.

    Args:
        df: the input rows.
        args: an object with the attributes `export_dir`, `input_mapping`, `output_mapping`,
            `batch_size`, `signature_def_key` (None for `serving_default`) and `tag_set` (None if
            the SavedModel has one graph).

    Raises:
        ConfigError: if an argument is invalid. No Spark job was started.
    """
    _check(args)
    frame = df.select(sorted(args.input_mapping))
    check_dataframe(frame, args.batch_size)
    ready = prepare_model(
        frame,
        args.export_dir,
        {tensor: column for column, tensor in args.input_mapping.items()},
        signature=args.signature_def_key or _SIGNATURE,
        tags=tuple(args.tag_set.split(",")) if args.tag_set else (),
    )
    by_name = {output.name: output for output in ready.outputs}
    outputs = []
    columns = []
    for tensor, column in sorted(args.output_mapping.items()):
        if tensor not in by_name:
            raise ConfigError(
                f"output_mapping contains unknown tensor {tensor!r}; the outputs of the model are "
                f"{', '.join(map(repr, by_name))}.{suggest(tensor, by_name)}"
            )
        outputs.append(_with_python_type(by_name[tensor]))
        columns.append(column)
    check_new_columns(columns, ())
    return ready.apply(frame, outputs, columns, args.batch_size, keep=False)


def _check(args: Any) -> None:
    if not args.export_dir:
        raise ConfigError(
            "transform needs the folder of a SavedModel: call setExportDir(path). A checkpoint "
            "(model_dir) contains no function to call."
        )
    for name in ("input_mapping", "output_mapping"):
        if not getattr(args, name):
            raise ConfigError(f"{name} is empty; expected names of columns and tensors.")
    tensors = list(args.input_mapping.values())
    if duplicates := sorted({tensor for tensor in tensors if tensors.count(tensor) > 1}):
        raise ConfigError(
            f"input_mapping maps several columns to the tensor {duplicates[0]!r}; expected one "
            "column for each tensor."
        )


def _with_python_type(output: TensorSpec) -> TensorSpec:
    """Return the spec of an output after `numpy.tolist`: floats, integers and bytes.

    A row with one value stays a list of one value.
    """
    dtype = output.dtype
    if "float" in dtype:
        dtype = "float64"
    elif "int" in dtype:
        dtype = "int64"
    elif dtype == "string":
        dtype = "bytes"
    shape = (None,) if output.shape == (1,) else output.shape
    return dataclasses.replace(output, dtype=dtype, shape=shape)
