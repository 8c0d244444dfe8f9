"""API keys: creation, storage, recognition, and the key file."""

import os

import pytest
from structlog.testing import capture_logs

from models.errors import FormatError, InputError
from service import api_keys
from service.api_keys import KeyScope, KeyStore, create_key, find_key, parse_key

APP = create_key("app", ["infer"])
ADMIN = create_key("ops", ["admin", "metrics"])


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"# ours\n\n{APP.key.line}\n")
    return path


def change(file, text):
    """Write another text and advance the file's modification time."""
    file.write_text(text)
    os.utime(file, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns + 1_000_000))


def test_a_key_is_known_again_from_its_line():
    again = parse_key(ADMIN.key.line)
    assert again == ADMIN.key
    assert again.scopes == {KeyScope.ADMIN, KeyScope.METRICS}
    assert find_key([APP.key, again], ADMIN.secret.encode()) is again


def test_the_line_does_not_hold_the_key_and_keys_differ():
    assert APP.secret not in APP.key.line
    assert APP.secret != create_key("app", ["infer"]).secret
    assert len(APP.secret) > 40


@pytest.mark.parametrize(
    "presented",
    [b"", b"gm_", pytest.param(APP.secret[:-1].encode(), id="cut"), b"x" * 10_000, b"\xff\x00"],
)
def test_another_key_is_unknown(presented):
    assert find_key([APP.key, ADMIN.key], presented) is None


def test_every_key_is_compared_whole_wherever_it_stands(monkeypatch):
    compared = []
    compare = api_keys.hmac.compare_digest
    monkeypatch.setattr(
        api_keys.hmac, "compare_digest", lambda a, b: compared.append(len(b)) or compare(a, b)
    )
    assert find_key([APP.key, ADMIN.key, ADMIN.key], APP.secret.encode()) is APP.key
    assert compared == [32, 32, 32]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("app:infer", "3 fields"),
        ("app:infer:sha256-00-11", "third field"),
        (APP.key.line.replace("sha256", "md5"), "third field"),
        (APP.key.line.upper(), "third field"),
        (APP.key.line.replace("infer", "all"), "infer, metrics, admin"),
        (APP.key.line.replace("infer", ""), "infer, metrics, admin"),
        (APP.key.line.replace("app", "a\nb"), "name"),
        (APP.key.line.replace("app", "x" * 65), "name"),
    ],
)
def test_a_line_that_is_no_key_is_refused_and_not_quoted(line, complaint):
    with pytest.raises(InputError, match=complaint) as caught:
        parse_key(line)
    assert APP.key.digest.hex() not in str(caught.value)


def test_keys_of_file_and_settings_are_both_good(file):
    store = KeyStore(entries=[ADMIN.key.line], file=file)
    assert store.find(APP.secret.encode()).name == "app"
    assert store.find(ADMIN.secret.encode()).name == "ops"


def test_without_keys_a_store_is_empty():
    assert not KeyStore()
    assert KeyStore().find(b"x") is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "contains no key"),
        ("# none\n", "contains no key"),
        (f"{APP.key.line}\nnonsense\n", "line 2: a key has 3 fields"),
        (f"{APP.key.line}\n{APP.key.line}\n", "two keys are named app"),
    ],
)
def test_a_file_that_is_none_stops_the_start(tmp_path, text, complaint):
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(FormatError, match=complaint):
        KeyStore(file=path)


def test_a_missing_file_and_one_of_bytes_stop_the_start(tmp_path):
    with pytest.raises(FormatError, match="GRAMOPHONE_API_KEYS_FILE cannot be read: No such file"):
        KeyStore(file=tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(FormatError, match="UTF-8"):
        KeyStore(file=tmp_path / "bytes")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="not a regular file"):
        KeyStore(file=tmp_path / "pipe")


def test_a_changed_file_is_read_again_after_a_second(file, clock):
    store = KeyStore(file=file, clock=clock)
    change(file, f"{ADMIN.key.line}\n")
    clock.now_s = 0.5
    assert store.find(APP.secret.encode()) is not None
    clock.now_s = 1.0
    assert store.find(APP.secret.encode()) is None
    assert store.find(ADMIN.secret.encode()) is not None


def test_a_signal_makes_it_look_at_once(file, clock):
    store = KeyStore(file=file, clock=clock)
    change(file, f"{ADMIN.key.line}\n")
    store.force_reload()
    assert store.find(ADMIN.secret.encode()) is not None


@pytest.mark.parametrize("text", ["", "half a li", f"{APP.key.line}x"])
def test_a_damaged_file_changes_nothing_until_it_is_mended(file, clock, text):
    store = KeyStore(file=file, clock=clock)
    change(file, text)
    clock.now_s = 1.0
    assert store.find(APP.secret.encode()) is not None
    change(file, f"{ADMIN.key.line}\n# mended\n")
    clock.now_s = 2.0
    assert store.find(APP.secret.encode()) is None


def test_a_file_taken_away_changes_nothing(file, clock):
    store = KeyStore(file=file, clock=clock)
    file.unlink()
    clock.now_s = 1.0
    assert store.find(APP.secret.encode()) is not None


def test_a_signal_tells_that_the_file_is_still_gone(file, clock):
    """Regression: the signal was ignored silently, as if the keys had been reloaded."""
    store = KeyStore(file=file, clock=clock)
    file.unlink()
    clock.now_s = 1.0
    store.find(b"x")
    store.force_reload()
    with capture_logs() as told:
        store.find(b"x")
    assert [line["event"] for line in told] == ["API keys not reloaded"]
