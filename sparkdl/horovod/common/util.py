"""Runs anywhere. The counterpart of `horovod.common.util`: what Horovod was built with."""

from sparkdl.horovod.absent_names import absent_names

__all__ = ["ccl_built", "ddl_built", "gloo_built", "mpi_built", "nccl_built"]


def gloo_built(verbose: bool = False) -> bool:
    """Return True: ranks meet over TCP, as with Gloo.

    Args:
        verbose: has no effect.
    """
    return True


def mpi_built(verbose: bool = False) -> bool:
    """Return False: nothing of this is built on MPI, NCCL for Horovod, oneCCL or DDL.

    Args:
        verbose: has no effect.
    """
    return False


nccl_built = ccl_built = ddl_built = mpi_built

__getattr__ = absent_names(__name__, __all__)
