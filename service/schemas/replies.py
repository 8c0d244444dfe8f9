"""Replies of the service, with their field names on the wire.

Log-probabilities are natural logarithms. In JSON they are finite: a probability of zero, −∞ in memory,
is −9999 and makes the perplexity null.

The classes are not frozen: that would make an object take five times as long.
"""

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter
from pydantic_core import SchemaSerializer

from models.language_model import LOG_ZERO
from models.training_status import TrainingStatus
from models.word_forms import RestoredWord
from service.schemas import schema_objects

_CONSTANTS = {b"-Infinity": str(LOG_ZERO).encode(), b"Infinity": b"null", b"NaN": b"null"}
_STRING_OR_CONSTANT = re.compile(rb'"(?:[^"\\]|\\.)*+"|-?Infinity|NaN')
_INFINITIES: Any = {"ser_json_inf_nan": "constants"}
T = TypeVar("T")
IfGiven = Annotated[T, Field(exclude_if=lambda value: not value)]
"""Field that is omitted from the JSON if it is null or empty."""


def to_json(reply: Any, kind: Any = None) -> bytes:
    """Return a reply as JSON in UTF-8, with `LOG_ZERO` for −∞; `kind` is its type, if its class does not tell it."""
    key: Any = kind or type(reply)
    content = _serializer(key).to_json(reply)
    if b"Infinity" not in content and b"NaN" not in content:
        return content
    return _STRING_OR_CONSTANT.sub(lambda match: _CONSTANTS.get(match[0], match[0]), content)


@cache
def _serializer(kind: Any) -> SchemaSerializer:
    schema = TypeAdapter[Any](kind).core_schema
    for part in schema_objects(schema):
        if part.get("type") == "dataclass":  # each has its own options
            part["config"] = {**part.get("config", {}), **_INFINITIES}
    return SchemaSerializer(schema, _INFINITIES)


@dataclass(slots=True)
class ModelReply:
    """Reply computed by one model version."""

    model: str
    """address of the model version, such as `lstm@3`."""


@dataclass(slots=True)
class TextQualityResult:
    """Quality of one text, scored between `<s>` and `</s>`."""

    id: str | None
    """the client's id of the text; null without one."""
    num_words: int
    """number of words, separated by white space."""
    num_oov: int
    """number of unknown tokens."""
    bits_per_word: float | None
    """bits per word, `</s>` counted as one word; null if a probability is zero."""
    bits_per_byte: float | None
    """bits per byte of the text in UTF-8; null if a probability is zero."""
    perplexity: float | None
    """perplexity per token, as in /v1/score; null if a probability is zero."""
    difference: float | None
    """`bits_per_word` minus its value under the model `against` (Moore and Lewis 2010): low values mean similarity to
    the first model's training text; null without `against`, or if a probability is zero."""


@dataclass(slots=True)
class QualityReply(ModelReply):
    """Quality of texts, one result per text."""

    against: str | None
    """address of the model that `difference` compares with; null without one."""
    results: list[TextQualityResult]
    """one result per text, in order."""


@dataclass(slots=True)
class OpenedState:
    """A stored state."""

    state: str
    """handle of the state."""
    num_tokens: int
    """number of tokens read, without `<s>`."""


@dataclass(slots=True)
class OpenStatesReply(ModelReply):
    """States after contexts."""

    states: list[OpenedState]
    """one state per context, in order."""


@dataclass(slots=True)
class AdvancedState:
    """Result of one continuation."""

    state: str | None
    """handle of the state after the continuation, before any `</s>`; null if `keep` was false."""
    logprob: float
    """sum of `logprobs`."""
    num_tokens: int
    """number of tokens in the continuation."""
    num_oov: int
    """number of unknown tokens in the continuation."""
    token_ids: list[int]
    """ids of the tokens."""
    logprobs: list[float]
    """natural-log probability of each token."""
    eos_logprob: float | None
    """natural-log probability of a following `</s>`; null unless requested."""
    next_logprobs: list[float]
    """natural-log probabilities of the requested next tokens."""
    phrase_value: IfGiven[float] = 0.0
    """value of the phrases that the continuation adds, less credit taken back; omitted if 0."""
    eos_phrase_value: IfGiven[float] = 0.0
    """credit that a following `</s>` takes back, at most 0; omitted if 0 or not requested."""


@dataclass(slots=True)
class AdvanceReply(ModelReply):
    """Results of continuations."""

    results: list[AdvancedState]
    """one result per continuation, in order."""


@dataclass(slots=True)
class NextReply(ModelReply):
    """Next-token log-probabilities after states."""

    logprobs: list[list[float]]
    """natural-log probabilities of the requested tokens, or of all, after each state, in order."""


@dataclass(slots=True)
class FreeReply:
    """Number of states freed."""

    freed: int
    """number of states freed."""


