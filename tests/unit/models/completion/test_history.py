"""What was shown while a word was typed, rankings without it, and the store by owner and session."""

import pytest

from models.calls import run_to_completion
from models.completion.history import MAX_SHOWN, CompletionHistory, HistoryStore
from models.completion.ranked import RankingSettings
from models.completion.ranking import rank_completions
from models.completion.user_model import UserModel
from models.language_model import Vocabulary
from models.scoring.model_weights import WeightedModel
from models.text_model import Limits, TextModel
from models.tokenizers import CharacterTokenizer, WordTokenizer
from tests.support.fake_models import FakeModel

LIMITS = Limits(max_texts=1, max_tokens_per_sequence=1000, max_new_tokens=1)
WORDS = [
    "the",
    "then",
    "they",
    "them",
    "there",
    "these",
    "theme",
    "cat",
    "car",
    "care",
    "The",
    "cafe\u0301s",
]


def typed(*lists):
    """What was shown after the first letters of "the", of a word that begins at 4."""
    shown = CompletionHistory()
    for length, texts in enumerate(lists):
        shown.add("say " + "the"[:length], 4, texts)
    return shown


def test_what_was_shown_before_each_letter_is_not_shown_again():
    shown = typed(["a", "b"], ["c"])
    assert set(shown.before("say th", 4)) == {"a", "b", "c"}
    assert set(shown.before("say then", 4)) == {"a", "b", "c"}


def test_the_same_text_gets_the_same_reply():
    assert typed(["a", "b"], ["c"]).before("say t", 4) == ("a", "b")


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("say ", 4),  # a deletion
        ("say a", 4),
        ("say t x", 6),  # another word
        ("Say th", 4),  # another text
        ("th", 0),
        ("", 0),
    ],
)
def test_a_deletion_or_another_word_begins_anew(text, start):
    shown = typed(["a", "b"], ["c"])
    assert shown.before(text, start) == ()
    shown.add(text, start, ["d"])
    assert shown.before(text + "e", start) == ("d",)


def test_the_oldest_are_forgotten():
    shown = typed([f"{n}" for n in range(MAX_SHOWN)], ["new"])
    assert shown.before("say th", 4) == (*(f"{n}" for n in range(1, MAX_SHOWN)), "new")
    for length in range(1000):
        shown.add("x" * length, 0, [f"{length}.{n}" for n in range(100)])
    assert len(shown.before("x" * 1000, 0)) == MAX_SHOWN
    assert shown.num_bytes < 200 * (MAX_SHOWN + 100)


def models():
    words = WordTokenizer(Vocabulary(WORDS))
    letters = CharacterTokenizer(Vocabulary(sorted({*"".join(WORDS), " "})))
    return {
        "words": TextModel("words@1", FakeModel(words.vocabulary, seed=4), words),
        "letters": TextModel("letters@1", FakeModel(letters.vocabulary, seed=4), letters),
    }


def rank(loaded, text, shown=None, user=None, **settings):
    work = rank_completions(
        [WeightedModel(one) for one in loaded],
        text,
        RankingSettings(**settings),
        LIMITS,
        user=user,
        shown=shown,
    )
    return run_to_completion(work)


def listed(ranking):
    # a search that looks for more completions finds more tokenisations
    return [(one.text, pytest.approx(one.probability, rel=1e-2)) for one in ranking.completions]


USER = UserModel({"theory": 2.0, "then": 1.0}, {"": {"theory": 1.0}})


@pytest.mark.parametrize("user", [None, USER], ids=["alone", "user"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"rank": "savings"},
        {"ignore_case": True},
        {"fuzzy": 1},
        {"min_probability": 0.02},
        {"max_words": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("names", [["words"], ["letters"], ["words", "letters"]], ids=str)
def test_others_take_their_places_with_the_probabilities_that_they_had(names, settings, user):
    """Oracle: the complete ranking, without what earlier lists had."""
    loaded, options = [models()[name] for name in names], {"max_steps": 500, **settings}
    shown, hidden = CompletionHistory(), set()
    for length in range(4):
        text = "cat " + "them"[:length]
        whole = rank(loaded, text, user=user, limit=100, **options)
        few = rank(loaded, text, shown, user, limit=2, **options)
        expected = [entry for entry in listed(whole) if entry[0] not in hidden]
        assert listed(few) == expected[:2]
        if "max_words" not in settings:  # phrases take steps from words
            assert few.unexplored == pytest.approx(whole.unexplored, abs=1e-2)
        shown.add(text, 4, [one.text for one in few.completions])
        hidden |= {one.text for one in few.completions}
    assert len(hidden) > 4


def test_a_ranking_alone_remembers_nothing():
    shown = CompletionHistory()
    first, second = (listed(rank([models()["words"]], text, shown)) for text in ("the", "the"))
    assert first == second


def history(*texts):
    one = CompletionHistory()
    one.add("", 0, texts)
    return one


def after(store, owner="key", session="s"):
    return store.get(owner, session).before("a", 0)


def test_what_is_kept_is_found_by_its_owner_and_session_only():
    store = HistoryStore()
    store.keep("key", "s", history("one"))
    assert after(store) == ("one",)
    assert after(store, owner="other") == after(store, session="t") == ()


def test_a_request_that_is_not_answered_changes_nothing():
    store = HistoryStore()
    store.keep("key", "s", history("one"))
    store.get("key", "s").add("a", 0, ["two"])
    assert after(store) == ("one",)


def test_what_was_shown_long_ago_is_offered_again():
    now = [0.0]
    store = HistoryStore(clock=lambda: now[0])
    store.keep("key", "s", history("one"))
    now[0] = 599
    assert after(store) == ("one",)
    now[0] = 601
    assert after(store) == ()


def test_the_sessions_used_longest_ago_are_forgotten_first():
    store = HistoryStore(max_bytes=5000)
    for number in range(50):
        store.keep("key", f"s{number}", history("one"))
        store.get("key", "s0")
    assert len(store) == 4
    assert [after(store, session=f"s{number}") for number in (0, 1, 49)] == [
        ("one",),
        (),
        ("one",),
    ]
    store.keep("key", "s48", history("x" * 500))  # takes the place of two
    assert [after(store, session=f"s{number}") for number in (0, 47, 49)] == [
        (),
        (),
        ("one",),
    ]
