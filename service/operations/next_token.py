"""Next tokens and words after contexts."""

from collections.abc import Iterator
from functools import partial
from typing import Any, TypeVar

from typing_extensions import override

from models.arrays import FloatArray
from service.engine.job import Work
from service.operations.operation import BYTES_PER_TOKEN, Call, Cost, Operation, RowsOperation
from service.schemas.pieces import json_pieces
from service.schemas.replies import (
    NextTextReply,
    NextTextResult,
    NextTokenReply,
    NextWordReply,
    NextWordResult,
    to_json,
)
from service.use_cases.constants import MAX_SEARCH_STEPS
from service.use_cases.next_token import (
    NextTokenRequest,
    RankedTokens,
    next_distributions,
    next_token_result,
    rank_next_tokens,
    rank_next_words,
    score_next_texts,
)

R = TypeVar("R")


class _AfterContexts(Operation[R]):
    """Operation on what follows each of a request's contexts."""

    request = NextTokenRequest

    def __init__(self, call: Call, given: NextTokenRequest) -> None:
        self.given, self._count = given, len(given.contexts)
        call.limits.check_count(self._count, parameter="context")
        super().__init__(call, call.resolve(given.model))
        self.slots = given.slots


class NextToken(_AfterContexts[list[RankedTokens]], RowsOperation[list[RankedTokens]]):
    """Rank the most probable next tokens, or words, after each context, or score the requested tokens or texts.

    A word's probability sums over all its tokenisations, up to a token that ends the word; `unexplored_mass` is the
    probability for which no word was found.

    A text's log-probability is the sum over its tokens: that of `/v1/score` with the context, without `</s>`.

    With `Accept: application/octet-stream`, the reply has every log-probability instead: little-endian float32
    [B, V], row by row, or [B, K] for K `token_ids`; the header `x-shape` is `B,V`, and `x-model` is the model's
    address.
    """

    may_run_inline = True

    @override
    @classmethod
    def of(cls, call: Call, given: NextTokenRequest) -> Operation[Any]:
        if given.candidates is not None:
            return _NextTexts(call, given)
        return (_NextWords if given.unit == "word" else cls)(call, given)

    @property
    def _width(self) -> int:
        return len(self.given.token_ids or ()) or self.given.top_k

    @override
    def cost(self) -> Cost:
        vocab_size = self.models[0].vocab_size
        width = vocab_size if self.given.entropy else min(self._width, vocab_size)
        return Cost(self.call.num_tokens, predicted=self._count, entries=self._count * width)

    @override
    def run(self) -> Work[Any, list[RankedTokens]]:
        return rank_next_tokens(self.models[0], self.given, self.call.limits)

    @override
    def reply(self, result: list[RankedTokens]) -> Iterator[bytes]:
        loaded = self.models[0]
        return json_pieces(
            NextTokenReply(loaded.address, []),
            "results",
            result,
            partial(next_token_result, loaded),
            entries=len(result) * self._width,
        )

    @override
    def shape(self) -> tuple[int, int]:
        return self._count, len(self.given.token_ids or ()) or self.models[0].vocab_size

    @override
    def rows(self) -> Work[FloatArray, None]:
        return next_distributions(self.models[0], self.given, self.call.limits)


class _NextTexts(_AfterContexts[list[NextTextResult]]):
    """Scores of texts after contexts."""

    may_run_inline = True

    @override
    def cost(self) -> Cost:
        contexts = self.given.contexts
        pairs = self._count * len(self.given.candidates or ())
        longest = max(len(context) for _, context in contexts) // BYTES_PER_TOKEN
        return Cost(self.call.num_tokens, reread=pairs * longest, predicted=pairs)

    @override
    def run(self) -> Work[Any, list[NextTextResult]]:
        return score_next_texts(self.models[0], self.given, self.call.limits)

    @override
    def reply(self, result: list[NextTextResult]) -> bytes:
        return to_json(NextTextReply(self.models[0].address, result))


class _NextWords(_AfterContexts[list[NextWordResult]]):
    """Most probable words after contexts."""

    @override
    def cost(self) -> Cost:
        # none if tokens are words; else half of the maximum, because most searches end early
        is_searched = not self.models[0].token_trie.whole_words
        steps = is_searched * self._count * MAX_SEARCH_STEPS // 2
        return Cost(self.call.num_tokens, predicted=steps)

    @override
    def run(self) -> Work[Any, list[NextWordResult]]:
        return rank_next_words(self.models[0], self.given, self.call.limits)

    @override
    def reply(self, result: list[NextWordResult]) -> bytes:
        return to_json(NextWordReply(self.models[0].address, result))
