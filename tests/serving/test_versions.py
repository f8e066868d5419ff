"""Versions that come, go and break, without TensorFlow."""

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from sparkdl.errors import ConfigError, ModelDamagedError
from sparkdl.serving import model_set, served_model
from sparkdl.serving.application import Application
from sparkdl.serving.choice import Choice, pick
from sparkdl.serving.model_set import ModelSet
from sparkdl.serving.request_error import RequestError
from sparkdl.serving.served_model import ServedModel
from sparkdl.serving.version_source import Listing
from tests.helpers.processes import eventually
from tests.serving.fakes import Client


class Versions:
    """A place of versions in memory, and a loader of them.

    Versions in `broken` cannot be loaded, the files of those in `unreadable` cannot be read, and
    those in `cold` do not compute rows of zeros.
    """

    url = "/memory"

    def __init__(self, *numbers: int, name: str = "m", **labels: int) -> None:
        self.name = name
        self.numbers, self.labels = set(numbers), labels
        self.broken: set[int] = set()
        self.unreadable: set[int] = set()
        self.cold: set[int] = set()
        self.loads: list[int] = []
        self.fails = False

    def look(self) -> Listing:
        if self.fails:
            raise OSError("the store is busy")
        return Listing({n: f"/memory/{n}" for n in sorted(self.numbers)}, dict(self.labels))

    def load(self, url: str, name: str, version: int) -> Any:
        self.loads.append(version)
        if version in self.unreadable:
            raise OSError("the store is busy")
        if version in self.broken:
            raise ValueError("no SavedModel")
        return Version(name, version, version not in self.cold)


class Version:
    signatures: Mapping[str, Any] = {}
    num_bytes = 100

    def __init__(self, name: str, version: int, is_warm: bool) -> None:
        self.name, self.version, self.is_warm = name, version, is_warm

    def warm_up(self, sizes: Any) -> bool:
        return self.is_warm


def model(source: Versions, **choice: Any) -> ServedModel:
    served = ServedModel(source, Choice(**choice), source.load)
    served.poll()
    return served


def test_the_newest_version_replaces_the_one_before() -> None:
    source = Versions(1, 2)
    served = model(source)
    assert served.versions == [2] and served.find().version == 2
    source.numbers.add(3)
    held = served.find()
    served.poll()
    assert served.versions == [3] and served.find().version == 3
    assert held.version == 2
    assert [s["state"] for s in served.status()] == ["AVAILABLE", "END"]
    assert source.loads == [2, 3]


def test_an_alias_is_followed_and_is_a_label() -> None:
    source = Versions(1, 2, 3, stable=1, canary=3)
    served = model(source, alias="stable")
    assert served.find().version == 1 and served.versions == [1, 3]
    assert served.find(label="canary").version == 3
    source.labels = {"stable": 2}
    served.poll()
    assert served.find().version == 2 and served.versions == [2]
    for asked in ({"label": "canary"}, {"version": 3}):
        with pytest.raises(RequestError):
            served.find(**asked)  # type: ignore[arg-type]


def test_an_alias_of_a_broken_version_goes_on_with_the_version_before() -> None:
    source = Versions(1, 2, 3, stable=1, canary=2)
    served = model(source, version=3, weights={"canary": 100})
    source.broken.add(4)
    source.numbers.add(4)
    source.labels = {"stable": 4, "canary": 4}
    for _ in range(3):
        served.poll()
        assert served.find(label="stable").version == 1
        assert served.find(label="canary").version == served.find().version == 2
        assert [s["version"] for s in served.status(label="stable")] == ["1"]
    assert served.versions == [1, 2, 3]
    source.numbers.add(5)
    source.labels["stable"] = 5
    served.poll()
    assert served.find(label="stable").version == 5
    assert served.versions == [2, 3, 5]
    # A version that is gone from the store leaves the one that is loaded in place.
    source.labels["stable"] = 9
    served.poll()
    assert served.find(label="stable").version == 5


def test_an_alias_goes_on_with_the_version_before_after_its_model_was_unloaded() -> None:
    source = Versions(1, 2, stable=1)
    served = model(source, version=2)
    source.broken.add(3)
    source.numbers.add(3)
    source.labels = {"stable": 3}
    served.poll()
    served.unload()
    served.poll()
    assert served.find(label="stable").version == 1


def test_an_alias_that_never_had_a_version_that_works_is_not_served() -> None:
    source = Versions(1, 2)
    served = model(source, version=1)
    source.broken.add(2)
    source.labels = {"next": 2}
    served.poll()
    with pytest.raises(RequestError, match="Servable not found for request: Specific"):
        served.find(label="next")


