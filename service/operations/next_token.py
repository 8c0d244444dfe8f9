"""Next tokens, texts and words after contexts: most probable or requested, or full distributions.

A search over all tokenisations finds the words.
"""

import math
from collections.abc import Generator, Iterator
from functools import cached_property
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar

import numpy as np
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import override

from models.arrays import FloatArray, TokenIds, runs_by_cost
from models.calls import Predict, Rank, Work
from models.completion.prefix import split_prefix
from models.completion.search import CompletionSettings, Reading
from models.completion.searches import run_searches, start_search
from models.decoding.top_k import top_tokens
from models.errors import InputError, UnsupportedError
from models.language_model import TopKPredictor, TopTokens, entropy_bits, supports
from models.scoring.constants import MAX_GROUP_TOKENS, MAX_SEARCH_STEPS
from models.scoring.sequences import ScoreItem, predict_next, prefill, score_pairs
from models.text_model import (
    MAX_CHARS_PER_TOKEN,
    Limits,
    TextModel,
    TextOrIds,
    check_forward,
    encode_each,
)
from service.operations.operation import (
    BYTES_PER_TOKEN,
    ROWS_PER_STEP,
    VALUES_PER_STEP,
    Call,
    Cost,
    ModelOperation,
    Operation,
    RowsOperation,
)
from service.operations.score import token_scores
from service.operations.states import next_log_probs, requested_token_ids
from service.schemas import with_examples
from service.schemas.replies import (
    NextTextReply,
    NextTextResult,
    NextTokenReply,
    NextTokenResult,
    NextWordReply,
    NextWordResult,
    TextCandidate,
    WordCandidate,
    to_json,
)
from service.schemas.wire import ModelRequest, OneOrMoreContexts, TokenId, json_pieces, named_contexts

RankedTokens: TypeAlias = tuple[TopTokens, float | None]
"""The most probable or the requested tokens after a context, and the entropy of the distribution if requested."""

MAX_NEXT_WORDS = 100
"""Maximum number of words to rank."""

R = TypeVar("R")


class NextTokenRequest(ModelRequest):
    """Predict the next tokens or words after one or more contexts."""

    model_config = with_examples(
        {"context": "Return the", "top_k": 3},
        {"context": ["Return the", "Raise an"], "top_k": 2, "entropy": False},
        {"context": "Return the", "top_k": 3, "unit": "word"},
        {"context": "Return the", "candidates": [" value", " number of bytes"]},
        {"context": "Return the", "token_ids": [2, 259, 311], "entropy": False},
    )

    context: OneOrMoreContexts
    """A string, strings, a list of token ids, or several such lists; empty for the start of a sentence."""
    top_k: int = Field(10, ge=1)
    """Number of candidates to rank; at most the vocabulary size, or 100 words. If omitted, as many as there are up to
    10."""
    entropy: bool = True
    """True to report the entropy of each distribution; false is faster for n-gram models."""
    unit: Literal["token", "word"] = "token"
    """Unit of candidates. Word probabilities are exact; contexts must be strings, and no entropy is reported."""
    candidates: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] | None = None
    """Texts to report instead of the most probable tokens, each tokenised with the context: put a space before a word.
    Contexts must be strings, and no entropy is reported."""
    token_ids: Annotated[list[TokenId], Field(min_length=1)] | None = None
    """Tokens to report instead of the most probable ones."""

    @cached_property
    def contexts(self) -> tuple[tuple[str, TextOrIds], ...]:
        """Each context with its name in the request, for messages."""
        return named_contexts(self.context, "context")

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        ranks = self.unit == "word" or "top_k" in self.model_fields_set
        if ranks + (self.candidates is not None) + (self.token_ids is not None) > 1:
            raise PydanticCustomError(
                "one_of", "give one of top_k, candidates and token_ids; unit 'word' accepts only top_k"
            )
        return self


def _check_entries(request: NextTokenRequest, limits: Limits, instead: str) -> None:
    count, top_k = len(request.contexts), request.top_k
    param, description = "top_k", f"top_k is {top_k} for {count} contexts"
    if request.token_ids is not None:
        top_k = len(request.token_ids)
        param, description = "token_ids", f"token_ids has {top_k} entries for {count} contexts"
    limits.check_entries(count * top_k, param=param, description=description, instead=instead)


