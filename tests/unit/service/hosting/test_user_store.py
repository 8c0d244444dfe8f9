"""The file of users' words: what is kept, bounds and age, several processes, damage, a full disk, deletion."""

import json
import math
import sqlite3
import subprocess
import sys
import threading

import pytest

from models.completion.user_model import UserModelLimits, WordSequence, user_model_from_counts
from models.errors import UnknownUserError, UnknownWordError, UserStoreError
from service.hosting.user_store import UserStore

HOUR = 3600.0


class Clock:
    """Clock that tests set.

    Attributes:
        now: its time in seconds.
    """

    def __init__(self):
        self.now = 1e9

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data" / "users.sqlite"


def opened(path, clock, **bounds):
    options = {"max_users": 2, "ttl_s": 100 * HOUR, "bounds": UserModelLimits(max_words=3)} | bounds
    return UserStore(path, **options, clock=clock)


@pytest.fixture(params=["file", "memory"])
def users(request, path, clock):
    store = opened(path if request.param == "file" else None, clock)
    yield store
    store.close()


def words(*texts):
    return [WordSequence("", texts)]


def test_users_belong_to_their_owner(users):
    users.learn("key", "ann", words("hello"))
    assert len(users.get("other", "ann")) == 0
    assert not users.forget("other", "ann")
    assert users.find("key", "ann").count("hello") == pytest.approx(1)


def test_users_that_were_unused_for_longest_make_room(users, clock):
    users.learn("", "ann", words("a"))
    users.learn("", "bob", words("b"))
    clock.now += 2 * HOUR
    users.get("", "ann")
    users.learn("", "cid", words("c"))
    assert [bool(len(users.get("", user))) for user in ("ann", "bob", "cid")] == [True, False, True]
    with pytest.raises(UnknownUserError, match="the maximum is 2 users of a key"):
        users.find("", "bob")
    assert users.count() == 2


def test_users_of_one_key_make_room_for_their_own_only(users, clock):
    users.learn("old", "ann", words("a"))
    for n in range(9):
        clock.now += 1
        users.learn("new", f"u{n}", words("b"))
    assert len(users.get("old", "ann")) == 1
    assert [n for n in range(9) if len(users.get("new", f"u{n}"))] == [7, 8]
    users.learn("old", "bob", words("c"))
    assert users.count() == 4


def test_users_who_stay_away_are_deleted(users, clock):
    users.learn("", "ann", words("a"))
    clock.now += 99 * HOUR
    assert len(users.get("", "ann")) == 1  # a use
    clock.now += 99 * HOUR
    assert len(users.get("", "ann")) == 1
    clock.now += 101 * HOUR
    assert len(users.get("", "ann")) == 0
    users.learn("", "bob", words("b"))
    assert users.count() == 1


@pytest.mark.parametrize("uptime", [0, 1e4, 1e12])
def test_neither_a_restart_nor_a_clock_makes_users_old(path, clock, uptime):
    """A monotonic clock begins anywhere after a restart of the machine."""
    users = opened(path, clock)
    for user in ("ann", "bob"):
        clock.now += 60 * HOUR
        users.learn("", user, words("a"))
    users.close()
    clock.now = uptime
    again = opened(path, clock)
    again.open()
    clock.now += 30 * HOUR
    again.learn("", "bob", words("b"))
    assert again.count() == 2
    clock.now += 20 * HOUR
    assert len(again.get("", "bob")) == 2
    assert len(again.get("", "ann")) == 0


def test_stored_user_model_is_within_the_bounds(users):
    assert len(users.put("", "ann", user_model_from_counts([(f"w{n}", n + 1) for n in range(9)]))) == 3


def test_a_model_is_read_once_until_it_changes(users):
    learnt = users.learn("", "ann", words("a", "b"))
    assert users.get("", "ann") is learnt
    assert users.learn("", "ann", words("a")).count("a") == pytest.approx(2, rel=0.01)


def test_as_many_models_are_remembered_as_a_key_may_have(users):
    learnt = [users.learn(f"key{n}", "ann", words("a")) for n in range(5)]
    assert [users.get(f"key{n}", "ann") is learnt[n] for n in (4, 3, 2)] == [True, True, False]


