"""Runs on the driver. Save the stages of a Pipeline, and load them again."""

import base64
import json
from typing import Any

import cloudpickle
from pyspark.ml.util import (
    DefaultParamsReader,
    DefaultParamsWriter,
    MLReadable,
    MLReader,
    MLWritable,
    MLWriter,
)

from sparkdl.errors import ConfigError
from sparkdl.pickler import dumps

__all__ = ["PersistentStage"]

# The key in Spark ML's metadata file for everything that a stage has in addition to its params.
_KEY = "sparkdl"


class PersistentStage(MLWritable, MLReadable):  # type: ignore[misc]
    """A stage with arguments and optional functions that `save` writes and `load` reads.

    Arguments are stored as JSON. Functions are pickled, and unpickling can run any code: load
    stages with functions only from folders that no untrusted user can write to.
    """

    _FUNCTIONS: tuple[str, ...] = ()
    args: Any

    def write(self) -> MLWriter:
        """Return a writer of this stage, for `stage.write().overwrite().save(path)`."""
        return _Writer(self)

    @classmethod
    def read(cls) -> MLReader:
        """Return a reader for stages of this class, for `read().load(path)`."""
        return _Reader(cls)


class _Writer(MLWriter):  # type: ignore[misc]
    def __init__(self, stage: PersistentStage) -> None:
        super().__init__()
        self._stage = stage

    def saveImpl(self, path: str) -> None:
        functions = {
            name: base64.b64encode(dumps(getattr(self._stage, name))).decode()
            for name in self._stage._FUNCTIONS
        }
        extra = {_KEY: {"args": _to_json(self._stage.args), "functions": functions}}
        DefaultParamsWriter.saveMetadata(self._stage, path, self.sparkSession, extra)


class _Reader(MLReader):  # type: ignore[misc]
    def __init__(self, stage_type: type[Any]) -> None:
        super().__init__()
        self._stage_type = stage_type

    def load(self, path: str) -> Any:
        metadata = DefaultParamsReader.loadMetadata(path, self.sparkSession)
        extra = metadata[_KEY]
        functions = {
            name: cloudpickle.loads(base64.b64decode(text))
            for name, text in extra["functions"].items()
        }
        stage = self._stage_type(tf_args=extra["args"], **functions)
        stage._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(stage, metadata)
        return stage


def _to_json(args: Any) -> Any:
    """Return the arguments as an object that JSON stores without a change.

    Raises:
        ConfigError: if an argument would change.
    """
    if args.argv:
        return list(args.argv)
    for name, value in vars(args).items():
        try:
            is_unchanged = json.loads(json.dumps(value)) == value
        except (TypeError, ValueError):
            is_unchanged = False
        if not is_unchanged:
            raise ConfigError(
                f"the argument {name} is {value!r}, a {type(value).__name__}, which cannot be "
                "saved; expected a number, a string, None, or a list or dict of such values with "
                "strings as keys."
            )
    return vars(args)
