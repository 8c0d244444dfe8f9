"""Completions as a user would write them: FastAPI, and the 100 most frequent words of each prefix.

    python tests/benchmarks/peers/completions_app.py PORT TEXT [ARPA]

With an ARPA file, KenLM's module ranks them after the context; without one they stay in the order of frequency.
"""

import collections
import math
import sys
from pathlib import Path

import fastapi
import uvicorn
from pydantic import BaseModel

MOST = 100


class Request(BaseModel):
    text: str
    limit: int = 5


class Completion(BaseModel):
    text: str
    probability: float


class Reply(BaseModel):
    completions: list[Completion]


def words_by_prefix(path):
    """Return the most frequent words of each prefix with their counts, the most frequent first."""
    with Path(path).open() as lines:
        counts = collections.Counter(word for line in lines for word in line.split())
    found = {}
    for word, count in counts.most_common():
        for end in range(len(word) + 1):
            known = found.setdefault(word[:end], [])
            if len(known) < MOST:
                known.append((count, word))
    return found


def scorer(path):
    """Return a function from context and words to log10 probabilities."""
    import kenlm

    model = kenlm.Model(path)

    def scores(context, words):
        state, after = kenlm.State(), kenlm.State()
        (model.NullContextWrite if len(context) >= model.order else model.BeginSentenceWrite)(state)
        for word in context[-model.order :]:
            model.BaseScore(state, word, after)
            state, after = after, state
        return [(model.BaseScore(state, word, after), word) for word in words]

    return scores


def main():
    port, text, *arpa = sys.argv[1:]
    known, scores = words_by_prefix(text), scorer(arpa[0]) if arpa else None
    app = fastapi.FastAPI()

    @app.post("/v1/autocomplete")
    async def complete(request: Request) -> Reply:
        context, _, prefix = request.text.rpartition(" ")
        found = known.get(prefix, [])[: MOST if scores else request.limit]
        if scores:
            ranked = scores(context.split(), [word for _, word in found])
        else:
            ranked = [(math.log10(count), word) for count, word in found]
        best = sorted(ranked, reverse=True)[: request.limit]
        return Reply(completions=[Completion(text=word, probability=10**score) for score, word in best])

    @app.get("/health/ready")
    async def ready():
        return {}

    uvicorn.run(app, port=int(port), access_log=False, log_level="error", loop="uvloop", http="httptools")


if __name__ == "__main__":
    main()
