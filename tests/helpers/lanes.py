"""Schedule tests over the processes of pytest-xdist, the tests of one application together."""

from functools import cached_property
from typing import Any

from xdist.scheduler import LoadScopeScheduling

from tests.helpers.groups import read_groups

__all__ = ["ByApplication"]


class ByApplication(LoadScopeScheduling):  # type: ignore[misc]
    """Give the groups of tests to the processes in order, each to the first that is free."""

    def __init__(self, config: Any, log: Any) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    @cached_property
    def _groups(self) -> dict[str, str]:
        return read_groups()

    def _split_scope(self, nodeid: str) -> str:
        return self._groups[nodeid]