def test_a_word_is_forgotten_of_a_known_user_only(users):
    users.learn("key", "ann", words("a", "b", "c"))
    with pytest.raises(UnknownUserError, match="the user 'bob' has no personal model"):
        users.forget_word("key", "bob", "a")
    with pytest.raises(UnknownUserError):
        users.forget_word("other", "ann", "a")
    with pytest.raises(UnknownWordError, match="the user 'ann' has no word 'A'"):
        users.forget_word("key", "ann", "A")
    model = users.forget_word("key", "ann", "b")
    assert users.find("key", "ann") is model
    words_left, pairs, _ = model.export()
    assert [word for word, _ in words_left] == ["a", "c"]
    assert [pair[:2] for pair in pairs] == [("", "a")]
    for word in ("a", "c"):
        users.forget_word("key", "ann", word)
    assert len(users.find("key", "ann")) == 0  # still known


def test_corrections_are_stored(path, clock):
    first, second = opened(path, clock), opened(path, clock)
    for _ in range(2):
        first.learn("", "ann", words("emu"), "eum")
    learnt = first.get("", "ann")
    assert second.find("", "ann").export() == learnt.export()
    assert [correction[:2] for correction in learnt.export()[2]] == [("eum", "emu")]
    first.put("", "bob", learnt)
    assert second.find("", "bob").corrections.keys() == {"eum"}
    second.forget_word("", "ann", "emu")
    assert first.find("", "ann").corrections == {}


def test_words_of_a_release_without_corrections_are_read(path, clock):
    users = opened(path, clock)
    users.learn("", "ann", words("a"))
    content = '{"words":[["emu",2.0]],"pairs":[["","emu",1.0]]}'
    change(path, "UPDATE users SET content = ?, version = 1", content)
    assert users.find("", "ann").export() == ([("emu", 2.0)], [("", "emu", 1.0)], [])
    assert users.learn("", "ann", words("emu"), "eum").export()[2] == [("eum", "emu", pytest.approx(1.0))]


def test_another_process_sees_every_change(path, clock):
    first, second = opened(path, clock), opened(path, clock)
    first.learn("", "ann", words("a"))
    assert second.find("", "ann").count("a") == pytest.approx(1)
    second.learn("", "ann", words("b"))
    assert first.find("", "ann").export() == second.find("", "ann").export()
    second.forget_word("", "ann", "a")
    assert first.find("", "ann").words.keys() == {"b"}
    second.forget("", "ann")
    with pytest.raises(UnknownUserError):
        first.find("", "ann")


