"""Replies of the service, generated from its OpenAPI document by `make client-types`."""

from __future__ import annotations

from typing import Literal

from gramophone_client.reply import Reply
from pydantic import Field


class AdvanceReply(Reply):
    """Results of continuations."""

    model: str
    """address of the model version, such as `lstm@3`."""

    results: list[AdvancedState]
    """one result per continuation, in order."""


class AdvancedState(Reply):
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

    phrase_value: float = 0.0
    """value of the phrases that the continuation adds, less credit taken back; omitted if 0."""

    eos_phrase_value: float = 0.0
    """credit that a following `</s>` takes back, at most 0; omitted if 0 or not requested."""


class AutocompleteReply(Reply):
    """Completions of a text, best first."""

    model: str
    """address of the model version, such as `lstm@3`."""

    prefix: str
    """typed beginning of the word to complete; may be empty."""

    start: int
    """position of the prefix in the text, in characters."""

    completions: list[CompletionCandidate]
    """completions, best first; beginnings of words follow the complete words."""

    unexplored_mass: float
    """probability that the search did not reach, and of words that are not offered; no completion's probability is too low by more than this."""

    weights: dict[str, float] | None = None
    """with several models: the weight of each after the typed text, by its address; omitted for one model."""


class CandidateCorrection(Reply):
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
    """source of the replacement: the profile's or the request's corrections, the phrases, or forms of numbers and abbreviations."""

    posterior: float
    """posterior probability of all candidates of the list with this correction."""


class CheckReply(Reply):
    """All words of the text, and the probable errors."""

    model: str
    """address of the model version, such as `lstm@3`."""

    threshold: float
    """minimum error probability in effect."""

    precision: float | None
    """share of issues that were errors at this threshold when the model was calibrated; null without calibration."""

    words: list[WordSurprisal]
    """all words of the text."""

    issues: list[TextIssue]
    """probable errors."""

    surprisal_bits: float
    """surprisal of the text in bits, line ends included; of words in the forms, and after the spaces, that the model knows."""

    bits_per_word: float | None
    """surprisal divided by the number of words and line ends; null for an empty text."""

    weights: dict[str, float] | None = None
    """with several models: the mean weight of each over the words, by its address; omitted for one model."""

    calibrated_on: str | None = None
    """version of the model whose calibration was used; omitted if it is the one that checked."""


class Choice(Reply):
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
    """mean log-probability of all tokens, `</s>` included, or the ranking score of beams; null before the last piece."""

    finish_reason: str | None
    """`stop` at `</s>` or a stop string, `length` at `max_tokens`; null before the last piece."""


class CompletionCandidate(Reply):
    """A completion."""

    text: str
    """the completed word or phrase, which replaces the typed text from `start` on."""

    suffix: str | None
    """text to append to the typed text instead, with a leading space if needed; null if typed characters change."""

    start: int
    """position in characters where `text` begins."""

    probability: float
    """probability, given the typed prefix, that the next word or words are exactly `text`, or that the next word begins with `text` if `is_complete_word` is false."""

    num_words: int
    """number of words."""

    is_complete_word: bool
    """true if `text` ends at the end of a word."""

    edits: int
    """number of corrected characters of the prefix."""

    source: Literal["model", "user"]
    """larger contributor to the probability: `model`, or `user` for the user's words and the dictionary."""


class CorrectReply(Reply):
    """Corrected texts."""

    model: str | None
    """address of the model of `lm`, or the parts and weights of a mixture; null if no model was used."""

    results: list[CorrectedTextResult]
    """one result per text, in order."""

    weights: dict[str, float] = {}
    """weights in effect, by feature."""


class CorrectedTextResult(Reply):
    """A corrected text."""

    id: str | None
    """the client's id of the text; null without one."""

    text: str
    """the text with the best replacements; white space between other words is kept."""

    posterior: float
    """posterior probability of this text among those that were compared."""

    corrections: list[CandidateCorrection] = Field([], validate_default=True)
    """replacements from left to right."""

    restored: str | None = None
    """the text with capitals and punctuation; omitted unless requested."""


class DeletedReply(Reply):
    """Confirmation of a deleted word list."""

    name: str
    """name of the list."""

    deleted: bool
    """false if there was none."""


class DetokenizeReply(Reply):
    """Text of token ids."""

    prompt: str
    """the text."""


class ErrorBody(Reply):
    """An error."""

    message: str
    """human-readable description."""

    type: str
    """kind of error, such as `invalid_request_error`."""

    param: str | None
    """name of the invalid field; null if the error concerns no field."""

    code: str | None
    """stable, machine-readable name of the error; null without one."""


class ErrorReply(Reply):
    """Body of every error response."""

    error: ErrorBody
    """the error."""


