"""The template conf/spark-defaults.kubernetes.conf, for an API server of the tests."""

import re
from pathlib import Path

__all__ = ["CONF", "PATIENCE", "settings"]

# Spark gives the API server ten seconds for a connection, which is little on a busy machine.
PATIENCE = {
    f"spark.kubernetes.{client}.{kind}Timeout": "300000"
    for client in ("submission", "driver")
    for kind in ("connection", "request")
}

CONF = Path(__file__).parents[2] / "conf"


def settings(url: str, optional: str, **changes: str) -> str:
    """Return the template.

    Args:
        url: the URL of the API server.
        optional: a regular expression for the names of the optional settings to use.
        changes: settings that replace others; a double underscore in a name stands for a dot.
    """
    text = (CONF / "spark-defaults.kubernetes.conf").read_text()
    text, count = re.subn(rf"^# ({optional} +\S)", r"\1", text, flags=re.MULTILINE)
    assert count > 3, f"{optional} chooses {count} settings"
    for example, local in (
        ("https://kubernetes.example.org:6443", url),
        ("/opt/sparkdl/conf", str(CONF)),
    ):
        assert example in text
        text = text.replace(example, local)
    # The last value of a setting holds.
    values = {**PATIENCE, **changes}
    lines = (f"{name.replace('__', '.')} {value}" for name, value in values.items())
    return "\n".join([text, *lines, ""])
