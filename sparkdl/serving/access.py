"""Runs anywhere (pure). The rule of who may ask a model server."""

import hmac

from sparkdl.serving.request_error import RequestError

__all__ = ["check_token"]


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
