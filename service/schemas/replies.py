"""Replies of the service: field names on the wire, for the server that writes them and the client.

Log-probabilities are natural logarithms and always finite: a probability of zero is −9999 and makes
a perplexity null. The client imports this module, so it needs neither the models nor NumPy.
"""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class CompletionCandidate:
    """One way to go on.

    `text` stands from the reply's `start` on, in place of what was typed there. `suffix` is what to append instead,
    with the space before it if there must be one; null where what was typed changes. `probability` is that
    the text goes on so and the word ends there, given that it goes on as a word that begins with the prefix; where
    `is_complete_word` is false, that it goes on with some word that begins so. `edits` says how many characters of
    the prefix were corrected; `source`, who gave most of the probability: the model, or the user's words and the
    dictionary.
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
    """Ways to complete a text, the best first.

    `prefix` is the part of the text that is completed, from `start` on, in characters. `unexplored_mass` is the part of
    the probability that the search did not follow to the end of a word; each probability is that much too low at most.
    """

    model: str
    prefix: str
    start: int
    completions: list[CompletionCandidate]
    unexplored_mass: float


@dataclass(frozen=True, slots=True)
class UserReply:
    """The numbers of words and pairs of words known of a user."""

    user: str
    num_words: int
    num_pairs: int


@dataclass(frozen=True, slots=True)
class ForgottenReply:
    """Whether anything was known of the user."""

    user: str
    forgotten: bool


@dataclass(frozen=True, slots=True)
class UserWord:
    """A word and how often it was accepted; the count fades as others are."""

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
    """All that is known of what a user writes."""

    user: str
    words: list[UserWord]
    pairs: list[UserPair]


@dataclass(frozen=True, slots=True)
class WordSurprisal:
    """A word from `start` to `end` in code points of the text as given.

    `surprisal_bits` is −log2 of its probability given what stands before it, summed over its tokens: the space before a
    word counts as part of it, the one after it does not, as in the `words` of /v1/score. `known` says whether the model
    has a token that spells it (of characters: whether it knows them all) or the request's dictionary has it.
    """

    start: int
    end: int
    text: str
    surprisal_bits: float
    known: bool


@dataclass(frozen=True, slots=True)
class SuggestedText:
    """A suggestion for words that are probably wrong.

    `probability` is that it was, given the text on both sides; `gain_bits` by how much it makes the text likelier to
    the model, errors aside; `edits` how many letters are to be changed.
    """

    text: str
    probability: float
    gain_bits: float
    edits: int


@dataclass(frozen=True, slots=True)
class TextIssue:
    """Words from `start` to `end` that are probably wrong; `probability` is that something else was meant."""

    start: int
    end: int
    text: str
    type: Literal["unknown_word", "real_word"]
    probability: float
    suggestions: list[SuggestedText]


@dataclass(frozen=True, slots=True)
class CheckReply:
    """All words, and those that are probably wrong.

    `threshold` is the one that counted, `precision` the share of issues that were errors with it when the model was
    calibrated, null if it was not. `surprisal_bits` is of the whole text, ends of lines included; `bits_per_word`
    divides it by the words between white space and the ends of lines, and is null for a text without any.
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
    """One text, between `<s>` and `</s>`.

    `num_words` counts what stands between white space, `num_oov` tokens that are unknown. `bits_per_word` divides by
    the words and one end of text, `perplexity` is per token as in /v1/score. All are null where a probability is zero.
    `difference` is `bits_per_word` less that of the model it is compared with (Moore and Lewis 2010): the lower, the
    more the text is like those of the first model. It is null without such a model.
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
    """One result a text, in order; `against` is the model of the differences."""

    model: str
    against: str | None
    results: list[TextQualityResult]


@dataclass(frozen=True, slots=True)
class OpenedState:
    """A handle, and how many tokens were read before it; `<s>` is not counted."""

    state: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class OpenStatesReply:
    """One state a context, in order."""

    model: str
    states: list[OpenedState]


@dataclass(frozen=True, slots=True)
class AdvancedState:
    """The result of one continuation.

    `state` leads to the state after it, before any `</s>`, and is null if it was not to be kept. `logprob` is
    the sum of `logprobs`, those of its tokens; `eos_logprob` is that of `</s>` after them, null if not asked
    for. `next_logprobs` are of the tokens asked about, if they came next.
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
    """One result a continuation, in order."""

    model: str
    results: list[AdvancedState]


