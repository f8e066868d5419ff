"""Runs anywhere. The name of TensorFlowOnSpark's server, with what replaces it."""

from typing import NoReturn

from sparkdl.tfos.absent_names import absent_names

__all__ = ["Client", "Server"]

__getattr__ = absent_names(__name__, __all__)


class Server:
    """A class that only says what replaces it: Spark starts all nodes together.

    Raises:
        NotImplementedError: always.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        _refuse()


class Client(Server):
    """A class that only says what replaces it, see `Server`."""


def _refuse() -> NoReturn:
    raise NotImplementedError(
        "there is no reservation server: Spark starts all nodes of a cluster together. "
        "TFCluster.run gives each node ctx.cluster_spec, and experiment.allreduce gives each rank "
        "context.rank and TF_CONFIG."
    )
