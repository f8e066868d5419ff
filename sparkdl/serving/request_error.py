"""Runs anywhere (pure). The error of a request, and its code in HTTP."""

# TensorFlow's codes, as TensorFlow Serving maps them to HTTP.
STATUS = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "CANCELLED": 499,
    "UNKNOWN": 500,
    "INTERNAL": 500,
    "DATA_LOSS": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
    # Beside TensorFlow's codes: a request that is larger or slower than the server allows, or of
    # another type.
    "TOO_LARGE": 413,
    "UNSUPPORTED_TYPE": 415,
    "TOO_SLOW": 408,
}


class RequestError(Exception):
    """A request that cannot be answered; the client is told the message and the code.

    Args:
        code: a code of TensorFlow, such as `INVALID_ARGUMENT`.
        message: what is wrong with the request.

    Example:
        >>> RequestError("UNAVAILABLE", "the queue is full").status
        503
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> "tuple[type[RequestError], tuple[str, str]]":
        return type(self), (self.code, str(self))

    @property
    def status(self) -> int:
        """The status of the answer in HTTP."""
        return STATUS[self.code]


def invalid(message: str) -> RequestError:
    """Return the error of a request that is wrong in itself."""
    return RequestError("INVALID_ARGUMENT", message)


def not_found(message: str) -> RequestError:
    """Return the error of a request for a model, version or label that is not served."""
    return RequestError("NOT_FOUND", message)
