"""Profiles and calibrations in object stores."""

import threading

import pytest

from models.checkpoint import documents as remote_documents
from models.checkpoint.documents import (
    MAX_DOCUMENT_BYTES,
    CalibrationStore,
    ProfileStore,
    RemoteDocumentStore,
)
from models.checkpoint.fsspec_store import MemoryStore
from models.checkpoint.stores import StoreTimeouts
from models.errors import FormatError, InvalidInputError, RegistryError
from tests.object_stores import Clock, FlakyStore
from tests.unit.checkpoint.test_calibrations import calibration
from tests.unit.checkpoint.test_profiles import profile


@pytest.fixture
def address(request):
    return f"memory://{abs(hash(request.node.name))}/r"


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(address):
    return FlakyStore(address, StoreTimeouts())


@pytest.fixture
def documents(store, clock):
    return RemoteDocumentStore(store, ".profiles", clock=clock)


def test_profiles_of_a_remote_registry_are_written_listed_read_and_deleted(address):
    profiles = ProfileStore(address)
    assert profiles.names() == []
    assert profiles.write(profile("one")) == f"{address}/.profiles/one.json"
    profiles.write(profile("one", posterior_scale=3.0))
    assert profiles.read("one").posterior_scale == 3.0
    profiles.delete("one")
    with pytest.raises(InvalidInputError, match="no profile 'one'; there are: none"):
        profiles.read("one")


def test_a_damaged_calibration_of_a_remote_registry_is_told_by_its_url(address):
    calibrations = CalibrationStore(address)
    assert calibrations.read("small@3") is None
    place = calibrations.write(calibration())
    assert CalibrationStore(address).read("small@3") == calibration()
    MemoryStore(address, StoreTimeouts()).put(".calibrations/small@3.json", b"{")
    with pytest.raises(FormatError, match=place):
        CalibrationStore(address).read("small@3")


def test_what_was_read_is_not_asked_for_again_for_some_seconds(documents, store, clock):
    store.put(".profiles/a", b"one")
    assert documents.read("a") == documents.read("a") == b"one"
    assert store.num_calls == 1
    store.put(".profiles/a", b"two")
    clock.now_s = 6.0
    assert documents.read("a") == b"two"


def test_what_was_read_is_told_while_the_store_is_down(documents, store, clock):
    store.put(".profiles/a", b"one")
    documents.read("a")
    store.down, clock.now_s = True, 6.0
    assert documents.read("a") == b"one"


def test_what_could_not_be_read_is_not_asked_for_at_each_request(documents, store, clock):
    store.down = True
    with pytest.raises(RegistryError, match="down"):
        documents.read("a")
    store.down = False
    with pytest.raises(RegistryError, match="down"):
        documents.read("a")
    clock.now_s = 6.0
    assert documents.read("a") is None


def test_one_asks_a_slow_store_and_the_others_go_on(documents, store, clock):
    store.put(".profiles/a", b"one")
    documents.read("a")
    clock.now_s = 6.0
    waiting, go = threading.Event(), threading.Event()
    read = store.read

    def slow(key):
        waiting.set()
        go.wait(10)
        return read(key)

    store.read = slow
    asker = threading.Thread(target=documents.read, args=("a",))
    asker.start()
    waiting.wait(10)
    assert documents.read("a") == b"one"
    go.set()
    asker.join()


def test_names_that_clients_make_up_are_not_remembered_without_end(documents, store, monkeypatch):
    monkeypatch.setattr(remote_documents, "_MAX_CACHED_DOCUMENTS", 3)
    for number in range(5):
        documents.read(f"{number}.json")
    asked = store.num_calls
    documents.read("4.json")
    assert store.num_calls == asked
    documents.read("1.json")  # forgotten, as it was asked for longest ago
    assert store.num_calls == asked + 1


def test_of_what_is_too_large_the_beginning_is_read(documents, store):
    store.put(".profiles/a", b"x" * (MAX_DOCUMENT_BYTES + 100))
    assert len(documents.read("a")) == MAX_DOCUMENT_BYTES + 1


def test_what_was_asked_for_before_a_write_is_not_told_after_it(documents, store):
    store.put(".profiles/a", b"old")
    read = store.read
    writer = threading.Thread(target=documents.write, args=("a", b"new"))

    def slow(key):
        found = read(key)
        store.read = read
        writer.start()
        writer.join(0.3)
        return found

    store.read = slow
    assert documents.read("a") == b"old"
    writer.join(10)
    assert documents.read("a") == b"new"