@dataclass(slots=True)
class TokenScore:
    """A token and its log-probability."""

    id: int
    """token id."""
    text: str
    """text of the token."""
    logprob: float
    """natural-log probability of the token given all preceding tokens."""


@dataclass(slots=True)
class NextTokenResult:
    """Next tokens after a context."""

    candidates: list[TokenScore]
    """the most probable next tokens, best first, or the tokens of `token_ids` in the request's order."""
    entropy_bits: float | None
    """entropy of the next-token distribution in bits; null unless requested."""


@dataclass(slots=True)
class NextTokenReply(ModelReply):
    """Next tokens after contexts."""

    results: list[NextTokenResult]
    """one result per context, in order."""


@dataclass(slots=True)
class TextCandidate:
    """A text of `candidates`."""

    text: str
    """the text, as given."""
    token_ids: list[int]
    """ids of its tokens, including a token that begins in the context."""
    logprob: float
    """natural-log probability of the tokens given the context."""


@dataclass(slots=True)
class NextTextResult:
    """Texts after a context."""

    candidates: list[TextCandidate]
    """the texts of `candidates`, in the request's order."""


@dataclass(slots=True)
class NextTextReply(ModelReply):
    """Texts after contexts."""

    results: list[NextTextResult]
    """one result per context, in order."""


@dataclass(slots=True)
class WordCandidate:
    """A possible next word, of one or several tokens."""

    text: str
    """the word."""
    logprob: float
    """natural-log probability of the word."""


@dataclass(slots=True)
class NextWordResult:
    """The most probable next words after a context."""

    candidates: list[WordCandidate]
    """the most probable next words, best first."""
    unexplored_mass: float
    """probability that the search did not reach."""


@dataclass(slots=True)
class NextWordReply(ModelReply):
    """Next words after contexts."""

    results: list[NextWordResult]
    """one result per context, in order."""


@dataclass(slots=True)
class WordScore:
    """Score of a word, the tokens up to the next white space."""

    text: str
    """the word, or `</s>`."""
    logprob: float
    """natural-log probability of the word, summed over its tokens."""
    num_tokens: int
    """number of tokens in the word."""
    is_oov: bool
    """true if a token of the word is unknown."""


@dataclass(slots=True)
class ScoreTotals:
    """Totals of scores."""

    logprob: float
    """sum of the natural-log probabilities."""
    num_tokens: int
    """number of scored tokens, including unknown tokens, and `</s>` if it was scored."""
    num_oov: int
    """number of unknown tokens."""
    perplexity: float | None
    """perplexity per token; null if a probability is zero."""
    bits_per_byte: float | None
    """bits per byte of the text in UTF-8; null if a probability is zero."""


@dataclass(slots=True)
class SequenceScoreResult(ScoreTotals):
    """Score of one sequence."""

    tokens: list[TokenScore] = field(default_factory=list)
    """score of each token, if `detail` is `token`."""
    words: list[WordScore] = field(default_factory=list)
    """score of each word, if `detail` is `word`."""
    order: IfGiven[int | None] = None
    """length of the model's longest n-grams in tokens, if `ngram_lengths` was requested of an n-gram model."""
    ngram_lengths: IfGiven[list[int]] = field(default_factory=list)
    """length of the n-gram found for each token, if requested of an n-gram model; 1 is a unigram."""
    context_lengths: IfGiven[list[int]] = field(default_factory=list)
    """with them, the number of last tokens on which later probabilities depend, after each token."""


@dataclass(slots=True)
class ScoreReply(ModelReply):
    """Scores of sequences, and their totals."""

    results: list[SequenceScoreResult]
    """one result per sequence, in order."""
    corpus: ScoreTotals
    """totals of all sequences."""


@dataclass(slots=True)
class CandidateCorrection:
    """Replaced words of a candidate."""

    start: int
    """start of the words in the request's candidate, in code points."""
    end: int
    """end of the words in the request's candidate, in code points."""
    heard: str
    """words of the request's candidate."""
    written: str
    """words that replace them."""
    proposer: Literal["corrections", "phrases", "forms"]
    """source of the replacement: the profile's or the request's corrections, the phrases, or forms of numbers and
    abbreviations."""
    posterior: float
    """posterior probability of all candidates of the list with this correction."""


@dataclass(slots=True)
class RankedCandidate:
    """A re-ranked candidate."""

    index: int
    """position in the request's list, of a corrected candidate that of the one it was made from."""
    text: str
    """text of the candidate."""
    total: float
    """Σ weight · feature, over the weighted features."""
    posterior: float
    """posterior probability, from the totals of the list."""
    features: dict[str, float]
    """given and computed features by name."""
    corrections: list[CandidateCorrection] = field(default_factory=list)
    """corrections from left to right, if the candidate is a corrected one."""
    expected_utility: float | None = None
    """expected utility under the posteriors; null unless `mbr` was requested."""
    tokens: list[TokenScore] = field(default_factory=list)
    """score of each token, if `detail` is `token`."""
    words: list[WordScore] = field(default_factory=list)
    """score of each word, if `detail` is `word`."""


