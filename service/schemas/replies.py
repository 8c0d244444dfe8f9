"""What the service answers: the names on the wire, for the server that writes them and the client.

Log-probabilities are natural logarithms and always finite: a probability of zero is −9999
and makes a perplexity null.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TokenCandidate:
    """A token that may come next."""

    id: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class NextTokenResult:
    """What may follow one context: the most probable tokens first; the entropy is of all, null if not asked for."""

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
    """What word may follow one context, the most probable first; for so much of the probability none was found."""

    candidates: list[WordCandidate]
    unexplored_mass: float


@dataclass(frozen=True, slots=True)
class NextWordReply:
    """One result a context, in order."""

    model: str
    results: list[NextWordResult]


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token and its log-probability given all before it."""

    id: int
    text: str
    logprob: float


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
class SequenceScoreResult:
    """One sequence's score; `tokens` and `words` are filled as `detail` asks."""

    logprob: float
    num_tokens: int
    num_oov: int
    perplexity: float | None
    bits_per_byte: float | None
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
    """What went wrong; `param` names the field, `code` is stable and machine-readable."""

    message: str
    type: str
    param: str | None
    code: str | None


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """The body of every answer that is not a success."""

    error: ErrorBody
