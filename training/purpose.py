"""Choice of a recipe and a tokenizer for a purpose and a text, with reasons."""

import math
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from models.cores import available_cores
from models.errors import InputError
from models.files import COMPRESSED_SUFFIXES
from models.words import UNSPACED
from training.corpus import check_rereadable, read_sentences
from training.evaluation.autocomplete import typing_cost
from training.progress import SILENT, Progress
from training.publish import RunContext
from training.single_model import Trained
from training.texts import read_default_corpus

Purpose = Literal["autocomplete", "rerank", "check", "score", "restore"]

_SAMPLE_SENTENCES = 20_000
_COMPRESSION = 3.5
"""Assumed ratio of a text's size to its compressed size."""

_MIN_NETWORK_WORDS = 300_000
_MIN_WORDS_FOR_MIN_COUNT = 1_000_000
_NETWORK_MINUTES = 30
_MIN_SHARE = 0.01
"""Minimum share of words with a property, such as punctuation, of a text written that way."""

_PUNCTUATION = frozenset({"Po", "Pe", "Pf"})
"""Unicode categories of punctuation that follows a word."""

_WORDS_OR_MARKS = r"\w+(?:-\w+)*|[^\w\s]"
_KEYS_OF_WORDS = "ngram.", "corpus.", "tokenizer.normalise", "tokenizer.min_count", "tokenizer.slots"

PAUSE_MS = 200.0
"""Assumed time between two keys of a typist."""

REQUEST_MS = 0.3
"""Assumed time of a core for HTTP and JSON of a request (`bench_capacity.py`)."""

BUSY_SHARE = 0.5
"""Assumed share of the time that a core is busy; beyond, keys queue."""

_WORDS_AND_MARKS = r"\w+(?:['\u2019-]\w+)*|[,;:.?!]"

_UNSPACED_PER_WORD = 2
"""Assumed word length in scripts without spaces: the average of Chinese."""


class ChosenRecipe(NamedTuple):
    """Recipe for a purpose and a text.

    Attributes:
        recipe: name of the recipe.
        settings: values of keys to set, as for `--set`.
        reasons: reasons of recipe and keys, in sentences for users.
        typing: plan for autocomplete; None for other purposes, and out of core.
    """

    recipe: str
    settings: dict[str, str]
    reasons: list[str]
    typing: "TypingPlan | None" = None


class TypingPlan(NamedTuple):
    """Typists whom this machine shall carry, and the model to try if no other does.

    Attributes:
        typists: number of typists; None to take the best model.
        of_words: values of keys for the recipe `ngram`, as for `--set`; none if it
            is not tried.
    """

    typists: int | None = None
    of_words: Sequence[str] = ()


class TypingCandidate(NamedTuple):
    """Trained model that may be published.

    Attributes:
        trained: the model.
        run: its tokenizer and texts.
        facts: results of `typing_cost`; typists that a core and this machine carry.
    """

    trained: Trained
    run: RunContext
    facts: dict[str, Any]


class _TextStyle(NamedTuple):
    """Properties of a text, estimated on its first sentences.

    Attributes:
        num_words: words of the whole text.
        is_spaced: true if spaces separate the words.
        is_cased: true if words have capitals.
        has_punctuation: true if it has punctuation, attached to words or not.
        is_attached: true if it is attached, as people write.
        is_composed: true if the text has Unicode's composed form.
    """

    num_words: float
    is_spaced: bool
    is_cased: bool
    has_punctuation: bool
    is_attached: bool
    is_composed: bool


