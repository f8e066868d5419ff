"""Runs anywhere (pure). The framework versions that training on several workers was tested with."""

from collections.abc import Mapping

__all__ = ["TESTED", "is_keras_2", "untested"]

# The releases that the tests ran with. A pair of versions is tested if one row has both. Keras is
# corrected in private functions, which another release may have moved. TensorFlow 2.15 is the last
# release with `tf.estimator`, whose Keras needs no correction.
TESTED = ({"tensorflow": "2.21", "keras": "3.15"}, {"tensorflow": "2.15", "keras": "2.15"})


def untested(versions: Mapping[str, str], legacy: bool = False) -> str | None:
    """Return a message to the user if versions were not tested with more than one worker.

    Args:
        versions: the installed versions of `tensorflow` and `keras`.
        legacy: the program uses tf_keras, which needs no correction: only TensorFlow is checked.

    Returns:
        None if the versions were tested. Otherwise a message with the installed versions, the
        tested versions, and the ways out.

    Example:
        >>> untested({"tensorflow": "2.21.0", "keras": "3.15.1"})
        >>> print(untested({"tensorflow": "2.22.0", "keras": "3.15.1"}))
        tensorflow 2.22.0 with keras 3.15.1 was not tested with more than one worker; tested are \
tensorflow 2.21.* with keras 3.15.* or tensorflow 2.15.* with keras 2.15.*. Install tested \
versions, or set SPARKDL_ALLOW_UNTESTED=1 to continue with the installed versions.
    """
    names = ["tensorflow"] if legacy else ["tensorflow", "keras"]
    installed = {name: versions.get(name, "(none)") for name in names}
    if any(all(_release(installed[name]) == row[name] for name in names) for row in TESTED):
        return None
    return (
        f"{_pair(installed)} was not tested with more than one worker; tested are "
        + " or ".join(_pair({name: f"{row[name]}.*" for name in names}) for row in TESTED)
        + ". Install tested versions, or set SPARKDL_ALLOW_UNTESTED=1 to continue with the "
        "installed versions."
    )


def is_keras_2(version: str) -> bool:
    """Return True for a version of the Keras that is a part of TensorFlow up to 2.15.

    Example:
        >>> is_keras_2("2.15.0"), is_keras_2("3.15.1")
        (True, False)
    """
    return version.startswith("2.")


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _pair(versions: Mapping[str, str]) -> str:
    return " with ".join(f"{name} {version}" for name, version in versions.items())
