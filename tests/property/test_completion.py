"""Probabilities of completions: all spellings, personal models, evaluation metrics."""

import codecs
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from models.calls import run_to_completion
from models.completion.prefix import split_prefix
from models.completion.search import CompletionSettings
from models.completion.token_trie import Lexicon, TokenTrie
from models.completion.user_model import SENTENCE_START, UserModel, UserModelLimits, WordSequence
from models.language_model import EOS, Vocabulary
from models.prefix_cache import NextTokenCache
from models.scoring.model_weights import WeightedModel
from models.text_model import Limits, TextModel
from models.tokenizers import CharacterTokenizer, WordTokenizer
from service.operations.autocomplete import AutocompleteRequest, autocomplete
from tests.reference.decoding import WORD, Branching, Pieces, masses
from tests.support.fake_models import FakeModel, fake_vocabulary
from tests.support.text_models import begun_search, drive, learnt_pieces, piece_model, searched, state_after
from training.evaluation.autocomplete_metrics import (
    CompletionRank,
    Ranks,
    TypedLine,
    TypingLine,
    WordSpan,
    ratios,
    recall_by_letters,
    recoverable_letters,
    saved_keys,
)

PIECES = [
    *(
        piece.encode()
        for piece in ["a", "b", "ab", "ba", " a", " b", " ab", " ", "s,", ", ", "b ", "b a", "."]
    ),
    *(
        piece.encode()
        for piece in ["'", "'s", "-", "a-", "a'b, b", " b a", "é", "A", "aB", " Ab", "-.", "\u2019"]
    ),
    b"\xc3",
    b"\xa9",
    b"\xe2",
    b"a",  # a byte token that spells the same as a piece
]
SPELLED = ["", " ", "a", " a", "ab", " ab", "b", " b", "é", "a'", " a-b", "a-"]
EVERYTHING = {"floor": 0.0, "settled": 0.0, "max_steps": 10**6, "limit": 10**6}

vocabularies = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6)


def words_of(search):
    """Words found by a search, with their masses."""
    return {word.decode(): mass for word, mass in search.words.items()}


def search_of(model, tokens, spelled, *, plain=False, **options):
    settings = CompletionSettings(**options)
    search = begun_search(tokens, model, model.initial_state(1), spelled.encode(), settings, plain=plain)
    steps = drive(search, model)
    assert max(steps, default=0) <= options.get("rows_per_step", 16)
    return search


def made(pieces, seed):
    tokenizer = Pieces(pieces)
    return Branching(len(tokenizer.token_bytes), seed), TokenTrie(tokenizer)


