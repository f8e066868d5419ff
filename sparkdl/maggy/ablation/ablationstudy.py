"""Runs on the driver (pure). The components of a model that an ablation study leaves out."""

from collections.abc import Callable, Iterator
from typing import Any

from sparkdl.errors import named_type

__all__ = ["AblationStudy"]


class AblationStudy:
    """The features and layers that the trials of a study leave out, one at a time.

    Args:
        training_dataset_name: a name; there is no feature store to look it up.
        training_dataset_version: a version.
        label_name: the name of the label.
        **kwargs: `dataset_generator`, see `set_dataset_generator`.

    Attributes:
        features: the features to leave out.
        model: the generators of models, and in `model.layers` the layers to leave out.

    Example:
        >>> study = AblationStudy("titanic", 1, label_name="survived")
        >>> study.features.include("fare", ["age", "sex"])
        >>> study.model.layers.include("dense_two")
        >>> study.model.layers.include_groups(["dense_two", "dense_three"], prefix="conv")
        >>> study.to_dict()["included_layers"]
        ['dense_two']
    """

    def __init__(
        self,
        training_dataset_name: Any,
        training_dataset_version: Any,
        label_name: str,
        **kwargs: Any,
    ) -> None:
        self.features = Features()
        self.model = Model()
        self.hops_training_dataset_name = training_dataset_name
        self.hops_training_dataset_version = training_dataset_version
        self.label_name = label_name
        self.custom_dataset_generator: Any = kwargs.get("dataset_generator", False)

    def set_dataset_generator(self, dataset_generator: Callable[..., Any]) -> None:
        """Set the function that the training function gets as `dataset_function`.

        Args:
            dataset_generator: a function with the arguments that the training function passes. For
                trials without a feature, it has a further argument `ablated_feature`: the name of
                the feature to leave out, or None.
        """
        self.custom_dataset_generator = dataset_generator

    def to_dict(self) -> dict[str, Any]:
        """Return what the study leaves out, by name."""
        return {
            "training_dataset_name": self.hops_training_dataset_name,
            "training_dataset_version": self.hops_training_dataset_version,
            "label_name": self.label_name,
            "included_features": sorted(self.features.included_features),
            "included_layers": sorted(self.model.layers.included_layers),
            "custom_dataset_generator": bool(self.custom_dataset_generator),
        }


class Features:
    """The features that are left out, one in each trial."""

    def __init__(self) -> None:
        self.included_features: set[str] = set()

    def include(self, *args: Any) -> None:
        """Add features, each a name or a list of names.

        Raises:
            ValueError: if a name is no text.
        """
        self.included_features |= set(_names("features.include", args))

    def exclude(self, *args: Any) -> None:
        """Remove features, each a name or a list of names.

        Raises:
            ValueError: if a name is no text.
        """
        self.included_features -= set(_names("features.exclude", args))

    def list_all(self) -> None:
        """Print the names of the features."""
        print(*sorted(self.included_features), sep="\n")


class Model:
    """The generators of models, and the layers that are left out."""

    def __init__(self) -> None:
        self.layers = Layers()
        self.base_model_generator: Callable[[], Any] | None = None
        self.custom_model_generators: list[tuple[Callable[[], Any], str]] = []

    def set_base_model_generator(self, base_model_generator: Callable[[], Any]) -> None:
        """Set the function that returns the whole model, a `keras.Sequential`."""
        self.base_model_generator = base_model_generator

    def add_custom_model_generator(
        self, custom_model_generator: Callable[[], Any], model_identifier: str
    ) -> None:
        """Add a trial with a model of its own.

        Args:
            custom_model_generator: returns the model.
            model_identifier: the name of the model in the result.
        """
        self.custom_model_generators.append((custom_model_generator, model_identifier))


class Layers:
    """The layers that are left out, one or a group of them in each trial."""

    def __init__(self) -> None:
        self.included_layers: set[str] = set()
        self.included_groups: set[frozenset[str]] = set()

    def include(self, *args: Any) -> None:
        """Add layers, each a name or a list of names. The first and the last layer always stay.

        Raises:
            ValueError: if a name is no text.
        """
        self.included_layers |= set(_names("layers.include", args))

    def exclude(self, *args: Any) -> None:
        """Remove layers, each a name or a list of names.

        Raises:
            ValueError: if a name is no text.
        """
        self.included_layers -= set(_names("layers.exclude", args))

    def include_groups(self, *args: Any, prefix: str | None = None) -> None:
        """Add groups of layers, each of which is left out as a whole.

        Args:
            *args: lists of at least two names.
            prefix: the beginning of the names of a further group.

        Raises:
            ValueError: if a group is no such list, or the prefix is no text.
        """
        self.included_groups |= set(_groups("layers.include_groups", args, prefix))

    def exclude_groups(self, *args: Any, prefix: str | None = None) -> None:
        """Remove groups of layers; the arguments are those of `include_groups`."""
        self.included_groups -= set(_groups("layers.exclude_groups", args, prefix))

    def print_all(self) -> None:
        """Print the layers that are left out on their own."""
        print("Included single layers are:", *sorted(self.included_layers), sep="\n")

    def print_all_groups(self) -> None:
        """Print the groups of layers."""
        texts = [group_label(group) for group in self.included_groups]
        print("Included layer groups are:", *sorted(texts), sep="\n")


def group_label(group: frozenset[str]) -> str:
    """Return the text for a group of layers in tables."""
    if len(group) == 1:
        return f"Layers prefixed {next(iter(group))}"
    return str(sorted(group))


def _names(function: str, args: tuple[Any, ...]) -> Iterator[str]:
    for name in (name for arg in args for name in (arg if isinstance(arg, list) else [arg])):
        if not isinstance(name, str):
            raise ValueError(
                f"{function} got {name!r}, {named_type(name)}; expected names, or lists of names."
            )
        yield name


def _groups(function: str, args: tuple[Any, ...], prefix: str | None) -> Iterator[frozenset[str]]:
    if prefix is not None:
        yield frozenset(_names(f"{function}(prefix=...)", (prefix,)))
    for arg in args:
        if not isinstance(arg, list) or len(arg) < 2:
            raise ValueError(
                f"{function} got {arg!r}; expected lists of at least two names, or prefix=. For a "
                "single layer call layers.include."
            )
        yield frozenset(_names(function, (arg,)))
