"""Where it runs: anywhere (pure). The environment variables of a training process."""

from collections.abc import Mapping

__all__ = ["thread_counts"]


def thread_counts(cores: int, given: Mapping[str, str]) -> dict[str, str]:
    """How many threads a training process may use, so that trials of one host share its cores.

    TensorFlow reads its two variables when it makes its thread pools (process_util.cc), after the
    process was forked. OpenMP reads its own when it starts: a library that the fork server has
    imported, such as NumPy's, keeps what Spark set for its Python workers.

    Args:
        cores: the share of this process.
        given: variables that the person set; those are left alone.

    Example:
        >>> thread_counts(2, {"OMP_NUM_THREADS": "1"})
        {'TF_NUM_INTRAOP_THREADS': '2', 'TF_NUM_INTEROP_THREADS': '2'}
    """
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    return {name: str(cores) for name in names if name not in given}