@dataclass(slots=True)
class CorrectedTextResult:
    """A corrected text."""

    id: str | None
    """the client's id of the text; null without one."""
    text: str
    """the text with the best replacements; white space between other words is kept."""
    posterior: float
    """posterior probability of this text among those that were compared."""
    corrections: list[CandidateCorrection] = field(default_factory=list)
    """replacements from left to right."""
    restored: IfGiven[str | None] = None
    """the text with capitals and punctuation; omitted unless requested."""


@dataclass(slots=True)
class CorrectReply:
    """Corrected texts."""

    model: str | None
    """address of the model of `lm`, or the parts and weights of a mixture; null if no model was used."""
    results: list[CorrectedTextResult]
    """one result per text, in order."""
    weights: dict[str, float] = field(default_factory=dict)
    """weights in effect, by feature."""


@dataclass(slots=True)
class RestoredTextResult:
    """A restored text."""

    id: str | None
    """the client's id of the text; null without one."""
    text: str
    """the text with capitals and punctuation; its white space is kept."""
    words: list[RestoredWord]
    """its words, if asked for."""


@dataclass(slots=True)
class RestoreReply:
    """Restored texts."""

    model: str
    """address of the model."""
    results: list[RestoredTextResult]
    """one result per text, in order."""


@dataclass(slots=True)
class LatticeAlternative:
    """A word of other paths at the same time."""

    text: str
    """the word; empty for none."""
    posterior: float
    """its posterior probability at the middle of the best word."""


@dataclass(slots=True)
class LatticeWord:
    """A word of the best text."""

    text: str
    """the word."""
    start: float | None
    """start in seconds; null if the lattice has no times."""
    end: float | None
    """end in seconds; null if the lattice has no times."""
    posterior: float
    """posterior probability of this word at the middle of its time."""
    alternatives: list[LatticeAlternative]
    """other words at the same time, the most probable first."""


@dataclass(slots=True)
class ProposedWords:
    """Words that were proposed in place of others."""

    heard: str
    """words of the lattice."""
    written: str
    """words that replace them; empty for none."""
    proposer: Literal["corrections", "phrases", "forms"]
    """source of the replacement, as in /v1/rerank."""


@dataclass(slots=True)
class LatticePathResult:
    """One of the best texts of a lattice, with the path that spells it best."""

    text: str
    """the words."""
    total: float
    """Σ weight · feature."""
    posterior: float
    """posterior probability of this path among all paths."""
    features: dict[str, float]
    """features by name."""
    proposals: IfGiven[list[ProposedWords]] = field(default_factory=list)
    """proposals in the text, in order."""


@dataclass(slots=True)
class LatticeResult:
    """The best texts of a lattice."""

    id: str | None
    """the client's id of the lattice, or the name in its file; null without one."""
    text: str
    """the best text."""
    words: list[LatticeWord]
    """its words."""
    nbest: list[LatticePathResult]
    """the best texts, best first."""


@dataclass(slots=True)
class LatticesReply:
    """Texts of lattices."""

    model: str
    """address of the model."""
    lattices: list[LatticeResult]
    """one result per lattice, in order."""


@dataclass(slots=True)
class WordConfidence:
    """A word of the best candidate."""

    text: str
    """the word."""
    start: int
    """start of the word in the candidate, in characters."""
    end: int
    """end of the word in the candidate, in characters."""
    confidence: float
    """posterior mass of the candidates that have the word at this position."""


@dataclass(slots=True)
class RankedListResult:
    """A re-ranked list."""

    id: str | None
    """the client's id of the list; null without one."""
    unchanged: bool
    """true if the first candidate stays the best."""
    ranking: list[RankedCandidate]
    """candidates, best first."""
    session: str | None = None
    """session handle for the next list; null without a session."""
    confidences: list[WordConfidence] = field(default_factory=list)
    """confidences of the best candidate's words, if requested."""
    tuned_on: IfGiven[list[str]] = field(default_factory=list)
    """as in the reply to JSON, on each line of a stream; omitted if empty."""
    problems: IfGiven[list[str]] = field(default_factory=list)
    """errors of candidates of another program's list that could not be read and are left out, up to 20, further ones as
    lines; omitted if empty."""
    restored: IfGiven[str | None] = None
    """the best candidate's text with capitals and punctuation; omitted unless requested."""