def choose_recipe(
    purpose: Purpose,
    corpus: Sequence[Path],
    *,
    engine: str = "memory",
    assignments: Sequence[str] = (),
    typists: int | None = None,
) -> ChosenRecipe:
    """Choose a recipe, a tokenizer and values of unset keys for a purpose.

    Args:
        purpose: use of the model.
        corpus: training files, whose beginning is read; none for the default
            corpus.
        engine: engine of n-gram estimation, see `scale.options.ENGINES`.
        assignments: keys and values that the user sets, `KEY=VALUE`.
        typists: typists whom the model has to carry on this machine.

    Raises:
        InputError: typists below 1, or for another purpose or engine.
        FormatError: a file cannot be read as text, or is a pipe, which is read
            twice.
    """
    _check_typists(typists, purpose, engine)
    style = _style_of(corpus)
    given = dict(text.partition("=")[::2] for text in assignments)
    settings: dict[str, str] = {}
    reasons: list[str] = []

    def choose(key: str, value: str, reason: str) -> None:
        if key not in given:
            settings[key] = value
            reasons.append(f"{key}={value}: {reason}")

    size = f"the text has about {style.num_words:,.0f} words"
    if purpose == "restore":
        recipe = "ngram"
        reasons.append("recipe ngram: its search for capitals and marks is exact")
        if not (style.is_cased and style.has_punctuation):
            reasons.append(
                "the text lacks capitals or punctuation: the model cannot restore what it has not seen"
            )
    elif engine != "memory":
        recipe = "ngram"
        reasons.append(f"recipe ngram: --engine {engine} trains no networks")
    elif style.num_words < _MIN_NETWORK_WORDS:
        recipe = "ngram"
        reasons.append(f"recipe ngram: {size}; a network helps from about {_MIN_NETWORK_WORDS:,} on")
    else:
        recipe = "mixture"
        reasons.append(f"recipe mixture: {size}; an LSTM beside the n-gram model clearly improves it")
        choose("train.max_minutes", str(_NETWORK_MINUTES), "more minutes make the network better")
    choose("tokenizer.kind", *_choose_kind(purpose, style))
    if purpose == "restore" and style.is_spaced:
        choose(
            "tokenizer.pattern",
            _WORDS_AND_MARKS,
            "marks are tokens; quotation marks and brackets are left out",
        )
    if (settings | given)["tokenizer.kind"] == "word" and style.num_words >= _MIN_WORDS_FOR_MIN_COUNT:
        choose("tokenizer.min_count", "2", "many words that occur once are misspelt")
    if not style.is_composed:
        choose("tokenizer.normalise", "nfc", "letters with accents are written in more than one way")
    is_typed = purpose == "autocomplete" and engine == "memory"
    words = _keys_of_words(style, settings, assignments)
    return ChosenRecipe(recipe, settings, reasons, TypingPlan(typists, words) if is_typed else None)


def _check_typists(typists: int | None, purpose: Purpose, engine: str) -> None:
    if typists is None:
        return
    for option, given, required in (("for", purpose, "autocomplete"), ("engine", engine, "memory")):
        if given != required:
            problem = f"--typists requires --{option} {required}, given {given}"
            raise InputError(problem, param="typists")
    if typists < 1:
        raise InputError.of("typists", f"is {typists}; it must be at least 1")


def _keys_of_words(style: _TextStyle, settings: Mapping[str, str], assignments: Sequence[str]) -> list[str]:
    """Return keys of a model of words, beside one of pieces that the user did not choose."""
    if settings.get("tokenizer.kind") != "unigram" or not style.is_spaced:
        return []
    keys = ["tokenizer.kind=word", f"tokenizer.pattern={_WORDS_OR_MARKS}"]
    if style.num_words >= _MIN_WORDS_FOR_MIN_COUNT:
        keys.append("tokenizer.min_count=2")
    given = [*(f"{key}={value}" for key, value in settings.items()), *assignments]
    return [*keys, *(text for text in given if text.startswith(_KEYS_OF_WORDS))]


def typing_candidates(
    trained: Trained, run: RunContext, texts: Sequence[str], *, progress: Progress
) -> list[TypingCandidate]:
    """Measure a model, then its parts, the best on the validation text first."""
    parts = [part for part in trained.parts if isinstance(part, Trained)]
    parts.sort(key=lambda part: part.figures["valid"]["bits_per_byte"] or math.inf)
    found = []
    for one in (trained, *parts):
        if cost := typing_cost(one.model, run.tokenizer, texts, progress=progress):
            per_core = BUSY_SHARE * PAUSE_MS / (cost["core_ms_per_key"] + REQUEST_MS)
            cost |= {"typists_per_core": per_core, "typists": int(per_core * available_cores())}
            found.append(TypingCandidate(one, run, {"name": one.title, **cost}))
    return found


