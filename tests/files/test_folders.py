"""The digest of a file that is read in pieces."""

import hashlib
from pathlib import Path

import pytest

from sparkdl.files import folders, storage


@pytest.mark.parametrize("place", ["local", "memory"])
def test_a_digest_is_that_of_the_whole_file(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "PIECE_BYTES", 4)
    root = str(tmp_path) if place == "local" else "memory://digests"
    for size in (0, 1, 3, 4, 5, 8, 9):
        data = bytes(range(size))
        storage.write(url := storage.join(root, f"{size}"), data)
        assert folders.sha256(url) == hashlib.sha256(data).hexdigest(), size
