"""The state of the rows of a DataFrame, as a program meets it; the channel from Spark is real."""

import contextlib
import dataclasses
import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkdl import context, data
from sparkdl.data.dataframe.dataset import received_datasets
from sparkdl.data.dataframe.known_rows import Portion
from sparkdl.data.dataframe.protocol import Feed
from sparkdl.data.dataframe.sender import RowSender
from sparkdl.errors import ConfigError
from sparkdl.keras import Checkpoint
from tests.data.readers.test_contract import Activate, activate, flat, passes, rows_of

__all__ = ["activate"]  # A fixture, used by its name.

pytestmark = pytest.mark.slow

# Begins a process that is fed with rows, and returns the result of `data.dataset`.
Fed = Callable[..., Any]


@pytest.fixture
def fed(activate: Activate) -> Iterator[Fed]:
    with contextlib.ExitStack() as stack:

        def fed(order: list[int] | None = None, me: Any = None, **options: Any) -> Any:
            table = rows_of(0, 40).take(order or list(range(40)))
            feed = Feed({"train": table.schema.serialize().to_pybytes()})
            feeder = RowSender(feed, table.to_batches(max_chunksize=3))
            ends = stack.enter_context(feeder).process_end
            activate(0, 1)
            mine = {"feed": ends.dup().detach(), **(me or {})}
            context.activate(dataclasses.replace(context.current(), **mine))
            received_datasets.cache_clear()
            options = {"feature_cols": "a", "label_cols": "id", "shuffle": True, **options}
            return data.dataset(**{"batch_size_per_worker": 4, **options})

        yield fed


def test_a_state_that_is_refused_changes_nothing(fed: Fed) -> None:
    rows = fed()
    rows.state_dict(0, 0)
    state = rows.state_dict(0, 2)
    others = fed(list(range(39)))
    with pytest.raises(ConfigError, match="0 rows are new, and 1 rows are missing"):
        others.load_state_dict(state)
    assert Counter(flat(passes(others, 1)[0])) == Counter(range(39))
    folder = Path(str(context.current().url or context.current().folder), "rows")
    for file in folder.iterdir():
        if not file.suffix:
            os.truncate(file, 8)
    with pytest.raises(ConfigError, match="is damaged: it has 8 bytes, expected 3"):
        fed(list(range(40))[::-1]).load_state_dict(state)


def num_portions() -> int:
    gc.collect()
    return sum(type(each) is Portion for each in gc.get_objects())


def test_reading_goes_on_in_another_order_of_arrival_and_with_other_batches(fed: Fed) -> None:
    rows = fed()
    state = rows.state_dict(0, 0)
    assert int(rows.cardinality()) == 10
    first = passes(rows, 1)[0][:2]
    after = fed(list(range(40))[::-1], batch_size_per_worker=5)
    after.load_state_dict(rows.state_dict(0, 2))
    with_rest = num_portions()
    rest, whole, _ = passes(after, 3)
    assert num_portions() == with_rest - 1
    assert after.state_dict(0, 3)["rounds"][1]["steps"] == 3
    assert [len(rest), len(whole)] == [7, 8]
    assert Counter(flat([*first, *rest])) == Counter(range(40)) == Counter(flat(whole))
    arrays = fed(list(range(40))[::-1], batch_size_per_worker=5).as_numpy()
    arrays.load_state_dict(rows.state_dict(0, 2))
    assert len(arrays) == 7
    assert passes(arrays, 2) == [rest, whole]
    assert arrays.state_dict() == {**state, "epoch": 2}


def test_a_trial_goes_on_with_the_rows_that_another_trial_of_the_run_has_left(
    fed: Fed, tmp_path: Path
) -> None:
    def of(trial: int) -> dict[str, Any]:
        return {"trial": trial, "run_path": str(tmp_path), "url": f"{tmp_path}/trials/{trial}"}

    rows = fed(me=of(0))
    rows.state_dict(0, 0)
    used, state = passes(rows, 1)[0][:2], rows.state_dict(0, 2)
    after = fed(list(range(40))[::-1], of(1))
    after.load_state_dict(state)
    used += passes(after, 1)[0][:3]
    last = fed(list(range(1, 40, 2)) + list(range(0, 40, 2)), of(2))
    last.load_state_dict(after.state_dict(0, 3))
    assert Counter(flat([*used, *passes(last, 1)[0]])) == Counter(range(40))


def test_an_epoch_begun_before_the_first_question_has_no_state(fed: Fed) -> None:
    batches = fed().as_numpy()
    with pytest.raises(TypeError, match="rows still arrive from Spark"):
        len(batches)
    for _ in batches:
        with pytest.raises(ConfigError, match="epoch 0 of data 'train' has no state: it was begun"):
            batches.state_dict()
        break
    assert len(batches) == 10
    batches.set_epoch(0)
    for _ in batches:
        assert batches.state_dict()["rounds"][0]["steps"] == 1
        break


def test_fit_goes_on_after_a_look_at_the_rows(fed: Fed, tmp_path: Path) -> None:
    import keras

    rows = fed()
    assert len(passes(rows, 1)[0]) == 10  # Keras does not know the length of this dataset.
    inputs = keras.layers.Input((), dtype="float32")
    model = keras.Sequential([inputs, keras.layers.Reshape((1,)), keras.layers.Dense(1)])
    model.compile(loss="mse")
    quiet: dict[str, Any] = {"shuffle": False, "verbose": 0}
    model.fit(rows, epochs=2, callbacks=[Checkpoint(every_steps=3, data=rows)], **quiet)
    with pytest.raises(ConfigError, match="fit has 5 steps per epoch, and the data of Checkpoint"):
        model.fit(rows.take(5), callbacks=[Checkpoint(data=rows)], **quiet)


def test_a_state_is_refused_where_it_cannot_hold(fed: Fed) -> None:
    for options in ({"steps": 3}, {"cache": False, "shuffle": False}, {"epochs": 2}):
        with pytest.raises(ConfigError, match="these rows have no state"):
            fed(**options).state_dict(0, 1)
    state = fed().state_dict(0, 1)
    for options in ({"shuffle": False}, {"last_batch": "drop"}):
        with pytest.raises(ConfigError, match="the columns of the DataFrame, shuffle and last_b"):
            fed(**options).load_state_dict(state)
    data_of, _, orders = state["order"].partition("-")
    other_numpy = {**state, "order": f"{data_of}-{orders[::-1]}"}
    with pytest.raises(ConfigError, match="epoch began with another version of NumPy than"):
        fed().load_state_dict(other_numpy)


def test_the_rest_of_an_epoch_has_random_numbers_of_its_own(fed: Fed) -> None:
    def noise(rows: dict[str, Any], random: Any) -> dict[str, Any]:
        return {"noise": random.random(len(rows["id"]))}

    def read(state: Any = None) -> tuple[Any, list[float]]:
        rows = fed(map=noise, feature_cols="noise", label_cols=None)
        rows.load_state_dict(state or rows.state_dict(0, 0))
        batches = rows.as_numpy()
        return rows, [float(x) for batch in batches for x in batch]

    rows, whole = read()
    state = rows.state_dict(0, 4)
    (_, rest), (_, again) = read(state), read(state)
    assert rest == again
    assert len({*whole, *rest}) == 40 + 24