def choose_candidate(candidates: Sequence[TypingCandidate], typists: int | None) -> TypingCandidate:
    """Return the first that carries the typists, else the cheapest, with the comparison."""
    able = [one for one in candidates if one.facts["typists"] >= (typists or 0)]
    chosen = able[0] if able else min(candidates, key=lambda one: one.facts["core_ms_per_key"])
    best, own = candidates[0].facts, chosen.facts
    where = f"{typists} typists on {available_cores():g} cores"
    reason = f"{own['name']} is published: "
    if not able:
        reason += f"no model carries {where}, and it is the cheapest; it carries {own['typists']}"
    elif own is not best:
        reason += f"it carries {where}, {best['name']} only {best['typists']}"
    typing = {
        "chosen": own["name"],
        "reason": "" if able and own is best else reason,
        "assumed": (
            f"a typist presses a key every {PAUSE_MS:g} ms; HTTP takes {REQUEST_MS:g} ms of a core for "
            f"each; a core is busy for {BUSY_SHARE:.0%} of the time"
        ),
        "candidates": [one.facts for one in candidates],
    }
    trained = chosen.trained
    return chosen._replace(trained=trained._replace(facts={**trained.facts, "typing": typing}))


def _choose_kind(purpose: Purpose, style: _TextStyle) -> tuple[str, str]:
    """Choose the kind of a tokenizer; return it with the reason."""
    if not style.is_spaced:
        return "unigram", "no spaces separate the words of the text"
    if purpose == "restore":
        return "word", "each word is written as the text writes it"
    if style.has_punctuation and not style.is_attached:
        return "word", "the text is tokenised: spaces separate punctuation from words"
    if purpose == "rerank" and not (style.is_cased or style.has_punctuation):
        return "word", "the text has neither capitals nor punctuation, as recognisers write"
    uses = {
        "autocomplete": "completions are words without punctuation",
        "rerank": "candidates are written text",
        "check": "a word that the text lacks is not yet an error",
    }
    reason = uses.get(purpose, "texts can have any words")
    return "unigram", f"{reason}; with pieces of words, none is unknown"


def _style_of(corpus: Sequence[Path]) -> _TextStyle:
    check_rereadable(corpus)
    if corpus:
        every = chain.from_iterable(read_sentences(path, unit="line") for path in corpus)
        sentences = list(islice(every, _SAMPLE_SENTENCES))
    else:
        sentences = list(read_default_corpus(SILENT)[0].sentences)
    words = [word for sentence in sentences for word in sentence.split()]
    size, num_unspaced = sum(map(len, sentences)), sum(len(UNSPACED.findall(text)) for text in sentences)
    num_words = len(words) + num_unspaced / _UNSPACED_PER_WORD
    if len(sentences) == _SAMPLE_SENTENCES:
        sampled = sum(len(sentence.encode()) + 1 for sentence in sentences)
        sizes = (
            path.stat().st_size * (_COMPRESSION if path.suffix in COMPRESSED_SUFFIXES else 1)
            for path in corpus
        )
        num_words *= max(1.0, sum(sizes) / sampled)
    minimum = _MIN_SHARE * len(words)
    ending = [word for word in words if word[-1] != "'" and unicodedata.category(word[-1]) in _PUNCTUATION]
    num_attached = sum(any(map(str.isalnum, word)) for word in ending)
    return _TextStyle(
        num_words=num_words,
        is_spaced=num_unspaced < size / 2,
        is_cased=sum(word != word.lower() for word in words) > minimum,
        has_punctuation=len(ending) > minimum,
        # any text has abbreviations
        is_attached=num_attached > max(minimum, len(ending) / 2),
        is_composed=all(unicodedata.is_normalized("NFC", sentence) for sentence in sentences),
    )