def test_nothing_is_lost_when_processes_and_threads_learn_at_once(path, clock):
    stores = [opened(path, clock) for _ in range(2)]

    def learn(store):
        for _ in range(20):
            store.learn("", "ann", words("a"))

    threads = [threading.Thread(target=learn, args=(store,)) for store in stores * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stores[0].find("", "ann").count("a") == pytest.approx(80, rel=0.05)  # old counts decay


KILLED = """
import os, signal, sys
from pathlib import Path
from models.completion.user_model import UserModelLimits, WordSequence
from service.hosting.user_store import UserStore
users = UserStore(Path(sys.argv[1]), max_users=9, ttl_s=1e9, bounds=UserModelLimits())
users.learn("", "ann", [WordSequence("", ["zebra"])])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_loses_nothing(path, clock):
    assert subprocess.run([sys.executable, "-c", KILLED, path], check=False).returncode == -9
    assert opened(path, clock, ttl_s=math.inf).find("", "ann").count("zebra") == pytest.approx(1)


ENDED = """
import sys
from pathlib import Path
from models.completion.user_model import UserModelLimits, WordSequence
from service.hosting.user_store import UserStore
users = UserStore(Path(sys.argv[1]), max_users=9, ttl_s=1e9, bounds=UserModelLimits())
users.learn("", sys.argv[2], [WordSequence("", ["zebra"])])
users.close()
"""


def test_processes_that_end_lose_nothing_and_leave_the_log_to_others(path, clock):
    """A process whose locks were dropped would go on with a log that another has deleted."""
    users = opened(path, clock, max_users=9, ttl_s=math.inf)
    users.open()
    for mine, other in (("ann", "bob"), ("cid", "dan")):
        users.learn("", mine, words("a"))
        subprocess.run([sys.executable, "-c", ENDED, path, other], check=True)
        assert path.with_name(f"{path.name}-wal").exists()
    users.learn("", "eve", words("a"))
    users.close()
    again = opened(path, clock, max_users=9, ttl_s=math.inf)
    assert all(len(again.get("", user)) for user in ("ann", "bob", "cid", "dan", "eve"))


def test_a_link_leads_to_a_file_for_this_account_only(path, clock, tmp_path):
    path.parent.mkdir()
    path.symlink_to(tmp_path / "elsewhere" / "words.sqlite")
    opened(path, clock).learn("", "ann", words("a"))
    assert (tmp_path / "elsewhere" / "words.sqlite").stat().st_mode & 0o777 == 0o600


@pytest.fixture
def no_secure_delete(monkeypatch):
    """Open files as by a library that leaves deleted content in the file unless it is told otherwise."""
    connect = sqlite3.connect

    def connect_plainly(*args, **options):
        connection = connect(*args, **options)
        connection.execute("PRAGMA secure_delete = OFF")
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_plainly)


def found(path, word):
    """Return the names of the files beside the database, itself included, that have a word."""
    return [file.name for file in path.parent.iterdir() if word.encode() in file.read_bytes()]


def put_without(users, clock):
    users.put("", "ann", user_model_from_counts([("emu", 1.0)]))


def drop_the_rarest(users, clock):
    users.learn("", "ann", words("emu", "emu", "gnu", "gnu", "yak", "yak"))


def drop_the_decayed(users, clock):
    users.bounds = UserModelLimits(half_life_words=0.01)
    users.learn("", "ann", words("emu"))


def forget(users, clock):
    assert users.forget("", "ann")


def forget_words(users, clock):
    users.learn("", "ann", words("emu"))
    users.forget_word("", "ann", "wombat")  # only before another word, and corrected
    assert not found(users._path, "wombat")
    users.forget_word("", "ann", "platypus")
    assert users.get("", "ann").words.keys() == {"emu"}


def evict(users, clock):
    for user in ("bob", "cid"):
        clock.now += 1
        users.learn("", user, words("emu"))


def expire(users, clock):
    clock.now += 101 * HOUR
    users.learn("", "bob", words("emu"))


@pytest.mark.usefixtures("no_secure_delete")
@pytest.mark.parametrize(
    "remove", [put_without, drop_the_rarest, drop_the_decayed, forget, forget_words, evict, expire]
)
def test_words_that_are_removed_are_nowhere_in_the_files(path, clock, remove):
    users = opened(path, clock, bounds=UserModelLimits(max_words=3, pairs_per_word=1))
    reader = opened(path, clock)
    users.learn("", "ann", [WordSequence("wombat", ("platypus",))], "wombat")
    assert len(reader.get("", "ann")) == 1
    assert found(path, "wombat") == found(path, "platypus") != []
    remove(users, clock)
    assert found(path, "wombat") == []
    assert found(path, "platypus") == []


def test_a_pair_that_is_dropped_is_nowhere_in_the_files(path, clock):
    users = opened(path, clock, bounds=UserModelLimits(max_words=3, pairs_per_word=1))
    users.learn("", "ann", [WordSequence("wombat", ("emu",))])
    users.learn("", "ann", [WordSequence("", ("emu", "gnu") * 9)])
    assert not found(path, "wombat")


def test_a_correction_that_is_dropped_is_nowhere_in_the_files(path, clock):
    users = opened(path, clock, bounds=UserModelLimits(max_words=3, pairs_per_word=1, half_life_words=2))
    users.learn("", "ann", words("emu"), "platypus")
    for typed in ("eum", "ume", "mue"):
        assert found(path, "platypus")
        users.learn("", "ann", words("emu"), typed)
    assert not found(path, "platypus")


def test_a_change_that_drops_no_word_leaves_the_log(path, clock):
    """Cutting the log takes longer than writing a word."""
    users = opened(path, clock)
    users.learn("", "ann", words("platypus"))
    log = path.with_name(f"{path.name}-wal")
    size = log.stat().st_size
    users.learn("", "ann", words("platypus", "wombat"))
    assert log.stat().st_size > size > 0


def test_dropped_words_leave_the_log_once_no_other_program_reads_it(path, clock):
    users = opened(path, clock)
    users.learn("", "ann", words("platypus"))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN")
    other.execute("SELECT * FROM users").fetchall()
    users.learn("", "ann", words("emu", "emu", "gnu", "gnu", "yak", "yak"))
    assert found(path, "platypus")
    other.close()
    users.learn("", "bob", words("emu"))
    assert not found(path, "platypus")


def test_words_that_another_program_still_reads_are_not_called_forgotten(path, clock, monkeypatch):
    monkeypatch.setattr("service.hosting.user_store._WAIT_S", 0.05)
    users = opened(path, clock)
    users.learn("", "ann", words("platypus"))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN")
    other.execute("SELECT * FROM users").fetchall()
    with pytest.raises(UserStoreError, match="its log is read by another program and still has it"):
        users.forget("", "ann")
    assert len(users.get("", "ann")) == 0
    other.close()
    assert not users.forget("", "ann")
    assert not found(path, "platypus")


def test_a_word_that_another_program_still_reads_is_not_called_forgotten(path, clock, monkeypatch):
    monkeypatch.setattr("service.hosting.user_store._WAIT_S", 0.05)
    users = opened(path, clock)
    users.learn("", "ann", words("platypus", "emu"))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN")
    other.execute("SELECT * FROM users").fetchall()
    with pytest.raises(UserStoreError, match="its log is read by another program and still has it"):
        users.forget_word("", "ann", "platypus")
    assert users.get("", "ann").words.keys() == {"emu"}
    other.close()
    assert found(path, "platypus")
    with pytest.raises(UnknownWordError):
        users.forget_word("", "ann", "platypus")
    assert not found(path, "platypus")


def test_words_left_out_that_another_program_still_reads_are_not_called_replaced(path, clock, monkeypatch):
    monkeypatch.setattr("service.hosting.user_store._WAIT_S", 0.05)
    users = opened(path, clock)
    users.learn("", "ann", words("platypus"))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN")
    other.execute("SELECT * FROM users").fetchall()
    with pytest.raises(UserStoreError, match="its log is read by another program and still has it"):
        put_without(users, clock)
    other.close()
    put_without(users, clock)
    assert not found(path, "platypus")


def test_the_files_are_for_this_account_only(path, clock):
    opened(path, clock).learn("", "ann", words("a"))
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}


def test_a_damaged_file_is_named_and_left_alone(path, clock):
    path.parent.mkdir()
    path.write_bytes(b"no database" * 1000)
    users = opened(path, clock)
    for call in (
        lambda: users.get("", "ann"),
        lambda: users.learn("", "ann", words("a")),
        lambda: users.forget("", "a"),
    ):
        with pytest.raises(
            UserStoreError, match=r"users\.sqlite cannot be read or written now: .*not a database"
        ):
            call()
    assert math.isnan(users.count())
    assert path.read_bytes() == b"no database" * 1000
    path.unlink()
    assert users.learn("", "ann", words("a")).count("a") == pytest.approx(1)  # as soon as it is mended


WRONG = [None, True, 3, -1.5, "secret", [], {}, [3], [[]], [["secret"]], {"secret": 1}, math.nan, math.inf]
RIGHT = {
    "words": ["secret", 1.0],
    "pairs": ["", "secret", 1.0],
    "corrections": ["secret", "secret", 1.0],
}


def damaged_contents():
    """Yield contents of the wrong type: as a whole, and at each field."""
    whole = {name: [entry] for name, entry in RIGHT.items()}
    yield from (value for value in WRONG if value is not None)  # the column is never null
    for name, entry in RIGHT.items():
        if name != "corrections":  # earlier releases stored none
            yield {other: whole[other] for other in RIGHT if other != name}
        yield from ({**whole, name: value} for value in WRONG if value != [])
        for place, right in enumerate(entry):
            wrong = [value for value in (*WRONG, 0) if value != (3 if right == 1.0 else "secret")]
            entries = [[*entry[:place], value, *entry[place + 1 :]] for value in wrong]
            yield from ({**whole, name: [one]} for one in (*wrong, *entries, entry[:place], [*entry, 1.0]))


def change(path, sql, *values):
    with sqlite3.connect(path, isolation_level=None) as other:
        assert other.execute(sql, values).rowcount
    other.close()


def check_damage(users):
    """Check that each use of a damaged entry names it and no word, and that others are read."""
    for use in (
        users.get,
        users.find,
        lambda owner, user: users.learn(owner, user, words("b")),
        lambda owner, user: users.forget_word(owner, user, "b"),
    ):
        with pytest.raises(UserStoreError, match="the words of 'ann' are damaged: content") as caught:
            use("", "ann")
        assert "secret" not in str(caught.value)
    assert len(users.get("", "bob")) == 1


def test_a_damaged_entry_is_named_and_others_are_read(path, clock):
    users = opened(path, clock)
    for user in ("ann", "bob"):
        users.learn("", user, words("a"))
    contents = [json.dumps(content) for content in damaged_contents()]
    assert len(contents) > 150
    for number, content in enumerate((*contents, "", "{", "[" * 9999, b"\xff\x00", 3)):
        change(path, "UPDATE users SET content = ?, version = ? WHERE user = 'ann'", content, number)
        check_damage(users)
    change(path, "UPDATE users SET content = CAST(x'7b22ff' AS TEXT), version = -1 WHERE user = 'ann'")
    check_damage(users)


@pytest.mark.parametrize("used", ["secret", b"secret", 2e11, 1e300, math.inf])
def test_a_damaged_time_makes_nobody_old_and_is_mended_by_a_use(path, clock, used):
    users = opened(path, clock)
    for user in ("ann", "bob"):
        users.learn("", user, words("a"))
    change(path, "UPDATE users SET used = ? WHERE user = 'ann'", used)
    users.close()
    again = opened(path, clock)
    assert [len(again.get("", user)) for user in ("ann", "bob")] == [1, 1]
    clock.now += 99 * HOUR
    assert len(again.learn("", "bob", words("b"))) == 2
    clock.now += 2 * HOUR
    assert len(again.get("", "ann")) == 0


@pytest.mark.parametrize("replace", [put_without, forget])
def test_damaged_words_can_be_replaced_and_deleted(path, clock, replace):
    users = opened(path, clock)
    users.learn("", "ann", words("a"))
    change(path, "UPDATE users SET content = '3', version = 1, used = 'secret'")
    replace(users, clock)
    assert list(users.get("", "ann").words) in ([], ["emu"])


def test_a_file_of_a_later_release_is_refused(path, clock):
    path.parent.mkdir()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 9")
    other.close()
    with pytest.raises(UserStoreError, match="of a later release: format 9, not 1"):
        opened(path, clock).get("", "ann")


def test_a_locked_file_is_read_but_not_written(path, clock, monkeypatch):
    monkeypatch.setattr("service.hosting.user_store._WAIT_S", 0.05)
    users = opened(path, clock)
    users.learn("", "ann", words("a"))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(UserStoreError, match="database is locked"):
        users.learn("", "ann", words("b"))
    clock.now += 2 * HOUR  # its use cannot be noted
    assert len(users.get("", "ann")) == 1
    other.close()
    assert len(users.learn("", "ann", words("b"))) == 2


def test_a_full_disk_loses_nothing(path, clock):
    users = opened(path, clock, bounds=UserModelLimits(max_words=1000))
    users.learn("", "ann", words("a"))
    writer = users._connections[max(users._connections)]
    writer.execute(f"PRAGMA max_page_count = {writer.execute('PRAGMA page_count').fetchone()[0]}")
    many = words(*(f"word{n}" for n in range(900)))
    with pytest.raises(UserStoreError, match="full"):
        users.learn("", "bob", many)
    assert len(users.find("", "ann")) == 1
    assert len(users.get("", "bob")) == 0
    assert len(users.learn("", "bob", many)) == 900  # opened anew, without the limit


def test_a_folder_that_cannot_be_made_is_named(tmp_path, clock):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserStoreError, match="cannot be read or written now"):
        opened(tmp_path / "file" / "users.sqlite", clock).get("", "ann")
