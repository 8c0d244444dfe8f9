"""Log-probabilities of texts, and their quality by word and byte under one or two models.

Streams of lines are scored in batches; an invalid line fails alone.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field, StringConstraints
from typing_extensions import override

from models.arrays import FloatArray, TokenIds
from models.calls import Work, map_in_steps
from models.completion.token_trie import NO_TOKENS
from models.errors import InputError
from models.files import count_words
from models.language_model import EOS, UNK, Want, bits_per_unit, ngram_order, perplexity
from models.scoring.sequences import ScoreItem, score_sequence_list
from models.text_model import (
    ContextEncoder,
    EncodedText,
    Limits,
    TextModel,
    TextOrIds,
    no_context_error,
    to_text_order,
)
from service.operations.operation import (
    BYTES_PER_TOKEN,
    MAX_LINE_CHARS,
    Call,
    Cost,
    LinesOperation,
    ModelOperation,
)
from service.schemas import with_examples
from service.schemas.replies import QualityReply, TextQualityResult, TokenScore, WordScore, to_json
from service.schemas.wire import (
    ENTRIES_PER_PIECE,
    ModelAddress,
    ModelRequest,
    OneContext,
    TextOrObject,
    TimedRequest,
    TokenId,
    WireModel,
    either,
    json_pieces,
    parse_json,
    parse_lines,
    text_or_object,
)

_MAX_ID_CHARS = 200

QualityOutcome: TypeAlias = tuple[TextQualityResult, int, int]
"""Quality of a text, with the numbers of tokens scored by the two models."""


class Detail(StrEnum):
    """Level of detail of a reported score."""

    NONE = "none"
    TOKEN = "token"  # noqa: S105 - not a secret
    WORD = "word"


DetailName = Annotated[Detail, Field(strict=False)]
"""Level of detail of a reply, by name in JSON."""


class ScoreSettings(ModelRequest):
    """Settings of scoring; in the query string if the body is a stream of lines."""

    bos: bool = True
    """True to put `<s>` before the context."""
    eos: bool = True
    """True to also score `</s>` after each text."""
    detail: DetailName = Detail.NONE
    """Level of detail: `none`, or scores of each `token` or `word`."""
    ngram_lengths: bool = False
    """True to report the length of the n-gram that an n-gram model found for each token."""

    @property
    def reports_tokens(self) -> bool:
        """True if the reply has an entry for each token or word."""
        return self.ngram_lengths or self.detail is not Detail.NONE


class ScoreRequest(ScoreSettings):
    """Score texts, each given one common context."""

    model_config = with_examples(
        {"texts": ["Return the value."], "detail": "word"},
        {"context": "Return the", "texts": [" value.", " moon."]},
    )

    texts: list[str] | None = Field(None, min_length=1)
    """Texts to score; give either `texts` or `token_ids`."""
    token_ids: list[list[TokenId]] | None = Field(None, min_length=1)
    """Sequences of token ids to score; give either `texts` or `token_ids`."""
    context: OneContext = ""
    """Context before each text; tokenised together with the text, but not scored."""

    _one_of = either("texts", "token_ids")


class ScoreLine(WireModel):
    """One line of a stream, with one sequence to score."""

    model_config = with_examples({"text": "Return a list."}, {"context": "Return the", "text": " value."})

    text: str | None = None
    """Text to score; give either `text` or `token_ids`."""
    token_ids: list[TokenId] | None = None
    """Token ids to score; give either `text` or `token_ids`."""
    context: OneContext = ""
    """Context before the text; tokenised together with the text, but not scored."""

    _one_of = either("text", "token_ids")

    def item(self) -> ScoreItem:
        """Return the sequence.

        Raises:
            InputError: it is empty.
        """
        name = "token_ids" if self.text is None else "text"
        return ScoreItem(name, self.text or self.token_ids or "", self.context).checked()


class SequenceScore(NamedTuple):
    """Score of one sequence.

    Attributes:
        item: the sequence.
        num_bytes: size of the scored text in UTF-8.
        ids: scored tokens [T], `</s>` included if requested.
        log_probs: log-probability of each token [T].
        logprob: sum of the log-probabilities, in double precision.
        num_oov: number of `<unk>` tokens.
        ngram_lengths: length of the n-gram found per token [T]; empty unless requested of an n-gram model.
        context_lengths: last tokens that matter after each token [T]; as above.
    """

    item: ScoreItem
    num_bytes: int
    ids: TokenIds
    log_probs: FloatArray
    logprob: float
    num_oov: int
    ngram_lengths: TokenIds = NO_TOKENS
    context_lengths: TokenIds = NO_TOKENS


def score(
    loaded: TextModel,
    items: Sequence[ScoreItem],
    settings: ScoreSettings,
    limits: Limits,
) -> Work[Any, list[SequenceScore]]:
    """Score each sequence given its context.

    Raises:
        InputError: a sequence has nothing to score, is too long, or has an invalid id.
    """
    in_one_call = _score_lines(loaded, items, settings, limits)
    if in_one_call is not None:
        return in_one_call
    prepare = partial(_prepare, ContextEncoder(loaded), loaded, settings, limits)
    sequences = yield from map_in_steps(items, prepare, size=ScoreItem.size)
    if settings.reports_tokens:
        plain = settings.detail is Detail.NONE
        name, value = ("ngram_lengths", "true") if plain else ("detail", repr(settings.detail.value))
        limits.check_entries(
            sum(len(sequence.text) for sequence in sequences),
            name,
            description=f"{name} is {value} for {len(sequences)} sequences",
            instead="send lines, application/x-ndjson, for more",
        )
    scored = yield from score_sequence_list(loaded, sequences, bos=settings.bos)
    results = zip(sequences, scored, strict=True)

    def finish(item: ScoreItem) -> SequenceScore:
        sequence, log_probs = next(results)
        values: Any = sequence.text, log_probs, *_ngram_lengths(loaded, sequence, settings)
        if loaded.reads_backward:
            values = [to_text_order(loaded, one, ends=settings.eos) for one in values]
        return _sequence_score(item, _num_bytes(loaded, item, sequence.text), *values)

    return (yield from map_in_steps(items, finish, size=ScoreItem.size))


def _score_lines(
    loaded: TextModel, items: Sequence[ScoreItem], settings: ScoreSettings, limits: Limits
) -> list[SequenceScore] | None:
    """Score texts without contexts in one kernel call; None for other sequences, models, or too many."""
    texts, size = [], 0
    for item in items:
        if item.context or not isinstance(item.given, str):
            return None
        texts.append(item.given)
        size += len(item.given)
    scorer = loaded.ngram_texts
    if scorer is None or not scorer.is_plain or size > MAX_LINE_CHARS or settings.reports_tokens:
        return None
    tokens, log_probs, offsets = scorer.score(texts, bos=settings.bos, eos=settings.eos)
    scores = []
    for item, text, begin, end in zip(items, texts, offsets, offsets[1:], strict=False):
        if begin == end:
            raise _nothing_error(item.param)
        limits.check_length(end - begin, item.param)
        values = tokens[begin:end], log_probs[begin:end]
        scores.append(_sequence_score(item, len(text.encode()), *values))
    return scores


def _sequence_score(
    item: ScoreItem, num_bytes: int, ids: TokenIds, log_probs: FloatArray, *lengths: TokenIds
) -> SequenceScore:
    logprob, num_oov = float(np.add.reduce(log_probs, dtype=np.float64)), ids.tolist().count(UNK)
    return SequenceScore(item, num_bytes, ids, log_probs, logprob, num_oov, *lengths)


def _nothing_error(param: str) -> InputError:
    return InputError(f"{param} has no token to score", param=param)


def _prepare(
    encoder: ContextEncoder, loaded: TextModel, settings: ScoreSettings, limits: Limits, item: ScoreItem
) -> EncodedText:
    limits.check_characters(item.context, item.given, param=item.param)
    context, text = encoder.encode(item.context, item.given, param=item.param)
    if loaded.reads_backward:
        if len(context):
            raise no_context_error(loaded, param=item.param)
        text = np.ascontiguousarray(text[::-1])
    if settings.eos:
        text = np.append(text, EOS)
    if not len(text):
        raise _nothing_error(item.param)
    limits.check_length(len(context) + len(text), item.param)
    return EncodedText(context, text)


def _num_bytes(loaded: TextModel, item: ScoreItem, ids: TokenIds) -> int:
    if isinstance(item.given, str):
        return len(item.given.encode())
    spelled = loaded.tokenizer.token_bytes
    size = sum(len(spelled[token]) for token in ids.tolist())
    first = spelled[item.given[0]]
    own_space = loaded.tokenizer.leading_space and not item.context and first.startswith(b" ")
    return size - own_space


def _ngram_lengths(
    loaded: TextModel, sequence: EncodedText, settings: ScoreSettings
) -> tuple[TokenIds, TokenIds]:
    """Return the length of the n-gram found for each token, and of the context after it [T].

    Both are empty unless requested of an n-gram model.
    """
    model: Any = loaded.model
    if not settings.ngram_lengths or ngram_order(model) is None:
        return NO_TOKENS, NO_TOKENS
    tokens, own = np.concatenate(sequence), slice(len(sequence.context), None)
    state = model.initial_state(1) if settings.bos else model.empty_state(1)
    lengths = model.score_detailed(state, tokens[None], np.array([tokens.size])).orders[0]
    one_more = np.append(tokens, UNK)[None]  # whose state before it is the last one
    before = model.read(state, one_more, np.array([tokens.size + 1]), Want(before=True)).before
    return np.asarray(lengths[own], np.int64), model.context_lengths(before)[1:][own]


def score_result(
    loaded: TextModel, score: SequenceScore, detail: Detail, totals: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the score of one sequence, like `SequenceScoreResult`; `totals` are those of it alone, if known."""
    result = {**(totals or _totals(score))}
    result["tokens"] = token_scores(loaded, score.ids, score.log_probs) if detail is Detail.TOKEN else []
    result["words"] = word_scores(loaded, score.ids, score.log_probs) if detail is Detail.WORD else []
    if len(score.ngram_lengths):
        result["order"] = ngram_order(loaded.model)
        result["ngram_lengths"] = score.ngram_lengths.tolist()
        result["context_lengths"] = score.context_lengths.tolist()
    return result


