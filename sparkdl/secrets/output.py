"""Runs in the training process. A text stream in which credentials are masked."""

import io
import re
from collections import deque
from collections.abc import Iterable
from typing import BinaryIO

from sparkdl.secrets.masks import mask_text


class MaskedOutput(io.TextIOWrapper):
    """A stream that writes whole lines, with all that looks like a credential masked.

    A line may be printed in several pieces, such as `print("password:", value)`, so that an
    unfinished line is held back until its end, or until the stream is flushed.

    Args:
        raw: the stream of bytes to write to.
        secrets: values known to be secret, see `known_secrets`.
    """

    def __init__(self, raw: BinaryIO, secrets: Iterable[str]) -> None:
        super().__init__(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
        self._secrets = tuple(secrets)
        # The operations of a deque are atomic: no piece of another thread is lost, and there is
        # no lock that a fork could leave locked.
        self._pieces: deque[str] = deque()

    def write(self, text: str) -> int:
        """Write text; see `io.TextIOBase.write`."""
        self._pieces.append(text)
        if "\n" in text or "\r" in text:
            whole = self._take()
            end = max(whole.rfind("\n"), whole.rfind("\r")) + 1
            # The key of a certificate is masked as a whole.
            if "PRIVATE KEY" in whole and _ends_in_key(whole[:end]):
                end = 0
            if end < len(whole):
                self._pieces.appendleft(whole[end:])
            if end:
                super().write(mask_text(whole[:end], self._secrets))
        return len(text)

    def _take(self) -> str:
        """Return all pieces as one text, and hold none of them any more."""
        pieces = []
        while self._pieces:
            try:
                pieces.append(self._pieces.popleft())
            except IndexError:  # Another thread was faster.
                break
        return "".join(pieces)

    def flush(self) -> None:
        """Write what is held back; see `io.TextIOBase.flush`."""
        if rest := self._take():
            super().write(mask_text(rest, self._secrets))
        super().flush()


def _ends_in_key(text: str) -> bool:
    """Return True if a text ends between the first and the last line of a private key."""
    begun = re.findall(r"-----(BEGIN|END) [A-Z ]*PRIVATE KEY", text)
    return bool(begun) and begun[-1] == "BEGIN" and len(text) < 20_000
