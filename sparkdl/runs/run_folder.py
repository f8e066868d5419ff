"""Runs on the driver. Tags, notes, size, deletion, the page: a run as its files."""

from typing import Any

from sparkdl import folders
from sparkdl.errors import ConfigError, RunExistsError
from sparkdl.runs import annotations
from sparkdl.runs.actions import Actions
from sparkdl.runs.annotations import Annotations, Note
from sparkdl.runs.layout import RunPaths
from sparkdl.runs.lineage import models_of
from sparkdl.runs.owner import describe_owner, living_owner

__all__ = ["RunFolder"]


class RunFolder:
    """The part of `Run` that needs only the run directory."""

    id: str
    path: str

    @property
    def tags(self) -> list[str]:
        """The tags that users gave to the run, read from the run directory now."""
        return self.annotations().tags

    @property
    def notes(self) -> list[Note]:
        """The notes of users on the run, oldest first, read from the run directory now."""
        return self.annotations().notes

    def annotations(self) -> Annotations:
        """Return the tags and the notes, read at once."""
        return annotations.read(self.path)

    def tag(self, *tags: str) -> None:
        """Give tags to the run, at any time; `experiment.history(tags=...)` finds them.

        `sparkdl gc` never deletes a run with the tag `keep`.

        Raises:
            ConfigError: if a tag is no text, or contains a comma.
        """
        if added := annotations.check_tags(tags):
            annotations.add(self.path, tags=added)

    def untag(self, *tags: str) -> None:
        """Remove tags from the run; a tag that the run does not have is ignored."""
        if removed := annotations.check_tags(tags):
            annotations.add(self.path, untag=removed)

    def note(self, text: str) -> None:
        """Write a note on the run, at any time. Earlier notes stay.

        Raises:
            ConfigError: if the note is no text, or is empty.
        """
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(f"the note is {text!r}; expected a text.")
        annotations.add(self.path, note=text.strip())

    def ui(self, *, port: int = 0, control: bool = False) -> Any:
        """Show the run in a browser while it goes on, see `sparkdl ui`.

        A program prints the address of the page, and a notebook shows the page in a frame. The
        page ends with the program.

        Args:
            port: the port on this host; 0 takes a free one.
            control: let the page cancel, pause and change runs, add trials, and write tags and
                notes.

        Returns:
            The page, with its `url`, and with `wait()` and `stop()`.

        Raises:
            ConfigError: if the packages of `sparkdl[ui]` are not installed, or if the port cannot
                be used.
        """
        return Actions.ui(self.path, port=port, control=control)

    @property
    def size(self) -> int:
        """The size of all files in the run directory, in bytes. Each file is looked up."""
        return sum(folders.files_in(self.path).values())

    def delete(self) -> None:
        """Remove the run directory with all its files.

        Raises:
            RunExistsError: if the driver of the run is alive, or a model in the registry comes from
                the run. Nothing was removed.
            OSError: if a file could not be removed.
        """
        if owner := living_owner(RunPaths(self.path)):
            raise RunExistsError(
                f"run {self.id} cannot be deleted: {describe_owner(owner)} is running it. Cancel "
                f"the run first, or wait until it has ended. Nothing was removed from {self.path}"
            )
        if models := models_of(self.path, self.id):
            raise RunExistsError(
                f"run {self.id} cannot be deleted: {', '.join(models)} in the registry "
                f"{'come' if len(models) > 1 else 'comes'} from the run. Remove the model first. "
                f"Nothing was removed from {self.path}"
            )
        folders.remove_folder(self.path, last="run.json")
        annotations.forget(self.path)
