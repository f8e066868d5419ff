"""Mixtures of datasets: fixed proportions in every batch, equal steps on every rank."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl import data
from sparkdl.data.mixing import _shares
from sparkdl.errors import ConfigError
from tests.data.readers.test_contract import Activate, activate

__all__ = ["activate"]  # A fixture, used by its name.

Read = Callable[..., list[Any]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Return two datasets: ids from 0 to 29, and from 100 to 109."""
    for name, ids in (("some", range(30)), ("rare", range(100, 110))):
        table = pa.table({"id": ids, "tokens": [[i] * (i % 3) for i in ids]})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=8)
    return lambda **options: [
        data.parquet(tmp_path / f"{name}.parquet", **{"batch_size_per_worker": 4, **options})
        for name in ("some", "rare")
    ]


@settings(deadline=None)
@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=8), st.integers(8, 1000))
def test_shares_of_a_batch_are_in_proportion(weights: list[float], batch_size: int) -> None:
    shares = _shares(batch_size, weights)
    assert sum(shares) == batch_size and min(shares) >= 1
    exact = [weight / sum(weights) * batch_size for weight in weights]
    if min(exact) >= 1:
        assert all(abs(share - own) < 1 for share, own in zip(shares, exact, strict=True))


def test_each_batch_has_rows_of_all_datasets(read: Read, activate: Activate) -> None:
    activate(0, 1)
    rows = data.mix(read(feature_cols="id"), weights=[3, 1])
    assert len(rows.as_numpy()) == 10
    batches = list(rows.as_numpy())
    assert [(batch < 100).sum() for batch in batches] == [3] * 10
    assert sorted(int(i) for batch in batches for i in batch) == [*range(30), *range(100, 110)]


def test_the_longest_dataset_is_read_as_a_whole(
    read: Read, activate: Activate, tmp_path: Path
) -> None:
    found: Counter[int] = Counter()
    for rank in range(2):
        activate(rank, 2, folder=str(tmp_path), url=str(tmp_path))
        rows = data.mix(read(feature_cols="id", shuffle=True), stop="longest").as_numpy()
        assert len(rows) == 8
        first, second = (np.concatenate(list(rows)).tolist() for _ in range(2))
        assert first != second and len(first) == 32
        found.update(first)
        again = data.mix(read(feature_cols="id", shuffle=True), stop="longest").as_numpy()
        again.set_epoch(1)
        assert np.concatenate(list(again)).tolist() == second
    assert set(found) == {*range(30), *range(100, 110)}
    assert max(found[i] for i in range(30)) <= 2 and min(found[i] for i in range(100, 110)) >= 3


@pytest.mark.slow
def test_a_mixture_is_a_dataset(read: Read, activate: Activate) -> None:
    import tensorflow as tf

    activate(0, 1)
    mixed = data.mix(
        read(feature_cols=("id", "tokens"), label_cols="id", pad={"tokens": -1}), epochs=2
    )
    assert isinstance(mixed, tf.data.Dataset) and int(mixed.cardinality()) == 10
    for number in range(2):
        for (ids, tokens), labels in mixed:
            assert ids.numpy().tolist() == labels.numpy().tolist()
            assert (ids.numpy() >= 100).tolist() == [False, False, True, True]
            rows = zip(ids.numpy(), tokens.numpy(), strict=True)
            assert all(row[row >= 0].tolist() == [i] * (i % 3) for i, row in rows), number


def test_datasets_that_do_not_fit_are_refused(read: Read, activate: Activate) -> None:
    activate(0, 1)
    some, rare = read()
    (small, _) = read(batch_size_per_worker=2)
    with pytest.raises(ConfigError, match=r"batches of \[2, 4\] rows; expected one"):
        data.mix([small, rare])
    different = [read(feature_cols="id")[0], read(feature_cols="tokens", ragged=["tokens"])[1]]
    with pytest.raises(ValueError, match=r"rare.parquet has elements of int64 \[None\], and"):
        list(data.mix(different).as_numpy())
    with pytest.raises(ConfigError, match="neither epochs nor steps"):
        data.mix(read(epochs=2))
    with pytest.raises(ConfigError, match="nor bucket_by"):
        data.mix(read(bucket_by="tokens", pad={"tokens": 0}))
    padded = [read(pad={"tokens": value})[place] for place, value in enumerate((0, -1))]
    with pytest.raises(ConfigError, match="the same pad= for all"):
        data.mix(padded)
    with pytest.raises(ConfigError, match="expected a list of the results of readers"):
        data.mix([some, [1, 2]])
    with pytest.raises(ConfigError, match="there are 2 datasets and 1 weights"):
        data.mix([some, rare], weights=[1])
    for weights in ([1, 0], [1, "2"], [], [1] * 5):
        with pytest.raises(ConfigError, match="expected numbers above 0"):
            data.mix([some, rare], weights=weights)
    with pytest.raises(ConfigError, match="stop is 'first'; expected 'shortest' or 'longest'"):
        data.mix([some, rare], stop="first")
    with pytest.raises(ConfigError, match="epochs is 0; expected a whole number"):
        data.mix([some, rare], epochs=0)
    with pytest.raises(ConfigError, match=r"has 30 rows for each rank, and data\.mix takes 32"):
        data.mix(read(batch_size_per_worker=64))