@settings(max_examples=100, deadline=None)
@given(vocabularies, st.sampled_from(SPELLED), st.integers(0, 9), st.booleans(), st.booleans())
@example(
    pieces=[b"a", b" ", b" "], spelled=" ab", seed=1, ignore_case=False, plain=True
)  # a rounding error once
def test_words_are_as_probable_as_all_texts_that_go_on_so(pieces, spelled, seed, ignore_case, plain):
    model, tokens = made(pieces, seed)
    search = search_of(model, tokens, spelled, ignore_case=ignore_case, plain=plain, **EVERYTHING)
    found = search.result()
    [truth] = masses(model, tokens.token_bytes, spelled.encode(), ignore_case=ignore_case)
    assert {word.text: word.mass for word in found.completions} == pytest.approx(truth, rel=1e-5, abs=1e-9)
    assert found.live_mass == pytest.approx(sum(truth.values()), rel=1e-5, abs=1e-9)
    assert found.unexplored_mass == pytest.approx(0, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(vocabularies, st.sampled_from(SPELLED), st.integers(0, 9), st.integers(2, 3))
def test_phrases_are_as_probable_as_all_texts_that_go_on_so(pieces, spelled, seed, max_words):
    model, tokens = made([*pieces, b" a"], seed)
    found = search_of(model, tokens, spelled, max_words=max_words, **EVERYTHING).result()
    truth = masses(model, tokens.token_bytes, spelled.encode(), max_words=max_words)
    for length, phrases in enumerate(truth, start=1):
        told = {c.text: c.mass for c in found.completions if c.num_words == length}
        assert told == pytest.approx(phrases, rel=1e-5, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    vocabularies,
    st.sampled_from(SPELLED),
    st.integers(0, 9),
    st.sampled_from([{"max_steps": 3}, {"floor": 0.01}, {"limit": 2, "settled": 0.3}, {"max_word_bytes": 3}]),
)
def test_a_cut_search_tells_lower_bounds_and_what_it_left_out(pieces, spelled, seed, options):
    model, tokens = made([*pieces, b"a", b" b"], seed)
    search = search_of(model, tokens, spelled, **{**EVERYTHING, **options})
    [truth] = masses(model, tokens.token_bytes, spelled.encode())
    found = search.result()
    shares = [mass / found.live_mass for mass in words_of(search).values()]
    assert sum(shares) + found.unexplored_mass == pytest.approx(1 if found.live_mass else 0, abs=1e-9)
    assert found.live_mass >= sum(truth.values()) * (1 - 1e-5)
    assert 0 <= found.unexplored_mass <= 1
    for word, mass in words_of(search).items():
        assert mass <= truth[word] * (1 + 1e-5)


@settings(max_examples=60, deadline=None)
@given(
    vocabularies,
    st.sampled_from(SPELLED),
    st.integers(0, 9),
    st.integers(1, 3),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_a_lexicon_leaves_out_other_words_and_changes_no_mass(
    pieces, spelled, seed, max_words, ignore_case, random
):
    model, tokens = made([*pieces, b" a"], seed)
    options = {**EVERYTHING, "max_words": max_words, "ignore_case": ignore_case}
    everything = search_of(model, tokens, spelled, **options).result()
    words = sorted({word for one in everything.completions for word in one.text.split()})
    tokens.lexicon = Lexicon([word for word in words if random.random() < 0.5])
    tokens.derived.clear()
    found = search_of(model, tokens, spelled, **options).result()
    expected = {
        one.text: one.mass
        for one in everything.completions
        if all(word in tokens.lexicon for word in one.text.split())
    }
    assert {one.text: one.mass for one in found.completions} == pytest.approx(expected, rel=1e-6, abs=1e-12)
    covered = sum(one.mass for one in found.completions if one.num_words == 1)
    assert covered == pytest.approx(found.live_mass * (1 - found.unexplored_mass), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(vocabularies, st.sampled_from(SPELLED), st.integers(0, 9))
def test_steps_of_one_row_find_what_steps_of_many_do(pieces, spelled, seed):
    model, tokens = made(pieces, seed)
    alone = words_of(search_of(model, tokens, spelled, rows_per_step=1, **EVERYTHING))
    together = words_of(search_of(model, tokens, spelled, rows_per_step=16, **EVERYTHING))
    assert alone == pytest.approx(together, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(vocabularies, st.integers(0, 9))
def test_a_letter_more_conditions_on_it(pieces, seed):
    """Words found after "a" are the words found after "" that begin with "a", with equal probabilities."""
    model, tokens = made([*pieces, b"a", b"b"], seed)
    before = words_of(search_of(model, tokens, "", **EVERYTHING))
    after = words_of(search_of(model, tokens, "a", **EVERYTHING))
    assert after == pytest.approx({word: p for word, p in before.items() if word.startswith("a")}, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["", "t", "ca", "sp"]), st.integers(0, 9), st.booleans())
def test_words_that_are_tokens_have_the_row_renormalised(prefix, seed, ignore_case):
    tokenizer = WordTokenizer(fake_vocabulary(extra=("Cat", "carp", "tHem")))
    model = FakeModel(tokenizer.vocabulary, seed=seed)
    state = model.initial_state(1)
    settings = CompletionSettings(ignore_case=ignore_case, limit=100)
    search = begun_search(TokenTrie(tokenizer), model, state, f" {prefix}".encode(), settings)
    assert search.next_step() is None
    row = np.exp(model.next_log_probs(state)[0].astype(float))
    case = str.lower if ignore_case else str
    words = tokenizer.vocabulary.ids.items()
    expected = {word: row[i] for word, i in words if case(word).startswith(prefix)}
    found = search.result()
    assert {c.text: c.mass for c in found.completions} == pytest.approx(expected, rel=1e-6)
    assert found.unexplored_mass == 0


SURE, UNSURE, OTHER = range(3)


@pytest.mark.parametrize("kind", ["unigram", "bpe", "char"])
@pytest.mark.parametrize("text", ["", "the c", "a cat can'", "hats, m"])
def test_words_are_as_probable_as_their_spellings(kind, text):
    """Masses lie between the sum of certain endings, minus unexplored mass, and the sum of possible endings."""
    search = searched(kind, text, settled=0.0, floor=0.0, max_steps=400)
    typed = split_prefix(learnt_pieces(kind), text)
    likeliest = sorted(words_of(search), key=words_of(search).get)[-3:]
    for word in likeliest:
        sure, unsure, _ = spelled_masses(kind, typed, word)
        assert 0.97 * sure <= words_of(search)[word] <= (sure + unsure) * (1 + 1e-5)


def spelled_masses(kind, typed, word):
    """Probabilities that a word has ended, that it may have ended, and that it continues [3]."""
    token_bytes, model = learnt_pieces(kind).token_bytes, piece_model(kind)
    space = b" " if typed.spelled.startswith(b" ") else b""
    target, sums = space + word.encode(), np.zeros(3)

    def go_on(state, spelled, mass):
        row = np.exp(model.next_log_probs(state)[0].astype(float))
        for token in range(EOS, len(token_bytes)):
            longer = spelled + token_bytes[token]
            if token != EOS and target.startswith(longer):
                go_on(model.advance(state, np.array([token])), longer, mass * row[token])
            elif longer.startswith(target):
                sums[_end(longer[len(space) :], word, ended=token == EOS)] += mass * row[token]

    go_on(state_after(kind, typed.context), b"", 1.0)
    return sums


def _end(raw, word, *, ended):
    text, _ = codecs.utf_8_decode(raw, "replace", ended)
    if not ended and text[len(word) :] in {"", "'", "\u2019", "-"}:
        return UNSURE
    return SURE if WORD.match(text).group() == word else OTHER


WORDS = ("a", "an", "ann", "Ann", "and", "den", "dean", "near", "nan", "na", "be", "bee")
LIMITS = Limits(max_texts=10, max_tokens_per_sequence=50, max_new_tokens=10)


def loaded(tokenizer):
    """Loaded fake model."""
    model = FakeModel(tokenizer.vocabulary)
    return TextModel("fake@1", model, tokenizer, next_token_cache=NextTokenCache(1 << 20))


OF_WORDS = loaded(WordTokenizer(Vocabulary(WORDS)))
OF_LOWERED = loaded(WordTokenizer(Vocabulary([word for word in WORDS if word != "Ann"]), lowercase=True))
OF_CHARS = loaded(CharacterTokenizer(Vocabulary("abden .")))


def complete(model, text, user=None, limits=LIMITS, **options):
    request = AutocompleteRequest(text=text, limit=100, **options)
    return run_to_completion(autocomplete([WeightedModel(model)], request, limits, user=user))


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
    done = complete(OF_CHARS, text, max_steps=steps, fuzzy=fuzzy, max_words=max_words)
    for num_words in range(1, max_words + 1):
        of_length = [one for one in done.completions if one.num_words == num_words and one.is_complete_word]
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
    model = loaded(OF_CHARS.tokenizer)
    again = [complete(model, "a de") for _ in range(2)]
    assert again[0] == again[1]
    np.testing.assert_array_equal(len(model.next_token_cache), 1)


def test_marks_of_corpora_are_no_completions():
    model = loaded(WordTokenizer(Vocabulary(["<unk>", "<b>", "a"])))
    assert {one.text for one in complete(model, "a ", max_words=2).completions} == {
        *("<b>", "a"),
        *(f"{first} {second}" for first in ("<b>", "a") for second in ("<b>", "a")),
    }


@st.composite
def typed_lines(draw):
    """Typed lines whose words have any rank in the list before each letter."""
    lines = []
    for _ in range(draw(st.integers(1, 4))):
        words, looks = [], {}
        for _ in range(draw(st.integers(1, 5))):
            ranks = draw(st.lists(st.integers(0, 10), min_size=1, max_size=7))
            begin, end = len(looks), len(looks) + len(ranks)
            words.append(
                WordSpan(begin, end, draw(st.booleans()), joined=bool(words) and draw(st.booleans()))
            )
            looks |= {begin + letters: CompletionRank(rank, 0.5) for letters, rank in enumerate(ranks)}
        num_keys = sum(word.end - word.begin + 1 for word in words)
        lines.append(TypedLine(TypingLine("", "", num_keys, tuple(words)), looks))
    return lines


@given(typed_lines())
def test_longer_lists_spare_and_find_no_less(lines):
    ranks = Ranks.of(lines)
    for length in range(1, 10):
        assert (saved_keys(ranks, length + 1) >= saved_keys(ranks, length)).all()
        assert (recoverable_letters(ranks, length + 1) >= recoverable_letters(ranks, length)).all()
    assert all(row["top_3"] >= row["top_1"] for row in recall_by_letters(ranks))


@given(typed_lines())
def test_figures_are_shares_and_longer_phrases_match_no_more(lines):
    told = ratios(Ranks.of(lines))
    for name, ratio in told.items():
        assert (ratio.numerator >= 0).all()
        assert "length" in name or (ratio.numerator <= ratio.denominator).all()
    matches = [told[f"phrase_match_{n}"].numerator.sum() for n in range(1, 6)]
    assert matches == sorted(matches, reverse=True)
    assert told["next_word_mrr"].numerator.sum() >= told["next_word_recall_top_1"].numerator.sum()
