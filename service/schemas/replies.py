"""Replies of the service, with their field names on the wire.

Log-probabilities are natural logarithms and always finite: a probability of zero is −9999 and makes
the perplexity null.
"""

from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from pydantic import Field

T = TypeVar("T")
IfGiven = Annotated[T, Field(exclude_if=lambda value: not value)]
"""Field that is omitted from the JSON if it is null or empty."""


@dataclass(frozen=True, slots=True)
class TextQualityResult:
    """Quality of one text, scored between `<s>` and `</s>`.

    Attributes:
        id: the client's id of the text; null without one.
        num_words: number of words, separated by white space.
        num_oov: number of unknown tokens.
        bits_per_word: bits per word, `</s>` counted as one word; null if a probability is zero.
        bits_per_byte: bits per byte of the text in UTF-8; null if a probability is zero.
        perplexity: perplexity per token, as in /v1/score; null if a probability is zero.
        difference: `bits_per_word` minus its value under the model `against` (Moore and Lewis 2010): low values mean
            similarity to the first model's training text; null without `against`, or if a probability is
            zero.
    """

    id: str | None
    num_words: int
    num_oov: int
    bits_per_word: float | None
    bits_per_byte: float | None
    perplexity: float | None
    difference: float | None


@dataclass(frozen=True, slots=True)
class QualityReply:
    """Quality of texts, one result per text.

    Attributes:
        model: address of the model version, such as `lstm@3`.
        against: address of the model that `difference` compares with; null without one.
        results: one result per text, in order.
    """

    model: str
    against: str | None
    results: list[TextQualityResult]


@dataclass(frozen=True, slots=True)
class OpenedState:
    """A stored state.

    Attributes:
        state: handle of the state.
        num_tokens: number of tokens read, without `<s>`.
    """

    state: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class OpenStatesReply:
    """States after contexts.

    Attributes:
        model: address of the model version, such as `lstm@3`.
        states: one state per context, in order.
    """

    model: str
    states: list[OpenedState]


@dataclass(frozen=True, slots=True)
class AdvancedState:
    """Result of one continuation.

    Attributes:
        state: handle of the state after the continuation, before any `</s>`; null if `keep` was false.
        logprob: sum of `logprobs`.
        num_tokens: number of tokens in the continuation.
        num_oov: number of unknown tokens in the continuation.
        token_ids: ids of the tokens.
        logprobs: natural-log probability of each token.
        eos_logprob: natural-log probability of a following `</s>`; null unless requested.
        next_logprobs: natural-log probabilities of the requested next tokens.
        phrase_value: value of the phrases that the continuation adds, less credit taken back; omitted if 0.
        eos_phrase_value: credit that a following `</s>` takes back, at most 0; omitted if 0 or not requested.
    """

    state: str | None
    logprob: float
    num_tokens: int
    num_oov: int
    token_ids: list[int]
    logprobs: list[float]
    eos_logprob: float | None
    next_logprobs: list[float]
    phrase_value: IfGiven[float] = 0.0
    eos_phrase_value: IfGiven[float] = 0.0


@dataclass(frozen=True, slots=True)
class AdvanceReply:
    """Results of continuations.

    Attributes:
        model: address of the model version, such as `lstm@3`.
        results: one result per continuation, in order.
    """

    model: str
    results: list[AdvancedState]


@dataclass(frozen=True, slots=True)
class NextReply:
    """Next-token log-probabilities after states.

    Attributes:
        model: address of the model version, such as `lstm@3`.
        logprobs: natural-log probabilities of the requested tokens, or of all, after each state, in order.
    """

    model: str
    logprobs: list[list[float]]


