"""Runs anywhere. The only reader of settings.

The value of a setting is the first of: the argument of the call, the environment variable
`SPARKDL_<NAME>`, the Spark configuration `spark.sparkdl.<name>`, the default.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparkdl.errors import ConfigError


@dataclass(frozen=True)
class Setting:
    """A setting.

    Attributes:
        name: the name, in snake case.
        parse: converts the text of the setting to a value.
        default: the value if the setting is not set.
        meaning: a description, for error messages.
    """

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


def _at_least_20(text: str) -> float:
    if not float(text) >= 20:
        raise ValueError(text)
    return float(text)


def _permissions(text: str) -> str:
    mode = int(text, 8)
    if mode & 0o700 != 0o700 or mode > 0o7777:
        raise ValueError(text)  # The driver itself must read, write and enter the directory.
    return text


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("root", str, None, "the directory, or any fsspec URL, that holds the runs"),
        Setting(
            "fork_server",
            _boolean,
            True,
            "start trials from a process that has imported the framework",
        ),
        Setting("detect_gpus", _boolean, False, "let trials see GPUs that Spark did not assign"),
        Setting(
            "start_timeout_s",
            float,
            300.0,
            "seconds within which a gang must start, and the function of a trial",
        ),
        Setting("collective_timeout_s", float, 600.0, "seconds for which a rank may show no life"),
        Setting(
            "client_silence_s",
            _at_least_20,
            300.0,
            "seconds without a sign of life of a Spark Connect client, after which its trials end",
        ),
        Setting("interface", str, None, "the network interface or address of gangs"),
        Setting(
            "permissions",
            _permissions,
            "700",
            "the permissions of a run directory, as octal digits such as 700 or 2770",
        ),
        Setting("slots", int, None, "number of tasks at once, if Spark does not report it"),
    )
}


def _expected(setting: Setting) -> str:
    return setting.parse.__name__.strip("_").replace("_", " ")


def resolve(
    name: str, argument: Any = None, conf: Callable[[str], str | None] | None = None
) -> Any:
    """Return the value of a setting.

    Args:
        name: a key of `SETTINGS`.
        argument: the argument of the call; any value but None is returned as it is.
        conf: looks up a key in the Spark configuration; None if there is no session.

    Raises:
        ConfigError: if the text of the setting cannot be converted to a value.

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
                    f"{place} is {text!r}; expected {_expected(setting)}: "
                    f"{setting.meaning}. Set a valid value, or remove the setting."
                ) from None
    return setting.default
