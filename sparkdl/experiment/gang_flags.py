"""Runs on the driver. Validate the flags of the verbs that run equal workers."""

from collections.abc import Mapping

from sparkdl.errors import ConfigError
from sparkdl.options import check_count


def check_flags(flags: Mapping[str, bool], has_data: bool, evaluator: bool) -> None:
    """Validate the flags of a verb.

    Args:
        flags: `elastic`, `move_slow_ranks` and `timeline`.
        has_data: the workers get the rows of DataFrames.
        evaluator: there is an evaluator.

    Raises:
        ConfigError: if they are no flags, or do not go together.
    """
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{name} is {value!r}; expected True or False.")
    if flags["move_slow_ranks"] and not flags["elastic"]:
        raise ConfigError(
            "move_slow_ranks=True needs elastic=True: only the workers of an elastic job can be "
            "replaced while the others train. Add elastic=True, or remove move_slow_ranks=True."
        )
    if flags["elastic"] and (evaluator or has_data):
        raise ConfigError(
            f"elastic=True cannot be combined with {'evaluator=True' if evaluator else 'data='}: a "
            "restarted worker would find neither its rows nor its place in the cluster. Read "
            "files with sparkdl.data and validate in fit, or remove elastic=True."
        )


def check_bounds(num_workers: int | tuple[int, int], flags: Mapping[str, bool]) -> tuple[int, int]:
    """Return the smallest and the largest number of workers.

    Args:
        num_workers: a number, or the bounds of a gang that grows into idle slots.
        flags: see `check_flags`.

    Raises:
        ConfigError: if they are no numbers, or do not go together with the flags.

    Example:
        >>> check_bounds(3, {}), check_bounds((2, 8), {"elastic": True, "move_slow_ranks": False})
        ((3, 3), (2, 8))
    """
    if not isinstance(num_workers, tuple | list):
        count = check_count("num_workers", num_workers)
        return count, count
    if len(num_workers) != 2:
        raise ConfigError(
            f"num_workers is {num_workers!r}; expected a number, or the smallest and the largest "
            "number, such as (2, 8)."
        )
    least, most = (check_count("num_workers", count) for count in num_workers)
    if least > most:
        raise ConfigError(
            f"num_workers is {num_workers!r}; expected the smaller number first: ({most}, {least})."
        )
    if not flags["elastic"]:
        raise ConfigError(
            f"num_workers={num_workers!r} needs elastic=True: only the workers of an elastic job "
            "can come and go while the others train. Add elastic=True, or pass one number."
        )
    if flags["move_slow_ranks"]:
        raise ConfigError(
            f"num_workers={num_workers!r} cannot be combined with move_slow_ranks=True: the job "
            "grows into the spare slots to which slow workers would move. Remove one of them."
        )
    return least, most