@dataclass(frozen=True, slots=True)
class FreeReply:
    """Number of states freed.

    Attributes:
        freed: number of states freed.
    """

    freed: int


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token and its log-probability.

    Attributes:
        id: token id.
        text: text of the token.
        logprob: natural-log probability of the token given all preceding tokens.
    """

    id: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class NextTokenResult:
    """Next tokens after a context.

    Attributes:
        candidates: the most probable next tokens, best first, or the tokens of `token_ids` in the request's order.
        entropy_bits: entropy of the next-token distribution in bits; null unless requested.
    """

    candidates: list[TokenScore]
    entropy_bits: float | None


@dataclass(frozen=True, slots=True)
class NextTokenReply:
    """Next tokens after contexts.

    Attributes:
        model: address of the model version, such as `lstm@3`.
        results: one result per context, in order.
    """

    model: str
    results: list[NextTokenResult]


@dataclass(frozen=True, slots=True)
class TextCandidate:
    """A text of `candidates`.

    Attributes:
        text: the text, as given.
        token_ids: ids of its tokens, including a token that begins in the context.
        logprob: natural-log probability of the tokens given the context.
    """

    text: str
    token_ids: list[int]
    logprob: float


@dataclass(frozen=True, slots=True)
class NextTextResult:
    """Texts after a context.

    Attributes:
        candidates: the texts of `candidates`, in the request's order.
    """

    candidates: list[TextCandidate]


@dataclass(frozen=True, slots=True)
class NextTextReply:
    """Texts after contexts.

    Attributes:
        model: address of the model version, such as `lstm@3`.
        results: one result per context, in order.
    """

    model: str
    results: list[NextTextResult]


@dataclass(frozen=True, slots=True)
class WordCandidate:
    """A possible next word, of one or several tokens.

    Attributes:
        text: the word.
        logprob: natural-log probability of the word.
    """

    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class NextWordResult:
    """The most probable next words after a context.

    Attributes:
        candidates: the most probable next words, best first.
        unexplored_mass: probability that the search did not reach.
    """

    candidates: list[WordCandidate]
    unexplored_mass: float


@dataclass(frozen=True, slots=True)
class NextWordReply:
    """Next words after contexts.

    Attributes:
        model: address of the model version, such as `lstm@3`.
        results: one result per context, in order.
    """

    model: str
    results: list[NextWordResult]


@dataclass(frozen=True, slots=True)
class WordScore:
    """Score of a word, the tokens up to the next white space.

    Attributes:
        text: the word, or `</s>`.
        logprob: natural-log probability of the word, summed over its tokens.
        num_tokens: number of tokens in the word.
        is_oov: true if a token of the word is unknown.
    """

    text: str
    logprob: float
    num_tokens: int
    is_oov: bool


@dataclass(frozen=True, slots=True)
class ScoreTotals:
    """Totals of scores.

    Attributes:
        logprob: sum of the natural-log probabilities.
        num_tokens: number of scored tokens, including unknown tokens, and `</s>` if it was scored.
        num_oov: number of unknown tokens.
        perplexity: perplexity per token; null if a probability is zero.
        bits_per_byte: bits per byte of the text in UTF-8; null if a probability is zero.
    """

    logprob: float
    num_tokens: int
    num_oov: int
    perplexity: float | None
    bits_per_byte: float | None


@dataclass(frozen=True, slots=True)
class SequenceScoreResult(ScoreTotals):
    """Score of one sequence.

    Attributes:
        logprob: sum of the natural-log probabilities.
        num_tokens: number of scored tokens, including unknown tokens, and `</s>` if it was scored.
        num_oov: number of unknown tokens.
        perplexity: perplexity per token; null if a probability is zero.
        bits_per_byte: bits per byte of the text in UTF-8; null if a probability is zero.
        tokens: score of each token, if `detail` is `token`.
        words: score of each word, if `detail` is `word`.
        order: length of the model's longest n-grams in tokens, if `ngram_lengths` was requested of an n-gram model.
        ngram_lengths: length of the n-gram found for each token, if requested of an n-gram model; 1 is a unigram.
    """

    tokens: list[TokenScore] = field(default_factory=list)
    words: list[WordScore] = field(default_factory=list)
    order: IfGiven[int | None] = None
    ngram_lengths: IfGiven[list[int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ScoreReply:
    """Scores of sequences, and their totals.

    Attributes:
        model: address of the model version, such as `lstm@3`.
        results: one result per sequence, in order.
        corpus: totals of all sequences.
    """

    model: str
    results: list[SequenceScoreResult]
    corpus: ScoreTotals


@dataclass(frozen=True, slots=True)
class CandidateCorrection:
    """Correction of a systematic error of the first pass, by the profile's corrections.

    Attributes:
        heard: phrase of the request's candidate.
        written: phrase that replaces it.
        posterior: posterior probability of all candidates of the list with this correction.
    """

    heard: str
    written: str
    posterior: float


@dataclass(frozen=True, slots=True)
class RankedCandidate:
    """A re-ranked candidate.

    Attributes:
        index: position in the request's list, of a corrected candidate that of the one it was made from.
        text: text of the candidate.
        total: Σ weight · feature, over the weighted features.
        posterior: posterior probability, from the totals of the list.
        features: given and computed features by name.
        corrections: corrections from left to right, if the candidate is a corrected one.
        expected_utility: expected utility under the posteriors; null unless `mbr` was requested.
        tokens: score of each token, if `detail` is `token`.
        words: score of each word, if `detail` is `word`.
    """

    index: int
    text: str
    total: float
    posterior: float
    features: dict[str, float]
    corrections: list[CandidateCorrection] = field(default_factory=list)
    expected_utility: float | None = None
    tokens: list[TokenScore] = field(default_factory=list)
    words: list[WordScore] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WordConfidence:
    """A word of the best candidate.

    Attributes:
        text: the word.
        start: start of the word in the candidate, in characters.
        end: end of the word in the candidate, in characters.
        confidence: posterior mass of the candidates that have the word at this position.
    """

    text: str
    start: int
    end: int
    confidence: float


@dataclass(frozen=True, slots=True)
class RankedListResult:
    """A re-ranked list.

    Attributes:
        id: the client's id of the list; null without one.
        unchanged: true if the first candidate stays the best.
        ranking: candidates, best first.
        session: session handle for the next list; null without a session.
        confidences: confidences of the best candidate's words, if requested.
    """

    id: str | None
    unchanged: bool
    ranking: list[RankedCandidate]
    session: str | None = None
    confidences: list[WordConfidence] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RerankReply:
    """Re-ranked lists, one result per list.

    Attributes:
        model: address of the model of `lm`, or the parts and weights of a mixture; null if no model was used.
        lists: one result per list, in order.
        models: addresses of further models by their names in features.
        weights: weights in effect, by feature: from the request, a profile or the defaults.
        length_exponent: length exponent in effect.
        posterior_scale: posterior scale in effect.
    """

    model: str | None
    lists: list[RankedListResult]
    models: dict[str, str] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    length_exponent: float = 0.0
    posterior_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class RankedText:
    """The text of a re-ranked document.

    Attributes:
        text: the text.
    """

    text: str


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """A re-ranked document.

    Attributes:
        index: position in the request's list.
        relevance_score: probability of the query after this document, divided by the sum over all documents of the
            request: from 0 to 1.
        logprob: natural-log probability of the query after the document.
        document: the document; null unless requested.
    """

    index: int
    relevance_score: float
    logprob: float
    document: RankedText | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts, without `<s>`.

    Attributes:
        prompt_tokens: number of tokens of all prompts, as given or tokenised.
        completion_tokens: number of generated tokens; /v1/completions counts `</s>` too.
        total_tokens: sum of `prompt_tokens` and `completion_tokens`.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class DocumentsReply:
    """Re-ranked documents.

    Attributes:
        id: id of the reply.
        object: always `list`.
        model: address of the model version, such as `lstm@3`.
        results: the documents, best first.
        usage: number of tokens read and scored, as `prompt_tokens`.
    """

    id: str
    object: str
    model: str
    results: list[RankedDocument]
    usage: Usage


@dataclass(frozen=True, slots=True)
class Choice:
    """A continuation; in a stream its next piece.

    Attributes:
        index: index of the continuation.
        text: generated text.
        token_ids: ids of the generated tokens.
        logprobs: natural-log probability of each token by the model alone; null unless requested.
        top_logprobs: most probable tokens at each position; null unless requested.
        score: mean log-probability of all tokens, `</s>` included, or the ranking score of beams; null before
            the last piece.
        finish_reason: `stop` at `</s>` or a stop string, `length` at `max_tokens`; null before the last
            piece.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[float] | None
    top_logprobs: list[list[TokenScore]] | None
    score: float | None
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class GenerateReply:
    """Continuations of a prompt, or one event of a stream.

    Attributes:
        model: address of the model version, such as `lstm@3`.
        choices: continuations; a stream event has one, or none.
        usage: token counts; in a stream null until the last event.
    """

    model: str
    choices: list[Choice]
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model of this service.

    Fields that require a loaded model are null until then.

    Attributes:
        id: address of the model, `name@version`.
        object: always `model`.
        created: creation time of the version, in seconds since 1970.
        owned_by: always `gramophone`.
        state: `loading`, `loaded` or `failed`.
        reason: reason for a failed load; null otherwise.
        is_default: true for the model of requests that name none.
        aliases: aliases of the version in the registry.
        family: model family, such as `lstm`.
        vocab_size: number of tokens in the vocabulary.
        parameters: number of parameters.
        normalised: true if next-token probabilities sum to 1 within 1e-5.
        precision: number format of the computation, such as `int8`.
        metrics: held-out metrics, such as `perplexity`.
    """

    id: str
    object: str
    created: int | None
    owned_by: str
    state: str
    reason: str | None
    is_default: bool
    aliases: list[str]
    family: str | None
    vocab_size: int | None
    parameters: int | None
    normalised: bool | None
    precision: str | None
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class ModelList:
    """All models of this service.

    Attributes:
        object: always `list`.
        data: the models.
    """

    object: str
    data: list[ModelCard]


@dataclass(frozen=True, slots=True)
class Health:
    """Health of the process.

    Attributes:
        status: `ok`, `loading`, `failed`, `draining` or `hung`.
        models: state of each model by address.
    """

    status: str
    models: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """An error.

    Attributes:
        message: human-readable description.
        type: kind of error, such as `invalid_request_error`.
        param: name of the invalid field; null if the error concerns no field.
        code: stable, machine-readable name of the error; null without one.
    """

    message: str
    type: str
    param: str | None
    code: str | None


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """Body of every error response.

    Attributes:
        error: the error.
    """

    error: ErrorBody
