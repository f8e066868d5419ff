"""Runs in the training process. The operations of Horovod's reductions."""

__all__ = ["Adasum", "Average", "Max", "Min", "Product", "Sum", "operation"]

Average, Sum, Adasum, Min, Max, Product = "mean", "sum", "adasum", "min", "max", "product"
_OPERATIONS = (Average, Sum, Adasum, Min, Max, Product)


def operation(op: str | None, average: bool | None = None) -> str:
    """Return the operation that `op` and the older argument `average` select.

    Raises:
        ValueError: if both are given, or the operation is not supported.
    """
    if op is not None and average is not None:
        raise ValueError("op and average were given; expected only one of them, preferably op.")
    if average not in (None, True, False):
        raise ValueError(f"average is {average!r}; expected True, False or None.")
    selected = Average if op is None and average in (None, True) else op or Sum
    if selected not in _OPERATIONS:
        raise ValueError(f"op is {op!r}; expected hvd.Average, Sum, Adasum, Min, Max or Product.")
    return selected