def _totals(*scores: SequenceScore) -> dict[str, Any]:
    """Return totals of sequences, like `ScoreTotals`."""
    logprob: float = 0
    num_tokens = num_oov = num_bytes = 0
    for score in scores:
        logprob += score.logprob
        num_tokens += len(score.ids)
        num_oov += score.num_oov
        num_bytes += score.num_bytes
    return {
        "logprob": logprob,
        "num_tokens": num_tokens,
        "num_oov": num_oov,
        "perplexity": perplexity(logprob, num_tokens),
        "bits_per_byte": bits_per_unit(logprob, num_bytes),
    }


def token_scores(loaded: TextModel, given: TokenIds, log_probs: npt.NDArray[np.floating]) -> list[TokenScore]:
    """Return scored or probable tokens [T] in wire format."""
    texts = loaded.token_texts
    return [
        TokenScore(i, texts[i], logprob)
        for i, logprob in zip(given.tolist(), log_probs.tolist(), strict=True)
    ]


def word_scores(loaded: TextModel, given: TokenIds, log_probs: npt.NDArray[np.floating]) -> list[WordScore]:
    """Join scored tokens [T] into words, which begin at leading white space; `</s>` is its own word."""
    token_bytes = loaded.tokenizer.token_bytes
    ids = given.tolist()
    starts = [k for k, i in enumerate(ids) if k == 0 or i == EOS or token_bytes[i][:1].isspace()]
    words = []
    for first, last in zip(starts, [*starts[1:], len(ids)], strict=True):
        part = ids[first:last]
        text = b"".join(token_bytes[i] for i in part).decode("utf-8", errors="replace").strip()
        logprob = float(log_probs[first:last].sum(dtype=float))
        name = loaded.token_texts[EOS] if part[0] == EOS else text
        words.append(WordScore(name, logprob, len(part), UNK in part))
    return words