@dataclass(frozen=True, slots=True)
class NextReply:
    """For each state, in order, the log-probabilities of the tokens that were asked about, or of all."""

    model: str
    logprobs: list[list[float]]


@dataclass(frozen=True, slots=True)
class FreeReply:
    """The number of states freed."""

    freed: int


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token and its log-probability given all before it."""

    id: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenCandidate(TokenScore):
    """A token that may come next."""


@dataclass(frozen=True, slots=True)
class NextTokenResult:
    """The most probable tokens after one context, best first, and the entropy of all, null if not asked for."""

    candidates: list[TokenCandidate]
    entropy_bits: float | None


@dataclass(frozen=True, slots=True)
class NextTokenReply:
    """One result a context, in order."""

    model: str
    results: list[NextTokenResult]


@dataclass(frozen=True, slots=True)
class WordCandidate:
    """A word that may come next, however it is cut into tokens."""

    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class NextWordResult:
    """The most probable words after one context, best first, and the probability for which none was found."""

    candidates: list[WordCandidate]
    unexplored_mass: float


@dataclass(frozen=True, slots=True)
class NextWordReply:
    """One result a context, in order."""

    model: str
    results: list[NextWordResult]


@dataclass(frozen=True, slots=True)
class WordScore:
    """A run of tokens up to the next white space; `is_oov` if one of them is unknown."""

    text: str
    logprob: float
    num_tokens: int
    is_oov: bool


@dataclass(frozen=True, slots=True)
class ScoreTotals:
    """Sums over a corpus; `num_tokens` counts `</s>` where it was scored, and unknown tokens."""

    logprob: float
    num_tokens: int
    num_oov: int
    perplexity: float | None
    bits_per_byte: float | None


@dataclass(frozen=True, slots=True)
class SequenceScoreResult(ScoreTotals):
    """One sequence's score; `tokens` and `words` are filled as `detail` asks."""

    tokens: list[TokenScore] = field(default_factory=list)
    words: list[WordScore] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ScoreReply:
    """One result a sequence, in order, and the totals."""

    model: str
    results: list[SequenceScoreResult]
    corpus: ScoreTotals


@dataclass(frozen=True, slots=True)
class RankedCandidate:
    """A candidate in its new place; `index` is its place in the list as it was given.

    `total` = Σ weight · feature, over the features that have weights. `features` are those given and those computed.
    `expected_utility` is null unless `mbr` was asked for; `tokens` and `words` are filled as `detail` asks.
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

    `confidence` is the posterior mass of candidates that have it at this place.
    """

    text: str
    start: int
    end: int
    confidence: float


@dataclass(frozen=True, slots=True)
class RankedListResult:
    """One list, best candidate first; `unchanged` if that is the one that came first.

    `session` is for the list after it, null where it belongs to none. `confidences` are of the best candidate's words,
    if they were asked for.
    """

    id: str | None
    unchanged: bool
    ranking: list[RankedCandidate]
    session: str | None = None
    confidences: list[WordConfidence] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RerankReply:
    """One result a list, in order.

    `model` made `lm`; of a mixture all parts are named with their weights, and null says that no model was asked.
    `models` are the further ones, by the names that features call them. Weights, exponent and scale are those that
    counted, whether given, of a profile, or by default.
    """

    model: str | None
    lists: list[RankedListResult]
    models: dict[str, str] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    length_exponent: float = 0.0
    posterior_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Choice:
    """A continuation, or in a stream the next piece of it, whose `finish_reason` is null until the last.

    `top_logprobs` has the most probable tokens in the place of each. `score` is the mean log-probability of
    all tokens, `</s>` included, or what beams are ranked by; null before the last piece.
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
    """Tokens read and generated; `<s>` and `</s>` are not counted."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class GenerateReply:
    """The continuations, or one event of a stream, which is about one of them; `usage` is null until the last."""

    model: str
    choices: list[Choice]
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model of this service.

    `id` is its address; `metrics` are its held-out figures, such as `perplexity`. What is not
    known until it is loaded is null.
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
    """`status` is `ok`, `loading`, `failed`, `draining` or `hung`; `models` says how far each has come."""

    status: str
    models: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """An error; `param` names the field, `code` is stable and machine-readable."""

    message: str
    type: str
    param: str | None
    code: str | None


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """The body of every answer that is not a success."""

    error: ErrorBody
