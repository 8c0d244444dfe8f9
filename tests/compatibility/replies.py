"""A service with the stored checkpoints, its replies, and the paths of both."""

import base64
import contextlib
import functools
import hashlib
import itertools
import json
import math
import os
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import numpy as np

from tests.compatibility.checkpoints import Checkpoint
from tests.compatibility.questions import BINARY, JSON, PARTNER, Question
from tests.support.http import free_port

FOLDER = Path(__file__).parent
ARCHIVE = FOLDER / "checkpoints.tar.xz"
REPLIES = FOLDER / "replies"


def unpack(registry: Path) -> None:
    """Unpack the checkpoints into a folder, which becomes their registry."""
    with tarfile.open(ARCHIVE) as archive:
        if hasattr(tarfile, "data_filter"):  # Python 3.11.4 and later
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(registry)  # noqa: S202 - the tests' own archive


_KEY = (
    "tests:infer,admin:sha256-b4e5581c780972fa4471d2c8f38a6e08-"
    "aac5027f575e2dbfba4df68f93252eb0c019c2188a0d46c50d7eb0b17297cd9f"
)
"""Key made by c6402de; only the tests have its secret."""

_SECRET = "gm_6CQvQSte-_MwM0Qny2tfmD54irtiUm2kCo3YeSxlh5E"  # noqa: S105 - of the key above

_PATIENCE_S = 240
_TIMEOUT_S = 60
_POLL_S = 0.05


class Service:
    """Service of a source tree, with some stored checkpoints.

    Args:
        tree: the source tree, of this version or of another.
        folder: folder for the service's own registry and its log.
        checkpoints: checkpoints to serve, in addition to the partner model.
        precision: precision of networks, `int8` or `float32`.
    """

    def __init__(self, tree: Path, folder: Path, checkpoints: Sequence[Checkpoint], precision: str) -> None:
        unpack(folder / "registry")
        self._log = folder / "service.log"
        self._port = free_port()
        names = dict.fromkeys([PARTNER, *(checkpoint.name for checkpoint in checkpoints)])
        settings = {
            "MODELS": ",".join(f"{name}@1" for name in names),
            "DEFAULT_MODEL": f"{PARTNER}@1",
            "WATCH_INTERVAL_S": "0",
            "LOG_LEVEL": "warning",
            "API_KEYS": _KEY,
        }
        inherited = os.environ.items()  # noqa: TID251 - for the child
        environment = {name: value for name, value in inherited if not name.startswith("GRAMOPHONE_")}
        environment |= {f"GRAMOPHONE_{name}": value for name, value in settings.items()}
        environment |= {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "service.cli", "serve"]
        command += ["--registry", str(folder / "registry"), "--port", str(self._port)]
        command += ["--precision", precision]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, cwd=tree, env=environment, stdout=log, stderr=log)

    @functools.cached_property
    def client(self) -> httpx.Client:
        """Client with the key, once all models are loaded."""
        client = httpx.Client(
            base_url=f"http://127.0.0.1:{self._port}",
            headers={"authorization": f"Bearer {_SECRET}"},
            timeout=_TIMEOUT_S,
        )
        self._wait_until_loaded(client)
        return client

    def close(self) -> None:
        """Stop the service."""
        self._process.kill()  # its files are deleted anyway
        self._process.wait()
        if "client" in vars(self):
            self.client.close()

    def _wait_until_loaded(self, client: httpx.Client) -> None:
        """Wait until every model is loaded; fail if one fails."""
        end = time.monotonic() + _PATIENCE_S
        states: dict[str, str] = {}
        while time.monotonic() < end:
            assert self._process.poll() is None, self._log.read_text()
            with contextlib.suppress(httpx.ConnectError):
                listed = client.get("/v1/models").raise_for_status().json()["data"]
                states = {model["id"]: model["state"] for model in listed}
                assert "failed" not in states.values(), self._log.read_text()
                if set(states.values()) == {"loaded"}:
                    return
            time.sleep(_POLL_S)
        raise AssertionError(f"after {_PATIENCE_S} s models are {states}: {self._log.read_text()}")


