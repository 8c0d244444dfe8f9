"""POST /v1/next-token."""

from collections.abc import Sequence
from typing import Literal

from pydantic import ConfigDict, Field

from models.scoring import finite_logprob
from service.engine.hosted import LoadedModel
from service.schemas.replies import (
    NextTokenReply,
    NextTokenResult,
    NextWordReply,
    NextWordResult,
    TokenCandidate,
    WordCandidate,
)
from service.schemas.wire import OneOrMoreContexts, TimedRequest, named_contexts
from service.use_cases.limits import Limits
from service.use_cases.next_token import NextTokenCommand, NextTokens
from service.use_cases.next_word import NextWords


class NextTokenRequest(TimedRequest):
    """What may come next after one or more contexts."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"context": "Return the", "top_k": 3},
                {"context": ["Return the", "Raise an"], "top_k": 2, "entropy": False},
                {"context": "Return the", "top_k": 3, "unit": "word"},
            ]
        }
    )

    context: OneOrMoreContexts
    """A text, texts, token ids, or lists of them; empty for the start of a sentence."""
    model: str | None = None
    """`name`, `name@7` or `name@champion`; the service's default if it is left out."""
    top_k: int = Field(default=10, ge=1)
    """How many candidates to rank; at most the vocabulary's size, or 100 words."""
    entropy: bool = True
    """Whether to report each whole distribution's entropy; without it an n-gram model need not compute the whole."""
    unit: Literal["token", "word"] = "token"
    """What to rank. Words are put together from tokens, exactly; their contexts must be texts, and have no entropy."""

    def command(self, limits: Limits) -> NextTokenCommand:
        """The request as its use case takes it.

        Raises:
            InvalidInputError: there are too many contexts.
        """
        contexts = named_contexts(self.context, parameter="context")
        limits.check_count(len(contexts), parameter="context")
        return NextTokenCommand(contexts, self.top_k, self.entropy, self.model)


def next_token_reply(loaded: LoadedModel, results: Sequence[NextTokens]) -> NextTokenReply:
    """The results as they go over the wire."""
    return NextTokenReply(loaded.address, [next_token_result(loaded, found) for found in results])


def next_token_result(loaded: LoadedModel, found: NextTokens) -> NextTokenResult:
    """What may follow one context as it goes over the wire."""
    texts = loaded.token_texts
    return NextTokenResult(
        [
            TokenCandidate(i, texts[i], finite_logprob(logprob))
            for i, logprob in zip(found.top.ids.tolist(), found.top.log_probs.tolist(), strict=True)
        ],
        found.entropy_bits,
    )


def next_word_reply(loaded: LoadedModel, results: list[NextWords]) -> NextWordReply:
    """Words as they go over the wire."""
    return NextWordReply(
        loaded.address,
        [
            NextWordResult([WordCandidate(word.text, word.logprob) for word in words], unexplored)
            for words, unexplored in results
        ],
    )
