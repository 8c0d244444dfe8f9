"""Check of a text by one or more models: probable errors, with suggestions."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from math import log
from typing import Any, NamedTuple

import numpy as np

from models.arrays import Float64s, Int64s
from models.calls import Read, Work, map_in_steps, run_call
from models.checking.checker import (
    MIN_SUGGESTION_PROBABILITY,
    Issue,
    Suggestion,
    find_issues,
    without_overlaps,
)
from models.checking.error_model import CheckSettings, ErrorTable
from models.checking.rescoring import RescoredBatch
from models.checking.sentences import Sentence, Word
from models.errors import ContextLengthError, InputError
from models.language_model import is_lookup
from models.scoring.model_weights import (
    WeightedModel,
    normalised_weights,
    sum_by_word,
    sum_spellings,
    weights_before,
    weights_given_text,
    word_starts,
    words_at,
)
from models.text_model import Limits, TextModel, check_forward
from models.tokenizers import CharacterTokenizer
from models.words import word_pattern

_BYTES_PER_CHARACTER = 4
_MIN_SHARE_OF_THRESHOLD = 0.1
"""Share of the threshold below which an error's probability by one of several models is 0."""


class Checked(NamedTuple):
    """Results of one model, or of several.

    Attributes:
        words: words of the text.
        surprisals: surprisal of each word in bits [N].
        issues: probably wrong spans of the text.
        positions: text position of each predicted token and line end [T].
        log_probs: log-probability of each [T].
        num_ends: number of line ends.
    """

    words: Sequence[Word]
    surprisals: Float64s
    issues: Sequence[Issue]
    positions: Int64s
    log_probs: Float64s
    num_ends: int


def check_text(
    models: Sequence[WeightedModel],
    text: str,
    settings: CheckSettings,
    threshold: float,
    limits: Limits,
    *,
    max_suggestions: int,
    errors: Mapping[str, ErrorTable | None] | None = None,
) -> Work[Any, tuple[Checked, Float64s, list[int]]]:
    """Find probable errors of a text, each line a sentence.

    Args:
        models: one or several.
        text: the text.
        settings: settings of the search for errors, but for `errors`.
        threshold: minimum probability of an error by one model; less suffices for one of several.
        limits: of one request.
        max_suggestions: maximum suggestions per issue of one model.
        errors: edits in misspellings, by model address; None: all are equally probable.

    Returns:
        The results, the models' weights at each word [N, M], and the number of tokens scored by each [M].

    Raises:
        ContextLengthError: a line is too long.
        InputError: there are too many lines, or too many words or issues for a reply.
        UnsupportedError: a model reads backward.
    """
    least = threshold if len(models) == 1 else threshold * _MIN_SHARE_OF_THRESHOLD
    results = []
    for loaded, _ in models:
        own = replace(settings, errors=(errors or {}).get(loaded.address))
        results.append((yield from _check(loaded, text, own, least, limits, max_suggestions)))
    checked, weights = results[0], np.ones((1, 1))
    if len(models) > 1:
        checked, weights = yield from _combine(models, results, text)
    return checked, weights, [len(result.log_probs) for result in results]


def _check(
    loaded: TextModel,
    text: str,
    settings: CheckSettings,
    threshold: float,
    limits: Limits,
    max_suggestions: int,
) -> Work[Any, Checked]:
    """Check a text with one model."""
    check_forward(loaded)
    sentences = yield from _sentences(loaded, text, limits)
    limits.check_entries(
        sum(len(one.words) for one in sentences),
        param="text",
        description="the reply has an entry for each word of text",
        instead="send it in parts",
    )
    tokens = loaded.tokenizer.vocabulary.tokens
    batches = []
    issues = []
    num_entries = 0
    direct = is_lookup(loaded.model)
    for work in loaded.checker.rescore_all(loaded.model, sentences, settings):
        rescored = yield from _answer_directly(work) if direct else work
        found = yield from find_issues(rescored, tokens, threshold=threshold, max_suggestions=max_suggestions)
        issues += found
        num_entries += sum(1 + len(one.suggestions) for one in found)
        limits.check_entries(
            num_entries,
            param="text",
            description="the reply has an entry for each error in text and each suggestion",
            instead="send it in parts, with a higher threshold or fewer max_suggestions",
        )
        batches.append(rescored._replace(state=None))
        yield None
    return Checked(
        [word for batch in batches for word in batch.words],
        np.concatenate([np.zeros(0), *(-one.word_log_probs / log(2) for one in batches)]),
        issues,
        np.concatenate([np.zeros(0, np.int64), *(one.positions for one in batches)]),
        np.concatenate([np.zeros(0), *(one.log_probs for one in batches)]),
        sum(one.num_ends for one in batches),
    )