Stored: TypeAlias = dict[str, Any]
"""A reply: `status` if it is not 200, `type` if it is not JSON, and `json`, `text`, `float32` or `sha256`."""

TOLERANCE = 1e-5
"""Maximum difference between two numbers of float32 computations."""

_SHARE = 1e-6
"""Relative tolerance, for sums over many tokens."""

_AS_SHARES = ("perplexity", "posterior_scale")
"""Figures to which the tolerance applies as a share: exponentials, and results of a search."""

_VOLATILE = (
    (re.compile(r'("id":"cmpl-)[0-9a-f]+'), r"\1…"),
    (re.compile(r'("object":"text_completion","created":)\d+'), r'\1"…"'),
    (re.compile(r'("created":)"[^"]*"'), r'\1"…"'),
    (re.compile(r'("(?:last_used|load_seconds|warm_up_seconds)":)[^,}]+'), r'\1"…"'),
    (re.compile(r'("(?:own|mapped|device|in_use)_bytes":)\d+'), r'\1"…"'),
)
"""Fields that differ between runs: ids of requests, times, and memory."""

_HANDLE = re.compile(r'"(?:state|session)":"((?:[\w-]+\.)+[\w.,-]+)"')
_FILES = ("text/markdown", "text/html", "image/png")
"""Media types of checkpoint files, which are served as published."""

_OBJECT = re.compile(r"(data: |)(\{.*\})(\s*)")
_DIGITS = 8
"""Digits stored of a number of a float32 computation."""

_DERIVED = re.compile(
    r'("(?:posterior|expected_utility|confidence|probability|unexplored_mass|entropy_bits|cross_entropy)":)'
    r"(-?[0-9][0-9.e+-]*)"
)
"""Figures computed with NumPy's exp and log, whose last digit differs between processors."""

_UNEXPLORED = re.compile(r', "unexplored_mass": ([0-9.e+-]+)')
_UNEXPLORED_TOLERANCE = 0.05
"""Equally probable sequences may be read in another order, so that others are left at the end of the steps."""

_PHRASE_TOLERANCE, _PHRASE_SHARE = 0.01, 0.1
_TIE = 1e-6
_LAST_DIGITS = 1e-14
_EXPONENTIALS = "84ffffc9a0418509"
"""Hash of NumPy's exp and log on the recording machine."""

_RANKED_BY = ("logprob", "probability", "total", "score")


class Handles:
    """Handles of states and sessions in the replies of one topic, numbered in order of appearance."""

    def __init__(self) -> None:
        self._known: list[str] = []

    def hide(self, text: str) -> str:
        """Replace the handles in a reply with their numbers."""
        for found in _HANDLE.findall(text):
            if found not in self._known:
                self._known.append(found)
        for number, known in enumerate(self._known):
            text = text.replace(f'"{known}"', f'"<handle {number}>"')
        return text

    def fill_in(self, text: str) -> str:
        """Replace the numbers in a request with their handles."""
        for number, known in enumerate(self._known):
            text = text.replace(f"<handle {number}>", known)
        return text


def ask(client: httpx.Client, question: Question, handles: Handles) -> Stored:
    """Send a request; return the reply in its stored form."""
    body = question.body
    content = body if body is None or isinstance(body, str) else json.dumps(body)
    headers = {
        "accept": question.accept,
        **({} if content is None else {"content-type": question.content_type}),
    }
    reply = client.request(
        question.method,
        question.path,
        content=None if content is None else handles.fill_in(content),
        headers=headers,
    )
    media_type = reply.headers["content-type"].partition(";")[0]
    stored: Stored = {} if reply.status_code == httpx.codes.OK else {"status": reply.status_code}
    if media_type != JSON:
        stored["type"] = media_type
    return stored | _content(media_type, reply, handles)


