"""Schemas of POST /v1/score, POST /v1/next-token and the tokenizer's endpoints.

/v1/score takes one JSON object or JSON lines. POST /tokenize, POST /detokenize and GET
/tokenizer_info follow vLLM.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from models.arrays import TokenIds
from models.errors import InvalidInputError
from models.language_model import bits_per_unit, finite_logprob, perplexity
from models.vocabulary import BOS, CONTROL_TOKENS, EOS, UNK
from service.engine.loaded_model import LoadedModel
from service.schemas.completions import TokenizeReply, TokenizerInfo
from service.schemas.replies import (
    NextTokenReply,
    NextTokenResult,
    NextWordReply,
    NextWordResult,
    ScoreReply,
    ScoreTotals,
    SequenceScoreResult,
    TokenCandidate,
    TokenScore,
    WordCandidate,
    WordScore,
)
from service.schemas.wire import (
    OneContext,
    OneOrMoreContexts,
    TimedRequest,
    TokenId,
    WireModel,
    body_lines,
    named_contexts,
    parse_json,
    text_or_ids,
)
from service.use_cases.inputs import Limits, TextOrIds
from service.use_cases.next_token import NextTokenCommand, NextTokens, NextWords
from service.use_cases.score import Detail, ScoreItem, ScoreOptions, SequenceScore
from service.use_cases.tokenize import TokenizedText

DetailName = Annotated[Detail, Field(strict=False)]
"""Level of detail of a reply, in JSON by name."""


class ScoreSettings(WireModel):
    """Settings of scoring, in the query string of lines."""

    model: str | None = None
    """`name`, `name@7` or `name@champion`; the service's default if it is left out."""
    bos: bool = True
    """Whether `<s>` stands before the context."""
    eos: bool = True
    """Whether `</s>` after each is scored too."""
    detail: DetailName = Detail.NONE
    """How finely to report: `none`, `token` or `word`."""

    def options(self) -> ScoreOptions:
        """Return the options of scoring."""
        return ScoreOptions(self.model, self.bos, self.eos, self.detail)


class ScoreRequest(ScoreSettings, TimedRequest):
    """Score texts, each given the same context."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"texts": ["Return the value."], "detail": "word"},
                {"context": "Return the", "texts": [" value.", " moon."]},
            ]
        }
    )

    texts: list[str] | None = Field(default=None, min_length=1)
    """What to score; or else `token_ids`."""
    token_ids: list[list[TokenId]] | None = Field(default=None, min_length=1)
    """What to score, as token ids; or else `texts`."""
    context: OneContext = ""
    """What stands before each; tokenised together with it, and not scored."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.texts is None) == (self.token_ids is None):
            raise PydanticCustomError("one_of", "give either texts or token_ids")
        return self

    def items(self, limits: Limits) -> list[ScoreItem]:
        """Return the items to score.

        Raises:
            InvalidInputError: there are too many sequences, or one is empty.
        """
        name = "token_ids" if self.texts is None else "texts"
        given: Sequence[str | list[int]] = self.texts or self.token_ids or []
        limits.check_count(len(given), parameter=name)
        context = text_or_ids(self.context)
        return [_score_item(f"{name}[{i}]", text_or_ids(value), context) for i, value in enumerate(given)]


class ScoreLine(WireModel):
    """One line of a stream: one sequence."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"text": "Return a list."}, {"context": "Return the", "text": " value."}]
        }
    )

    text: str | None = None
    """What to score; or else `token_ids`."""
    token_ids: list[TokenId] | None = None
    """What to score, as token ids; or else `text`."""
    context: OneContext = ""
    """What stands before it; tokenised together with it, and not scored."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.text is None) == (self.token_ids is None):
            raise PydanticCustomError("one_of", "give either text or token_ids")
        return self


def score_items(body: bytes) -> Iterator[ScoreItem | InvalidInputError]:
    """Parse lines one by one when needed; yield an error for an invalid line."""
    for line in body_lines(body):
        try:
            parsed = parse_json(ScoreLine, line)
            name = "token_ids" if parsed.text is None else "text"
            given = text_or_ids(parsed.text or parsed.token_ids or "")
            yield _score_item(name, given, text_or_ids(parsed.context))
        except InvalidInputError as error:
            yield error


def _score_item(parameter: str, given: TextOrIds, context: TextOrIds) -> ScoreItem:
    if not given:
        raise InvalidInputError(f"{parameter} is empty; there is nothing to score", parameter=parameter)
    return ScoreItem(parameter, given, context)


def score_totals(loaded: LoadedModel, scores: Sequence[SequenceScore]) -> ScoreReply:
    """Return a reply with the totals of scores, and no results."""
    logprob = sum(score.logprob for score in scores)
    count = sum(len(score.ids) for score in scores)
    totals = ScoreTotals(
        finite_logprob(logprob),
        count,
        sum(score.num_oov for score in scores),
        perplexity(logprob, count),
        bits_per_unit(logprob, sum(score.num_bytes for score in scores)),
    )
    return ScoreReply(loaded.address, [], totals)