class ForgottenReply(Reply):
    """Result of deleting a user's words."""

    user: str
    """name of the user."""

    forgotten: bool
    """false if no words were stored for the user."""


class FreeReply(Reply):
    """Number of states freed."""

    freed: int
    """number of states freed."""


class GenerateReply(Reply):
    """Continuations of a prompt, or one event of a stream."""

    model: str
    """address of the model version, such as `lstm@3`."""

    choices: list[Choice]
    """continuations; a stream event has one, or none."""

    usage: Usage | None
    """token counts; in a stream null until the last event."""


class LatticeAlternative(Reply):
    """A word of other paths at the same time."""

    text: str
    """the word; empty for none."""

    posterior: float
    """its posterior probability at the middle of the best word."""


class LatticePathResult(Reply):
    """One of the best texts of a lattice, with the path that spells it best."""

    text: str
    """the words."""

    total: float
    """Σ weight · feature."""

    posterior: float
    """posterior probability of this path among all paths."""

    features: dict[str, float]
    """features by name."""

    proposals: list[ProposedWords] = Field([], validate_default=True)
    """proposals in the text, in order."""


class LatticeResult(Reply):
    """The best texts of a lattice."""

    id: str | None
    """the client's id of the lattice, or the name in its file; null without one."""

    text: str
    """the best text."""

    words: list[LatticeWord]
    """its words."""

    nbest: list[LatticePathResult]
    """the best texts, best first."""


class LatticeWord(Reply):
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


class LatticesReply(Reply):
    """Texts of lattices."""

    model: str
    """address of the model."""

    lattices: list[LatticeResult]
    """one result per lattice, in order."""


class ModelCard(Reply):
    """
    A model of this service.

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


class ModelList(Reply):
    """All models of this service."""

    object: str
    """always `list`."""

    data: list[ModelCard]
    """the models."""

    training: list[TrainingStatus] = Field([], validate_default=True)
    """running trainings of the registry's models, as of the last look at it; omitted without any."""


class NextReply(Reply):
    """Next-token log-probabilities after states."""

    model: str
    """address of the model version, such as `lstm@3`."""

    logprobs: list[list[float]]
    """natural-log probabilities of the requested tokens, or of all, after each state, in order."""


class NextTextReply(Reply):
    """Texts after contexts."""

    model: str
    """address of the model version, such as `lstm@3`."""

    results: list[NextTextResult]
    """one result per context, in order."""


class NextTextResult(Reply):
    """Texts after a context."""

    candidates: list[TextCandidate]
    """the texts of `candidates`, in the request's order."""


class NextTokenReply(Reply):
    """Next tokens after contexts."""

    model: str
    """address of the model version, such as `lstm@3`."""

    results: list[NextTokenResult]
    """one result per context, in order."""


class NextTokenResult(Reply):
    """Next tokens after a context."""

    candidates: list[TokenScore]
    """the most probable next tokens, best first, or the tokens of `token_ids` in the request's order."""

    entropy_bits: float | None
    """entropy of the next-token distribution in bits; null unless requested."""


class NextWordReply(Reply):
    """Next words after contexts."""

    model: str
    """address of the model version, such as `lstm@3`."""

    results: list[NextWordResult]
    """one result per context, in order."""


class NextWordResult(Reply):
    """The most probable next words after a context."""

    candidates: list[WordCandidate]
    """the most probable next words, best first."""

    unexplored_mass: float
    """probability that the search did not reach."""


class OpenStatesReply(Reply):
    """States after contexts."""

    model: str
    """address of the model version, such as `lstm@3`."""

    states: list[OpenedState]
    """one state per context, in order."""


class OpenedState(Reply):
    """A stored state."""

    state: str
    """handle of the state."""

    num_tokens: int
    """number of tokens read, without `<s>`."""


class ProposedWords(Reply):
    """Words that were proposed in place of others."""

    heard: str
    """words of the lattice."""

    written: str
    """words that replace them; empty for none."""

    proposer: Literal["corrections", "phrases", "forms"]
    """source of the replacement, as in /v1/rerank."""


class QualityReply(Reply):
    """Quality of texts, one result per text."""

    model: str
    """address of the model version, such as `lstm@3`."""

    against: str | None
    """address of the model that `difference` compares with; null without one."""

    results: list[TextQualityResult]
    """one result per text, in order."""


class RankedCandidate(Reply):
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

    corrections: list[CandidateCorrection] = Field([], validate_default=True)
    """corrections from left to right, if the candidate is a corrected one."""

    expected_utility: float | None = None
    """expected utility under the posteriors; null unless `mbr` was requested."""

    tokens: list[TokenScore] = Field([], validate_default=True)
    """score of each token, if `detail` is `token`."""

    words: list[WordScore] = Field([], validate_default=True)
    """score of each word, if `detail` is `word`."""


