"""What the clients of a soak ask: scenes of one request or several, drawn by what they weigh."""

import itertools
import json
import random
from collections.abc import Iterator
from typing import NamedTuple

from service.bench.plan import Request
from service.bench.workloads import candidate_variants, default_texts, shuffled, typed_prefixes

_LISTS, _CANDIDATES = 4, 50


class Scene(NamedTuple):
    """One arrival.

    Attributes:
        kind: what is counted together.
        request: to send; the first of several for states.
        hangs_up: whether the client goes in the middle of the answer.
        statuses: that are right.
    """

    kind: str
    request: Request
    hangs_up: bool = False
    statuses: frozenset[int] = frozenset({200})


KINDS = {
    "next-token": 30,
    "score": 20,
    "autocomplete": 20,
    "check": 6,
    "stream": 8,
    "generate": 5,
    "states": 6,
    "rerank": 2,
    "bad": 3,
}
"""Kinds of scenes, and how many of a hundred each is."""

_BAD = (
    (Request("/v1/score", b'{"texts": ['), {400}),
    (Request("/v1/score", b'{"texts": ["a"], "model": "nobody"}'), {404}),
    (Request("/v1/next-token", b'{"context": 5}'), {400}),
    (Request("/v1/generate", b'{"prompt": "a", "max_tokens": -1}'), {400}),
    (Request("/v1/states/next", b'{"states": ["a.000000.0000000000000000"]}'), {409}),
    (Request("/nowhere"), {404}),
    (Request("/v1/score", json.dumps({"texts": ["a b " * 40_000]}).encode()), {400}),
    (Request("/v1/score", method="DELETE"), {405}),
)


def scenes(seed: int, models: list[str]) -> Iterator[Scene]:
    """Scenes for ever; each asks one of the models."""
    generator = random.Random(seed)
    texts = shuffled(default_texts(), seed)
    words = [word for text in texts[:200] for word in text.split()]
    sources = {
        kind: _bodies(kind, itertools.cycle(texts), words, generator) for kind in KINDS if kind != "bad"
    }
    names, weights = list(KINDS), list(KINDS.values())
    while True:
        kind = generator.choices(names, weights)[0]
        if kind == "bad":
            request, statuses = generator.choice(_BAD)
            yield Scene(kind, request, statuses=frozenset(statuses))
            continue
        path, body = next(sources[kind])
        request = Request(path, json.dumps(body | {"model": generator.choice(models)}).encode())
        hangs_up = kind == "stream" and generator.random() < 0.1
        # of one who types only the newest key is answered
        statuses = frozenset({200, 409}) if kind == "autocomplete" else frozenset({200})
        yield Scene(kind, request, hangs_up, statuses)


def _bodies(
    kind: str, texts: Iterator[str], words: list[str], generator: random.Random
) -> Iterator[tuple[str, dict[str, object]]]:
    """Paths and bodies of one kind, for ever."""
    typists = [typed_prefixes(texts) for _ in range(20)]
    while True:
        if kind == "next-token":
            yield "/v1/next-token", {"context": next(texts), "top_k": 10}
        elif kind == "score":
            yield "/v1/score", {"texts": [next(texts)]}
        elif kind == "check":
            yield "/v1/check", {"text": " ".join(next(texts).split()[:12])}
        elif kind == "states":
            yield "/v1/states", {"context": [next(texts), "the"]}
        elif kind == "rerank":
            lists = [candidate_variants(next(texts), words, _CANDIDATES, generator) for _ in range(_LISTS)]
            yield "/v1/rerank", {"lists": [{"candidates": [{"text": text} for text in one]} for one in lists]}
        elif kind == "autocomplete":
            typist = generator.randrange(len(typists))
            typed = next(typists[typist]).rstrip()
            yield "/v1/autocomplete", {"text": typed, "session": f"typist-{typist}", "limit": 5}
        else:
            body = {"prompt": next(texts), "max_tokens": 24, "seed": generator.randrange(1 << 30)}
            yield "/v1/generate", {**body, "stream": kind == "stream"}
