"""Personal models of autocomplete users in an SQLite file, for several processes.

A change is written before it is answered: a killed process loses nothing. In
write-ahead mode, readers do not wait for writers. Deleted and dropped words are
overwritten, and the log that may still have them is cut. Times are seconds that
services have run with the file: neither a wrong clock nor a long stop makes users
old.
"""

import contextlib
import json
import math
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from models.completion.user_model import UserModel, UserModelLimits, WordSequence, user_model_from_counts
from models.errors import UnknownUserError, UnknownWordError, UserStoreError
from models.prefix_cache import LimitedCache

_SCHEMA = """
CREATE TABLE IF NOT EXISTS users (
    owner TEXT NOT NULL, user TEXT NOT NULL, version INTEGER NOT NULL, used REAL NOT NULL, content TEXT NOT NULL,
    PRIMARY KEY (owner, user)
);
CREATE INDEX IF NOT EXISTS users_by_use ON users (used);
"""
IN_MEMORY = ":memory:"
"""Setting that keeps the words in memory."""

_VERSION = 1
"""Version of the file's format, `PRAGMA user_version`."""

_READ = """
SELECT version, CASE WHEN used <= ? THEN used END, CASE version WHEN ? THEN NULL ELSE content END
FROM users WHERE owner = ? AND user = ?
"""
_DELETE_UNUSED = """
DELETE FROM users WHERE rowid IN (
    SELECT rowid FROM users WHERE owner = :owner ORDER BY used, rowid
    LIMIT (SELECT max(0, count(*) - :most) FROM users WHERE owner = :owner)
)
"""
_READ_WAIT_S = 0.1
_WAIT_S = 2.0
"""Time to wait for the changes of other processes."""

_TOUCH_S = 3600.0
"""Time after which the use of a user's words is noted again."""

_MAX_CACHED = 1000
_EMPTY_MODEL = UserModel()
_UNKNOWN = 0, _EMPTY_MODEL
"""Version and model of a user without a cache entry; stored versions are positive."""

_Count = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _StoredWords(BaseModel, strict=True):
    """JSON of the column `content`."""

    words: list[tuple[str, _Count]]
    pairs: list[tuple[str, str, _Count]]
    corrections: list[tuple[str, str, _Count]] = []


