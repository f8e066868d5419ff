"""Runs anywhere (pure). The rule of who may ask a model server."""

import hmac
import ipaddress

from sparkdl.serving.request_error import RequestError

__all__ = ["check_token", "is_loopback"]


def check_token(authorization: str, token: str) -> None:
    """Validate that a request carries the secret of the server.

    Args:
        authorization: the header or the metadata `authorization` of the request.
        token: the secret.

    Raises:
        RequestError: if it does not.

    Example:
        >>> check_token("Bearer 0123456789abcdef", "0123456789abcdef")
        >>> check_token("Bearer guess", "0123456789abcdef")
        Traceback (most recent call last):
        sparkdl.serving.request_error.RequestError: the header 'Authorization: Bearer TOKEN' is ...
    """
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.encode(), token.encode()):
        raise RequestError(
            "UNAUTHENTICATED", "the header 'Authorization: Bearer TOKEN' is missing or wrong"
        )


def is_loopback(host: str) -> bool:
    """Return True for a name or an address under which only this host is reached.

    Example:
        >>> [is_loopback(host) for host in ("localhost", "127.0.0.2", "::1", "10.0.0.7", "")]
        [True, True, True, False, False]
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
