"""Profiles and calibrations in a registry's folder and in object stores."""

import json
import threading
import tracemalloc
from functools import partial

import pytest

from models.checking.error_model import Calibration, CalibrationPoint, CalibrationStore, ErrorTableStore
from models.checkpoint import documents as remote_documents
from models.checkpoint.documents import MAX_DOCUMENT_BYTES
from models.checkpoint.fsspec_store import MemoryStore
from models.checkpoint.registry import LocalRegistry, open_store
from models.checkpoint.stores import StoreTimeouts
from models.errors import DocumentError, FormatError, InputError, RegistryAccessError, RegistryError
from models.reranking.ranking import Profile, ProfileStore
from tests.support.object_stores import Clock, FlakyStore


def profile(name="one", **changes):
    about = {
        "metric": "wer",
        "signature": "",
        "models": [],
        "decision": "tuned",
        "figures": {},
        "created": "",
    }
    return Profile(name=name, weights={"rank": 1.0, "lm": 0.5}, **{**about, **changes})


@pytest.fixture
def profile_store(tmp_path):
    return ProfileStore(tmp_path)


def test_written_profile_is_read(profile_store):
    profile_store.write(profile(figures={"baseline": 15.44}, posterior_scale=2.0))
    assert profile_store.read("one") == profile(figures={"baseline": 15.44}, posterior_scale=2.0)


def test_a_profile_of_the_same_name_is_replaced(profile_store):
    profile_store.write(profile())
    profile_store.write(profile(posterior_scale=3.0))
    assert profile_store.read("one").posterior_scale == 3.0


def test_names_are_sorted_and_unfinished_files_no_names(profile_store, tmp_path):
    for name in ("b", "a"):
        profile_store.write(profile(name))
    (tmp_path / ".profiles" / ".tmp-x.json").write_text("{")
    assert profile_store.names() == ["a", "b"]


def test_profiles_are_no_models(profile_store, tmp_path):
    profile_store.write(profile())
    assert LocalRegistry(tmp_path).models() == []


@pytest.mark.parametrize("action", ["read", "delete"])
def test_an_unknown_profile_is_told_with_those_there_are(profile_store, action):
    profile_store.write(profile())
    with pytest.raises(InputError, match="no profile 'two'; profiles: one") as caught:
        getattr(profile_store, action)("two")
    assert caught.value.param == "profile"


def test_deleted_profile_is_not_listed(profile_store):
    profile_store.write(profile())
    profile_store.delete("one")
    assert profile_store.names() == []


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a/b", "x" * 101])
def test_names_that_cannot_be_a_files_are_refused(profile_store, name):
    with pytest.raises(InputError, match="profile is"):
        profile_store.read(name)
    with pytest.raises(InputError, match="profile is"):
        profile_store.write(profile(name))


@pytest.mark.parametrize(
    "change",
    [
        lambda fields: fields.pop("metric"),
        lambda fields: fields.update(extra=1),
        lambda fields: fields.update(schema_version=2),
        lambda fields: fields["weights"].update(lm="0.5"),
        lambda fields: fields["weights"].update(lm=1e9),
        lambda fields: fields.update(weights={}),
        lambda fields: fields.update(name="other"),
    ],
)
def test_a_damaged_file_is_told_by_its_path(profile_store, tmp_path, change):
    path = profile_store.write(profile())
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))
    with pytest.raises(FormatError, match=str(tmp_path)):
        profile_store.read("one")


@pytest.mark.parametrize(
    "wrong",
    [{"models": [{"address": "small@1", "weight": float("nan")}]}, {"figures": {"baseline": [float("inf")]}}],
    ids=["models", "figures"],
)
def test_profile_with_a_non_finite_number_is_refused(profile_store, wrong):
    path = profile_store.write(profile())
    path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
    with pytest.raises(FormatError, match=f"not a profile: {next(iter(wrong))}"):
        profile_store.read("one")


def test_a_file_past_all_size_is_not_read(profile_store):
    path = profile_store.write(profile())
    path.write_bytes(b" " * (1 << 20) + path.read_bytes())
    with pytest.raises(FormatError, match="more than 1048576 bytes"):
        profile_store.read("one")


@pytest.mark.parametrize(
    ("kind", "name"), [(ProfileStore, "m"), (CalibrationStore, "m@1"), (ErrorTableStore, "m")]
)
def test_of_a_file_past_all_size_little_is_read(tmp_path, kind, name):
    open_store(tmp_path).put(f"{kind.folder}/{name}.json", bytes(1 << 26))
    tracemalloc.start()
    with pytest.raises(DocumentError, match="more than 1048576 bytes"):
        kind(tmp_path).read(name)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 4 << 20


