"""Profiles of weights in a registry."""

import json

import pytest

from models.checkpoint.documents import ProfileStore
from models.checkpoint.registry import LocalRegistry
from models.errors import FormatError, InvalidInputError, RegistryError
from models.reranking.ranking import Profile


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
def store(tmp_path):
    return ProfileStore(tmp_path)


def test_what_was_written_is_read(store):
    store.write(profile(figures={"baseline": 15.44}, posterior_scale=2.0))
    assert store.read("one") == profile(figures={"baseline": 15.44}, posterior_scale=2.0)


def test_a_profile_of_the_same_name_is_replaced(store):
    store.write(profile())
    store.write(profile(posterior_scale=3.0))
    assert store.read("one").posterior_scale == 3.0


def test_names_are_sorted_and_unfinished_files_no_names(store, tmp_path):
    for name in ("b", "a"):
        store.write(profile(name))
    (tmp_path / ".profiles" / ".tmp-x.json").write_text("{")
    assert store.names() == ["a", "b"]


def test_profiles_are_no_models(store, tmp_path):
    store.write(profile())
    assert LocalRegistry(tmp_path).models() == []


@pytest.mark.parametrize("action", ["read", "delete"])
def test_an_unknown_profile_is_told_with_those_there_are(store, action):
    store.write(profile())
    with pytest.raises(InvalidInputError, match="no profile 'two'; there are: one") as caught:
        getattr(store, action)("two")
    assert caught.value.parameter == "profile"


def test_what_is_deleted_is_gone(store):
    store.write(profile())
    store.delete("one")
    assert store.names() == []


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a/b", "x" * 101])
def test_names_that_cannot_be_a_files_are_refused(store, name):
    with pytest.raises(InvalidInputError, match="profile is"):
        store.read(name)
    with pytest.raises(InvalidInputError, match="profile is"):
        store.write(profile(name))


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
def test_a_damaged_file_is_told_by_its_path(store, tmp_path, change):
    path = store.write(profile())
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))
    with pytest.raises(FormatError, match=str(tmp_path)):
        store.read("one")


def test_a_file_past_all_size_is_not_read(store):
    path = store.write(profile())
    path.write_bytes(b" " * (1 << 20) + path.read_bytes())
    with pytest.raises(FormatError, match="more than 1048576 bytes"):
        store.read("one")


def test_a_registry_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / ".profiles").write_text("in the way")
    with pytest.raises(RegistryError, match="cannot write"):
        ProfileStore(tmp_path).write(profile())
