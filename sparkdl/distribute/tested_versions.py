"""Runs anywhere (pure). The versions that training on several workers was tested with."""

from collections.abc import Mapping

__all__ = ["TESTED", "untested"]

# Of each package the releases that the tests ran; a pair is tested if both its releases are in
# one row. Keras is corrected in private places: another release may have moved them.
TESTED = ({"tensorflow": "2.21", "keras": "3.15"},)


def untested(versions: Mapping[str, str], legacy: bool = False) -> str | None:
    """What to tell a person whose versions were not tested with more than one worker.

    Args:
        versions: the installed versions of `tensorflow` and `keras`.
        legacy: the program uses tf_keras, which needs no correction: TensorFlow alone counts.

    Returns:
        None if they were tested; else what was found, what was tested, and the ways out.

    Example:
        >>> untested({"tensorflow": "2.21.0", "keras": "3.15.1"})
        >>> print(untested({"tensorflow": "2.22.0", "keras": "3.15.1"}))
        tensorflow 2.22.0 with keras 3.15.1 was not tested with more than one worker; tested are \
tensorflow 2.21.* with keras 3.15.*. Install tested versions, or set SPARKDL_ALLOW_UNTESTED=1 to \
go on with these.
    """
    names = ["tensorflow"] if legacy else ["tensorflow", "keras"]
    found = {name: versions.get(name, "(none)") for name in names}
    if any(all(_release(found[name]) == row[name] for name in names) for row in TESTED):
        return None
    return (
        f"{_pair(found)} was not tested with more than one worker; tested are "
        + " or ".join(_pair({name: f"{row[name]}.*" for name in names}) for row in TESTED)
        + ". Install tested versions, or set SPARKDL_ALLOW_UNTESTED=1 to go on with these."
    )


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _pair(versions: Mapping[str, str]) -> str:
    return " with ".join(f"{name} {version}" for name, version in versions.items())