class RankedListResult(Reply):
    """A re-ranked list."""

    id: str | None
    """the client's id of the list; null without one."""

    unchanged: bool
    """true if the first candidate stays the best."""

    ranking: list[RankedCandidate]
    """candidates, best first."""

    session: str | None = None
    """session handle for the next list; null without a session."""

    confidences: list[WordConfidence] = Field([], validate_default=True)
    """confidences of the best candidate's words, if requested."""

    tuned_on: list[str] = []
    """as in the reply to JSON, on each line of a stream; omitted if empty."""

    problems: list[str] = []
    """errors of candidates of another program's list that could not be read and are left out, up to 20, further ones as lines; omitted if empty."""

    restored: str | None = None
    """the best candidate's text with capitals and punctuation; omitted unless requested."""


class RerankReply(Reply):
    """Re-ranked lists, one result per list."""

    model: str | None
    """address of the model of `lm`, or the parts and weights of a mixture; null if no model was used."""

    lists: list[RankedListResult]
    """one result per list, in order."""

    models: dict[str, str] = {}
    """addresses of further models by their names in features."""

    weights: dict[str, float] = {}
    """weights in effect, by feature: from the request, a profile or the defaults."""

    length_exponent: float = 0.0
    """length exponent in effect."""

    posterior_scale: float = 1.0
    """posterior scale in effect."""

    tuned_on: list[str] = []
    """versions that the profile was tuned on, of models of which another version scored; omitted if empty."""


class RestoreReply(Reply):
    """Restored texts."""

    model: str
    """address of the model."""

    results: list[RestoredTextResult]
    """one result per text, in order."""


class RestoredTextResult(Reply):
    """A restored text."""

    id: str | None
    """the client's id of the text; null without one."""

    text: str
    """the text with capitals and punctuation; its white space is kept."""

    words: list[RestoredWord]
    """its words, if asked for."""


class RestoredWord(Reply):
    """A word of a restored text."""

    start: int
    """start of the word in the given text, in code points."""

    end: int
    """end of the word in the given text."""

    text: str
    """the word as written, without the mark."""

    mark: str
    """mark after the word; empty for none."""

    ends_sentence: bool
    """true if a sentence ends after it."""

    posterior: float
    """posterior probability of this form, mark and end of sentence."""


class ScoreReply(Reply):
    """Scores of sequences, and their totals."""

    model: str
    """address of the model version, such as `lstm@3`."""

    results: list[SequenceScoreResult]
    """one result per sequence, in order."""

    corpus: ScoreTotals
    """totals of all sequences."""


class ScoreTotals(Reply):
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


class SequenceScoreResult(Reply):
    """Score of one sequence."""

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

    tokens: list[TokenScore] = Field([], validate_default=True)
    """score of each token, if `detail` is `token`."""

    words: list[WordScore] = Field([], validate_default=True)
    """score of each word, if `detail` is `word`."""

    order: int | None = None
    """length of the model's longest n-grams in tokens, if `ngram_lengths` was requested of an n-gram model."""

    ngram_lengths: list[int] = []
    """length of the n-gram found for each token, if requested of an n-gram model; 1 is a unigram."""

    context_lengths: list[int] = []
    """with them, the number of last tokens on which later probabilities depend, after each token."""


class SuggestedText(Reply):
    """A correction for words that are probably wrong."""

    text: str
    """the corrected text."""

    probability: float
    """probability of the correction, given the text on both sides."""

    gain_bits: float
    """increase of the text's log2 probability under the language model alone."""

    edits: int
    """number of changed letters."""


class TextCandidate(Reply):
    """A text of `candidates`."""

    text: str
    """the text, as given."""

    token_ids: list[int]
    """ids of its tokens, including a token that begins in the context."""

    logprob: float
    """natural-log probability of the tokens given the context."""


class TextIssue(Reply):
    """Words that are probably wrong."""

    start: int
    """start of the words in the text, in code points."""

    end: int
    """end of the words in the text, in code points."""

    text: str
    """the words."""

    type: Literal["unknown_word", "real_word"]
    """`unknown_word`, or `real_word` for a known word that does not fit the context."""

    probability: float
    """probability of an error."""

    suggestions: list[SuggestedText]
    """corrections, most probable first."""


class TextQualityResult(Reply):
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
    """`bits_per_word` minus its value under the model `against` (Moore and Lewis 2010): low values mean similarity to the first model's training text; null without `against`, or if a probability is zero."""


class TokenScore(Reply):
    """A token and its log-probability."""

    id: int
    """token id."""

    text: str
    """text of the token."""

    logprob: float
    """natural-log probability of the token given all preceding tokens."""