def test_an_alias_that_was_removed_leaves_its_version_in_place() -> None:
    source = Versions(1, 2, stable=1)
    served = model(source, alias="stable")
    source.labels = {}
    served.poll()
    assert served.find().version == 1


def test_a_broken_version_takes_no_requests_and_is_tried_again(monkeypatch: Any) -> None:
    monkeypatch.setattr(served_model, "pause_s", lambda tries: 0.0)
    source = Versions(1)
    served = model(source)
    source.numbers.add(2)
    source.broken.add(2)
    for _ in range(10):
        served.poll()
        assert served.find().version == 1
    assert source.loads == [1] + [2] * served_model.MAX_TRIES
    (newest, _) = served.status()
    assert newest["state"] == "END" and "no SavedModel" in newest["status"]["error_message"]
    source.numbers.add(3)
    served.poll()
    assert served.find().version == 3


def test_a_version_that_becomes_complete_is_served(monkeypatch: Any) -> None:
    monkeypatch.setattr(served_model, "pause_s", lambda tries: 0.0)
    source = Versions(1, 2)
    source.broken.add(2)
    served = model(source)
    assert served.find().version == 1
    source.broken.clear()
    served.poll()
    assert served.find().version == 2


def test_a_version_is_tried_until_the_store_can_be_read(monkeypatch: Any) -> None:
    monkeypatch.setattr(served_model, "pause_s", lambda tries: 0.0)
    source = Versions(1)
    served = model(source)
    source.numbers.add(2)
    source.unreadable.add(2)
    for _ in range(3 * served_model.MAX_TRIES):
        served.poll()
        assert served.find().version == 1
    source.unreadable.clear()
    served.poll()
    assert served.find().version == 2


def test_a_version_that_fails_where_the_one_before_works_takes_no_requests() -> None:
    source = Versions(1)
    served = model(source)
    source.numbers.add(2)
    source.cold.add(2)
    served.poll()
    assert served.find().version == 1
    cold = Versions(1)
    cold.cold.add(1)
    assert model(cold).find().version == 1


def test_a_store_that_fails_or_looks_empty_changes_nothing() -> None:
    source = Versions(1, 2)
    served = model(source)
    source.fails = True
    served.poll()
    assert served.find().version == 2
    source.fails, source.numbers = False, set()
    served.poll()
    assert served.find().version == 2


def test_a_share_of_the_requests_goes_to_another_version() -> None:
    source = Versions(3, 4, canary=4)
    served = model(source, version=3, weights={"canary": 25})
    taken = [served.find().version for _ in range(2000)]
    assert 380 < taken.count(4) < 620
    assert pick(3, {4: 25}, [3], 0.0) == 3


@pytest.mark.parametrize(
    "choice",
    [
        {"version": 1, "alias": "stable"},
        {"version": "1"},
        {"weights": {1: 101}},
        {"weights": {1: 60, 2: 40.5}},
        {"weights": {1: -1}},
        {"weights": {1: True}},
        {"weights": {True: 1}},
        {"version": True},
        {"weights": {1: "10"}},
        {"weights": [1]},
        {"weights": {1.5: 10}},
    ],
)
def test_a_wrong_choice_is_refused(choice: Any) -> None:
    with pytest.raises(ConfigError):
        Choice(**choice)


def test_models_beyond_the_memory_are_unloaded_in_the_order_of_their_use() -> None:
    sources = [Versions(1, name=name) for name in "abc"]
    models = ModelSet([ServedModel(s, Choice(), s.load) for s in sources], 200)
    models.start()
    try:
        assert models.loaded() == [] and models.ready()
        for name in "abab":
            assert models.find(name).name == name
        assert models.loaded() == [("a", 1), ("b", 1)]
        models.find("c")
        assert models.loaded() == [("b", 1), ("c", 1)]
        assert models.find("a").version == 1
        with pytest.raises(RequestError, match="Servable not found for request: Latest\\(d\\)"):
            models.find("d")
    finally:
        models.stop()


