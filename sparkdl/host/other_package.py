"""Runs anywhere. Notice the other package whose modules are called `sparkdl` too."""

import os
from importlib import metadata

from sparkdl._version import DISTRIBUTION, __version__
from sparkdl.host.supported_versions import Deviation

_NAME = "sparkdl"


def other_package() -> Deviation | None:
    """Return what to do about an installed package `sparkdl`; None if there is none.

    Deep Learning Pipelines of 2018 is installed under this name. Both have the file
    `sparkdl/__init__.py`: the package that is installed last overwrites that of the other, and
    the package that is removed first takes the file along.

    Example:
        >>> other_package()
    """
    for distribution in metadata.distributions(name=_NAME):
        if distribution.read_text("RECORD") is None:
            continue  # Not installed by pip, but left in a checkout where setuptools ran.
        # An editable install has no such file, and overwrites nothing.
        for file in distribution.files or ():
            if file.as_posix() == f"{_NAME}/__init__.py":
                folder = os.path.dirname(str(distribution.locate_file(file)))
                return Deviation(
                    f"the package {_NAME} {distribution.version} in {folder} is another one, whose "
                    f"modules have the names of this one, {DISTRIBUTION} {__version__}.",
                    f"Run: pip uninstall {_NAME}; then install this one again, of which files may "
                    f"be missing: pip install --force-reinstall --no-deps {DISTRIBUTION}",
                    is_refused=False,
                )
    return None