class TokenizerInfo(Reply):
    """A model's tokenizer."""

    model: str
    """address of the model version, such as `lstm@3`."""

    tokenizer_class: str
    """kind of the tokenizer: `word`, `char` or `sentencepiece`."""

    fingerprint: str
    """hash of all settings that affect tokenisation."""

    vocab_size: int
    """number of tokens in the vocabulary."""

    max_model_len: int
    """maximum number of tokens of one sequence."""

    bos_token: str
    """text of `<s>`."""

    eos_token: str
    """text of `</s>`."""

    unk_token: str
    """text of `<unk>`."""

    bos_token_id: int
    """id of `<s>`."""

    eos_token_id: int
    """id of `</s>`."""

    unk_token_id: int
    """id of `<unk>`."""

    add_bos_token: bool
    """always true, because `<s>` precedes texts."""

    add_eos_token: bool
    """always false, because no `</s>` is appended to texts."""


class TrainingStatus(Reply):
    """Running training of a model."""

    name: str
    """name of the model."""

    stage: str
    """the work in progress, in words."""

    done: float | None = None
    """completed share of the stage; null if unknown."""

    seconds_left: float | None = None
    """estimated remaining seconds of the stage; null if unknown."""


class Usage(Reply):
    """Token counts, without `<s>`."""

    prompt_tokens: int
    """number of tokens of all prompts, as given or tokenised."""

    completion_tokens: int
    """number of generated tokens; /v1/completions counts `</s>` too."""

    total_tokens: int
    """sum of `prompt_tokens` and `completion_tokens`."""


class UserCorrection(Reply):
    """A spelling that a word replaced."""

    typed: str
    """the spelling."""

    text: str
    """the word."""

    count: float
    """number of corrections, which decays as words are accepted."""


class UserPair(Reply):
    """A pair of words and its number of acceptances."""

    previous: str
    """preceding word; empty at the start of a sentence."""

    text: str
    """the word."""

    count: float
    """number of acceptances, which decays as other words are accepted."""


class UserReply(Reply):
    """Numbers of words and word pairs stored for a user."""

    user: str
    """name of the user."""

    num_words: int
    """number of stored words."""

    num_pairs: int
    """number of stored word pairs."""


class UserWord(Reply):
    """A word and its number of acceptances."""

    text: str
    """the word."""

    count: float
    """number of acceptances, which decays as other words are accepted."""


class UserWords(Reply):
    """Words, word pairs and corrections stored for a user."""

    user: str
    """name of the user."""

    words: list[UserWord]
    """stored words."""

    pairs: list[UserPair]
    """stored word pairs."""

    corrections: list[UserCorrection] = Field([], validate_default=True)
    """stored corrections; omitted if there are none."""


class WeightedEntry(Reply):
    """An entry with a weight."""

    text: str
    """A word, or several separated by spaces."""

    weight: float = 1.0
    """Equivalent count: how often the entry is assumed to have been typed."""


class WordCandidate(Reply):
    """A possible next word, of one or several tokens."""

    text: str
    """the word."""

    logprob: float
    """natural-log probability of the word."""


class WordConfidence(Reply):
    """A word of the best candidate."""

    text: str
    """the word."""

    start: int
    """start of the word in the candidate, in characters."""

    end: int
    """end of the word in the candidate, in characters."""

    confidence: float
    """posterior mass of the candidates that have the word at this position."""


class WordListReply(Reply):
    """A stored word list."""

    name: str
    """its name."""

    version: int
    """1, or one more than that of the list which it replaced."""

    casing: Literal["exact", "ignore"]
    """whether its entries are compared in their case, or in any."""

    language: str | None
    """language of the texts that it serves, or null for any."""

    entries: int
    """number of distinct entries."""

    words: int
    """number of distinct words in the entries."""

    bytes: int
    """size of its file."""


class WordListsReply(Reply):
    """The word lists of an API key."""

    wordlists: list[WordListReply]
    """the lists, sorted by name."""


class WordScore(Reply):
    """Score of a word, the tokens up to the next white space."""

    text: str
    """the word, or `</s>`."""

    logprob: float
    """natural-log probability of the word, summed over its tokens."""

    num_tokens: int
    """number of tokens in the word."""

    is_oov: bool
    """true if a token of the word is unknown."""


class WordSurprisal(Reply):
    """A word of a checked text."""

    start: int
    """start of the word in the text, in code points."""

    end: int
    """end of the word in the text, in code points."""

    text: str
    """the word."""

    surprisal_bits: float
    """−log2 of the word's probability given the preceding text, summed over its tokens; a word includes the space before it, not the one after it, as in the `words` of /v1/score."""

    known: bool
    """true if the word is a token of the model (for a character model: if all its characters are) or in a dictionary of the request."""