def test_the_calibration_of_the_nearest_older_version_serves_a_later_one(tmp_path):
    store = CalibrationStore(tmp_path)
    for address in ("small@2", "small@10", "small@12", "smaller@11"):
        store.write(calibration(address))
    asked = {number: store.read(f"small@{number}", any_version=True).model for number in (1, 2, 11, 99)}
    assert asked == {1: "small@2", 2: "small@2", 11: "small@10", 99: "small@12"}
    assert store.read("other@1", any_version=True) is None
    assert store.read("small@11") is None


def test_a_registry_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / ".profiles").write_text("in the way")
    with pytest.raises(RegistryError, match="cannot write"):
        ProfileStore(tmp_path).write(profile())


POINTS = [(0.1, 0.4, 0.9), (0.3, 0.7, 0.8), (0.5, 0.65, 0.6), (0.9, 0.95, 0.2)]


def calibration(model="small@3", points=POINTS):
    named = [dict(zip(("threshold", "precision", "recall"), point, strict=True)) for point in points]
    return Calibration(
        model=model,
        kinds=["real_word"],
        words_per_error=20.0,
        points=[CalibrationPoint(**point) for point in named],
        corpus_sha256="0" * 64,
        created="2026-01-01T00:00:00+00:00",
    )


def test_written_calibration_is_read_and_replaced(tmp_path):
    store = CalibrationStore(tmp_path)
    assert store.read("small@3") is None
    store.write(calibration(points=POINTS[:2]))
    store.write(calibration())
    assert store.read("small@3") == calibration()
    assert store.read("small@4") is None
    assert [path.name for path in (tmp_path / CalibrationStore.folder).iterdir()] == ["small@3.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"model": "small@3"}', b"\xff"])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, content):
    store = CalibrationStore(tmp_path)
    path = store.write(calibration())
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"small@3\.json.*measure again"):
        store.read("small@3")


@pytest.mark.parametrize(
    ("given", "number", "field"),
    [("20.0", "Infinity", "words_per_error"), ("0.65", "NaN", "points.2.precision")],
)
def test_calibration_with_a_non_finite_number_is_refused(tmp_path, given, number, field):
    store = CalibrationStore(tmp_path)
    path = store.write(calibration())
    path.write_text(path.read_text().replace(given, number))
    with pytest.raises(FormatError, match=f"not a calibration: {field} is"):
        store.read("small@3")


def test_a_file_of_another_version_is_refused(tmp_path):
    store = CalibrationStore(tmp_path)
    store.write(calibration()).rename(tmp_path / CalibrationStore.folder / "small@4.json")
    with pytest.raises(FormatError, match="is that of 'small@3', not of 'small@4'"):
        store.read("small@4")


def test_points_out_of_order_are_refused(tmp_path):
    store = CalibrationStore(tmp_path)
    path = store.write(calibration())
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(fields | {"points": fields["points"][::-1]}))
    with pytest.raises(FormatError, match="ascending"):
        store.read("small@3")


@pytest.mark.parametrize("address", ["../x@1", "x", "x@../y", "@1"])
def test_an_address_that_is_no_version_is_refused(tmp_path, address):
    with pytest.raises(InputError):
        CalibrationStore(tmp_path).read(address)


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / CalibrationStore.folder).write_text("a file")
    with pytest.raises(RegistryError, match="cannot write"):
        CalibrationStore(tmp_path).write(calibration())


def test_the_threshold_for_a_precision_keeps_it_at_all_higher_ones():
    assert calibration().threshold_for(0.3) == 0.1
    assert calibration().threshold_for(0.65) == 0.3
    assert calibration().threshold_for(0.7) == 0.9
    assert calibration().threshold_for(0.95) == 0.9
    with pytest.raises(InputError, match=r"precision is 0.96.* at most 0.950"):
        calibration().threshold_for(0.96)


def test_the_precision_at_a_threshold_is_that_of_the_next_lower_one():
    assert calibration().precision_at(0.05) is None
    assert calibration().precision_at(0.3) == 0.7
    assert calibration().precision_at(0.49) == 0.7
    assert calibration().precision_at(1.0) == 0.95


@pytest.fixture
def store_address(request):
    return f"memory://{abs(hash(request.node.name))}/r"


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def remote_store(store_address):
    return FlakyStore(store_address, StoreTimeouts())


@pytest.fixture
def documents(remote_store, clock, monkeypatch):
    monkeypatch.setattr("models.checkpoint.documents.open_store", lambda _: remote_store)
    return ProfileStore(remote_store.location, clock=clock)


