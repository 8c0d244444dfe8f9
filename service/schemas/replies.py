"""Replies of the service, with their field names on the wire; shared by the server and the client.

Log-probabilities are natural logarithms and always finite: a probability of zero is −9999 and makes
the perplexity null. The client imports this module, so it requires neither the models nor NumPy.
"""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class CompletionCandidate:
    """A completion.

    `text` replaces the typed text from `start` on; `suffix` is the text to append instead, with a leading space if
    needed, or null if typed characters change. `probability` is conditional on the prefix: the next word (or words)
    is exactly `text`, or starts with it if `is_complete_word` is false. `edits` is the number of corrected
    characters of the prefix. `source` is the larger contributor to the probability: the model, or the user's words
    and the dictionary.
    """

    text: str
    suffix: str | None
    start: int
    probability: float
    num_words: int
    is_complete_word: bool
    edits: int
    source: Literal["model", "user"]


@dataclass(frozen=True, slots=True)
class AutocompleteReply:
    """Completions of a text, best first.

    `prefix` is the typed beginning of the completed word; `start` is its position in characters. `unexplored_mass` is
    the probability that the search did not reach; no completion's probability is too low by more than that.
    """

    model: str
    prefix: str
    start: int
    completions: list[CompletionCandidate]
    unexplored_mass: float


@dataclass(frozen=True, slots=True)
class UserReply:
    """Numbers of words and word pairs stored for a user."""

    user: str
    num_words: int
    num_pairs: int


@dataclass(frozen=True, slots=True)
class ForgottenReply:
    """Result of deleting a user's words; `forgotten` is false if none were stored."""

    user: str
    forgotten: bool


@dataclass(frozen=True, slots=True)
class UserWord:
    """A word and its number of acceptances, which decays as other words are accepted."""

    text: str
    count: float


@dataclass(frozen=True, slots=True)
class UserPair:
    """A pair of words and its number of acceptances; `previous` is empty at the start of a sentence."""

    previous: str
    text: str
    count: float


@dataclass(frozen=True, slots=True)
class UserWords:
    """Words and word pairs stored for a user."""

    user: str
    words: list[UserWord]
    pairs: list[UserPair]


@dataclass(frozen=True, slots=True)
class WordSurprisal:
    """A word from `start` to `end`, in code points of the request's text.

    `surprisal_bits` is −log2 of its probability given the preceding text, summed over its tokens; a word includes the
    space before it, not the one after it, as in the `words` of /v1/score. `known` is true if a token of the model
    spells the word (with a character model: if it has all its characters) or the request's dictionary contains it.
    """

    start: int
    end: int
    text: str
    surprisal_bits: float
    known: bool


@dataclass(frozen=True, slots=True)
class SuggestedText:
    """A correction for words that are probably wrong.

    `probability` is that of the correction, given the text on both sides; `gain_bits` is the increase of the text's
    log2 probability by the language model alone; `edits` is the number of changed letters.
    """

    text: str
    probability: float
    gain_bits: float
    edits: int


@dataclass(frozen=True, slots=True)
class TextIssue:
    """Words from `start` to `end` that are probably wrong; `probability` is that of an error."""

    start: int
    end: int
    text: str
    type: Literal["unknown_word", "real_word"]
    probability: float
    suggestions: list[SuggestedText]


@dataclass(frozen=True, slots=True)
class CheckReply:
    """All words of the text, and the probable errors.

    `threshold` is the threshold in effect; `precision` is the share of issues that were errors at this threshold when
    the model was calibrated, null if it was not. `surprisal_bits` is the total of the text, line ends included;
    `bits_per_word` divides it by the number of words and line ends, and is null for an empty text.
    """

    model: str
    threshold: float
    precision: float | None
    words: list[WordSurprisal]
    issues: list[TextIssue]
    surprisal_bits: float
    bits_per_word: float | None


@dataclass(frozen=True, slots=True)
class TextQualityResult:
    """Quality of one text, scored between `<s>` and `</s>`.

    `num_words` counts words separated by white space, `num_oov` unknown tokens. `bits_per_word` divides by the number
    of words plus one for `</s>`; `perplexity` is per token as in /v1/score. They are null if a probability is zero.
    `difference` is `bits_per_word` minus that of the model `against` (Moore and Lewis 2010): low values mean similarity
    to the first model's training text. It is null without `against`.
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
    """One result per text, in order; `against` is the model that `difference` refers to."""

    model: str
    against: str | None
    results: list[TextQualityResult]


@dataclass(frozen=True, slots=True)
class OpenedState:
    """Handle of a state, and the number of tokens read before it, `<s>` not included."""

    state: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class OpenStatesReply:
    """One state per context, in order."""

    model: str
    states: list[OpenedState]


@dataclass(frozen=True, slots=True)
class AdvancedState:
    """Result of one continuation.

    `state` is the handle of the state after it, before any `</s>`; null if `keep` was false. `logprob` is the sum of
    the token log-probabilities `logprobs`; `eos_logprob` is that of a following `</s>`, null unless requested.
    `next_logprobs` are those of the requested next tokens.
    """

    state: str | None
    logprob: float
    num_tokens: int
    num_oov: int
    token_ids: list[int]
    logprobs: list[float]
    eos_logprob: float | None
    next_logprobs: list[float]


@dataclass(frozen=True, slots=True)
class AdvanceReply:
    """One result per continuation, in order."""

    model: str
    results: list[AdvancedState]


@dataclass(frozen=True, slots=True)
class NextReply:
    """Log-probabilities of the requested tokens, or of all, after each state, in order."""

    model: str
    logprobs: list[list[float]]


@dataclass(frozen=True, slots=True)
class FreeReply:
    """The number of states freed."""

    freed: int


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token and its log-probability given all preceding tokens."""

    id: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenCandidate(TokenScore):
    """A possible next token."""


