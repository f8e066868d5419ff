"""Runs on the driver. Save the stages of a Pipeline, and load them again."""

import base64
from collections.abc import Mapping
from typing import Any

import cloudpickle

from sparkdl.host.pickler import dumps
from sparkdl.spark import ml as spark_ml


class PersistentStage(spark_ml.PersistentStage):
    """A stage with arguments and optional functions that `save` writes and `load` reads.

    Arguments are stored as JSON. Functions are pickled, and unpickling can run any code: load
    stages with functions only from folders that no untrusted user can write to.
    """

    _FUNCTIONS: tuple[str, ...] = ()
    args: Any

    def _save(self, path: str, spark: Any) -> Mapping[str, Any]:
        functions = {
            name: base64.b64encode(dumps(getattr(self, name))).decode() for name in self._FUNCTIONS
        }
        return {"args": _to_json(self.args), "functions": functions}

    @classmethod
    def _load(cls, extra: Mapping[str, Any], path: str, spark: Any) -> Any:
        functions = {
            name: cloudpickle.loads(base64.b64decode(text))
            for name, text in extra["functions"].items()
        }
        return cls(tf_args=extra["args"], **functions)


def _to_json(args: Any) -> Any:
    """Return the arguments as an object that JSON stores without a change.

    Raises:
        ConfigError: if an argument would change.
    """
    if args.argv:
        return list(args.argv)
    for name, value in vars(args).items():
        spark_ml.check_json(f"the argument {name}", value)
    return vars(args)
