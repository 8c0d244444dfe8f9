"""Files of word lists: versions, limits, owners, several processes, and what a killed writer leaves."""

import multiprocessing
import os
import threading

import pytest

from models.errors import InputError, UnknownWordListError, WordListStoreError
from models.word_list import WordListBuilder, WordListInfo
from service.hosting.word_list_store import WordListStore


@pytest.fixture
def store(tmp_path):
    return WordListStore(tmp_path, max_lists=3, max_bytes=1000)


def put(store, owner, name, *texts):
    builder = WordListBuilder(WordListInfo(name))
    builder.add([(text, 1.0) for text in texts])
    return store.put(owner, name, builder)


def entries(store, owner, name):
    return [text for text, _ in store.find(owner, name).words.entries()]


def test_a_replaced_list_has_the_next_version_and_the_old_map_stays(store):
    first = put(store, "ann", "terms", "alpha")
    second = put(store, "ann", "terms", "beta", "gamma")
    assert (first.words.info.version, second.words.info.version) == (1, 2)
    assert [text for text, _ in first.words.entries()] == ["alpha"]
    assert entries(store, "ann", "terms") == ["beta", "gamma"]
    assert store.find("ann", "terms").words is second.words  # mapped once
    assert store.delete("ann", "terms")
    assert not store.delete("ann", "terms")
    with pytest.raises(UnknownWordListError, match="no word list"):
        store.find("ann", "terms")
    assert put(store, "ann", "terms", "delta").words.info.version == 1


def test_owners_have_lists_of_their_own_up_to_a_number(store, tmp_path):
    for owner in ("ann", "", "everyone", "../x", "a/b"):
        for name in ("one", "two", "three"):
            put(store, owner, name, f"{owner}{name}")
        with pytest.raises(InputError, match="has 3, the maximum"):
            put(store, owner, "four", "a")
        put(store, owner, "three", "again")
    assert [one.words.info.name for one in store.all("ann")] == ["one", "three", "two"]
    assert store.count() == 15
    assert store.num_bytes() == sum(path.stat().st_size for path in tmp_path.rglob("*.words"))
    assert len(list(tmp_path.iterdir())) == 5


def test_a_change_by_another_process_is_seen(store, tmp_path):
    put(store, "ann", "terms", "alpha")
    other = WordListStore(tmp_path, max_lists=3, max_bytes=1000)
    assert entries(other, "ann", "terms") == ["alpha"]
    put(store, "ann", "terms", "beta")
    assert entries(other, "ann", "terms") == ["beta"]
    store.delete("ann", "terms")
    with pytest.raises(UnknownWordListError):
        other.find("ann", "terms")


def _replace(folder, number):
    store = WordListStore(folder, max_lists=3, max_bytes=1000)
    for _ in range(20):
        put(store, "ann", "terms", f"word{number}", "common")


def test_processes_that_replace_a_list_together_count_all_versions(store, tmp_path):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_replace, args=(tmp_path, number)) for number in range(3)]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        try:
            found = entries(store, "ann", "terms")
        except UnknownWordListError:
            continue
        assert found[0] == "common"
        seen.add(found[1])
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert store.find("ann", "terms").words.info.version == 60
    assert [path.name for path in tmp_path.rglob(".tmp-*")] == []


def test_threads_that_read_a_list_while_it_is_replaced_see_whole_ones(store):
    put(store, "ann", "terms", "alpha", "beta")
    problems, stop = [], threading.Event()

    def read():
        while not stop.is_set():
            found = entries(store, "ann", "terms")
            if found not in (["alpha", "beta"], ["gamma"]):
                problems.append(found)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(40):
        put(store, "ann", "terms", *(["gamma"] if number % 2 else ["alpha", "beta"]))
    stop.set()
    for reader in readers:
        reader.join()
    assert not problems


def test_what_a_killed_writer_left_is_removed(store, tmp_path):
    put(store, "ann", "terms", "alpha")
    (file,) = tmp_path.rglob("*.words")
    left = file.with_name(".tmp-other")
    left.write_bytes(b"half")
    assert [one.words.info.name for one in store.all("ann")] == ["terms"]
    put(store, "ann", "more", "beta")
    assert not left.exists()


def test_a_damaged_list_is_reported_and_can_be_replaced(store, tmp_path):
    put(store, "ann", "terms", "alpha")
    (file,) = tmp_path.rglob("*.words")
    new = file.with_name("new")
    new.write_bytes(b"damaged")
    new.replace(file)
    with pytest.raises(WordListStoreError, match=r"terms\.words"):
        store.find("ann", "terms")
    assert store.all("ann") == []
    assert put(store, "ann", "terms", "beta").words.info.version == 1


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    store = WordListStore(tmp_path / "file", max_lists=3, max_bytes=1000)
    with pytest.raises(WordListStoreError, match="file"):
        put(store, "", "terms", "alpha")
    with pytest.raises((WordListStoreError, UnknownWordListError)):
        store.find("", "terms")
    assert store.count() == 0


def test_a_full_disk_leaves_the_old_list(store, monkeypatch):
    put(store, "ann", "terms", "alpha")

    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("models.word_list.write_tensors", full)
    with pytest.raises(WordListStoreError, match="No space left"):
        put(store, "ann", "terms", "beta")
    assert entries(store, "ann", "terms") == ["alpha"]
