"""Runs anywhere. The files of servings in the project, and the servers that this process runs."""

import getpass
import json
import os
import socket
import time
import urllib.request
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sparkdl.errors import ConfigError, ModelNotFoundError, suggest
from sparkdl.files import storage
from sparkdl.hops.project import expand, root
from sparkdl.models.layout import check_name, models_folder
from sparkdl.serving.version_source import source_of

__all__ = ["Serving", "all_servings", "find", "forget", "is_running", "keep", "model_of", "new"]

FOLDER = "serving"
HEALTH_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Serving:
    """A model that is served, or was.

    Attributes:
        id: a number that no other serving of the project has.
        name: the name of the serving.
        model_path: the path that was given.
        model_name: the name of a model of the registry, or the path of a model.
        model_version: the version that is served.
        model_server: `TENSORFLOW_SERVING`.
        serving_tool: `DEFAULT`.
        batching_enabled: True if rows of several requests are computed at once.
        kafka_topic: the name of the topic of the inference log; None if there is none.
        log: path or URL of the folder of the inference log; None if there is none.
        creator: the name of the user.
        created: the time in seconds since 1970.
        url: the address of the server; None if it was stopped.
        process: host and number of the process of the server.
    """

    name: str
    model_path: str
    model_name: str
    model_version: int
    model_server: str = "TENSORFLOW_SERVING"
    serving_tool: str = "DEFAULT"
    batching_enabled: bool = False
    kafka_topic: str | None = None
    log: str | None = None
    id: int = 0
    creator: str = field(default_factory=getpass.getuser)
    created: float = field(default_factory=time.time)
    url: str | None = None
    process: str | None = None

    @property
    def status(self) -> str:
        """`Running` if the server answers, otherwise `Stopped`."""
        return "Running" if is_running(self) else "Stopped"


def this_process() -> str:
    """Return the host and the number of this process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def is_running(serving: Serving) -> bool:
    """Return True if the server of a serving answers."""
    if serving.url is None:
        return False
    try:
        # Never through a proxy: the server listens on the loopback interface.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{serving.url}/v2/models/{served_name(serving)}/ready", timeout=HEALTH_S):
            return True
    except OSError:
        return False


def served_name(serving: Serving) -> str:
    """Return the name of the model in the addresses of the server."""
    return source_of(serving.model_name, root()).name


# ---- files


def _file(name: str) -> str:
    return storage.join(root(), FOLDER, f"{check_name(name, 'serving')}.json")


def all_servings() -> list[Serving]:
    """Return the servings of the project, by name."""
    folder = storage.join(root(), FOLDER)
    names = [name for name in storage.list_names(folder) if name.endswith(".json")]
    contents = storage.read_many(storage.join(folder, name) for name in sorted(names))
    return [Serving(**json.loads(data)) for data in contents.values()]


def find(name: str) -> Serving:
    """Return a serving.

    Raises:
        ModelNotFoundError: if there is no such serving.
    """
    file = _file(name)
    if not storage.exists(file):
        names = [serving.name for serving in all_servings()]
        raise ModelNotFoundError(
            f"there is no serving {name!r} in {root()}; it has "
            f"{', '.join(map(repr, names)) or 'none'}.{suggest(name, names)} Call "
            "serving.create_or_update first."
        )
    return Serving(**json.loads(storage.read(file)))


def keep(serving: Serving) -> None:
    """Write the file of a serving."""
    storage.write(_file(serving.name), json.dumps(asdict(serving), indent=1))


def forget(name: str) -> None:
    """Remove the file of a serving."""
    storage.remove(_file(name))


def new(serving: Serving) -> Serving:
    """Keep a serving, with the id of an earlier one of its name, or the next id; return it."""
    servings = {other.name: other for other in all_servings()}
    earlier = servings.get(serving.name)
    last = max((other.id for other in servings.values()), default=0)
    if earlier:
        fields = {"created": earlier.created, "url": earlier.url, "process": earlier.process}
        serving = replace(serving, id=earlier.id, **fields)  # type: ignore[arg-type]
    else:
        serving = replace(serving, id=last + 1)
    keep(serving)
    return serving


# ---- models


def model_of(path: str, version: Any) -> tuple[str, int]:
    """Return the name or the path of a model, and its version.

    Args:
        path: `Models/<name>`, `Models/<name>/<version>`, a path that `model.export` has returned,
            or the path of another model: a local path, or one in the project.
        version: the number of the version.

    Raises:
        ConfigError: if the version is not a number.
        ModelNotFoundError: if there is no such model or version.
    """
    if isinstance(version, bool) or not isinstance(version, int):
        raise ConfigError(f"model_version is {version!r}; expected a number.")
    full = str(Path(path).absolute()) if Path(path).exists() else expand(path)
    name = full
    for folder in (models_folder(root()), storage.join(root(), "Models")):
        if full.startswith(f"{folder}/"):
            name, *more = full.removeprefix(f"{folder}/").split("/")
            version = int(more[0]) if more and more[0].isdecimal() else version
            break
    source = source_of(name, root())
    versions = source.look().urls
    if version not in versions:
        raise ModelNotFoundError(
            f"the model {path!r} has no version {version}; it has "
            f"{', '.join(map(str, versions))}. Pass model_version=."
        )
    return name, version
