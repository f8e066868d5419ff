"""Runs on the driver. Versions of a model that there are, in the registry or in a folder."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sparkdl.errors import ConfigError, ModelNotFoundError
from sparkdl.files import storage
from sparkdl.files.model_formats import KERAS_FILES, is_model
from sparkdl.models import aliases, registry
from sparkdl.models.layout import ModelPaths
from sparkdl.models.numbered import numbers

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Listing:
    """The versions of a model at one moment.

    Attributes:
        urls: path or URL of each version, by number, ascending.
        labels: the version that each alias names.
    """

    urls: dict[int, str]
    labels: Mapping[str, int] = field(default_factory=dict)


class VersionSource(Protocol):
    """A place where versions of one model appear."""

    @property
    def name(self) -> str:
        """The name of the model."""

    @property
    def url(self) -> str:
        """Path or URL of the place."""

    def look(self) -> Listing:
        """Return the versions that there are now.

        Raises:
            OSError: if the store fails.
        """


class RegistrySource:
    """A model of the registry. A version is there as soon as its description is.

    Args:
        name: the name of the model.
        root: the folder of runs and models, see `models.get`.
    """

    def __init__(self, name: str, root: str | None = None) -> None:
        self.name = name
        self._paths: ModelPaths = registry.paths_of(name, root)
        self._complete: set[int] = set()

    @property
    def url(self) -> str:
        """Path or URL of the folder of the model."""
        return self._paths.folder

    def look(self) -> Listing:
        """Return the versions and aliases; the description of a version is looked for once."""
        paths = self._paths
        folders = numbers(storage.list_names(paths.folder))
        new = [number for number in folders if number not in self._complete]
        self._complete |= {number for number in new if storage.exists(paths.record(number))}
        urls = {number: paths.version(number) for number in folders if number in self._complete}
        names_by_number = aliases.aliases_of(paths) if urls else {}
        labels = {name: number for number, names in names_by_number.items() for name in names}
        return Listing(urls, labels)


class FolderSource:
    """A model at a path: a Keras file, a SavedModel, or a folder with numbered SavedModels.

    Args:
        path: path or URL.
    """

    def __init__(self, path: str) -> None:
        self.url = storage.absolute(path)
        *_, parent, last = ["", *self.url.split("/")]
        self._number = int(last) if last.isdecimal() else None
        name = parent if self._number is not None else last
        for ending in KERAS_FILES:
            name = name.removesuffix(ending)
        self.name = name or "model"

    def look(self) -> Listing:
        """Return the versions; a model that is no numbered folder is version 1."""
        if is_model(self.url):
            return Listing({1 if self._number is None else self._number: self.url})
        folders = numbers(storage.list_names(self.url))
        urls = {number: storage.join(self.url, number) for number in folders}
        return Listing({n: url for n, url in urls.items() if is_model(url)})


def source_of(name_or_path: object, root: str | None) -> VersionSource:
    """Return the place of a model.

    Args:
        name_or_path: the name of a model in the registry, or a path or URL.
        root: the folder of runs and models, see `models.get`.

    Raises:
        ConfigError: if it is neither a name nor a path.
        ModelNotFoundError: if there is no model.
    """
    text = getattr(name_or_path, "__fspath__", lambda: name_or_path)()
    if not isinstance(text, str) or not text:
        raise ConfigError(
            f"name_or_path is {name_or_path!r}; expected the name of a model of the registry, such "
            "as 'digits', or the path of a .keras file, of a SavedModel or of a folder with "
            "numbered SavedModels."
        )
    is_name = _NAME.fullmatch(text) and not text.endswith(KERAS_FILES) and not text.isdecimal()
    if is_name:
        model = RegistrySource(text, root)
        if model.look().urls:
            return model
    folder = FolderSource(text)
    if folder.look().urls:
        return folder
    if is_name:
        registry.get(text, root=root)  # It raises, with the names that there are.
    raise ModelNotFoundError(
        f"there is no model at {folder.url}; expected a .keras or .h5 file, a SavedModel, or a "
        "folder with numbered SavedModels, such as 'digits/1/saved_model.pb'."
    )