class QualityLine(WireModel):
    """One text to score."""

    model_config = with_examples({"id": "1", "text": "Return a list."}, {"id": "2", "text": "zq zq zq"})

    text: str
    """Text to score."""
    id: Annotated[str, StringConstraints(max_length=_MAX_ID_CHARS)] | None = None
    """Client's id of the text, echoed in the reply."""

    def item(self, param: str = "text") -> ScoreItem:
        """Return the text, with its name in the request.

        Raises:
            InputError: it is empty.
        """
        return ScoreItem(param, self.text, name=self.id).checked()


_Text = Annotated[TextOrObject[str, QualityLine], text_or_object("text and id")]


class QualitySettings(WireModel):
    """Models of a request; in the query string if the body is a stream of lines."""

    model: ModelAddress = None
    against: str | None = None
    """Second model; `difference` compares the texts under both, negative if the first fits better."""


class QualityRequest(QualitySettings, TimedRequest):
    """Score the quality of texts, to filter corpora."""

    model_config = with_examples(
        {"texts": ["Return a copy of the list.", "Click here to win a prize!!!"]},
        {"texts": [{"id": "a", "text": "Return a list."}], "model": "mixture", "against": "ngram"},
    )

    texts: list[_Text] = Field(min_length=1)
    """Texts to score; each a string, or an object with `text` and `id`."""


