"""Phrases in texts: the same found word by word, at once, and by a search at every place."""

import random

import pytest

from models.errors import InputError
from models.language_model import Vocabulary
from models.phrases import MAX_PHRASE_WORDS, MAX_PHRASES, Phrase, PhraseAutomaton, PhraseList
from models.tokenizers import WordTokenizer
from models.words import fold_words


def phrase(text, weight=1.0, kind=""):
    return Phrase.model_validate({"text": text, "weight": weight, "class": kind})


def phrases(*texts):
    return PhraseList([phrase(text) for text in texts])


def searched(sequences, items):
    """Find the longest sequence at each place, from left to right."""
    found, place = [], 0
    while place < len(items):
        here = [i for i, one in enumerate(sequences) if tuple(items[place : place + len(one)]) == one]
        if here:
            found.append(max(here, key=lambda i: len(sequences[i])))
        place += len(sequences[found[-1]]) if here else 1
    return tuple(found)


def drawn(seed):
    """Draw phrases and a text over three items, so that phrases overlap, contain and begin with each other."""
    draw = random.Random(seed)
    sequences = [tuple(draw.choices("abc", k=draw.randint(1, 5))) for _ in range(draw.randint(1, 8))]
    return list(dict.fromkeys(sequences)), draw.choices("abc", k=draw.randint(0, 30))


@pytest.mark.parametrize("seed", range(200))
def test_phrases_are_the_longest_at_each_place_from_left_to_right(seed):
    sequences, items = drawn(seed)
    assert PhraseAutomaton(sequences, [1.0] * len(sequences)).find(items) == searched(sequences, items)


@pytest.mark.parametrize("seed", range(50))
def test_credit_that_is_taken_back_leaves_the_whole_value(seed):
    sequences, items = drawn(seed)
    weights = [1.0 + index for index in range(len(sequences))]
    automaton = PhraseAutomaton(sequences, weights)

    def credit(node):
        found, share = automaton.credit(node)
        return share * sum(weights[index] for index in found)

    node, total = automaton.START, 0.0
    for item in items:
        before = credit(node)
        node, found = automaton.advance(node, item)
        total += sum(weights[index] for index in found) + credit(node) - before
    total += sum(weights[index] for index in automaton.finish(node)) - credit(node)
    assert total == pytest.approx(sum(weights[index] for index in automaton.find(items)))


@pytest.mark.parametrize("seed", range(50))
def test_following_items_are_those_that_do_not_lead_to_the_start(seed):
    sequences, items = drawn(seed)
    automaton = PhraseAutomaton(sequences, [1.0] * len(sequences))
    node = automaton.START
    for item in items:
        after = {other: automaton.advance(node, other) for other in "abc"}
        assert automaton.following(node) == {other: one for other, one in after.items() if one[0]}
        node, _ = automaton.advance(node, item)


def test_credit_grows_with_the_words_read_and_is_that_of_the_heaviest_phrase():
    automaton = PhraseAutomaton([("new", "york", "city"), ("new", "york"), ("new", "york", "bay")], [3, 1, 6])
    new, _ = automaton.advance(automaton.START, "new")
    assert automaton.credit(new) == ((2,), 1 / 3)
    york, _ = automaton.advance(new, "york")
    assert automaton.credit(york) == ((2,), 2 / 3)
    city, found = automaton.advance(york, "city")
    assert (automaton.credit(city), found) == (((0,), 1.0), ())
    assert automaton.advance(york, "is") == (automaton.START, (1,))


def test_a_word_takes_at_most_two_steps_on_average_however_many_phrases_there_are():
    steps = 0

    class Counted(list):
        def __getitem__(self, node):
            nonlocal steps
            steps += 1
            return super().__getitem__(node)

    items = ("a" * (MAX_PHRASE_WORDS - 1) + "b") * 50
    automaton = PhraseAutomaton(
        [tuple("a" * n + "c") for n in range(MAX_PHRASE_WORDS)], [1.0] * MAX_PHRASE_WORDS
    )
    automaton._rests = Counted(automaton._rests)
    automaton.find(items)
    assert 0 < steps <= len(items)


def test_case_and_surrounding_punctuation_do_not_count_but_inner_punctuation_does():
    given = phrases("Jaan Tamm", "AT&T", "O'Neill")
    assert given.find("call jaan TAMM, (at&t), or O'Neill-Kask «o'neill»") == (0, 1, 2)
    assert given.find("call jaan, tamm") == (0,)
    assert given.find("call jaan - tamm at & t") == ()
    assert fold_words("Straße, STRASSE!") == ["strasse", "strasse"]


def test_a_longer_phrase_replaces_the_phrase_that_it_begins_with():
    given = phrases("New York", "New York City", "York City Hall")
    assert given.find("in new york city") == (1,)
    assert given.find("in new york city hall") == (1,)
    assert given.find("the york city hall of new york") == (2, 0)


def test_each_class_has_its_own_feature_with_the_weights_of_its_phrases():
    given = PhraseList([phrase("Jaan"), phrase("Kase", 2.5, "street"), phrase("Tamm", 0.5)])
    assert given.features == ("phrases", "phrases:street")
    assert given.values((0, 1, 2)).tolist() == [[1, 0], [0, 2.5], [0.5, 0]]


def test_unknown_words_share_the_mass_of_unk_in_proportion_to_the_weights():
    tokenizer = WordTokenizer(Vocabulary(["call", "john"]))
    given = PhraseList([phrase("John Tamm", 1.0), phrase("Jaan", 2.0)])
    shares = [2.718281828459045 ** given.unknown(index, tokenizer)[0] for index in (0, 1)]
    assert shares == pytest.approx([1 / 4, 2 / 4])
    assert [given.unknown(index, tokenizer)[1] for index in (0, 1)] == [1, 1]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([phrase("a " * 17)], r"phrases\[0\].text is .*with 17 words; a phrase has from 1 to 16"),
        ([phrase("word " * 1000)], r"phrases\[0\].text has 5000 characters; at most 200 are accepted"),
        ([phrase("a"), phrase("")], r"phrases\[1\].text is '', with 0 words"),
        ([phrase("a ...")], "each with a character other than punctuation"),
        ([phrase("a", 0.0)], r"phrases\[0\].weight is 0.0; it must be above 0 and at most 1000"),
        ([phrase("a", 1001.0)], r"phrases\[0\].weight is 1001.0"),
        (
            [phrase("New York"), phrase("new  york.")],
            r"phrases\[1\].text .* has the words of phrases\[0\].text",
        ),
        (
            [phrase(f"a{i}", 1.0, f"c{i}") for i in range(17)],
            "phrases have 17 classes; at most 16 are accepted",
        ),
        ([phrase("a")] * (MAX_PHRASES + 1), "phrases has 10001 entries; at most 10000 are accepted"),
    ],
)
def test_invalid_phrases_are_refused_with_field_and_limit(bad, message):
    with pytest.raises(InputError, match=message):
        PhraseList(bad)
