"""Runs on the driver. What a SavedModel makes of rows, in the types of TensorFlowOnSpark."""

import dataclasses
from typing import Any

from pyspark.sql import DataFrame

from sparkdl.errors import ConfigError, suggest
from sparkdl.inference.prediction import check_dataframe, check_new_columns, prepare_model
from sparkdl.inference.tensor_spec import TensorSpec

__all__ = ["transform"]

_SIGNATURE = "serving_default"


def transform(df: DataFrame, args: Any) -> DataFrame:
    """The columns that a model computes, and no others.

    Args:
        df: the rows.
        args: `export_dir`, `input_mapping`, `output_mapping`, `batch_size`, `signature_def_key`
            (None for `serving_default`) and `tag_set` (None where there is one graph).

    Raises:
        ConfigError: one of them is wrong; no Spark job was started.
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
    known = {output.name: output for output in ready.outputs}
    chosen, names = [], []
    for tensor, column in sorted(args.output_mapping.items()):
        if tensor not in known:
            raise ConfigError(
                f"output_mapping names the tensor {tensor!r}, which is none of the model's "
                f"{', '.join(map(repr, known))}.{suggest(tensor, known)}"
            )
        chosen.append(_as_python(known[tensor]))
        names.append(column)
    check_new_columns(names, ())
    return ready.apply(frame, chosen, names, args.batch_size, keep=False)


def _check(args: Any) -> None:
    if not args.export_dir:
        raise ConfigError(
            "transform needs the folder of a SavedModel: setExportDir(path). A checkpoint "
            "(model_dir) holds no function to call."
        )
    for name in ("input_mapping", "output_mapping"):
        if not getattr(args, name):
            raise ConfigError(f"{name} is empty; expected names of columns and tensors.")
    tensors = list(args.input_mapping.values())
    if twice := sorted({tensor for tensor in tensors if tensors.count(tensor) > 1}):
        raise ConfigError(f"input_mapping maps several columns to the tensor {twice[0]!r}.")


def _as_python(output: TensorSpec) -> TensorSpec:
    """The output as `numpy.tolist` gives it: floats, ints and bytes, and a row of one is a list."""
    dtype = output.dtype
    if "float" in dtype:
        dtype = "float64"
    elif "int" in dtype:
        dtype = "int64"
    elif dtype == "string":
        dtype = "bytes"
    shape = (None,) if output.shape == (1,) else output.shape
    return dataclasses.replace(output, dtype=dtype, shape=shape)