def _quality_outcome(score: SequenceScore, against: SequenceScore | None = None) -> QualityOutcome:
    """Rate a text by its score, compared with another model's if given."""
    num_words = count_words(str(score.item.given))
    logprob = score.logprob
    bits = bits_per_unit(logprob, num_words + 1)
    base = None if against is None else bits_per_unit(against.logprob, num_words + 1)
    result = TextQualityResult(
        score.item.name,
        num_words,
        score.num_oov,
        bits,
        bits_per_unit(logprob, score.num_bytes),
        perplexity(logprob, len(score.ids)),
        None if bits is None or base is None else bits - base,
    )
    return result, len(score.ids), 0 if against is None else len(against.ids)


class Score(LinesOperation[ScoreItem, SequenceScore], ModelOperation[Sequence[SequenceScore]]):
    """Compute log-probabilities and perplexities of texts.

    With `Content-Type: application/x-ndjson`, each line of the body is an object with `text` or
    `token_ids` and optionally `context`; `model`, `bos`, `eos` and `detail` are in the query
    string. The reply has one line per body line, in order: a result, or `{"error": …}`. If the
    service fails midway, the last line is an error.
    """

    request, settings = ScoreRequest, ScoreSettings
    may_run_inline = True

    def __init__(self, call: Call, given: ScoreSettings) -> None:
        self._limits, self.items, self._context = call.limits, [], 0
        if isinstance(given, ScoreRequest):
            name = "token_ids" if given.texts is None else "texts"
            texts: Sequence[TextOrIds] = given.texts or given.token_ids or []
            call.limits.check_count(len(texts), name)
            self.items = [
                ScoreItem(f"{name}[{i}]", one, given.context).checked() for i, one in enumerate(texts)
            ]
            self._context = len(given.context) // BYTES_PER_TOKEN
        else:
            self._limits = replace(call.limits, max_reply_entries=sys.maxsize)
        super().__init__(call, given)

    @override
    def cost(self) -> Cost:
        read, count = self.call.num_tokens, len(self.items)
        entries = read if self.given.reports_tokens else count
        # a context is read with each text: both are tokenised together
        return Cost(read, reread=count * self._context, entries=entries)

    @override
    def parse_lines(self, body: bytes, form: str) -> Iterator[ScoreItem | InputError]:
        return parse_lines(body, lambda line: parse_json(ScoreLine, line).item())

    @override
    def answer(self, items: Sequence[ScoreItem]) -> Work[Any, Sequence[SequenceScore]]:
        return score(self.models[0], items, self.given, self._limits)

    @override
    def reply(self, result: Sequence[SequenceScore]) -> bytes | Iterator[bytes]:
        loaded, detail = self.models[0], self.given.detail
        num_tokens = self._count(result)
        entries = num_tokens if self.given.reports_tokens else len(result)
        # like `ScoreReply`: dictionaries take half the time of its objects
        totals = _totals(*result)
        reply: dict[str, Any] = {"model": loaded.address, "results": [], "corpus": totals}
        if entries <= ENTRIES_PER_PIECE:
            known = totals if len(result) == 1 else None
            reply["results"] = [score_result(loaded, score, detail, known) for score in result]
            return to_json(reply)
        write = partial(score_result, loaded, detail=detail)
        return json_pieces(reply, "results", result, write, entries=entries)

    @override
    def line(self, result: SequenceScore) -> Iterable[bytes]:
        self._count([result])
        return [to_json(score_result(self.models[0], result, self.given.detail))]

    def _count(self, scores: Sequence[SequenceScore]) -> int:
        num_tokens = sum(len(score.ids) for score in scores)
        self.call.count_scored(self.models[0], num_tokens)
        return num_tokens


