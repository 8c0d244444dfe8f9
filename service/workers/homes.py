"""Which worker remembers what a request is about.

A user's words are kept by the worker that the user's name falls to, and so with the sessions of those who type.
States, and the sessions of re-ranking, which are states, are kept by the worker that their handles name. Who asks
for the first is sent to the worker that the client falls to, told by the header `X-Gramophone-Session` or else by
its address: so all states of one client are together, and may stand in one request.
"""

import json
import re
import zlib

from starlette.types import Scope

from service.routes.facts import header
from service.workers.crew import WorkerPool

_USERS = "/v1/autocomplete/users/"
_AUTOCOMPLETE = "/v1/autocomplete"
_OPEN_STATES = "/v1/states"
_RERANK = "/v1/rerank"
_WITH_HANDLES = frozenset({"/v1/states/advance", "/v1/states/next", "/v1/states/free"})
_PATHS = frozenset({_AUTOCOMPLETE, _OPEN_STATES, _RERANK}) | _WITH_HANDLES
_AFFINITY_HEADER = b"x-gramophone-session"

_HANDLE = re.compile(rb'"([\w-]{1,63})\.[0-9a-f]{6}\.[\w-]{16}[",]')
# a quotation mark inside a text of JSON is written with a backslash: these are keys
_USER = re.compile(rb'"user"\s*:\s*"([^"]*)"')
_SESSION = re.compile(rb'"session"\s*:\s*"([^"]*)"')


def has_affinity(path: str) -> bool:
    """Whether what is asked for at a path may be about something that one process remembers."""
    return path in _PATHS or path.startswith(_USERS)


class Affinity:
    """Finds the worker for a request.

    Args:
        crew: the workers.
    """

    def __init__(self, crew: WorkerPool) -> None:
        self._size = crew.size
        self._by_name = {name.encode(): number for number, name in enumerate(crew.process_names)}

    def of(self, scope: Scope, body: bytes) -> int | None:
        """The number of the worker that a request to a path that is remembering should go to; None if any will do."""
        path = scope["path"]
        if path.startswith(_USERS):
            return self._hash(path[len(_USERS) :].partition("/")[0].encode())
        if path == _AUTOCOMPLETE:
            named = _USER.search(body) or _SESSION.search(body)
            return None if named is None else self._hash(_unescape(named[1]))
        if path == _OPEN_STATES:
            return self._worker_of_client(scope)
        keeper = self._state_owner(body) if path != _RERANK or b'"session"' in body else None
        if keeper is None and path == _RERANK and b'"commit"' in body:  # a session begins
            return self._worker_of_client(scope)
        return keeper

    def _state_owner(self, body: bytes) -> int | None:
        """Who keeps the first state of ours that is named."""
        names = (found[1] for found in _HANDLE.finditer(body))
        return next((self._by_name[name] for name in names if name in self._by_name), None)

    def _worker_of_client(self, scope: Scope) -> int:
        client = scope.get("client")
        address = b"" if client is None else client[0].encode()
        return self._hash(header(scope, _AFFINITY_HEADER) or address)

    def _hash(self, name: bytes) -> int:
        return zlib.crc32(name) % self._size


def _unescape(name: bytes) -> bytes:
    """A name out of JSON as it stands in paths: some clients write `+` and others as numbers."""
    if b"\\" not in name:
        return name
    try:
        return str(json.loads(b'"%b"' % name)).encode(errors="replace")
    except ValueError:
        return name  # whoever answers will refuse it
