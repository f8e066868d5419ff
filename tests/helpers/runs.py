"""Options for runs started by tests."""

from typing import Any

__all__ = ["quiet"]


def quiet(root: str, **options: Any) -> dict[str, Any]:
    """The options of a run that says nothing."""
    return {"root": root, "progress": False, **options}
