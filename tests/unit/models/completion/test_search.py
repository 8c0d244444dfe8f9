"""The best-first search for completions, its frontier and its result."""

import re

import numpy as np
import pytest

from models.calls import materialize, view
from models.completion import search as module
from models.completion.search import CompletionSettings, Frontier, MassTable, Node
from models.completion.token_trie import Lexicon, TokenTrie
from models.tokenizers import WordTokenizer
from tests.reference.decoding import Branching, Pieces
from tests.support.fake_models import FakeModel, fake_vocabulary
from tests.support.text_models import (
    TEXT,
    begun_search,
    drive,
    piece_model,
    searched,
    spelled_pieces,
    state_after,
)

KINDS = ["unigram", "bpe", "char"]


def words_of(search):
    """Words found by a search, with their masses."""
    return {word.decode(): mass for word, mass in search.words.items()}


def told(found, num_words=1):
    return {c.text: c.mass / found.live_mass for c in found.completions if c.num_words == num_words}


@pytest.mark.parametrize("kind", KINDS)
def test_the_likeliest_word_comes_first(kind):
    found = searched(kind, "the c").result()
    first = found.completions[0]
    assert first.text == "cat"
    assert first.is_complete
    assert [c.mass for c in found.completions] == sorted((c.mass for c in found.completions), reverse=True)


@pytest.mark.parametrize("kind", KINDS)
def test_found_and_unexplored_mass_sum_to_1(kind):
    search = searched(kind, "the c", max_steps=20)
    found = search.result()
    assert sum(words_of(search).values()) / found.live_mass + found.unexplored_mass == pytest.approx(
        1, abs=1e-9
    )
    assert 0 < found.unexplored_mass < 1


def live_masses(search, model):
    """Live mass after each update; requesting the next step does not change it."""
    live = [search.result().live_mass]
    while (asked := search.next_step()) is not None:
        assert search.result().live_mass == pytest.approx(live[-1])
        state = model.advance(materialize(asked[0]), asked[1])
        search.update(view(state), model.next_log_probs(state))
        live.append(search.result().live_mass)
    return live


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_can_be_had_at_any_time(kind):
    """Each update removes paths without words and keeps the words found."""
    model, settings = piece_model(kind), CompletionSettings(rows_per_step=3)
    search = begun_search(spelled_pieces(kind), model, state_after(kind, ""), b"t", settings)
    live = live_masses(search, model)
    assert 1 >= live[0] > live[-1]
    assert live == sorted(live, reverse=True)


def test_parts_of_a_character_stay_open():
    pieces = Pieces([b"\xe6", b"\xbc", b"\xa2"])
    model = Branching(len(pieces.token_bytes), seed=1)
    settings = CompletionSettings(settled=0.0, floor=0.0)
    search = begun_search(TokenTrie(pieces), model, model.initial_state(1), b"", settings)
    assert live_masses(search, model)[-1] > 0
    assert "漢" in words_of(search)


@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_word_counts(kind):
    assert told(searched(kind, "the cat").result())["cat"] > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_apostrophes_and_hyphens_are_within_words(kind):
    assert "can't" in told(searched(kind, "a cat can").result())
    assert set(told(searched(kind, "a cat can'").result())) >= {"can't"}
    assert not {"can", "can'"} & set(words_of(searched(kind, "a cat can'")))


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_told_without_what_follows_them(kind):
    words = words_of(searched(kind, "hats, m"))
    assert "mats" in words
    assert all(word.replace("'", "").replace("-", "").isalnum() for word in words)


def test_a_character_in_bytes_is_one_character():
    search = searched("bpe", "é", max_steps=300)
    assert search.result().live_mass > 0
    assert all(word.startswith("é") for word in words_of(search))


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_as_many_and_as_large_as_allowed(kind):
    model, settings = piece_model(kind), CompletionSettings(max_steps=11, rows_per_step=4)
    search = begun_search(spelled_pieces(kind), model, state_after(kind, "the"), b" c", settings)
    steps = drive(search, model)
    assert max(steps) <= 4
    assert sum(steps) <= 11


