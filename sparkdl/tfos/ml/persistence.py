"""Runs on the driver. Stages of a Pipeline that are saved, and read again."""

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

__all__ = ["Kept"]

# What a stage has beside its params stands in Spark ML's own metadata file, under this name.
_KEY = "sparkdl"


class Kept(MLWritable, MLReadable):  # type: ignore[misc]
    """A stage with arguments, and maybe functions, that `save` writes and `load` reads.

    Arguments are kept as JSON. Functions are pickled, so that `load` runs what the folder holds:
    load stages with functions only from where nobody else writes.
    """

    _FUNCTIONS: tuple[str, ...] = ()
    args: Any

    def write(self) -> MLWriter:
        """What writes this stage: `stage.write().overwrite().save(path)`."""
        return _Writer(self)

    @classmethod
    def read(cls) -> MLReader:
        """What reads a stage of this class: `read().load(path)`."""
        return _Reader(cls)


class _Writer(MLWriter):  # type: ignore[misc]
    def __init__(self, stage: Kept) -> None:
        super().__init__()
        self._stage = stage

    def saveImpl(self, path: str) -> None:
        functions = {
            name: base64.b64encode(cloudpickle.dumps(getattr(self._stage, name))).decode()
            for name in self._stage._FUNCTIONS
        }
        more = {_KEY: {"args": _as_json(self._stage.args), "functions": functions}}
        DefaultParamsWriter.saveMetadata(self._stage, path, self.sparkSession, more)


class _Reader(MLReader):  # type: ignore[misc]
    def __init__(self, kind: type[Any]) -> None:
        super().__init__()
        self._kind = kind

    def load(self, path: str) -> Any:
        metadata = DefaultParamsReader.loadMetadata(path, self.sparkSession)
        more = metadata[_KEY]
        functions = {
            name: cloudpickle.loads(base64.b64decode(text))
            for name, text in more["functions"].items()
        }
        stage = self._kind(tf_args=more["args"], **functions)
        stage._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(stage, metadata)
        return stage


def _as_json(args: Any) -> Any:
    """The arguments as they come back from JSON."""
    if args.argv:
        return list(args.argv)
    for name, value in vars(args).items():
        try:
            same = json.loads(json.dumps(value)) == value
        except (TypeError, ValueError):
            same = False
        if not same:
            raise ConfigError(
                f"the argument {name} is {value!r}, a {type(value).__name__}, which cannot be "
                "saved; expected numbers, strings, None, or lists and dicts (by strings) of these."
            )
    return vars(args)
