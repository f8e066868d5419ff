"""Runs anywhere. The only reader of settings.

A setting comes from, in this order: the argument of the call, the environment variable
`SPARKDL_<NAME>`, the Spark configuration `spark.sparkdl.<name>`, its default.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparkdl.errors import ConfigError

__all__ = ["SETTINGS", "Setting", "resolve"]


@dataclass(frozen=True)
class Setting:
    """One setting: its names, how its text is read, and its default."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    meaning: str

    @property
    def variable(self) -> str:
        """The environment variable, such as `SPARKDL_FORK_SERVER`."""
        return f"SPARKDL_{self.name.upper()}"

    @property
    def conf(self) -> str:
        """The Spark configuration key, such as `spark.sparkdl.forkServer`."""
        first, *rest = self.name.split("_")
        return "spark.sparkdl." + first + "".join(word.capitalize() for word in rest)


def _boolean(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError(text)


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("root", str, None, "the directory, or any fsspec URL, that holds the runs"),
        Setting("fork_server", _boolean, True, "start trials from a process that has imported"),
        Setting("detect_gpus", _boolean, False, "let trials see GPUs that Spark did not assign"),
        Setting("start_timeout_s", float, 300.0, "how long the start of a gang may take"),
        Setting("collective_timeout_s", float, 600.0, "how long a rank may be silent"),
        Setting("interface", str, None, "the network interface, or address, of gangs"),
        Setting("allow_untested", _boolean, False, "gangs with versions that were not tested"),
        Setting("slots", int, None, "how many tasks fit at once, where Spark cannot tell"),
    )
}


def resolve(
    name: str, argument: Any = None, conf: Callable[[str], str | None] | None = None
) -> Any:
    """The value of a setting.

    Args:
        name: a key of `SETTINGS`.
        argument: what the person passed; anything but None decides.
        conf: looks a key up in the Spark configuration, None where there is no session.

    Raises:
        ConfigError: the text found cannot be read as this setting's type.

    Example:
        >>> resolve("fork_server", None, {"spark.sparkdl.forkServer": "false"}.get)
        False
    """
    setting = SETTINGS[name]
    if argument is not None:
        return argument
    for place, text in (
        (setting.variable, os.environ.get(setting.variable)),
        (setting.conf, conf(setting.conf) if conf else None),
    ):
        if text:
            try:
                return setting.parse(text)
            except ValueError:
                raise ConfigError(
                    f"{place} is {text!r}, which cannot be read as {setting.parse.__name__}: "
                    f"{setting.meaning}. Set it to a proper value or remove it."
                ) from None
    return setting.default
