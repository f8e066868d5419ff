"""moto's S3 server, in which conditional writes are atomic, as S3 guarantees.

moto looks whether a key exists and then writes it, in many threads: of two processes that create
one key at the same moment, both may succeed.
"""

import threading
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.server import main

_LOCK = threading.Lock()
_answer = DomainDispatcherApplication.__call__


def _answer_conditions_in_turn(self: Any, environ: dict[str, Any], start_response: Any) -> Any:
    if environ["REQUEST_METHOD"] == "PUT" and "HTTP_IF_NONE_MATCH" in environ:
        with _LOCK:
            return _answer(self, environ, start_response)
    return _answer(self, environ, start_response)


if __name__ == "__main__":
    DomainDispatcherApplication.__call__ = _answer_conditions_in_turn
    main()
