"""Completions of the model and of the user's words: their probabilities make up the whole, however they are mixed."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.completion.user_model import SENTENCE_START, UserModel, UserModelLimits, WordSequence
from models.tokenizers import CharacterTokenizer, WordTokenizer
from models.vocabulary import Vocabulary
from service.engine.job import run_to_completion
from service.engine.loaded_model import LoadedModel
from service.engine.prefix_cache import NextTokenCache
from service.schemas.autocomplete import AutocompleteRequest
from service.use_cases.autocomplete import autocomplete
from service.use_cases.inputs import Limits
from tests.fakes import FakeModel

WORDS = ("a", "an", "ann", "Ann", "and", "den", "dean", "near", "nan", "na", "be", "bee")
LIMITS = Limits(max_texts=10, max_tokens_per_sequence=50, max_new_tokens=10)


def loaded(tokenizer):
    """A made-up model that can be asked."""
    manifest = SimpleNamespace(vocab_size=len(tokenizer.vocabulary), direction="forward")
    model = FakeModel(tokenizer.vocabulary)
    checkpoint = SimpleNamespace(model=model, tokenizer=tokenizer, manifest=manifest)
    return LoadedModel("fake@1", checkpoint, next_token_cache=NextTokenCache(1 << 20))


OF_WORDS = loaded(WordTokenizer(Vocabulary(WORDS)))
OF_LOWERED = loaded(WordTokenizer(Vocabulary([word for word in WORDS if word != "Ann"]), lowercase=True))
OF_CHARACTERS = loaded(CharacterTokenizer(Vocabulary("abden .")))


def complete(model, text, user=None, limits=LIMITS, **options):
    command = AutocompleteRequest(text=text, limit=100, **options).command()
    return run_to_completion(autocomplete(model, command, limits, user=user))


def user_of(sentences):
    return UserModel().updated(
        [WordSequence(SENTENCE_START, words) for words in sentences], UserModelLimits()
    )


WRITTEN = st.lists(st.sampled_from([*WORDS, "deer", "Anna", "nab"]), max_size=5)
TYPED = st.tuples(st.sampled_from(["", "a ", "and den "]), st.text("abdenAN", max_size=4)).map("".join)


@given(
    text=TYPED,
    sentences=st.lists(WRITTEN, max_size=4),
    dictionary=st.lists(st.sampled_from(["bead", "Dane", "and", "an end"]), max_size=3),
    weight=st.floats(0, 1),
    fuzzy=st.integers(0, 2),
    casing=st.sampled_from(["exact", "ignore"]),
    model=st.sampled_from([OF_WORDS, OF_LOWERED]),
)
@settings(deadline=None, max_examples=150)
def test_the_words_that_are_told_make_up_the_whole(text, sentences, dictionary, weight, fuzzy, casing, model):
    done = complete(
        model,
        text,
        user_of(sentences),
        dictionary=dictionary,
        user_weight=weight,
        fuzzy=fuzzy,
        casing=casing,
    )
    total = math.fsum(one.probability for one in done.completions) + done.unexplored_mass
    assert total == pytest.approx(1 if done.completions else 0, abs=1e-6)
    assert len({one.text for one in done.completions}) == len(done.completions)
    for one in done.completions:
        assert one.suffix is None or one.text == done.prefix + one.suffix.removeprefix(
            " " * (not done.prefix)
        )


@given(text=TYPED, steps=st.integers(1, 40), fuzzy=st.integers(0, 1), max_words=st.integers(1, 3))
@settings(deadline=None, max_examples=60)
def test_no_more_than_the_whole_is_told_where_the_search_was_cut(text, steps, fuzzy, max_words):
    done = complete(OF_CHARACTERS, text, max_steps=steps, fuzzy=fuzzy, max_words=max_words)
    for num_words in range(1, max_words + 1):
        of_length = [one for one in done.completions if one.num_words == num_words and one.is_complete]
        assert math.fsum(one.probability for one in of_length) <= 1 - done.unexplored_mass + 1e-6
    assert 0 <= done.unexplored_mass <= 1


@given(text=st.sampled_from(["a", "an", "den"]), letter=st.sampled_from("aden"))
@settings(deadline=None, max_examples=20)
def test_a_letter_more_conditions_what_was_told_before(text, letter):
    before, after = complete(OF_WORDS, text), complete(OF_WORDS, text + letter)
    still = {one.text: one.probability for one in before.completions if one.text.startswith(text + letter)}
    total = math.fsum(still.values())
    assert {one.text: one.probability for one in after.completions} == pytest.approx(
        {word: probability / total for word, probability in still.items()}
    )


def test_the_keys_of_a_word_ask_the_model_once():
    model = loaded(OF_WORDS.tokenizer)
    asked = []
    model.model.next_log_probs = lambda state: (
        asked.append(len(state)) or FakeModel.next_log_probs(model.model, state)
    )
    for text in ("a b", "a be", "a bee", "a bee ", "a bee a"):
        complete(model, text)
    assert asked == [1, 1]


def test_a_text_that_is_too_long_is_tokenised_once(monkeypatch):
    read = []
    encode = WordTokenizer.encode
    monkeypatch.setattr(WordTokenizer, "encode", lambda self, text: read.append(text) or encode(self, text))
    model = loaded(OF_WORDS.tokenizer)
    for typed in ("b", "be", "bee"):
        with pytest.raises(Exception, match="51 tokens; at most 50"):
            complete(model, "a " * 51 + typed)
    assert len(read) == 1
    assert len(complete(model, "a " * 50 + "be").completions) == 2


def test_the_same_is_told_whatever_was_asked_before():
    model = loaded(OF_CHARACTERS.tokenizer)
    again = [complete(model, "a de") for _ in range(2)]
    assert again[0] == again[1]
    np.testing.assert_array_equal(len(model.next_token_cache), 1)


def test_marks_of_corpora_are_no_completions():
    model = loaded(WordTokenizer(Vocabulary(["<unk>", "<b>", "a"])))
    assert {one.text for one in complete(model, "a ", max_words=2).completions} == {
        *("<b>", "a"),
        *(f"{first} {second}" for first in ("<b>", "a") for second in ("<b>", "a")),
    }