@dataclass(slots=True)
class RerankReply:
    """Re-ranked lists, one result per list."""

    model: str | None
    """address of the model of `lm`, or the parts and weights of a mixture; null if no model was used."""
    lists: list[RankedListResult]
    """one result per list, in order."""
    models: dict[str, str] = field(default_factory=dict)
    """addresses of further models by their names in features."""
    weights: dict[str, float] = field(default_factory=dict)
    """weights in effect, by feature: from the request, a profile or the defaults."""
    length_exponent: float = 0.0
    """length exponent in effect."""
    posterior_scale: float = 1.0
    """posterior scale in effect."""
    tuned_on: IfGiven[list[str]] = field(default_factory=list)
    """versions that the profile was tuned on, of models of which another version scored; omitted if empty."""


@dataclass(slots=True)
class RankedText:
    """The text of a re-ranked document."""

    text: str
    """the text."""


@dataclass(slots=True)
class RankedDocument:
    """A re-ranked document."""

    index: int
    """position in the request's list."""
    relevance_score: float
    """probability of the query after this document, divided by the sum over all documents of the request: from 0 to
    1."""
    logprob: float
    """natural-log probability of the query after the document."""
    document: RankedText | None
    """the document; null unless requested."""


@dataclass(slots=True)
class Usage:
    """Token counts, without `<s>`."""

    prompt_tokens: int
    """number of tokens of all prompts, as given or tokenised."""
    completion_tokens: int
    """number of generated tokens; /v1/completions counts `</s>` too."""
    total_tokens: int
    """sum of `prompt_tokens` and `completion_tokens`."""


@dataclass(slots=True)
class DocumentsReply:
    """Re-ranked documents."""

    id: str
    """id of the reply."""
    object: str
    """always `list`."""
    model: str
    """address of the model version, such as `lstm@3`."""
    results: list[RankedDocument]
    """the documents, best first."""
    usage: Usage
    """number of tokens read and scored, as `prompt_tokens`."""


@dataclass(slots=True)
class Choice:
    """A continuation; in a stream its next piece."""

    index: int
    """index of the continuation."""
    text: str
    """generated text."""
    token_ids: list[int]
    """ids of the generated tokens."""
    logprobs: list[float] | None
    """natural-log probability of each token by the model alone; null unless requested."""
    top_logprobs: list[list[TokenScore]] | None
    """most probable tokens at each position; null unless requested."""
    score: float | None
    """mean log-probability of all tokens, `</s>` included, or the ranking score of beams; null before the last
    piece."""
    finish_reason: str | None
    """`stop` at `</s>` or a stop string, `length` at `max_tokens`; null before the last piece."""


@dataclass(slots=True)
class GenerateReply(ModelReply):
    """Continuations of a prompt, or one event of a stream."""

    choices: list[Choice]
    """continuations; a stream event has one, or none."""
    usage: Usage | None
    """token counts; in a stream null until the last event."""


@dataclass(slots=True)
class ModelCard:
    """A model of this service.

    Fields that require a loaded model are null until then.
    """

    id: str
    """address of the model, `name@version`."""
    object: str
    """always `model`."""
    created: int | None
    """creation time of the version, in seconds since 1970."""
    owned_by: str
    """always `gramophone`."""
    state: str
    """`loading`, `loaded` or `failed`."""
    reason: str | None
    """reason for a failed load; null otherwise."""
    is_default: bool
    """true for the model of requests that name none."""
    aliases: list[str]
    """aliases of the version in the registry."""
    family: str | None
    """model family, such as `lstm`."""
    vocab_size: int | None
    """number of tokens in the vocabulary."""
    parameters: int | None
    """number of parameters."""
    normalised: bool | None
    """true if next-token probabilities sum to 1 within 1e-5."""
    precision: str | None
    """number format of the computation, such as `int8`."""
    metrics: dict[str, float]
    """held-out metrics, such as `perplexity`."""


@dataclass(slots=True)
class ModelList:
    """All models of this service."""

    object: str
    """always `list`."""
    data: list[ModelCard]
    """the models."""
    training: IfGiven[list[TrainingStatus]] = field(default_factory=list)
    """running trainings of the registry's models, as of the last look at it; omitted without any."""


@dataclass(slots=True)
class Health:
    """Health of the process."""

    status: str
    """`ok`, `loading`, `failed`, `draining` or `hung`."""
    models: dict[str, str] = field(default_factory=dict)
    """state of each model by address."""


@dataclass(slots=True)
class ErrorBody:
    """An error."""

    message: str
    """human-readable description."""
    type: str
    """kind of error, such as `invalid_request_error`."""
    param: str | None
    """name of the invalid field; null if the error concerns no field."""
    code: str | None
    """stable, machine-readable name of the error; null without one."""


@dataclass(slots=True)
class ErrorReply:
    """Body of every error response."""

    error: ErrorBody
    """the error."""
