"""Runs anywhere. The windows that `watch` has written: `results` and `acknowledge`."""

from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.files import storage
from sparkdl.models import ModelVersion
from sparkdl.models.registry import find
from sparkdl.models.watch_files import ResultFiles, folder_of
from sparkdl.monitoring.drift_table import Drift


def results(model: Any, *, root: str | None = None) -> Drift:
    """Return the windows that `watch` has written, as one table.

    Args:
        model: a version of a model, its name such as `loans`, `loans/3` or `loans@stable`, or the
            folder that was passed to `watch` as `to`.
        root: the folder that holds the runs and the models.

    Returns:
        A `Drift` with the further columns `window` (its start), `window_end`, `version` and `role`,
        which is `input` or `output`. Its attribute `performance` has the windows whose labels have
        come, if `monitoring.performance` got the model as `watched`, and `refused` the number of
        alerts that places have refused for good.

    Raises:
        ConfigError: if nothing has been watched there.

    Example:
        >>> from sparkdl import monitoring
        >>> monitoring.results("/nowhere/drift")
        Traceback (most recent call last):
        sparkdl.errors.ConfigError: there are no results of a watch in /nowhere/drift. ...
    """
    files = files_of(model, root)
    performance, refused = files.read_performance(), files.read_refused()
    left_out, remarks = files.read_left_out(), files.read_remarks()
    return Drift(files.read_windows(), "window", left_out, performance, refused, remarks)


def acknowledge(model: Any, *, root: str | None = None) -> None:
    """Note that the drift of which `watch` has told with `available_now` was acted upon.

    Later calls of `watch` no longer have these windows in `new_drift`. Call it when a kill can no
    longer undo what follows from the drift: the ticket is written, the training is scheduled.
    Windows that no call has returned yet are not acknowledged.

    Args:
        model: see `results`.
        root: see `results`.

    Example:
        >>> from sparkdl import monitoring
        >>> monitoring.acknowledge("/nowhere/drift")  # There is nothing to acknowledge.
    """
    ResultFiles(_folder(model, root)).acknowledge()


def files_of(model: Any, root: str | None) -> ResultFiles:
    """Return the files of a watch that has been started.

    Raises:
        ConfigError: if nothing has been watched there.
    """
    folder = _folder(model, root)
    files = ResultFiles(folder)
    if not storage.exists(files.options):
        raise ConfigError(
            f"there are no results of a watch in {folder}. Start monitoring.watch first, or pass "
            "the folder that it got as to=."
        )
    return files


def _folder(model: Any, root: str | None) -> str:
    if isinstance(model, ModelVersion):
        return folder_of(model)
    if not isinstance(model, str):
        raise ConfigError(f"model is {model!r}; expected a version of a model, or a folder.")
    is_path = model.startswith(("/", "./", "../", "~")) or "://" in model
    if is_path or ResultFiles(storage.absolute(model)).read_options() is not None:
        return storage.absolute(model)
    return folder_of(find(model, root))
