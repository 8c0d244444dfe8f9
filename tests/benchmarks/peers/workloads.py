"""The two kinds of requests, as we take them and as the peers do, and what their answers say."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from service.bench.plan import Request

VOCAB_SIZE = 16_000
SCORED_TOKENS, PROMPT_TOKENS, NEW_TOKENS = 26, 8, 32

OURS = {"float32": "gramophone float32", "int8": "gramophone int8"}
"""What our servers are called, by precision."""
LITSERVE, FASTAPI = "LitServe", "FastAPI"
PEERS = (LITSERVE, FASTAPI)


class Workload(NamedTuple):
    """One kind of request.

    Attributes:
        name: the peers' endpoint.
        title: what is done.
        path: our endpoint.
        num_ids: token ids in a request.
        ours: our body of token ids and a seed.
        theirs: the peers'.
        our_answer: the score or the ids in a reply of ours.
        their_answer: in a peer's.
        bars: peak rate over the better peer's that is asked of each precision of ours.
        stretch: a closed loop lasts so many times as long as is asked: batches of long requests come in bursts.
    """

    name: str
    title: str
    path: str
    num_ids: int
    ours: Callable[[list[int], int], dict[str, Any]]
    theirs: Callable[[list[int], int], dict[str, Any]]
    our_answer: Callable[[Any], Any]
    their_answer: Callable[[Any], Any]
    bars: dict[str, float]
    stretch: int

    def requests(self, server, count, random):
        """Requests that were never made before, for a server by its name."""
        path, body = (f"/{self.name}", self.theirs) if server in PEERS else (self.path, self.ours)
        ids = random.integers(3, VOCAB_SIZE, (count, self.num_ids)).tolist()
        return [Request(path, json.dumps(body(row, seed)).encode()) for seed, row in enumerate(ids)]

    def answer(self, server, body):
        """What a server's reply says."""
        return (self.their_answer if server in PEERS else self.our_answer)(json.loads(body))


SCORE = Workload(
    name="score",
    title=f"scoring {SCORED_TOKENS} tokens",
    path="/v1/score",
    num_ids=SCORED_TOKENS,
    ours=lambda ids, _seed: {"token_ids": [ids], "eos": False},
    theirs=lambda ids, _seed: {"ids": ids},
    our_answer=lambda reply: reply["results"][0]["logprob"],
    their_answer=lambda reply: reply["logprob"],
    bars={"float32": 1.5, "int8": 3.0},
    stretch=1,
)
GENERATE = Workload(
    name="generate",
    title=f"generating {NEW_TOKENS} tokens",
    path="/v1/generate",
    num_ids=PROMPT_TOKENS,
    ours=lambda ids, seed: {"prompt": ids, "max_tokens": NEW_TOKENS, "ignore_eos": True, "seed": seed},
    theirs=lambda ids, seed: {"ids": ids, "max_tokens": NEW_TOKENS, "seed": seed},
    our_answer=lambda reply: reply["choices"][0]["token_ids"],
    their_answer=lambda reply: reply["ids"],
    bars={"float32": 3.0, "int8": 8.0},
    stretch=2,
)