class Quality(LinesOperation[ScoreItem, QualityOutcome]):
    """Rate texts for corpus filtering: bits per word and per byte, and the difference between two models.

    With `Content-Type: application/x-ndjson`, each line of the body is an object with `text` and optionally `id`;
    `model` and `against` are in the query string. The reply has one line per body line, in order: a result, or
    `{"error": …}`. If the service fails midway, the last line is an error.
    """

    request, settings = QualityRequest, QualitySettings

    def __init__(self, call: Call, given: QualitySettings) -> None:
        self.items = []
        if isinstance(given, QualityRequest):
            call.limits.check_count(len(given.texts), "texts")
            for index, one in enumerate(given.texts):
                name = f"texts[{index}]"
                self.items += [ScoreItem(name, one).checked() if isinstance(one, str) else one.item(name)]
        against = [] if given.against is None else [call.resolve(given.against)]
        # last: the log line names the last one
        super().__init__(call, call.resolve(given.model), *against)

    @override
    def cost(self) -> Cost:
        return super().cost()._replace(entries=len(self.items))

    @override
    def parse_lines(self, body: bytes, form: str) -> Iterator[ScoreItem | InputError]:
        return parse_lines(body, lambda line: parse_json(QualityLine, line).item())

    @override
    def answer(self, items: Sequence[ScoreItem]) -> Work[Any, Sequence[QualityOutcome]]:
        scores = []
        for loaded in self.models:
            scores += [(yield from score(loaded, items, ScoreSettings(), self.call.limits))]
        return list(map(_quality_outcome, *scores))

    @override
    def reply(self, result: Sequence[QualityOutcome]) -> bytes:
        loaded, *against = self.models
        address = against[0].address if against else None
        return to_json(QualityReply(loaded.address, address, [self._counted(one) for one in result]))

    @override
    def line(self, result: QualityOutcome) -> Iterable[bytes]:
        return [to_json(self._counted(result))]

    def _counted(self, outcome: QualityOutcome) -> TextQualityResult:
        result, *num_tokens = outcome
        for loaded, number in zip(self.models, num_tokens, strict=False):
            self.call.count_scored(loaded, number)
        return result
