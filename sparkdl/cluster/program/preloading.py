"""Runs on the driver (pure). Choose the modules that fork servers import, and their order."""

import sys
from collections.abc import Iterable

# The packages and modules that import Keras, or read these variables, when they are imported.
_FIXES_BACKEND = (
    *("keras", "sparkdl.horovod.keras", "sparkdl.horovod.tensorflow", "sparkdl.keras"),
    *("tensorflow", "tf_keras"),
)

# Packages that are safe to import before a fork: they start no threads that a child would miss.
# Submodules of these may draw in a framework, as torch.utils.tensorboard does.
_ONLY_TOP = (
    *("jax", "keras", "lightning", "pyspark", "pytorch_lightning", "tensorflow", "tf_keras"),
    "torch",
)
# Packages that import a module only when a name is taken from it, which may take ten seconds.
LAZY = ("diffusers", "transformers")
HUB = (*LAZY, "accelerate", "datasets", "huggingface_hub", "peft", "safetensors", "tokenizers")
_WITH_SUBMODULES = (
    *("absl", "fsspec", "h5py", "matplotlib", "numpy", "optuna", "pandas", "PIL"),
    *("pyarrow", "scipy", "sklearn", "sparkdl", "tqdm"),
    *HUB,
)
# Pure Python that imports none of the above: the order says nothing, and the program imports it.
_NEUTRAL = (
    *("boto3", "click", "cloudpickle", "dotenv", "hydra", "hypothesis", "loguru", "omegaconf"),
    *("packaging", "pytest", "requests", "rich", "typer", "typing_extensions", "yaml"),
)
# What imports a framework first of all.
_FRAMEWORKS = {
    "tensorflow": _FIXES_BACKEND,
    "torch": (
        *("torch", "torchvision", "lightning", "pytorch_lightning", "sparkdl.horovod.torch"),
        *("accelerate", "diffusers", "peft"),
    ),
    "jax": ("jax", "flax", "optax", "orbax"),
}


def find_framework(imports: Iterable[str]) -> str | None:
    """Return the framework that a program imports; None if it imports none of the known ones.

    Example:
        >>> find_framework(["numpy", "keras.layers"])
        'tensorflow'
    """
    behind = {_framework_behind(name) for name in imports}
    return next((framework for framework in _FRAMEWORKS if framework in behind), None)


def preloadable(
    imports: Iterable[str],
    framework: str | None,
    sets_backend: bool = False,
    sets_hub: bool = False,
) -> tuple[str, ...]:
    """Return the modules that a fork server should import for a program, in the program's order.

    A name such as `transformers.Trainer` is that of an object, with which its module is imported.

    They end before the first module that is not known to be safe to import before a fork, and
    before a second framework: native libraries may depend on the order in which they are loaded.
    Common packages of pure Python are passed over.

    Args:
        imports: the modules that the program imports, in its own order.
        framework: the framework of the program, if any. A framework that the program does not
            name itself comes last.
        sets_backend: the program chooses the backend of Keras, so that it must import Keras itself.
        sets_hub: the program sets up packages of Hugging Face, so that it must import them itself.

    Example:
        >>> preloadable(["numpy", "torch", "torch.utils.tensorboard", "torchvision"], "torch")
        ('sparkdl.cluster.process.child', 'numpy', 'torch')
        >>> preloadable(["requests", "keras"], "tensorflow")
        ('sparkdl.cluster.process.child', 'keras')
        >>> preloadable(["numpy", "keras"], "tensorflow", sets_backend=True)
        ('sparkdl.cluster.process.child', 'numpy')
    """
    names = ["sparkdl.cluster.process.child"]
    first = None
    for name in imports:
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in _NEUTRAL:
            continue
        behind = _framework_behind(name)
        first = first or behind
        is_second = behind not in (None, first)
        is_set_up = sets_hub and top in HUB
        if is_second or is_set_up or (sets_backend and (behind == "tensorflow" or top in LAZY)):
            break
        if top not in _ONLY_TOP + _WITH_SUBMODULES:
            names += [first] if behind and first else []  # It begins with the framework.
            break
        names.append(top if top in _ONLY_TOP else name)
    else:
        names += [framework] if framework and not first and not sets_backend else []
        names += ["pyarrow.dataset"] if "sparkdl.data" in names else []
    return tuple(dict.fromkeys(names))


def order_of(preload: Iterable[str]) -> tuple[str, ...]:
    """Return the modules whose order two programs must share to be forked from one server.

    These are the framework and what comes before it; numpy comes before each framework anyway.

    Example:
        >>> order_of(["sparkdl.cluster.process.child", "numpy", "pandas", "torch", "PIL"])
        ('pandas', 'torch')
    """
    before: list[str] = []
    for name in preload:
        if framework := _framework_behind(name):
            return (*before, framework)
        if not _is_in(name, ("numpy", "sparkdl")):
            before.append(name)
    return ()


def _framework_behind(name: str) -> str | None:
    """Return the framework that a module imports first of all; None if it is none of them."""
    return next((key for key, parts in _FRAMEWORKS.items() if _is_in(name, parts)), None)


def _is_in(name: str, packages: Iterable[str]) -> bool:
    """Return True if a module is one of the packages, or inside one of them."""
    return any(f"{name}.".startswith(f"{package}.") for package in packages)
