"""Requests of a load: built-in workloads, or bodies from a file.

Built-in workloads are this service's endpoints and OpenAI's completions. Their texts come from the
user's files, else from Python's documentation.
"""

import codecs
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count as numbers_from
from itertools import cycle, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from models.errors import FormatError, InputError
from service.bench.plan import Request

_WORD_COUNTS = range(8, 41)
"""Lengths in words of the documentation paragraphs that serve as sentences."""
_MAX_TEXTS = 10_000
_NUM_REQUESTS = range(100, 2049)
_NUM_ITEMS = 10_000
"""Total items of the distinct requests, within `_NUM_REQUESTS`; then requests repeat."""
_LIST_LENGTH = 100
"""Maximum candidates per list to re-rank."""
_DEFAULT_ITEMS = {"next-token": 1, "score": 1, "rerank": _LIST_LENGTH}
"""Contexts, texts or candidates per request, by workload; others have one text."""
WORKLOADS = (*_DEFAULT_ITEMS, "autocomplete", "generate", "completions")
"""Names of workloads, equal to their paths; `generate` and `completions` are streamed."""
_NUM_KEYS = 50_000
"""Distinct requests of autocomplete: a text read again costs less."""
_SHOWN = 5
"""Completions per request, as of `autocomplete.js`."""
_TYPISTS = 32
"""Typists whose keys alternate, unless their number is given."""
_HINT = "give JSON or JSON lines"


def load_texts(path: Path) -> list[str]:
    """Read the non-empty lines of a text file, at most 10,000.

    Raises:
        FormatError: the file cannot be read, is not UTF-8, or has no non-empty line.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            texts = [text for line, _ in zip(file, range(_MAX_TEXTS), strict=False) if (text := line.strip())]
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(path, str(error), hint="give a text file with one sentence per line") from error
    if not texts:
        raise FormatError(path, "has no text", hint="give a text file with one sentence per line")
    return texts


def default_texts() -> list[str]:
    """Return over 1,000 sentences of Python's documentation, on which the default models are trained."""
    from pydoc_data.topics import topics  # 0.5 MB

    paragraphs = (part.split() for topic in topics.values() for part in topic.split("\n\n"))
    return [" ".join(words) for words in paragraphs if len(words) in _WORD_COUNTS]


def shuffled(texts: Sequence[str], seed: int) -> list[str]:
    """Return the texts in random order, by the seed."""
    return random.Random(seed).sample(texts, len(texts))


def typed_prefixes(texts: Iterable[str]) -> Iterator[str]:
    """Yield the prefixes of each text as typed, each a word longer than the last."""
    for text in texts:
        words = text.split()
        for end in range(1, max(len(words), 2)):
            yield " ".join(words[:end]) + " "


def typed_keys(texts: Iterable[str], typists: int) -> Iterator[tuple[int, str]]:
    """Yield a typist's number and text after each key; typists with texts of their own take turns.

    Spaces are keys: the next word is completed after them.
    """
    source = iter(texts)

    def keys() -> Iterator[str]:
        for text in source:
            yield from (text[:end] for end in range(1, len(text) + 1))

    for turn in zip(*(keys() for _ in range(typists)), strict=False):
        yield from enumerate(turn)


def candidate_variants(text: str, words: Sequence[str], count: int, generator: random.Random) -> list[str]:
    """Return `count` variants of a text with two random words each, like a decoder's candidates."""
    variants = []
    for _ in range(count):
        variant = text.split()
        for _ in range(2):
            variant[generator.randrange(len(variant))] = generator.choice(words)
        variants.append(" ".join(variant))
    return variants


