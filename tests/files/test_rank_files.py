"""The folder by which ranks talk: how long to wait, and what a listing does not prove."""

from pathlib import Path

import pytest

from sparkdl.files import rank_files, storage
from sparkdl.files.rank_files import REMOTE_PATIENCE_S, RankFiles

NFS = 0x6969


def test_silence_lasts_longer_on_a_network_filesystem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RankFiles(str(tmp_path / "ranks" / "0"))  # A folder that does not exist yet.
    assert files.patience_s(10.0) == 10.0
    rank_files._is_on_network.cache_clear()
    monkeypatch.setattr(rank_files, "_filesystem_type", lambda path: NFS)
    assert files.patience_s(10.0) == REMOTE_PATIENCE_S
    rank_files._is_on_network.cache_clear()
    assert RankFiles("s3://bucket/ranks/0").patience_s(10.0) == REMOTE_PATIENCE_S


def test_the_type_of_a_filesystem_is_that_of_statfs() -> None:
    assert rank_files._filesystem_type("/proc/1/not-there") == 0x9FA0  # PROC_SUPER_MAGIC.


def test_200_ranks_list_a_store_fewer_than_100_times_a_second() -> None:
    for num_ranks in (1, 10, 40, 200, 1000):
        # A rank looks for the ends of others, and for orders.
        assert 2 * num_ranks / RankFiles("s3://bucket/a").poll_s(num_ranks) < 100


def test_a_message_that_a_listing_lacks_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RankFiles(str(tmp_path))
    files.post(1, "done")
    files.post_numbered("began", 1, 2)
    monkeypatch.setattr(storage, "list_names", lambda url: [])
    assert files.has_posted(1, "done") and not files.has_posted(0, "done")
    assert files.has_numbered("began", 1, 2) and not files.has_numbered("began", 1, 3)
