"""Runs anywhere. The packages that sparkdl can do without, and the extra that installs each.

A feature asks `require` for its package before anything starts. The package itself is imported
where it is used, as late as possible.
"""

import importlib.util
import sys
from collections.abc import Iterable

from sparkdl._version import DISTRIBUTION
from sparkdl.errors import MissingPackageError

# The extra of setup.cfg that installs a top-level module. The first of several is the one to name.
EXTRAS = {
    "tensorflow": "tensorflow",
    "keras": "tensorflow",
    "tensorboard": "tensorboard",
    "torch": "torch",
    "lightning": "lightning",
    "transformers": "huggingface",
    "ml_dtypes": "torch",
    "jax": "jax",
    "cmaes": "cmaes",
    "scipy": "monitoring",
    "adlfs": "azure",
    "gcsfs": "gs",
    "confluent_kafka": "kafka",
    "deltalake": "delta",
    "hdfs_native": "hdfs",
    "mlflow": "mlflow",
    "petastorm": "petastorm",
    "PIL": "images",
    "s3fs": "s3",
    "skops": "sklearn",
    "tf2onnx": "onnx",
    "onnxruntime": "onnx",
    "xgboost": "xgboost",
    "waitress": "ui",
    "werkzeug": "ui",
    "h11": "serving",
    "prometheus_client": "serving",
    "uvicorn": "serving",
    "uvloop": "serving",
    "grpc": "serving-grpc",
    "tensorflow_serving": "serving-grpc",
}


def is_installed(module: str) -> bool:
    """Return True if a top-level module is installed, without importing the module.

    Example:
        >>> is_installed("numpy"), is_installed("no_such_module")
        (True, False)
    """
    try:
        spec = importlib.util.find_spec(module)
    except ValueError:  # A loaded module without a spec.
        return module in sys.modules
    # A folder of this name, such as one with the files of TensorBoard, is a module without origin.
    return spec is not None and spec.origin is not None


def install_command(extra: str) -> str:
    """Return the command that installs an extra.

    Example:
        >>> install_command("torch")
        "pip install 'sparkdl-platform[torch]'"
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def install_commands(modules: Iterable[str]) -> str:
    """Return the commands that install modules, for a message; empty for unknown packages.

    Example:
        >>> install_commands(["keras.layers", "tensorflow", "numpy"])
        ": pip install 'sparkdl-platform[tensorflow]'"
    """
    tops = [module.partition(".")[0] for module in modules]
    extras = sorted({EXTRAS[top] for top in tops if top in EXTRAS})
    return f": {install_command(','.join(extras))}" if extras else ""


def advice_for_missing(module: str) -> str | None:
    """Return what to do about a module that was not found, or None for unknown packages.

    Args:
        module: the full name of the module.

    Example:
        >>> advice_for_missing("no_such_package.module") is None
        True
    """
    top = module.partition(".")[0]
    if top not in EXTRAS:
        return None
    if module == top or not is_installed(top):
        return f"Install it on the driver and the executors{install_commands([top])}"
    version = getattr(sys.modules.get(top), "__version__", "")
    return (
        f"{f'{top} {version}'.rstrip()} is installed and has no {module}: change the import line, "
        f"or install the version of {top} that the program was written for"
    )


def require(module: str, feature: str, extra: str | None = None) -> None:
    """Validate that an optional package is installed, without importing the package.

    Args:
        module: the top-level module of the package, a key of `EXTRAS`.
        feature: the name of what needs the package, as the user wrote it.
        extra: the extra of the feature, if it is not the usual one of the module.

    Raises:
        MissingPackageError: if the package is not installed; the message names the extra.
    """
    if not is_installed(module):
        error = MissingPackageError(
            f"{feature} needs the package {module}, which is not installed in this Python, "
            f"{sys.executable}. Install it on the driver and the executors: "
            f"{install_command(extra or EXTRAS[module])}"
        )
        error.name = module
        raise error
