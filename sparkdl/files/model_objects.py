"""Runs anywhere. Write a model that a training function has returned, and read it again.

Each library has a format of its own, which is read without running code that the file contains.
"""

import contextlib
import importlib
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sparkdl.files.model_formats import library_of_object, load_model
from sparkdl.host.optional_packages import require

_TREE = "sklearn.tree._tree.Tree"
LIBRARIES = ("keras", "torch", "sklearn")


def library_of_model(obj: object) -> str | None:
    """Return the library of a model: `keras`, `torch`, `sklearn`; None for any other object."""
    if library_of_object(obj):
        return "keras"
    for base in type(obj).__mro__:
        if (base.__module__, base.__name__) == ("torch.nn.modules.module", "Module"):
            return "torch"
        if (base.__module__, base.__name__) == ("sklearn.base", "BaseEstimator"):
            return "sklearn"
    return None


def write_model_object(model: Any, library: str, folder: Path) -> Path:
    """Write a model into a folder; return the file.

    Raises:
        Exception: whatever the library raises for a model that it cannot write.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write, suffix = _WRITERS[library]
    file = folder / f"model{suffix}"
    write(model, file)
    return file


def _write_keras(model: Any, file: Path) -> None:
    model.save(str(file))


def _write_torch(model: Any, file: Path) -> None:
    import torch

    if type(model).__name__ in ("DataParallel", "DistributedDataParallel"):
        model = model.module  # It holds the processes of the gang, which no other process has.
    with _classes_in_their_modules(model):
        torch.save(model, file)


def _write_sklearn(model: Any, file: Path) -> None:
    require("skops", "a model of scikit-learn as a returned value")
    import skops.io

    skops.io.dump(model, file)


_WRITERS: dict[str, tuple[Callable[[Any, Path], None], str]] = {
    "keras": (_write_keras, ".keras"),
    "torch": (_write_torch, ".pt"),
    "sklearn": (_write_sklearn, ".skops"),
}


@contextlib.contextmanager
def _classes_in_their_modules(model: Any) -> Iterator[None]:
    """Let the classes of a module of PyTorch be found by name, which those of a script are not."""
    new_names = []
    for cls in {type(module) for module in model.modules()}:
        home = sys.modules.get(cls.__module__)
        if home and not hasattr(home, cls.__qualname__) and "<locals>" not in cls.__qualname__:
            setattr(home, cls.__qualname__, cls)
            new_names.append((home, cls.__qualname__))
    try:
        yield
    finally:
        for home, name in new_names:
            delattr(home, name)


def read_model_object(file: Path, library: str) -> Any:
    """Read a model that `write_model_object` has written.

    Raises:
        Exception: if the library does not know, or does not trust, a class of the model.
    """
    if library == "keras":
        return load_model(file)
    if library == "torch":
        return _read_torch(file)
    return _read_sklearn(file)


def _read_sklearn(file: Path) -> Any:
    """Read a model of scikit-learn: estimators and trees, whose nodes are checked.

    skops trusts no tree: scikit-learn follows the numbers of the nodes without a check, so that a
    wrong number reads memory that is not the tree's.

    Raises:
        ValueError: if a node of a tree names one that does not exist.
    """
    import skops.io

    names = skops.io.get_untrusted_types(file=file)
    model = skops.io.load(file, trusted=[name for name in names if name == _TREE])
    if _TREE in names:
        found = [*_trees_in(model, 0, set())]
        with zipfile.ZipFile(file) as archive:
            num_trees = archive.read("schema.json").count(b'"Tree"')
        if len(found) < num_trees:
            raise ValueError(
                f"the file has {num_trees} trees, of which {len(found)} can be checked."
            )
        for tree, num_features in found:
            _check_tree(tree, num_features)
    return model


def _trees_in(value: Any, num_features: int, seen: set[int]) -> Iterator[tuple[Any, int]]:
    """Yield the trees in an object, and the number of features of the estimator that holds each.

    The estimator refuses rows with another number of features.
    """
    if id(value) in seen:
        return
    seen.add(id(value))
    num_features = getattr(value, "n_features_in_", num_features)
    kind = type(value)
    if f"{kind.__module__}.{kind.__name__}" == _TREE:
        yield value, num_features
    elif isinstance(value, dict):
        for each in value.values():
            yield from _trees_in(each, num_features, seen)
    elif isinstance(value, list | tuple | set) or str(getattr(value, "dtype", "")) == "object":
        for each in getattr(value, "flat", value):
            yield from _trees_in(each, num_features, seen)
    elif hasattr(value, "__dict__"):
        yield from _trees_in(vars(value), num_features, seen)


def _check_tree(tree: Any, num_features: int) -> None:
    numbers = range(tree.node_count)
    for number, left, right, feature in zip(
        numbers, tree.children_left, tree.children_right, tree.feature, strict=True
    ):
        # A leaf has no children; a child has a greater number, so that there is no circle.
        is_leaf = left == right == -1
        is_inner = left > number and right > number and max(left, right) < len(numbers)
        if not is_leaf and not (is_inner and 0 <= feature < num_features):
            raise ValueError(
                f"the file has a tree whose node {number} names the nodes {left} and {right} and "
                f"the feature {feature}, of {len(numbers)} nodes and {num_features} features."
            )


def _read_torch(file: Path) -> Any:
    """Read a module of PyTorch: its tensors, and modules whose classes this process knows."""
    import torch

    names = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    classes = [each for each in map(_known_global, names) if each is not None]
    with torch.serialization.safe_globals(classes):
        return torch.load(file, map_location="cpu", weights_only=True)


def _known_global(name: str) -> Any:
    """Return a class of modules, or an activation of PyTorch, that a file names; else None.

    Other classes than those of PyTorch must be imported in this process.
    """
    import torch

    home, _, qualname = name.rpartition(".")
    if home.startswith("torch.nn."):
        with contextlib.suppress(ImportError):
            importlib.import_module(home)
    value = getattr(sys.modules.get(home), qualname, None)
    is_activation = home == getattr(value, "__module__", "") == "torch.nn.functional"
    is_class = isinstance(value, type) and issubclass(value, torch.nn.Module)
    return value if is_class or is_activation else None