def _rank(
    loaded: TextModel, state: Any, request: NextTokenRequest, ids: TokenIds | None
) -> Work[Any, list[RankedTokens]]:
    """Rank the most probable tokens, or look up requested ones [K], after each row of a state."""
    ranked: list[RankedTokens] = []
    if not request.entropy and ids is None and supports(loaded.model, TopKPredictor):
        for rows in _row_blocks(state, request.top_k):
            best = yield from Rank(loaded.model, rows, request.top_k)
            ranked += [(TopTokens(*row), None) for row in zip(*best, strict=True)]
        return ranked
    for rows in _row_blocks(state, loaded.vocab_size):
        if ranked:  # not before the first: one distribution is not delayed
            yield None
        if ids is not None and not request.entropy:
            log_probs = yield from next_log_probs(loaded, rows, ids)
            ranked += [(TopTokens(ids, row), None) for row in log_probs]
            continue
        log_probs = yield from Predict(loaded.model, rows)
        entropies = entropy_bits(log_probs).tolist() if request.entropy else [None] * len(log_probs)
        ranked += [
            (top_tokens(row, request.top_k) if ids is None else TopTokens(ids, row[ids]), entropy)
            for row, entropy in zip(log_probs, entropies, strict=True)
        ]
    return ranked


def _row_blocks(state: Any, values: int) -> Generator[Any, None, None]:
    """Split a state into blocks of rows, given the values computed per row."""
    least, most = ROWS_PER_STEP
    rows = min(max(least, VALUES_PER_STEP // values), most)
    if len(state) <= rows:
        yield state
        return
    for first in range(0, len(state), rows):
        yield state.select(np.arange(first, min(first + rows, len(state))))


class _AfterContexts(ModelOperation[R]):
    """Operation on what follows each of a request's contexts."""

    request = NextTokenRequest

    def __init__(self, call: Call, given: NextTokenRequest) -> None:
        self._count = len(given.contexts)
        call.limits.check_count(self._count, "context")
        super().__init__(call, given)


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
        width = min(self._width, self.models[0].vocab_size)
        return Cost(self.call.num_tokens, predicted=self._count, entries=self._count * width)

    @override
    def runs_inline(self, cost: Cost) -> bool:
        return not self.given.entropy and super().runs_inline(cost)  # entropies need whole rows

    @override
    def run(self) -> Work[Any, list[RankedTokens]]:
        loaded, limits, request = self.models[0], self.call.limits, self.given
        ids = requested_token_ids(loaded, request.token_ids)
        largest = min(loaded.vocab_size, limits.max_top_k or loaded.vocab_size)
        if "top_k" not in request.model_fields_set:  # a default never fails
            request = request.model_copy(update={"top_k": min(request.top_k, largest)})
        if ids is None and request.top_k > largest:
            bound = (
                "the model's vocabulary has" if largest == loaded.vocab_size else "this service ranks at most"
            )
            raise InputError.of("top_k", f"is {request.top_k}; {bound} {largest} tokens")
        _check_entries(request, limits, "accept application/octet-stream for complete distributions")
        check_forward(loaded)
        contexts = yield from encode_each(loaded, request.contexts, limits)
        ranked: list[RankedTokens] = []
        for group in runs_by_cost([len(context) for context in contexts], MAX_GROUP_TOKENS):
            state = yield from prefill(loaded, contexts[group], bos=True)
            ranked += yield from _rank(loaded, state, request, ids)
        return ranked

    @override
    def reply(self, result: list[RankedTokens]) -> Iterator[bytes]:
        loaded = self.models[0]
        return json_pieces(
            NextTokenReply(loaded.address, []),
            "results",
            result,
            lambda ranked: NextTokenResult(token_scores(loaded, *ranked[0]), ranked[1]),
            entries=len(result) * self._width,
        )

    @override
    def shape(self) -> tuple[int, int]:
        return self._count, len(self.given.token_ids or ()) or self.models[0].vocab_size

    @override
    def rows(self) -> Work[FloatArray, None]:
        loaded, request = self.models[0], self.given
        ids = requested_token_ids(loaded, request.token_ids)
        check_forward(loaded)
        contexts = yield from encode_each(loaded, request.contexts, self.call.limits)
        for group in runs_by_cost([len(context) for context in contexts], MAX_GROUP_TOKENS):
            state = yield from prefill(loaded, contexts[group], bos=True)
            for rows in _row_blocks(state, loaded.vocab_size):
                yield (yield from next_log_probs(loaded, rows, ids))


class _NextTexts(_AfterContexts[list[NextTextResult]]):
    """Scores of texts after contexts; shared tokens are read once."""

    may_run_inline = True

    @override
    def cost(self) -> Cost:
        contexts = self.given.contexts
        pairs = self._count * len(self.given.candidates or ())
        longest = max(len(context) for _, context in contexts) // BYTES_PER_TOKEN
        return Cost(self.call.num_tokens, reread=pairs * longest, predicted=pairs)

    @override
    def run(self) -> Work[Any, list[NextTextResult]]:
        loaded, limits, contexts = self.models[0], self.call.limits, self.given.contexts
        check_forward(loaded)
        texts = self.given.candidates or []
        if (num_pairs := len(texts) * self._count) > limits.max_texts:
            raise InputError.of(
                "candidates",
                f"has {len(texts)} entries for {self._count} contexts: {num_pairs} texts; at most "
                f"{limits.max_texts} are accepted in one request",
            )

        def check_tokens(count: int) -> None:
            limits.check_entries(
                count * self._count,
                "candidates",
                description=f"candidates has {count} tokens or more for {self._count} contexts",
                instead="send fewer or shorter texts",
            )

        check_tokens(sum(map(len, texts)) // MAX_CHARS_PER_TOKEN)
        pairs = [
            ScoreItem(f"candidates[{index}]", text, context).checked()
            for _, context in contexts
            for index, text in enumerate(texts)
        ]
        sequences, scores = yield from score_pairs(loaded, pairs, limits, exact=True)
        check_tokens(sum(len(sequence.text) for sequence in sequences) // self._count)
        scored = [
            TextCandidate(str(pair.given), sequence.text.tolist(), score)
            for pair, sequence, score in zip(pairs, sequences, scores.tolist(), strict=True)
        ]
        return [NextTextResult(scored[at : at + len(texts)]) for at in range(0, num_pairs, len(texts))]

    @override
    def reply(self, result: list[NextTextResult]) -> bytes:
        return to_json(NextTextReply(self.models[0].address, result))


class _NextWords(_AfterContexts[list[NextWordResult]]):
    """Most probable words after contexts."""

    @override
    def cost(self) -> Cost:
        # none if tokens are words; else half the maximum: most searches end early
        is_searched = not self.models[0].token_trie.whole_words
        steps = is_searched * self._count * MAX_SEARCH_STEPS // 2
        return Cost(self.call.num_tokens, predicted=steps)

    @override
    def run(self) -> Work[Any, list[NextWordResult]]:
        loaded, limits, request = self.models[0], self.call.limits, self.given
        check_forward(loaded)
        if request.top_k > MAX_NEXT_WORDS:
            raise UnsupportedError.of(
                "top_k", f"is {request.top_k}; at most {MAX_NEXT_WORDS} words can be ranked"
            )
        _check_entries(request, limits, "split it into several requests")
        ranked: list[NextWordResult] = []
        for param, context in request.contexts:
            if ranked:  # a cached context has no model call, during which others run
                yield None
            if not isinstance(context, str):
                raise UnsupportedError.of(param, "is a list of token ids; unit 'word' requires a string")
            limits.check_characters(context, param=param)
            typed = split_prefix(
                loaded.tokenizer, f"{context} " if context and not context[-1].isspace() else context
            )
            entry = yield from predict_next(loaded, typed.context, limits, param=param)
            limits.check_length(entry.num_tokens, param)
            settings = CompletionSettings(
                limit=request.top_k, max_steps=MAX_SEARCH_STEPS, open_vocabulary=True
            )
            search = start_search(loaded, Reading.after(entry), typed.spelled, settings)
            yield from run_searches(loaded, [search], typed.context, entry)
            found = search.result()
            words = [
                WordCandidate(word.text, math.log(word.mass))
                for word in found.completions
                if word.is_complete
            ]
            ranked.append(NextWordResult(words[: request.top_k], found.unexplored_mass))
        return ranked

    @override
    def reply(self, result: list[NextWordResult]) -> bytes:
        return to_json(NextWordReply(self.models[0].address, result))