def test_a_search_ends_early_when_the_best_are_known():
    few, all_ = searches = [
        begun_search(
            spelled_pieces("unigram"),
            piece_model("unigram"),
            state_after("unigram", "the"),
            b" c",
            CompletionSettings(limit=1, settled=settled, rows_per_step=2, open_vocabulary=True),
        )
        for settled in (0.2, 0.0)
    ]
    steps = [sum(drive(search, piece_model("unigram"))) for search in searches]
    assert steps[0] < steps[1] == 128
    assert few.result().completions[0].text == all_.result().completions[0].text


def test_beginnings_are_told_where_the_search_was_cut():
    found = searched("char", "the c", max_steps=2).result()
    beginning = found.completions[0]
    assert beginning.text == "cat"
    assert not beginning.is_complete
    assert beginning.mass <= found.unexplored_mass * found.live_mass * (1 + 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_no_beginning_is_told_of_a_word_that_is(kind):
    found = searched(kind, "the c", max_steps=40, limit=100).result()
    words = [c.text for c in found.completions if c.is_complete]
    beginnings = [c.text for c in found.completions if not c.is_complete]
    assert words
    assert beginnings
    assert not [b for b in beginnings if any(word.startswith(b) for word in words)]


LEXICON = {word for line in TEXT for word in re.findall(r"\w+(?:'\w+)*", line)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["the c", "the ", "th", "a cat can", "hats, m"])
def test_completions_are_words_of_the_lexicon_with_their_own_masses(kind, text):
    options = {"max_steps": 400, "limit": 100, "settled": 0.0}
    closed, opened = (searched(kind, text, open_vocabulary=is_open, **options) for is_open in (False, True))
    found, everything = words_of(closed), words_of(opened)
    assert found
    assert all(word in LEXICON or word.lower() in LEXICON for word in found)
    assert {c.text for c in opened.result().completions} - LEXICON  # the model spells other words too
    for word in set(found) & set(everything):
        assert found[word] >= everything[word] * (1 - 1e-9)  # it has steps to spare for these
    result = closed.result()
    assert sum(found.values()) / result.live_mass + result.unexplored_mass == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_an_ended_word_that_is_not_in_the_lexicon_counts_as_unexplored(kind):
    options = {"max_steps": 400, "limit": 100, "settled": 0.0}
    closed, opened = (searched(kind, "th", open_vocabulary=is_open, **options) for is_open in (False, True))
    assert closed.result().live_mass >= opened.result().live_mass * (1 - 1e-9)


def test_every_word_of_a_phrase_is_in_the_lexicon():
    found = searched("unigram", "the c", open_vocabulary=False, max_words=3).result()
    assert {c.num_words for c in found.completions} == {1, 2, 3}
    assert {word for c in found.completions if c.is_complete for word in c.text.split()} <= LEXICON


def test_a_beginning_of_no_word_has_no_completion():
    assert searched("unigram", "the catal", open_vocabulary=False).result().completions
    found = searched("unigram", "the catax", open_vocabulary=False).result()
    assert (found.completions, found.unexplored_mass) == ((), 1)


def test_a_word_of_the_lexicon_may_begin_with_a_capital_or_be_in_capitals():
    lexicon = Lexicon(["cat", "Paris"])
    assert all(word in lexicon for word in ("cat", "Cat", "CAT", "Paris", "PARIS"))
    assert not any(word in lexicon for word in ("cAt", "CaT", "paris"))
    assert all(map(lexicon.has_beginning, ("", "ca", "Ca", "CA", "C", "Par")))
    assert not any(map(lexicon.has_beginning, ("cA", "par", "cats")))


@pytest.mark.parametrize("text", ["我们明天去", "手机iPhone", "ฉันรัก", "カメラ", "កខ", "မြန်မာ"])
def test_a_run_of_a_script_without_spaces_is_a_word(text):
    lexicon = Lexicon(["我", "iPhone手", "cat"])
    assert text in lexicon
    assert lexicon.has_beginning(text)
    assert lexicon.has_longer(text)
    assert lexicon.has_longer("iPhone")
    assert "iPhone" not in lexicon


@pytest.mark.parametrize("text", ["한국어", "देवनागरी", "кот", "עברית"])
def test_scripts_with_spaces_have_the_words_of_the_list(text):
    lexicon = Lexicon(["cat"])
    assert text not in lexicon
    assert not lexicon.has_beginning(text)
    assert text in Lexicon([text])


def test_the_end_of_the_alphabet_has_no_word():
    lexicon = Lexicon(["b", "a"])
    assert lexicon.has_beginning("")
    assert not lexicon.has_beginning("c")
    assert ("a" in lexicon, "B" in lexicon, "c" in lexicon, "" in lexicon) == (True, True, False, False)


@pytest.mark.parametrize("kind", KINDS)
def test_prefix_that_no_tokens_spell_has_no_completions(kind):
    found = searched(kind, "日" if kind == "char" else "the " + "q" * 300, max_steps=5).result()
    assert found.completions == ()
    assert found.unexplored_mass in {0.0, 1.0}


def test_beginnings_are_of_words_not_of_phrases():
    found = searched("char", "the c", max_words=3, max_steps=120, limit=100).result()
    assert [c for c in found.completions if c.num_words > 1]
    assert not [c for c in found.completions if " " in c.text and not c.is_complete]


def test_long_words_stay_unexplored():
    search = searched("char", "the c", max_word_bytes=2, settled=0.0)
    assert max(map(len, words_of(search))) == 3
    assert search.result().unexplored_mass > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_phrases_go_on_past_spaces(kind):
    found = searched(kind, "a cat can't s", max_words=3, max_steps=400).result()
    words, pairs, triples = (told(found, n) for n in (1, 2, 3))
    assert "sit on" in pairs
    assert "sit on that" in triples
    assert pairs["sit on"] <= words["sit"] * (1 + 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_any_case_may_be_meant(kind):
    assert "Paris" not in words_of(searched(kind, "p"))
    assert "Paris" in told(searched(kind, "p", ignore_case=True).result())
    assert "cat" in told(searched(kind, "the C", ignore_case=True).result())


class TestWords:
    """Completion search where tokens are words."""

    tokenizer = WordTokenizer(fake_vocabulary(extra=("Cat", "carp", "c")))
    tokens = TokenTrie(tokenizer)
    model = FakeModel(tokenizer.vocabulary, seed=3)

    def search(self, spelled, **options):
        state = self.model.initial_state(1)
        search = begun_search(self.tokens, self.model, state, spelled, CompletionSettings(**options))
        return search, drive(search, self.model)

    def test_their_probabilities_are_the_row_renormalised(self):
        search, steps = self.search(b" c")
        row = np.exp(self.model.next_log_probs(self.model.initial_state(1))[0].astype(float))
        expected = {w: row[self.tokenizer.vocabulary.id_of(w)] for w in ("cat", "carp", "c")}
        found = search.result()
        assert not steps
        assert found.unexplored_mass == 0
        assert {c.text: c.mass for c in found.completions} == pytest.approx(expected, rel=1e-6)
        assert found.live_mass == pytest.approx(sum(expected.values()), rel=1e-6)

    def test_control_tokens_are_none(self):
        search, _ = self.search(b" ", limit=100)
        assert {c.text for c in search.result().completions} == set(self.tokenizer.vocabulary.tokens[3:])

    def test_the_limit_cuts_what_is_told_only(self):
        search, _ = self.search(b" ", limit=2)
        found = search.result()
        assert len(found.completions) == 2
        assert found.unexplored_mass == 0
        assert search.mass_of("mat") > 0
        assert search.mass_of("nonesuch") == 0

    def test_words_that_begin_otherwise_have_no_mass(self):
        search, _ = self.search(b" c")
        assert search.mass_of("mat") == 0
        assert search.mass_of("carp") > 0

    def test_any_case_may_be_meant(self):
        search, _ = self.search(b" CA", ignore_case=True)
        assert {c.text for c in search.result().completions} == {"cat", "Cat", "carp"}

    def test_phrases_are_words_one_after_the_other(self):
        search, _ = self.search(b" ca", max_words=2, max_steps=100)
        table = np.exp(self.model.table.astype(float))
        ids = self.tokenizer.vocabulary.id_of
        pairs = {c.text: c.mass for c in search.result().completions if c.num_words == 2}
        assert len(pairs) == 10
        for phrase, mass in pairs.items():
            first, second = map(ids, phrase.split(" "))
            assert mass == pytest.approx(table[1, first] * table[first, second], rel=1e-5)


@pytest.fixture
def frontier(monkeypatch):
    """Frontier with the children of two nodes, one of which follows a word."""
    monkeypatch.setattr(module, "_MIN_PRUNED_CHILDREN", 4)
    made = Frontier()
    made.add(Node(None, 1.0), 0, np.arange(4), np.array([0.4, 0.1, 0.3, 0.2]))
    made.add(Node(None, 1.0), 1, np.arange(3), np.array([0.35, 0.05, 0.25]))
    return made


def test_only_the_most_probable_children_are_kept(frontier):
    assert frontier.prune(3) == pytest.approx(0.3)  # mass of children without a finished word
    assert frontier.mass == pytest.approx(0.7)
    assert [frontier.pop().mass for _ in range(3)] == [
        0.35,
        0.4,
        0.3,
    ]  # a phrase is expected to have less mass
    assert not frontier


def test_children_below_the_threshold_of_their_number_of_words_are_cut(frontier):
    assert frontier.cut([0.25, 0.06]) == pytest.approx(0.3)
    assert sorted(frontier.pop().mass for _ in range(4)) == [0.25, 0.3, 0.35, 0.4]
    assert not frontier


def test_a_few_children_are_all_kept(frontier):
    frontier.pop()
    assert frontier.prune(3) == 0
    assert len([frontier.pop() for _ in range(6)]) == 6
    assert not frontier


def findings(*phrases):
    found = MassTable(2)
    for text, num_words, mass in phrases:
        found.add(text.encode(), num_words, mass)
    return found


def test_masses_of_a_word_add_up():
    assert findings(("cat", 1, 0.25), ("cat", 1, 0.5)).words == {b"cat": 0.75}


def test_giving_up_leaves_the_live_mass_as_it_is():
    found = MassTable(1)
    found.open = 0.5
    found.discard(0.2)
    assert (found.live, found.open, found.cut) == (0.5, 0.3, 0.2)


def test_pruning_thresholds_are_the_last_listed_probabilities():
    """A sequence enters the list of words, or after a further word, of probability 0.25, the list of pairs."""
    found = findings(("a", 1, 0.5), ("b", 1, 0.1), ("a c", 2, 0.3), ("a d", 2, 0.2))
    assert found.pruning_thresholds(1) == [0.5, 0.3]
    assert found.pruning_thresholds(2) == [0.1, 0.2]
    assert found.pruning_thresholds(3) == [0, 0]
    assert findings(("a", 1, 0.9), ("a c", 2, 0.2)).pruning_thresholds(1) == [0.8, 0.2]


def test_the_best_of_each_length_are_told():
    found = findings(("a", 1, 0.5), ("b", 1, 0.1), ("a c", 2, 0.3), ("a d", 2, 0.2))
    assert [one.text for one in found.result(1, {}).completions] == ["a", "a c"]
    equal = findings(("b", 1, 0.5), ("a", 1, 0.5))
    assert [one.text for one in equal.result(2, {}).completions] == ["a", "b"]


def test_few_texts_are_ranked_and_a_text_that_grows_is_among_them_again():
    found = MassTable(1)
    for number in range(100):
        found.add(f"w{number}".encode(), 1, 1.0 + number)
    assert found.pruning_thresholds(10)[0] == 91
    assert len(found._leaders[0]) == 10
    found.add(b"w5", 1, 95.5)
    assert [one.text for one in found.result(2, {}).completions] == ["w5", "w99"]
    assert found.pruning_thresholds(10)[0] == 92


def test_beginnings_make_up_for_words():
    found = findings(("cat", 1, 0.1))
    found.completed, found.open = 0.1, 0.3
    told = found.result(2, {b"ho": 0.2, b"hu": 0.1})
    assert told.completions == (("ho", 0.2, 1, False), ("cat", 0.1, 1, True))
    assert told.unexplored_mass == pytest.approx(0.75)
    assert [one.text for one in found.result(1, {b"ho": 0.2}).completions] == ["cat"]


def test_nothing_live_is_nothing_unexplored():
    assert MassTable(1).result(5, {}) == ((), 0.0, 0.0)
