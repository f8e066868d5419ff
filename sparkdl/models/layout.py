"""Runs anywhere. The names of all files of the model registry.

```
<root>/models/<name>/<version>/model.json  saved_model.pb  variables/  assets/  model.keras
                               model.onnx  profile.json  assets.extra/<name>
                               or loader.json  files/  code/, see `inference.loader_model`
                    /claims/<version>.json
                    /aliases/<alias>/<n>.json
                    /.export-<id>/
```

A version exists as soon as its `model.json` exists, which is written last. Its number was taken
before by creating the file of its claim, which only one process can; the number of a process that
died is never used again. On a local disk a version is written into `.export-<id>` and renamed as
a whole. All other names in the folder of a model are no numbers, so that TensorFlow Serving takes
the folder as the base path of a model.
"""

import errno
import re
from dataclasses import dataclass

from sparkdl.cluster.root import resolve_root
from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.runs.lineage import FOLDER, RECORD

# The format of a version, which `model.json` names.
FORMAT = 1

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class ModelPaths:
    """The files of one model.

    Attributes:
        folder: path or URL of the folder of the model.
    """

    folder: str

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.folder.rsplit("/", 1)[-1]

    @property
    def claims(self) -> str:
        """The folder with a file for each version number that was taken."""
        return storage.join(self.folder, "claims")

    @property
    def aliases(self) -> str:
        """The folder with one folder per alias."""
        return storage.join(self.folder, "aliases")

    def alias(self, alias: str) -> str:
        """Return the folder of the moves of an alias, one file per move."""
        return storage.join(self.aliases, alias)

    def version(self, number: int) -> str:
        """Return the folder of a version."""
        return storage.join(self.folder, number)

    def record(self, number: int) -> str:
        """Return the description of a version. The last file that an export writes."""
        return storage.join(self.version(number), RECORD)

    def aside(self, key: str) -> str:
        """Return the folder in which a version is written before it is renamed."""
        return storage.join(self.folder, f".export-{key}")


def models_folder(root: str | None) -> str:
    """Return the folder of all models.

    Args:
        root: the folder that holds the runs and the models; by default the one that the verbs of
            `experiment` use.
    """
    return storage.join(resolve_root(root), FOLDER)


def check_name(name: object, noun: str) -> str:
    """Return a name that can be a folder on every store.

    Args:
        name: the name that the user passed.
        noun: what has the name, for the message.

    Raises:
        ConfigError: if it has other characters, or is a number, as versions are.

    Example:
        >>> check_name("digits-cnn", "model")
        'digits-cnn'
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.isdigit():
        raise ConfigError(
            f"the name of the {noun} is {name!r}; expected letters, digits, '-', '_' and '.', "
            "such as 'digits-cnn', and more than a number."
        )
    return name


def is_no_record(exc: OSError) -> bool:
    """Return True for a file that no later attempt can read: a pipe, a huge or a foreign file.

    Example:
        >>> is_no_record(PermissionError(errno.EACCES, "closed")), is_no_record(TimeoutError())
        (True, False)
    """
    return exc.errno in (errno.EACCES, errno.EFBIG, errno.EINVAL, errno.EISDIR, errno.ELOOP)