def score_result(loaded: LoadedModel, score: SequenceScore, detail: Detail) -> SequenceScoreResult:
    """Return the score of one sequence in wire format."""
    logprob, count = score.logprob, len(score.ids)
    return SequenceScoreResult(
        finite_logprob(logprob),
        count,
        score.num_oov,
        perplexity(logprob, count),
        bits_per_unit(logprob, score.num_bytes),
        token_scores(loaded, score.ids, score.log_probs) if detail is Detail.TOKEN else [],
        word_scores(loaded, score.ids, score.log_probs) if detail is Detail.WORD else [],
    )


def token_scores(
    loaded: LoadedModel, given: TokenIds, log_probs: npt.NDArray[np.floating]
) -> list[TokenScore]:
    """Return scored tokens [T] in wire format."""
    texts = loaded.token_texts
    return [
        TokenScore(i, texts[i], finite_logprob(logprob))
        for i, logprob in zip(given.tolist(), log_probs.tolist(), strict=True)
    ]


def word_scores(loaded: LoadedModel, given: TokenIds, log_probs: npt.NDArray[np.floating]) -> list[WordScore]:
    """Join scored tokens [T] into words, which begin at tokens with leading white space; `</s>` is one by itself."""
    token_bytes = loaded.tokenizer.token_bytes
    ids = given.tolist()
    starts = [k for k, i in enumerate(ids) if k == 0 or i == EOS or token_bytes[i][:1].isspace()]
    words = []
    for first, last in zip(starts, [*starts[1:], len(ids)], strict=True):
        part = ids[first:last]
        text = b"".join(token_bytes[i] for i in part).decode("utf-8", errors="replace").strip()
        logprob = float(log_probs[first:last].sum(dtype=float))
        name = loaded.token_texts[EOS] if part[0] == EOS else text
        words.append(WordScore(name, finite_logprob(logprob), len(part), UNK in part))
    return words


class NextTokenRequest(TimedRequest):
    """Predict the next tokens or words after one or more contexts."""

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
        """Convert the request to a command.

        Raises:
            InvalidInputError: there are too many contexts.
        """
        contexts = named_contexts(self.context, parameter="context")
        limits.check_count(len(contexts), parameter="context")
        return NextTokenCommand(contexts, self.top_k, self.entropy, self.model)


def next_token_reply(loaded: LoadedModel, results: Sequence[NextTokens]) -> NextTokenReply:
    """Return the reply for next tokens."""
    return NextTokenReply(loaded.address, [next_token_result(loaded, result) for result in results])


def next_token_result(loaded: LoadedModel, result: NextTokens) -> NextTokenResult:
    """Return the next tokens of one context in wire format."""
    texts = loaded.token_texts
    return NextTokenResult(
        [
            TokenCandidate(i, texts[i], finite_logprob(logprob))
            for i, logprob in zip(result.top.ids.tolist(), result.top.log_probs.tolist(), strict=True)
        ],
        result.entropy_bits,
    )


def next_word_reply(loaded: LoadedModel, results: list[NextWords]) -> NextWordReply:
    """Return the reply for next words."""
    return NextWordReply(
        loaded.address,
        [
            NextWordResult([WordCandidate(word.text, word.logprob) for word in words], unexplored)
            for words, unexplored in results
        ],
    )


class TokenizeRequest(WireModel):
    """Tell a text's tokens; other fields are ignored."""

    model_config = ConfigDict(
        extra="ignore", json_schema_extra={"examples": [{"prompt": "Return the value."}]}
    )

    prompt: str
    """The text; `<s>`, `</s>` or `<unk>` alone is that control token."""
    add_special_tokens: bool | None = None
    """Whether `<s>` is put first; it is unless this is false. These ids mean to /v1/completions what the text does."""
    model: str | None = None
    """`name`, `name@7` or `name@champion`; the service's default if it is left out."""


class DetokenizeRequest(WireModel):
    """Tell the text that tokens spell; other fields are ignored."""

    model_config = ConfigDict(
        extra="ignore", json_schema_extra={"examples": [{"tokens": [303, 260, 311, 259]}]}
    )

    tokens: list[TokenId]
    """Token ids."""
    model: str | None = None
    """`name`, `name@7` or `name@champion`; the service's default if it is left out."""


def tokenize_reply(tokens: TokenizedText, limits: Limits) -> TokenizeReply:
    """Return the tokens of a text in wire format."""
    return TokenizeReply(len(tokens.ids), limits.max_tokens_per_sequence, tokens.ids, tokens.names)


def tokenizer_info(loaded: LoadedModel, limits: Limits) -> TokenizerInfo:
    """Return the description of a model's tokenizer."""
    return TokenizerInfo(
        model=loaded.address,
        tokenizer_class=loaded.tokenizer.kind,
        fingerprint=loaded.tokenizer.fingerprint,
        vocab_size=loaded.vocab_size,
        max_model_len=limits.max_tokens_per_sequence,
        bos_token=CONTROL_TOKENS[BOS],
        eos_token=CONTROL_TOKENS[EOS],
        unk_token=CONTROL_TOKENS[UNK],
        bos_token_id=BOS,
        eos_token_id=EOS,
        unk_token_id=UNK,
        add_bos_token=True,
        add_eos_token=False,
    )
