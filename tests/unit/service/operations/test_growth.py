"""Work of autocompletion and generation: proportional to what a request gives, in steps of bounded length."""

import itertools
import random
import tracemalloc

import pytest

from models.calls import run_to_completion
from models.decoding.generate import phrase_automaton
from models.language_model import Vocabulary
from models.phrases import Phrase
from models.scoring.model_weights import WeightedModel
from models.text_model import Limits
from models.tokenizers import CharacterTokenizer, WordTokenizer
from service.operations.autocomplete import AutocompleteRequest, autocomplete
from service.operations.generate import Generate, GenerateRequest
from tests.support.counted_calls import calls_by_step
from tests.unit.conftest import loaded, operation

LIMITS = Limits(max_texts=10, max_tokens_per_sequence=1000, max_new_tokens=1)
MOST_CALLS = 50_000
"""Calls that take a few milliseconds, because most are of functions such as `len`."""

FACTOR = 2.3
LETTERS = "abcdefgh"
OF_WORDS = loaded(WordTokenizer(Vocabulary(["".join(word) for word in itertools.product("abcd", repeat=5)])))
OF_CHARS = loaded(CharacterTokenizer(Vocabulary(f"{LETTERS} .")))
DRAW = random.Random(1)


def word(size):
    return "".join(DRAW.choices(LETTERS, k=size))


def steps(model=OF_CHARS, number=1, **body):
    request = AutocompleteRequest(**{"text": "a ", "limit": 100, "max_words": 8, "max_steps": 1, **body})
    return calls_by_step(autocomplete([WeightedModel(model)] * number, request, LIMITS))


GROWING = {
    "dictionary of phrases": lambda n: {"dictionary": [f"a {word(4)} a {word(4)}" for _ in range(n)]},
    "dictionary of equal beginnings": lambda n: {
        "text": "abcd",
        "dictionary": ["abcd" * 9 + word(9) for _ in range(n)],
    },
    "mistyped dictionary": lambda n: {
        "text": "abcdabcd",
        "fuzzy": 2,
        "casing": "ignore",
        "dictionary": ["abcd" * 9 + word(9) for _ in range(n)],
    },
    "dictionary of equal endings": lambda n: {"dictionary": [f"{word(9)} abcd abcd" for _ in range(n)]},
    "dictionary of long entries": lambda n: {"dictionary": ["a " * 99 + word(2) for _ in range(n // 20)]},
    "entries of many words without spaces": lambda n: {
        "dictionary": [".".join(word(100)) for _ in range(n // 20)],
        "blocklist": [" ".join("b" * 100)],
    },
    "blocklist": lambda n: {"blocklist": [word(8) for _ in range(n)]},
}


@pytest.mark.parametrize("kind", GROWING)
def test_growing_requests_take_bounded_steps_and_linear_time(kind):
    few, many = (steps(**GROWING[kind](size)) for size in (4000, 8000))
    assert max(many) < MOST_CALLS
    assert sum(many) < FACTOR * sum(few)


def test_a_search_takes_time_in_proportion_to_its_steps():
    few, many = (steps(text="", max_steps=size, open_vocabulary=True) for size in (1000, 2000))
    assert max(many) < MOST_CALLS
    assert sum(many) < FACTOR * sum(few)


def test_several_models_and_prefixes_are_searched_and_merged_in_bounded_steps():
    options = {"text": "abcda", "fuzzy": 2, "casing": "ignore", "max_steps": 500}
    assert max(steps(OF_WORDS, 4, **options)) < MOST_CALLS


def test_words_that_must_not_be_generated_are_spelled_in_bounded_steps():
    few, many = (
        GenerateRequest(prompt="a", max_tokens=1, bad_words=[word(31) for _ in range(size)])
        for size in (1, 1024)
    )
    run_to_completion(operation(Generate, OF_CHARS, few, LIMITS).run())  # loads compiled code
    counts = calls_by_step(operation(Generate, OF_CHARS, many, LIMITS).run())
    assert max(counts) < MOST_CALLS


def peak_bytes(texts):
    """Return the peak memory of spelling phrases, the memory of their automaton, and its estimate."""
    work = phrase_automaton(OF_CHARS, [Phrase(text=text) for text in texts])
    tracemalloc.start()
    automaton = run_to_completion(work)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak, kept, automaton.num_bytes


@pytest.mark.parametrize("inner", [[], ["a", "b"]])
def test_memory_of_phrases_is_proportional_to_their_characters(inner):
    few, many = (
        peak_bytes([*inner, *(f"c{''.join(DRAW.choices('ab', k=size))}{word(8)}" for _ in range(100))])
        for size in (95, 190)
    )
    assert many[0] < FACTOR * few[0]
    assert many[0] < 1000 * 2 * 100 * 200  # each of the texts has two spellings
    assert 0.9 * many[1] < many[2] < 4 * many[1]
