"""Runs in the training process. Send lines from a rank to the driver."""

# The length to which HorovodRunner cuts a message.
_MAX_LENGTH = 4000


def log_to_driver(message: str) -> None:
    """Print a message, which the driver shows while the ranks run.

    Args:
        message: the text; only its first 4000 characters are printed.

    Example:
        >>> log_to_driver("the data is read")
        the data is read
    """
    print(str(message)[:_MAX_LENGTH], flush=True)