@dataclass(frozen=True, slots=True)
class NextTokenResult:
    """The most probable next tokens, best first, and the entropy of the distribution; null unless requested."""

    candidates: list[TokenCandidate]
    entropy_bits: float | None


@dataclass(frozen=True, slots=True)
class NextTokenReply:
    """One result per context, in order."""

    model: str
    results: list[NextTokenResult]


@dataclass(frozen=True, slots=True)
class WordCandidate:
    """A possible next word, of one or several tokens."""

    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class NextWordResult:
    """The most probable next words, best first, and the probability that the search did not reach."""

    candidates: list[WordCandidate]
    unexplored_mass: float


@dataclass(frozen=True, slots=True)
class NextWordReply:
    """One result per context, in order."""

    model: str
    results: list[NextWordResult]


@dataclass(frozen=True, slots=True)
class WordScore:
    """Tokens up to the next white space; `is_oov` is true if one of them is unknown."""

    text: str
    logprob: float
    num_tokens: int
    is_oov: bool


@dataclass(frozen=True, slots=True)
class ScoreTotals:
    """Totals; `num_tokens` includes unknown tokens, and `</s>` if it was scored."""

    logprob: float
    num_tokens: int
    num_oov: int
    perplexity: float | None
    bits_per_byte: float | None


@dataclass(frozen=True, slots=True)
class SequenceScoreResult(ScoreTotals):
    """Score of one sequence; `tokens` or `words` is filled according to `detail`."""

    tokens: list[TokenScore] = field(default_factory=list)
    words: list[WordScore] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ScoreReply:
    """One result per sequence, in order, and the totals."""

    model: str
    results: list[SequenceScoreResult]
    corpus: ScoreTotals


@dataclass(frozen=True, slots=True)
class RankedCandidate:
    """A re-ranked candidate; `index` is its position in the request's list.

    `total` = Σ weight · feature over the weighted features. `features` are the given and the computed ones.
    `expected_utility` is null unless `mbr` was requested; `tokens` or `words` is filled according to `detail`.
    """

    index: int
    text: str
    total: float
    posterior: float
    features: dict[str, float]
    expected_utility: float | None = None
    tokens: list[TokenScore] = field(default_factory=list)
    words: list[WordScore] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WordConfidence:
    """A word of the best candidate, from `start` to `end` in characters.

    `confidence` is the posterior mass of the candidates that have the word at this position.
    """

    text: str
    start: int
    end: int
    confidence: float


@dataclass(frozen=True, slots=True)
class RankedListResult:
    """One list, best candidate first; `unchanged` is true if the first candidate stays the best.

    `session` is the handle for the next list, null without a session. `confidences` are those of the best candidate's
    words, if requested.
    """

    id: str | None
    unchanged: bool
    ranking: list[RankedCandidate]
    session: str | None = None
    confidences: list[WordConfidence] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RerankReply:
    """One result per list, in order.

    `model` is the model of `lm`, or the parts and weights of a mixture; null if no model was used. `models` are the
    further models by their names in features. Weights, exponent and scale are the values in effect: of the request,
    a profile, or the defaults.
    """

    model: str | None
    lists: list[RankedListResult]
    models: dict[str, str] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    length_exponent: float = 0.0
    posterior_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Choice:
    """A continuation; in a stream its next piece, with a null `finish_reason` until the last.

    `top_logprobs` are the most probable tokens at each position. `score` is the mean log-probability of all tokens,
    `</s>` included, or the ranking score of beams; null before the last piece.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[float] | None
    top_logprobs: list[list[TokenCandidate]] | None
    score: float | None
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Numbers of tokens read and generated, without `<s>` and `</s>`."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class GenerateReply:
    """Continuations; an event of a stream has one choice, and null `usage` until the last event."""

    model: str
    choices: list[Choice]
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model of this service.

    `id` is its address; `metrics` are its held-out metrics, such as `perplexity`. Fields that require a loaded model
    are null until then.
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
    """All models of this service."""

    object: str
    data: list[ModelCard]


@dataclass(frozen=True, slots=True)
class Health:
    """Health of the process; `status` is `ok`, `loading`, `failed`, `draining` or `hung`, `models` each one's state."""

    status: str
    models: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """An error; `param` is the name of the field, `code` is stable and machine-readable."""

    message: str
    type: str
    param: str | None
    code: str | None


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """Body of every error response."""

    error: ErrorBody