def _combine(
    models: Sequence[WeightedModel], results: Sequence[Checked], text: str
) -> Work[Any, tuple[Checked, Float64s]]:
    """Combine several models' results by their weights at each word; return these too [N, M].

    The probability of an error or a correction is the mean of the models'. The surprisal of a word is
    the mixture's, given the weights before it; the model of largest weight divides it into its words.
    """
    starts = word_starts(text)
    if not len(starts):
        return results[0], normalised_weights(models)[None, :]
    by_model = []
    for model, result in zip(models, results, strict=True):
        spellings = yield from sum_spellings(model.loaded.checker, result.words, starts)
        by_model.append(sum_by_word(starts, result.positions, result.log_probs) + spellings)
    log_probs = np.array(by_model)
    prior = normalised_weights(models)
    before = (yield from weights_before(prior, log_probs))[:-1]
    weights = yield from weights_given_text(prior, log_probs)
    mixed = np.logaddexp.reduce(np.log(before.T) + log_probs)
    best = weights.argmax(axis=1)
    # a character model knows every word, so any others give an issue's type
    judges = [
        number
        for number, (loaded, _) in enumerate(models)
        if loaded.tokenizer.kind != CharacterTokenizer.kind
    ]
    judges = judges or [*range(len(models))]
    known = []
    for result in results:
        known.append({(word.start, word.end) for word in result.words if word.known})
        yield None
    judged = set().union(*(known[number] for number in judges))
    known_by_any = set().union(*known)
    factors = mixed / np.minimum(log_probs, -1e-300)  # [M, N], never infinite
    words = []
    surprisals = []
    found: dict[tuple[int, int], list[tuple[float, Issue]]] = {}
    for number, result in enumerate(results):
        of_words = words_at(starts, [word.start for word in result.words])
        own = np.flatnonzero(best[of_words] == number)
        surprisals.append(result.surprisals[own] * factors[number, of_words[own]])
        words += yield from map_in_steps(
            [result.words[index] for index in own.tolist()],
            lambda word: word._replace(known=(word.start, word.end) in known_by_any),
            size=lambda _: 0,
        )
        of_issues = words_at(starts, [issue.start for issue in result.issues]).tolist()

        def add_issue(one: tuple[Issue, int], number: int = number) -> None:
            issue, index = one
            weighted = float(weights[index, number]), issue._replace(known=issue.known and number in judges)
            # without the punctuation of some models' words
            spans = [word.span() for word in word_pattern().finditer(text, issue.start, issue.end)]
            span = (spans[0][0], spans[-1][1]) if spans else (issue.start, issue.end)
            found.setdefault(span, []).append(weighted)

        yield from map_in_steps(zip(result.issues, of_issues, strict=True), add_issue, size=lambda _: 0)
    mean = yield from map_in_steps(
        found.values(), lambda issues: _mean_issue(issues, text, judged), size=lambda one: 256 * len(one)
    )
    order = np.argsort([word.start for word in words], kind="stable")
    combined = Checked(
        [words[index] for index in order.tolist()],
        np.concatenate(surprisals)[order],
        without_overlaps(mean),
        starts,
        mixed,
        max(result.num_ends for result in results),
    )
    return combined, weights


def _mean_issue(issues: Sequence[tuple[float, Issue]], text: str, known: Container[tuple[int, int]]) -> Issue:
    """Return the mean of several models' issues with weights.

    `known` are the spans of words that a model knows.
    """
    start, end = min(issue.start for _, issue in issues), max(issue.end for _, issue in issues)
    ascending = sorted(issues, key=lambda one: one[0])
    merged: dict[str, Suggestion] = {}
    for weight, issue in ascending:
        for suggestion in issue.suggestions:
            whole = text[start : issue.start] + suggestion.text + text[issue.end : end]
            earlier = merged.get(whole)
            chance = weight * suggestion.probability + (earlier.probability if earlier else 0.0)
            merged[whole] = suggestion._replace(text=whole, probability=chance)
    ranked = sorted(merged.values(), key=lambda one: -one.probability)
    worth = [one for one in ranked if one is ranked[0] or one.probability >= MIN_SUGGESTION_PROBABILITY]
    chance = sum(weight * issue.probability for weight, issue in issues)
    is_known = any(issue.known or (issue.start, issue.end) in known for _, issue in issues)
    return Issue(start, end, is_known, chance, tuple(worth))


def _sentences(loaded: TextModel, text: str, limits: Limits) -> Work[Any, list[Sentence]]:
    """Split a text into sentences, giving way in between; reject lines over the limits."""
    num_lines = text.count("\n") + 1
    if num_lines > limits.max_reply_entries:
        raise InputError.of(
            "text", f"has {num_lines} lines; at most {limits.max_reply_entries} are accepted in one request"
        )

    def read() -> Iterator[Sentence]:
        offset = 0
        for number, line in enumerate(text.split("\n"), start=1):
            try:
                if _BYTES_PER_CHARACTER * len(line) > limits.max_tokens_per_sequence:
                    limits.check_characters(line, param="text")
                    # before its words are found
                    limits.check_length(len(loaded.tokenizer.encode(line)), param="text")
                num_tokens = 0
                for sentence in loaded.checker.sentences(line, offset) if line else ():
                    num_tokens += len(sentence.ids)
                    limits.check_length(num_tokens, param="text")
                    yield sentence
            except ContextLengthError as error:
                raise ContextLengthError(f"line {number} of {error}", param="text") from None
            offset += len(line) + 1

    return (yield from map_in_steps(read(), lambda one: one, size=lambda one: len(one.text)))


def _answer_directly(work: Work[Any, RescoredBatch]) -> Work[Any, RescoredBatch]:
    """Run calls to an n-gram model here: lookup costs less than the engine."""
    answer: Any = None
    while True:
        try:
            call = work.send(answer)
        except StopIteration as stopped:
            rescored: RescoredBatch = stopped.value
            return rescored
        answer = None if call is None else run_call(call)
        # reads of single tokens take microseconds
        if not isinstance(call, Read) or call.want.scores:
            yield None