def test_profiles_of_a_remote_registry_are_written_listed_read_and_deleted(store_address):
    profiles = ProfileStore(store_address)
    assert profiles.names() == []
    assert profiles.write(profile("one")) == f"{store_address}/.profiles/one.json"
    profiles.write(profile("one", posterior_scale=3.0))
    assert profiles.read("one").posterior_scale == 3.0
    profiles.delete("one")
    with pytest.raises(InputError, match="no profile 'one'; profiles: none"):
        profiles.read("one")


def test_a_damaged_calibration_of_a_remote_registry_is_told_by_its_url(store_address):
    calibrations = CalibrationStore(store_address)
    assert calibrations.read("small@3") is None
    place = calibrations.write(calibration())
    assert CalibrationStore(store_address).read("small@3") == calibration()
    MemoryStore(store_address, StoreTimeouts()).put(".calibrations/small@3.json", b"{")
    with pytest.raises(FormatError, match=place):
        CalibrationStore(store_address).read("small@3")


def test_read_is_cached_for_seconds(documents, remote_store, clock):
    remote_store.put(".profiles/a.json", b"one")
    assert documents.read_bytes("a") == documents.read_bytes("a") == b"one"
    assert remote_store.num_calls == 1
    remote_store.put(".profiles/a.json", b"two")
    clock.now_s = 6.0
    assert documents.read_bytes("a") == b"two"


def test_names_are_asked_for_once_in_some_seconds_and_after_a_write(documents, remote_store):
    documents.write_bytes("a", b"one")
    assert documents.names() == documents.names() == ["a"]
    assert remote_store.num_calls == 1
    documents.write_bytes("b", b"two")
    assert documents.names() == ["a", "b"]


def test_a_store_that_forbids_writes_is_told_from_one_that_is_down(documents, remote_store, monkeypatch):
    remote_store.put(".profiles/a.json", b"one")

    def forbid(*_given):
        raise PermissionError("Access Denied")

    monkeypatch.setattr(remote_store._file_system, "pipe_file", forbid)
    monkeypatch.setattr(remote_store._file_system, "rm_file", forbid)
    for work in (partial(documents.write_bytes, "a", b"two"), partial(documents.delete, "a")):
        with pytest.raises(RegistryAccessError, match="Access Denied"):
            work()


def test_cached_read_is_returned_while_the_store_is_down(documents, remote_store, clock):
    remote_store.put(".profiles/a.json", b"one")
    documents.read_bytes("a")
    remote_store.down, clock.now_s = True, 6.0
    assert documents.read_bytes("a") == b"one"


def test_failed_read_is_cached_for_seconds(documents, remote_store, clock):
    remote_store.down = True
    with pytest.raises(RegistryError, match="down"):
        documents.read_bytes("a")
    remote_store.down = False
    with pytest.raises(RegistryError, match="down"):
        documents.read_bytes("a")
    clock.now_s = 6.0
    assert documents.read_bytes("a") is None


def test_one_asks_a_slow_store_and_the_others_go_on(documents, remote_store, clock):
    remote_store.put(".profiles/a.json", b"one")
    documents.read_bytes("a")
    clock.now_s = 6.0
    waiting, go = threading.Event(), threading.Event()
    read = remote_store.read

    def slow(*asked):
        waiting.set()
        go.wait(10)
        return read(*asked)

    remote_store.read = slow
    asker = threading.Thread(target=documents.read_bytes, args=("a",))
    asker.start()
    waiting.wait(10)
    assert documents.read_bytes("a") == b"one"
    go.set()
    asker.join()


def test_names_that_clients_make_up_are_not_remembered_without_end(documents, remote_store, monkeypatch):
    monkeypatch.setattr(remote_documents, "_MAX_CACHED_DOCUMENTS", 3)
    for number in range(5):
        documents.read_bytes(f"{number}")
    asked = remote_store.num_calls
    documents.read_bytes("4")
    assert remote_store.num_calls == asked
    documents.read_bytes("1")  # evicted as the least recently used
    assert remote_store.num_calls == asked + 1


def test_of_what_is_too_large_the_beginning_is_read(documents, remote_store):
    remote_store.put(".profiles/a.json", b"x" * (MAX_DOCUMENT_BYTES + 100))
    assert len(documents.read_bytes("a")) == MAX_DOCUMENT_BYTES + 1


def test_read_that_began_before_a_write_is_not_cached(documents, remote_store):
    remote_store.put(".profiles/a.json", b"old")
    read = remote_store.read
    writer = threading.Thread(target=documents.write_bytes, args=("a", b"new"))

    def slow(*asked):
        found = read(*asked)
        remote_store.read = read
        writer.start()
        writer.join(0.3)
        return found

    remote_store.read = slow
    assert documents.read_bytes("a") == b"old"
    writer.join(10)
    assert documents.read_bytes("a") == b"new"
