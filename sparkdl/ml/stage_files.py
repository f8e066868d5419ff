"""Runs on the driver. Save a model beside the metadata of a stage, and load it again.

Its file is stored as rows of a Parquet folder `data`, as the models of Spark ML are, so that it is
wherever Spark can write.
"""

import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.files.model_formats import load_keras

_CHUNK_BYTES = 8 << 20
# A task may hold no more than spark.rpc.message.maxSize, 128 MiB by default.
_CHUNKS_PER_TASK = 4
_SCHEMA = "number int, part binary"


def write_model(model: Any, path: str, spark: Any) -> None:
    """Write a Keras model below the folder of a stage.

    Args:
        model: the model, with its loss and optimizer if it is compiled.
        path: the folder of the stage, in a file system that Spark knows.
        spark: the session that writes.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.keras")
        model.save(file)
        write_file(file, path, spark)


def write_file(file: Path, path: str, spark: Any) -> None:
    """Write the file of a model below the folder of a stage, see `write_model`."""
    rows = enumerate(_chunks(file))
    mode = "error"
    while part := list(islice(rows, _CHUNKS_PER_TASK)):
        frame = spark.createDataFrame(part, _SCHEMA).coalesce(1)
        frame.write.parquet(_data_of(path), mode)
        mode = "append"


def read_file(file: Path, path: str, spark: Any) -> None:
    """Fetch the file that `write_file` has written from the folder of a stage."""
    with file.open("wb") as stream:
        for row in spark.read.parquet(_data_of(path)).orderBy("number").toLocalIterator():
            stream.write(row.part)


def read_model(path: str, spark: Any, is_compiled: bool) -> Any:
    """Read a Keras model from the folder of a stage, in the safe mode of Keras.

    Args:
        path: the folder of the stage.
        spark: the session that reads.
        is_compiled: also load the loss, the metrics and the optimizer.

    Raises:
        ConfigError: if Keras does not know a class of the model, or the model contains code.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.keras")
        read_file(file, path, spark)
        try:
            return load_keras(file, "keras", is_compiled=is_compiled)
        except (TypeError, ValueError) as exc:
            raise ConfigError(
                f"the model in {path} cannot be loaded: {exc} Register your own classes and "
                "functions with @keras.saving.register_keras_serializable(), and import their "
                "module before."
            ) from exc


def _data_of(path: str) -> str:
    return f"{path.rstrip('/')}/data"


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            yield chunk
