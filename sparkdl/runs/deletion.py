"""Runs on the driver. Delete a run directory, unless something needs it."""

from sparkdl.errors import RunExistsError
from sparkdl.files import folders, storage
from sparkdl.files.layout import RUN, RunPaths, place_of_verifications
from sparkdl.runs.annotations import forget
from sparkdl.runs.lineage import models_of
from sparkdl.runs.owner import describe_owner, living_owner


def delete_run(path: str, run_id: str) -> None:
    """Remove a run directory with all its files, see `Run.delete`, and its verifications.

    Raises:
        RunExistsError: if the driver of the run or of a verification is alive, or a model in the
            registry comes from the run. Nothing was removed.
        OSError: if a file could not be removed.
    """
    verifications = place_of_verifications(path)
    names = [name for name in storage.list_names(verifications) if not name.endswith(".json")]
    for folder in (path, *(storage.join(verifications, name) for name in names)):
        if owner := living_owner(RunPaths(folder)):
            does = "running" if folder == path else "verifying"
            raise RunExistsError(
                f"run {run_id} cannot be deleted: {describe_owner(owner)} is {does} it. Cancel "
                f"the run first, or wait until it has ended. Nothing was removed from {path}"
            )
    if models := models_of(path, run_id):
        raise RunExistsError(
            f"run {run_id} cannot be deleted: {', '.join(models)} in the registry "
            f"{'come' if len(models) > 1 else 'comes'} from the run. Remove the model first. "
            f"Nothing was removed from {path}"
        )
    folders.remove_folder(path, last=RUN)
    forget(path)
    storage.remove(verifications)