def _content(media_type: str, reply: httpx.Response, handles: Handles) -> Stored:
    if media_type == BINARY:
        return {"float32": base64.b64encode(reply.content).decode()}
    if media_type in _FILES:
        return {"sha256": hashlib.sha256(reply.content).hexdigest()}
    text = handles.hide(reply.text)
    for pattern, masked in _VOLATILE:
        text = pattern.sub(masked, text)
    value = json.loads(text) if media_type == JSON else None
    # JSON in Python's own spelling is stored as a value, which is easier to read
    return {"json": value} if value is not None and _spelled(value) == text else {"text": text}


def _spelled(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def rounded(reply: Stored) -> Stored:
    """Round the numbers of a float32 reply for storage."""
    if "json" in reply:
        return reply | {"json": _rounded(reply["json"])}
    if "text" in reply:
        return reply | {"text": "".join(map(_rounded_line, reply["text"].splitlines(keepends=True)))}
    return reply


def _rounded_line(line: str) -> str:
    """Round a line: a JSON object, an event with one, or other text."""
    found = _OBJECT.fullmatch(line)
    if found is None:
        return line
    before, value, end = found.groups()
    return f"{before}{_spelled(_rounded(json.loads(value)))}{end}"


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return list(map(_rounded, value))
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def path_of(folder: Path, name: str) -> Path:
    """Return the path of a checkpoint's recorded replies."""
    return folder / f"{name}.json"


def write(path: Path, topics: dict[str, list[Stored]]) -> None:
    """Write replies, one per line."""
    blocks = (
        f"{json.dumps(topic)}: [\n" + ",\n".join(f"  {_spelled(reply)}" for reply in replies) + "\n]"
        for topic, replies in topics.items()
    )
    path.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")


def read(path: Path) -> dict[str, list[Stored]]:
    """Read the file that `write` wrote."""
    topics: dict[str, list[Stored]] = json.loads(path.read_text(encoding="utf-8"))
    return topics


def same(expected: Stored, given: Stored, within: float = 0.0) -> bool:
    """True if two replies have the same bytes, except in volatile fields.

    If NumPy's exponentials differ from the recording machine's, derived figures may differ in the last digits; if
    probabilities are summed in another order, by a share `within`.
    """
    texts = [_bytes_of(expected), _bytes_of(given)]
    if texts[0] == texts[1]:
        return True
    if exponentials() == _EXPONENTIALS and not within:
        return False
    rest = {_DERIVED.sub(r"\1…", text) for text in texts}
    figures = [[float(found) for _, found in _DERIVED.findall(text)] for text in texts]
    return len(rest) == 1 and all(
        math.isclose(one, other, rel_tol=max(_LAST_DIGITS, within))
        for one, other in zip(*figures, strict=True)
    )


def same_phrases(expected: Stored, given: Stored) -> bool:
    """True if two replies with phrases have the same completions, with probabilities within 1 %."""
    found = [reply["json"].pop("completions") for reply in (expected, given)]
    shares = [reply["json"].pop("unexplored_mass") for reply in (expected, given)]
    probabilities = [[one.pop("probability") for one in completions] for completions in found]
    return (
        found[0] == found[1]
        and expected == given
        and shares[1] <= shares[0] + _PHRASE_SHARE
        and all(
            math.isclose(one, other, rel_tol=_PHRASE_TOLERANCE)
            for one, other in zip(*probabilities, strict=True)
        )
    )


def same_words(expected: Stored, given: Stored) -> bool:
    """True if two replies have the same words of a search within the tolerance, and nearly equal unexplored shares."""
    told = [json.dumps(reply) for reply in (expected, given)]
    shares = [[float(share) for share in _UNEXPLORED.findall(text)] for text in told]
    rest = [json.loads(_UNEXPLORED.sub("", text)) for text in told]
    return close(rest[0], rest[1]) and all(
        math.isclose(one, other, rel_tol=_UNEXPLORED_TOLERANCE, abs_tol=TOLERANCE)
        for one, other in zip(*shares, strict=True)
    )


def is_best(reply: Stored, everything: Stored, limit: int) -> bool:
    """True if a reply has the best completions by savings, of those that a search for each number of words keeps.

    The search keeps the `limit` + 1 most probable ones, of equally probable ones any. `everything` is the reply to the
    same question by probability with the greatest limit.
    """
    kept, certain = {}, []
    every = {one["text"]: one for one in everything["json"]["completions"]}
    for length in {one["num_words"] for one in every.values()}:
        own = [one for one in every.values() if one["num_words"] == length]
        least = own[min(limit, len(own) - 1)]["probability"] * (1 - _TIE)
        kept |= {one["text"]: one for one in own if one["probability"] >= least}
        certain += [one for one in own if one["probability"] > least * (1 + _TIE) ** 2]
    found = [every.get(one["text"]) for one in reply["json"]["completions"]]
    if len(found) != limit or not all(one and one["text"] in kept for one in found):
        return False
    worths = [one["probability"] * len(one["text"]) for one in found]
    return (
        worths == sorted(worths, reverse=True)
        and all(
            one in found or one["probability"] * len(one["text"]) <= worths[-1] * (1 + _TIE)
            for one in certain
        )
        and all(
            math.isclose(one["probability"], every[one["text"]]["probability"], rel_tol=_PHRASE_TOLERANCE)
            for one in reply["json"]["completions"]
        )
    )


def _bytes_of(reply: Stored) -> str:
    """Return status, media type and content as text."""
    content = _spelled(reply["json"]) if "json" in reply else reply.get("text")
    return f"{reply.get('status')} {reply.get('type')} {content or _spelled(reply)}"


def exponentials() -> str:
    """Return a hash of some of NumPy's exponentials and logarithms."""
    values = np.linspace(-30, 0, 10_001)
    return hashlib.sha256(np.exp(values).tobytes() + np.log(-values[:-1]).tobytes()).hexdigest()[:16]


def close(expected: Stored, given: Stored) -> bool:
    """True if two replies agree, with numbers within the tolerance."""
    if {key: expected.get(key) for key in ("status", "type", "sha256")} != {
        key: given.get(key) for key in ("status", "type", "sha256")
    }:
        return False
    return _close(list(_values(expected)), list(_values(given)))


def _values(reply: Stored) -> Iterator[Any]:
    """Yield the values of a reply: one value, or one per line."""
    if "json" in reply:
        yield reply["json"]
    elif "float32" in reply:
        yield np.frombuffer(base64.b64decode(reply["float32"]), "<f4").tolist()
    else:
        for line in reply.get("text", "").splitlines():
            told = line.removeprefix("data: ")
            yield json.loads(told) if told.startswith("{") else told


def _close(expected: Any, given: Any, name: str = "") -> bool:
    """True if two values agree; `name` is their field."""
    if isinstance(expected, float) and isinstance(given, float):
        share = TOLERANCE if name in _AS_SHARES else _SHARE
        return math.isclose(expected, given, rel_tol=share, abs_tol=TOLERANCE)
    if type(expected) is not type(given):
        return False
    if isinstance(expected, dict):
        return expected.keys() == given.keys() and all(
            _close(expected[key], given[key], key) for key in expected
        )
    if isinstance(expected, list):
        return len(expected) == len(given) and (
            all(map(_close, expected, given)) or _same_but_for_ties(expected, given)
        )
    return bool(expected == given)


def _same_but_for_ties(expected: list[Any], given: list[Any]) -> bool:
    """True if two rankings have the same entries, in an order that differs only among ties."""
    rest = list(given)
    for entry in expected:
        place = next((number for number, one in enumerate(rest) if _close(entry, one)), None)
        if place is None:
            return False
        del rest[place]
    return all(itertools.starmap(_tied, zip(expected, given, strict=True)))


def _tied(one: Any, other: Any) -> bool:
    """True if two entries of a ranking have the same sort key."""
    by = next((key for key in _RANKED_BY if isinstance(one, dict) and key in one), None)
    return by is not None and _close(one[by], other[by])