def test_a_model_that_is_loaded_on_demand_is_ready_before_its_first_request() -> None:
    source, damaged = Versions(1, name="a"), Versions(1, name="b")
    damaged.broken.add(1)
    models = ModelSet([ServedModel(s, Choice(), s.load) for s in (source, damaged)], 100)
    models.start()
    try:
        pages = Client(Application(models))
        host = {"Host": "localhost"}
        assert pages.get("/v2/models/a/ready", host).status_code == 200
        assert models.loaded() == []  # A probe loads nothing.
        models.find("a")
        assert pages.get("/v2/models/a/versions/1/ready", host).status_code == 200
        assert pages.get("/v2/models/a/versions/7/ready", host).status_code == 404
        with pytest.raises(RequestError, match="cannot be loaded now"):
            models.find("b")
        assert pages.get("/v2/models/b/ready", host).status_code == 503
    finally:
        models.stop()


def test_a_model_that_is_unloaded_under_a_request_is_loaded_again(monkeypatch: Any) -> None:
    source = Versions(1, name="a")
    served = ServedModel(source, Choice(), source.load)
    models = ModelSet([served], 100)
    models.start()
    find = served.find

    def find_late(*asked: Any) -> Any:
        monkeypatch.setattr(served, "find", find)
        served.unload()  # Another request needed the memory in this moment.
        return find(*asked)

    try:
        assert models.find("a").version == 1
        monkeypatch.setattr(served, "find", find_late)
        assert models.find("a").version == 1 and source.loads == [1, 1]
    finally:
        models.stop()


def test_a_version_that_is_being_loaded_does_not_hold_the_end(monkeypatch: Any) -> None:
    monkeypatch.setattr(model_set, "LOCAL_POLL_S", 0.01)
    source = Versions(1)
    entered, opened = threading.Event(), threading.Event()

    def load(url: str, name: str, version: int) -> Any:
        if version == 2:
            entered.set()
            assert opened.wait(120)
        return source.load(url, name, version)

    models = ModelSet([ServedModel(source, Choice(), load)])
    models.start()
    try:
        source.numbers.add(2)
        assert entered.wait(120)
        models.stop()
        assert models.find("m").version == 1
        models.close(0.0)
    finally:
        opened.set()
    assert eventually(lambda: not models._thread.is_alive())
    assert models.loaded() == [] and source.loads == [1, 2]


def test_a_model_without_a_version_that_works_does_not_start() -> None:
    source = Versions(1)
    source.broken.add(1)
    with pytest.raises(ModelDamagedError, match="version 1: no SavedModel"):
        ModelSet([ServedModel(source, Choice(), source.load)]).start()


def test_only_versions_that_exist_are_candidates() -> None:
    listing = Listing({1: "m/1", 3: "m/3"}, {"stable": 1, "lost": 2})
    candidates = {
        **{version: Choice(version=version).candidates(listing) for version in (1, 2, 3)},
        **{alias: Choice(alias=alias).candidates(listing) for alias in ("stable", "lost", "none")},
    }
    assert candidates == {1: [1], 2: [], 3: [3], "stable": [1], "lost": [], "none": []}
    assert Choice().candidates(listing) == [3, 1]


def test_shares_of_a_version_by_number_and_by_alias_are_added() -> None:
    listing = Listing({1: "m/1", 3: "m/3"}, {"stable": 1, "lost": 2})
    choice = Choice(version=3, weights={1: 10, "stable": 5, "lost": 20, 7: 1})
    assert choice.shares(listing) == {1: 15.0}
    assert choice.missing(listing) == [7]
    assert Choice(weights={1: 0, 3: 100}).shares(listing) == {1: 0.0, 3: 100.0}


def test_requests_are_shared_by_percent_among_the_versions_that_are_loaded() -> None:
    shares = {2: 10.0, 4: 50.0, 3: 20.0}
    chances = (0.0, 9.9, 10.0, 29.9, 30.0, 99.9)
    assert [pick(1, shares, [1, 2, 3], chance) for chance in chances] == [2, 2, 3, 3, 1, 1]


@pytest.mark.parametrize(
    ("status", "codes"),
    [
        (400, "INVALID_ARGUMENT FAILED_PRECONDITION OUT_OF_RANGE"),
        (401, "UNAUTHENTICATED"),
        (403, "PERMISSION_DENIED"),
        (404, "NOT_FOUND"),
        (409, "ALREADY_EXISTS ABORTED"),
        (429, "RESOURCE_EXHAUSTED"),
        (499, "CANCELLED"),
        (500, "UNKNOWN INTERNAL DATA_LOSS"),
        (501, "UNIMPLEMENTED"),
        (503, "UNAVAILABLE"),
        (504, "DEADLINE_EXCEEDED"),
    ],
)
def test_codes_have_the_status_that_google_gives_them(status: int, codes: str) -> None:
    """https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto"""
    assert {RequestError(code, "").status for code in codes.split()} == {status}