class UserStore:
    """Personal models by owner and user.

    `get` takes microseconds if the model has not changed. Methods that change the
    file may wait for processes and the disk, so threads call them.

    Args:
        path: the file, created if missing, for this account only; None for memory
            only.
        max_users: maximum users of an owner; beyond it, those unused for longest
            are deleted.
        ttl_s: running time without use after which a user is deleted.
        bounds: limits of one personal model.
        clock: monotonic clock in seconds.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        max_users: int,
        ttl_s: float,
        bounds: UserModelLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._max_users, self._ttl_s, self._clock = path, max_users, ttl_s, clock
        self.bounds = bounds
        # by waiting time for others
        self._connections: dict[float, sqlite3.Connection] = {}
        self._writing = threading.Lock()
        self._cache = LimitedCache[tuple[str, str], tuple[int, UserModel]](min(_MAX_CACHED, max_users))
        self._offset_s: float | None = None  # of the file's time to the clock
        self._log_has_deleted = False

    def open(self) -> None:
        """Open the file, if it is not open; its time goes on from here.

        Raises:
            UserStoreError: the file cannot be read.
        """
        with self._reading() as reader:
            self._now(reader)

    def count(self) -> float:
        """Return the number of users; NaN if the file cannot be read."""
        with contextlib.suppress(UserStoreError), self._reading() as reader:
            return float(reader.execute("SELECT count(*) FROM users").fetchone()[0])
        return math.nan

    def get(self, owner: str, user: str) -> UserModel:
        """Return a user's personal model; an empty one if unknown.

        Raises:
            UserStoreError: the file cannot be read.
        """
        with self._reading() as reader:
            return self._model(reader, owner, user) or _EMPTY_MODEL

    def find(self, owner: str, user: str) -> UserModel:
        """Return the personal model of a known user.

        Raises:
            UnknownUserError: the user is unknown.
            UserStoreError: the file cannot be read.
        """
        with self._reading() as reader:
            model = self._model(reader, owner, user)
        if model is None:
            raise UnknownUserError(
                f"the user {user!r} has no personal model: no words were accepted, or the user was evicted; "
                f"the maximum is {self._max_users} users of a key",
                param="user",
            )
        return model

    def learn(
        self, owner: str, user: str, sentences: Sequence[WordSequence], typed: str | None = None
    ) -> UserModel:
        """Add sentences of a user to the personal model; return the new model.

        `typed` is the spelling that the first word replaced, if any.

        Raises:
            UserStoreError: the file cannot be written, or the user's words are
                damaged.
        """
        with self._transaction(owner) as writer:
            before = self._model(writer, owner, user) or _EMPTY_MODEL
            model = self._put(writer, owner, user, before.updated(sentences, self.bounds, typed))
            self._log_has_deleted |= not model.includes(before)
            return model

    def put(self, owner: str, user: str, model: UserModel) -> UserModel:
        """Replace a user's personal model; return the stored one, within the bounds.

        Raises:
            UserStoreError: the file cannot be written, or another program reads its
                log, so words left out are still in it; call again.
        """
        with self._transaction(owner, deletes=True) as writer:
            return self._put(writer, owner, user, model.limited_to(self.bounds))

    def forget(self, owner: str, user: str) -> bool:
        """Delete a user's personal model; return whether it existed.

        Raises:
            UserStoreError: the file cannot be written, or another program reads its
                log, so the words are still in it; call again.
        """
        key = (owner, user)
        try:
            with self._transaction(owner, deletes=True) as writer:
                return writer.execute("DELETE FROM users WHERE owner = ? AND user = ?", key).rowcount > 0
        finally:
            self._cache.insert(key, _UNKNOWN, 1)

    def forget_word(self, owner: str, user: str, word: str) -> UserModel:
        """Delete a word of a user, its pairs, and corrections of and to it; return the new model.

        Raises:
            UnknownUserError: the user is unknown.
            UnknownWordError: nothing of the user has the word.
            UserStoreError: the file cannot be written, the words are damaged, or
                another program reads the log, so the word is still in it; call
                again.
        """
        with self._transaction(owner, deletes=True) as writer:
            before = self._model(writer, owner, user) or _EMPTY_MODEL
            model = before.without({word})
            if not model.includes(before):
                return self._put(writer, owner, user, model)
        # the log is cut now, which may still have a word deleted before
        self.find(owner, user)
        raise UnknownWordError(f"the user {user!r} has no word {word!r}", param="word")

    def close(self) -> None:
        """Close the file."""
        with self._writing:
            for wait_s in list(self._connections):
                self._connections.pop(wait_s).close()

    def _model(self, connection: sqlite3.Connection, owner: str, user: str) -> UserModel | None:
        key, now = (owner, user), self._now(connection)
        known, model = self._cache.find(key) or _UNKNOWN
        row = connection.execute(_READ, (now, known, *key)).fetchone()
        if row is None or (row[1] is not None and row[1] < now - self._ttl_s):
            return None
        version, used, content = row
        if content is not None:
            try:
                stored = _StoredWords.model_validate_json(content)
            except ValidationError as error:
                first = error.errors(include_url=False, include_input=False)[0]  # without words of the user
                fault = f"{'.'.join(map(str, ('content', *first['loc'])))}: {first['msg']}"
                raise UserStoreError(
                    f"the words of {user!r} are damaged: {fault}; replace or delete them"
                ) from None
            model = user_model_from_counts(stored.words, stored.pairs, stored.corrections)
            self._cache.insert(key, (version, model), 1)
        if used is None or used < now - _TOUCH_S:  # None: the time is damaged
            with contextlib.suppress(sqlite3.OperationalError):  # busy or full; noted at the next use
                connection.execute("UPDATE users SET used = ? WHERE owner = ? AND user = ?", (now, *key))
        return model

    def _put(self, writer: sqlite3.Connection, owner: str, user: str, model: UserModel) -> UserModel:
        words, pairs, corrections = model.export()
        num_corrections = sum(map(len, model.corrections.values()))
        # some have decayed to almost 0
        if (len(words), len(pairs), len(corrections)) != (len(model), model.num_pairs, num_corrections):
            model = user_model_from_counts(words, pairs, corrections)
        stored = {"words": words, "pairs": pairs, "corrections": corrections}
        content = json.dumps(stored, ensure_ascii=False, separators=(",", ":"))
        version = 1 + secrets.randbits(62)
        row = (owner, user, version, self._now(writer), content)
        writer.execute("INSERT OR REPLACE INTO users VALUES (?, ?, ?, ?, ?)", row)
        self._cache.insert((owner, user), (version, model), 1)
        return model

    def _now(self, connection: sqlite3.Connection) -> float:
        """Return the file's time, at least that of any process's latest use."""
        query = "SELECT max(used) FROM users WHERE used < 1e11"  # a later time is damaged
        latest = connection.execute(query).fetchone()[0] or 0.0
        offset = latest - self._clock()
        self._offset_s = offset if self._offset_s is None else max(self._offset_s, offset)
        return self._offset_s + self._clock()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        if self._path is None:  # one connection, and changes take no time
            with self._writing, self._connection(_WAIT_S) as both:
                yield both
        else:
            with self._connection(_READ_WAIT_S) as reader:
                yield reader

    @contextmanager
    def _transaction(self, owner: str, *, deletes: bool = False) -> Iterator[sqlite3.Connection]:
        """Begin a change of an owner's users; at its end delete old and surplus ones.

        After deletions the log is cut: now, if the change deletes; else now or, if
        others read it, at the next change.
        """
        with self._writing, self._connection(_WAIT_S) as writer:
            with writer:  # commits or rolls back
                writer.execute("BEGIN IMMEDIATE")
                yield writer
                old = writer.execute("DELETE FROM users WHERE used < ?", (self._now(writer) - self._ttl_s,))
                unused = writer.execute(_DELETE_UNUSED, {"owner": owner, "most": self._max_users})
            if deletes or old.rowcount or unused.rowcount or self._log_has_deleted:
                writer.execute(f"PRAGMA busy_timeout = {1000 * (_WAIT_S if deletes else _READ_WAIT_S):.0f}")
                is_busy = writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
                writer.execute(f"PRAGMA busy_timeout = {1000 * _WAIT_S:.0f}")
                self._log_has_deleted = bool(is_busy)
                if deletes and is_busy:
                    raise sqlite3.OperationalError(
                        "changed, but its log is read by another program and still has it"
                    )

    @contextmanager
    def _connection(self, wait_s: float) -> Iterator[sqlite3.Connection]:
        """Open the file, if it is not open.

        Raises:
            UserStoreError: the file cannot be read or written; next time it is
                opened anew.
        """
        try:
            if wait_s not in self._connections:
                self._connections[wait_s] = self._open(wait_s)
            yield self._connections[wait_s]
        except (sqlite3.Error, OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
            if (connection := self._connections.pop(wait_s, None)) is not None:
                connection.close()
            raise UserStoreError(
                f"the words of users in {self._path} cannot be read or written now: {error}"
            ) from None

    def _open(self, wait_s: float) -> sqlite3.Connection:
        path: str | Path = IN_MEMORY
        if self._path is not None:
            path = self._path.expanduser().resolve()
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # don't open an existing file: closing it would drop other connections' locks
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        connection = sqlite3.connect(path, timeout=wait_s, isolation_level=None, check_same_thread=False)
        connection.text_factory = bytes  # damaged text is no UTF-8
        with contextlib.ExitStack() as undo:
            undo.callback(connection.close)
            for pragma in ("secure_delete = ON", "synchronous = NORMAL", "journal_mode = WAL"):
                connection.execute(f"PRAGMA {pragma}")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version > _VERSION:
                raise sqlite3.DatabaseError(f"it is of a later release: format {version}, not {_VERSION}")
            if not version:
                connection.executescript(f"{_SCHEMA}PRAGMA user_version = {_VERSION};")
            undo.pop_all()
        return connection