def _bodies(
    workload: str, texts: Sequence[str], *, num_items: int, max_tokens: int, seed: int, typists: int | None
) -> Iterator[dict[str, Any]]:
    """Yield the bodies of a workload, endlessly."""
    source = cycle(texts)
    prefixes, keys = typed_prefixes(source), typed_keys(source, typists or _TYPISTS)
    generator = random.Random(seed)
    words = [word for text in texts[:200] for word in text.split()]
    for number in numbers_from(seed):
        if workload == "next-token":
            contexts = list(islice(prefixes, num_items))
            yield {"context": contexts if num_items > 1 else contexts[0], "entropy": False}
        elif workload == "score":
            yield {"texts": list(islice(source, num_items))}
        elif workload == "rerank":
            sizes = [min(_LIST_LENGTH, num_items - start) for start in range(0, num_items, _LIST_LENGTH)]
            lists = [candidate_variants(next(source), words, size, generator) for size in sizes]
            yield {"lists": [{"candidates": [{"text": text} for text in texts]} for texts in lists]}
        elif workload == "autocomplete":
            typist, text = next(keys)
            session = {"session": f"typist-{typist}"} if typists else {}
            yield {"text": text, "limit": _SHOWN, **session}
        else:
            body = {"prompt": next(prefixes), "max_tokens": max_tokens, "seed": number, "stream": True}
            openai = {"temperature": 1.0, "stream_options": {"include_usage": True}}
            yield body | (openai if workload == "completions" else {"ignore_eos": True})


def workload_requests(
    name: str,
    *,
    texts: Sequence[str] = (),
    model: str | None = None,
    num_items: int | None = None,
    max_tokens: int = 32,
    fields: Mapping[str, Any] = MappingProxyType({}),
    seed: int = 0,
    typists: int | None = None,
    count: int | None = None,
) -> list[Request]:
    """Return a workload's requests, all distinct if the texts suffice.

    Args:
        name: name of the workload.
        texts: texts for the requests; empty for Python's documentation.
        model: model named in each request; None for the server's default.
        num_items: contexts, texts or candidates per request; None for the workload's default.
        max_tokens: tokens to generate.
        fields: fields to set in each body.
        seed: of the order of texts and random choices.
        typists: typists of autocomplete, each a session; None for 32 without sessions.
        count: number of requests; default 100 to 2,048, fewer of large ones; autocomplete 50,000.

    Raises:
        InputError: the workload is unknown, or does not accept `num_items`.
    """
    if name not in WORKLOADS:
        raise InputError.of("workload", f"is {name!r}; it must be one of {', '.join(WORKLOADS)}")
    if num_items is not None and name not in _DEFAULT_ITEMS:
        raise InputError.of("items", f"is {num_items}; {name} has one text per request")
    num_items = num_items or _DEFAULT_ITEMS.get(name, 1)
    if count is None and name == "autocomplete":
        count = -(-_NUM_KEYS // (typists or 1)) * (typists or 1)  # then all typists begin again
    elif count is None:
        count = min(max(_NUM_ITEMS // num_items, _NUM_REQUESTS[0]), _NUM_REQUESTS[-1])
    given = {**({} if model is None else {"model": model}), **fields}
    texts = shuffled(texts or default_texts(), seed)
    bodies = _bodies(name, texts, num_items=num_items, max_tokens=max_tokens, seed=seed, typists=typists)
    return [
        Request(f"/v1/{name}", json.dumps(body | given).encode(), num_items=num_items)
        for body in islice(bodies, count)
    ]


def read_bodies(path: Path) -> list[Request]:
    """Read a file's bodies as requests, unchanged: a JSON document, or one per line.

    Raises:
        FormatError: the file cannot be read, is empty, or is not JSON.
    """
    try:
        content = path.read_bytes().removeprefix(codecs.BOM_UTF8).strip()
    except OSError as error:
        raise FormatError(path, str(error.strerror), hint=_HINT) from error
    if not content:
        raise FormatError(path, "is empty", hint=_HINT)
    if _is_json(content):
        return [Request("", content)]
    lines = [(number, line) for number, line in enumerate(content.splitlines(), start=1) if line.strip()]
    for number, line in lines:
        if not _is_json(line):
            excerpt = line[:60].decode(errors="replace")
            raise FormatError(path, f"line {number} is not JSON: {excerpt!r}", hint=_HINT)
    return [Request("", line) for _, line in lines]


def parse_fields(assignments: Sequence[str]) -> dict[str, Any]:
    """Parse `NAME=JSON` fields of a body; a value that is not JSON is text.

    Raises:
        InputError: an assignment has no name or no `=`.
    """
    fields: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not name or not equals:
            raise InputError.of("field", f"is {assignment!r}; it must be NAME=JSON, such as temperature=0")
        fields[name] = json.loads(value) if _is_json(value.encode()) else value
    return fields


def _is_json(content: bytes) -> bool:
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return False
    return True
