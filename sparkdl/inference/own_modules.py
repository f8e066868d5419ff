"""Runs in a Spark task. Import the modules of a user's function, apart from those of others."""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType

from sparkdl.cluster.program.local_modules import Source, importing


class OwnModules:
    """The modules beside the user's program, which executors do not have.

    Spark reuses a Python worker for functions of other programs, and for the same one after it was
    changed. Each has its modules only while it is called, and finds them again at the next call.

    Args:
        sources: the modules, by name.
    """

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._sources = sources
        self._imported: dict[str, ModuleType] = {}

    @contextlib.contextmanager
    def importable(self) -> Iterator[None]:
        """Let the modules be imported in the block, in place of others of their names."""
        if not self._sources:
            yield
            return
        with importing(self._sources):
            sys.modules.update(self._imported)
            try:
                yield
            finally:
                names = self._sources.keys() & sys.modules.keys()
                self._imported = {name: sys.modules[name] for name in names}
