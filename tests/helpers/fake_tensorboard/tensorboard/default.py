from typing import Any


def get_plugins() -> list[Any]:
    return []
