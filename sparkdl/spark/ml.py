"""Runs on the driver. The parts that stages of Spark ML share: params, and saving and loading."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.ml.param import Param, Params
from pyspark.ml.util import (
    DefaultParamsReader,
    DefaultParamsWriter,
    MLReadable,
    MLReader,
    MLWritable,
    MLWriter,
)

from sparkdl.errors import ConfigError, named_type
from sparkdl.spark.capabilities import owner_of_stages
from sparkdl.spark.connect import is_of_connect

# The key in Spark ML's metadata file for everything that a stage has in addition to its params.
_KEY = "sparkdl"

_Get = Callable[[Any], Any]
_Set = Callable[[Any, Any], Any]


def param(name: str, doc: str, converter: Callable[[Any], Any]) -> Any:
    """Return a param for the body of a class; each stage gets a copy of its own.

    Args:
        name: name of the param, which is also the name of the attribute.
        doc: description, which `explainParams` shows.
        converter: returns the value to store, or raises an error. It is not called with None.
    """

    def convert(value: Any) -> Any:
        # Spark sets None without the converter, but calls it when it loads a saved stage.
        return None if value is None else converter(value)

    return Param(Params._dummy(), name, doc, typeConverter=convert)


def accessors(name: str) -> tuple[_Set, _Get]:
    """Return a setter, which returns the stage, and a getter of a param.

    Args:
        name: name of the param.
    """

    def set_value(self: Any, value: Any) -> Any:
        return self._set(**{name: value})

    def get_value(self: Any) -> Any:
        return self.getOrDefault(name)

    set_value.__doc__ = f"Set `{name}` and return the stage."
    get_value.__doc__ = f"Return the value of `{name}`, or its default."
    return set_value, get_value


def check_json(name: str, value: Any) -> None:
    """Validate that JSON stores a value without a change.

    Args:
        name: a phrase that names the value, for the message.
        value: the value.

    Raises:
        ConfigError: if the value would change.

    Example:
        >>> check_json("the param units", [16, 32])
    """
    try:
        is_unchanged = json.loads(json.dumps(value)) == value
    except (TypeError, ValueError):
        is_unchanged = False
    if not is_unchanged:
        raise ConfigError(
            f"{name} is {value!r}, {named_type(value)}, which cannot be saved; expected a "
            "number, a string, None, or a list or dict of such values with strings as keys."
        )


class PersistentStage(MLWritable, MLReadable):  # type: ignore[misc]
    """A stage that `save` writes and `load` reads, in the format of Spark ML.

    A folder `metadata` has the class, the uid and the params. Derived classes add what else they
    have, in `_save` and `_load`.
    """

    def write(self) -> MLWriter:
        """Return a writer of this stage, for `stage.write().overwrite().save(path)`."""
        return _Writer(self)

    @classmethod
    def read(cls) -> MLReader:
        """Return a reader for stages of this class, for `read().load(path)`."""
        return _Reader(cls)

    def _save(self, path: str, spark: Any) -> Mapping[str, Any]:
        """Write data below `path`, and return what JSON stores in addition to the params.

        Raises:
            ConfigError: if the stage cannot be saved.
        """
        raise NotImplementedError

    @classmethod
    def _load(cls, extra: Mapping[str, Any], path: str, spark: Any) -> Any:
        """Create the stage, without its params, from what `_save` has returned and written."""
        raise NotImplementedError


class _Writer(MLWriter):  # type: ignore[misc]
    def __init__(self, stage: Any) -> None:
        super().__init__()
        self._stage = stage

    def _handleOverwrite(self, path: str) -> None:
        if is_of_connect(self.sparkSession):
            raise ConfigError(
                f"save cannot overwrite {path} through Spark Connect, whose client removes no "
                "files of the cluster. Save to a new path, without overwrite()."
            )
        super()._handleOverwrite(path)

    def saveImpl(self, path: str) -> None:
        for each, value in self._stage.extractParamMap().items():
            check_json(f"the param {each.name}", value)
        # The metadata is written last: a folder without it is not a stage.
        owner = owner_of_stages(self.sparkSession)
        extra = self._stage._save(path, self.sparkSession)
        DefaultParamsWriter.saveMetadata(self._stage, path, owner, {_KEY: extra})


class _Reader(MLReader):  # type: ignore[misc]
    def __init__(self, stage_type: type[Any]) -> None:
        super().__init__()
        self._stage_type = stage_type

    def load(self, path: str) -> Any:
        metadata = DefaultParamsReader.loadMetadata(path, owner_of_stages(self.sparkSession))
        expected = f"{self._stage_type.__module__}.{self._stage_type.__name__}"
        if metadata["class"] != expected:
            raise ConfigError(
                f"the folder {path} has a saved {metadata['class']}; expected a {expected}. Load "
                "it with that class, or with Pipeline.load or PipelineModel.load if it is a whole "
                "pipeline."
            )
        stage = self._stage_type._load(metadata[_KEY], path, self.sparkSession)
        stage._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(stage, metadata)
        return stage
