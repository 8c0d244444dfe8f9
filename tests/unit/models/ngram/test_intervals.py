"""Completions by intervals are those of the whole distribution: words, probabilities and mass of every prefix."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from models.calls import run_to_completion
from models.completion.ranked import RankingSettings
from models.completion.ranking import rank_completions
from models.completion.user_model import UserModel
from models.language_model import Vocabulary
from models.ngram.build import quantise_automaton
from models.ngram.model import NGramModel
from models.ngram.texts import NGramTexts
from models.scoring.model_weights import WeightedModel
from models.text_model import Limits, TextModel
from models.tokenizers import WordTokenizer
from service.operations.autocomplete import Autocomplete, AutocompleteRequest
from tests.unit.conftest import operation
from training.corpus import EncodedCorpus
from training.ngram.estimate import DEFAULT_SMOOTHING, estimate
from training.ngram.smoothing.interpolation import good_turing, maximum_likelihood
from training.progress import Progress

LIMITS = Limits(max_texts=10, max_tokens_per_sequence=2000, max_new_tokens=10)
LETTERS = "abÄé日"


def random_model(seed, order, *, num_words=300, lines=400, smoothing=DEFAULT_SMOOTHING, **options):
    """Return a model of random words, many with common beginnings, and its tokenizer."""
    rng = np.random.default_rng(seed)
    words = {"".join(rng.choice(list(LETTERS), size=rng.integers(1, 6))) for _ in range(num_words)}
    tokenizer = WordTokenizer(Vocabulary(rng.permutation(sorted(words)).tolist()), **options)
    words = list(tokenizer.vocabulary.tokens[3:])
    weights = 1 / np.arange(1, len(words) + 1)
    drawn = [
        " ".join(rng.choice(words, size=rng.integers(0, 9), p=weights / weights.sum())) for _ in range(lines)
    ]
    corpus = EncodedCorpus.from_sentences([tokenizer.encode(line) for line in drawn])
    found = estimate(corpus, tokenizer.vocabulary, order=order, smoothing=smoothing, progress=Progress())
    return found.model, tokenizer, drawn


def text_model(seed=1, order=3, **options):
    model, tokenizer, lines = random_model(seed, order, **options)
    return TextModel("m@1", model, tokenizer), lines


def prefixes(words):
    return {word[:end] for word in words for end in range(len(word) + 1)} | {"zz", "日日日日日日"}


def same(found, other):
    (words, mass), (other_words, other_mass) = found, other
    return mass == other_mass and all(map(np.array_equal, words, other_words))


def ask(loaded, text, *, by_rows=False, num_models=1, user=None, dictionary=(), blocklist=(), **settings):
    if by_rows:
        loaded = replace(loaded)
        vars(loaded)["ngram_texts"] = None
    work = rank_completions(
        [WeightedModel(loaded, 1.0)] * num_models,
        text,
        RankingSettings(**settings),
        LIMITS,
        user=user and UserModel(*user),
        dictionary=dictionary,
        blocklist=blocklist,
    )
    return run_to_completion(work)


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("smoothing", [DEFAULT_SMOOTHING, maximum_likelihood, good_turing])
@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_every_prefix_has_the_best_words_and_the_mass_of_a_row(order, smoothing, quantised):
    model, tokenizer, lines = random_model(order, order, smoothing=smoothing)
    if quantised:
        model = NGramModel(quantise_automaton(model.automaton), model.vocabulary)
    loaded = TextModel("m@1", model, tokenizer)
    completer, trie = loaded.ngram_texts, loaded.token_trie
    for tokens in (trie.exact, trie.folded):
        for context in ("", lines[0], lines[5], "unknown words"):
            num_words, state = completer.read(context)
            ids = tokenizer.encode(context)
            assert num_words == len(ids)
            after = model.initial_state(1)
            for token in ids:
                after = model.advance(after, np.array([token]))
            assert state.ids.tolist() == after.ids.tolist()
            row = model.next_log_probs(after)[0].astype(np.float64)
            for prefix in prefixes(model.vocabulary.tokens[3:]):
                first, past = tokens.interval(f" {prefix}".encode())
                found, mass = completer.complete(state, tokens.ids, first, past, 7)
                own = row[tokens.ids[first:past]]
                assert mass == pytest.approx(np.exp(own).sum(), rel=1e-6, abs=1e-12)
                own = np.sort(own[own > -np.inf])[::-1][:7]
                np.testing.assert_allclose(found.log_probs, own, rtol=1e-6)
                np.testing.assert_allclose(found.log_probs, row[found.ids], rtol=1e-6)
                assert len(set(found.ids.tolist())) == len(found.ids) == len(own)
                for token in found.ids[:2]:
                    assert completer.log_prob(state, token) == pytest.approx(row[token], rel=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"limit": 100},
        {"ignore_case": True},
        {"rank": "savings", "limit": 100},
        {"min_probability": 0.05},
        {"blocklist": ["a", "b a", "Ä"]},
        {"dictionary": [("aabb", 3.0), ("b", 2.0), ("neu", 1.0), ("a b", 1.0)], "user_weight": 0.5},
        {"user": ({"aa": 3.0, "new": 1.0}, {"a": {"aa": 2.0}})},
        {"fuzzy": 1},
        {"fuzzy": 1, "max_words": 2},
        {"max_words": 3, "limit": 100, "max_steps": 4096, "settled": 0.0},
        {"max_words": 2, "limit": 100, "ignore_case": True},
        {"num_models": 2},
        {"num_models": 2, "max_words": 2, "limit": 100},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "options", [{}, {"lowercase": True}, {"pattern": r"\w+|\S"}, {"unicode_spaces": True}], ids=str
)
def test_ranked_completions_are_those_of_rows(settings, options):
    loaded, lines = text_model(num_words=60, normalise="nfc", **options)
    for line in lines[:12]:
        for prefix in ("", "a", "b", "Ä", "A", "日", "ba", "zz"):
            text = f"{line} {prefix}" if line else prefix
            got, wanted = ask(loaded, text, **settings), ask(loaded, text, by_rows=True, **settings)
            assert got.typed == wanted.typed
            assert got.unexplored == pytest.approx(wanted.unexplored, abs=1e-6)
            probabilities = [one.probability for one in got.completions]
            # equally good ones may be in another order
            others = sorted(one.probability for one in wanted.completions)
            assert sorted(probabilities) == pytest.approx(others, rel=1e-5)
            by_text = {one.text: one for one in wanted.completions}
            for one in got.completions:
                other = by_text.get(one.text)
                assert other is not None or one.probability == pytest.approx(min(probabilities), rel=1e-5)
                if other is not None:
                    assert one.of_model == pytest.approx(other.of_model, rel=1e-5)
                    assert one.of_user == pytest.approx(other.of_user, rel=1e-5)


def test_a_call_that_uses_up_the_numbers_of_calls_forgets_none_of_its_own():
    loaded, lines = text_model()
    completer, order = loaded.ngram_texts, loaded.token_trie.exact.ids
    _, state = completer.read(lines[0])
    wanted = completer.complete(state, order, 1, len(order), 5)
    seen = completer._seen[0]
    seen[:] = np.iinfo(np.uint32).max  # all ranks look listed by the last call
    assert same(completer.complete(state, order, 1, len(order), 5), wanted)
    assert seen[-1] == 1


def test_threads_at_the_same_time_find_the_same():
    loaded, lines = text_model(num_words=2000, lines=2000)
    completer, order = loaded.ngram_texts, loaded.token_trie.exact.ids
    states = [completer.read(line)[1] for line in lines[:50]]
    wanted = [completer.complete(state, order, first, len(order), 5) for state in states for first in (0, 1)]
    different = []

    def work():
        for _ in range(40):
            found = [
                completer.complete(state, order, first, len(order), 5) for state in states for first in (0, 1)
            ]
            different.extend(one for one, other in zip(found, wanted, strict=True) if not same(one, other))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert different == []


def test_other_tokenizers_and_models_have_no_completer():
    model, tokenizer, _ = random_model(1, 2)
    assert NGramTexts.of(model, tokenizer) is not None
    assert NGramTexts.of(object(), tokenizer) is None
    assert TextModel("m@1", model, tokenizer, reads_backward=True).ngram_texts is None


def test_another_order_is_made_on_a_thread_before_the_first_request_that_needs_it():
    loaded, lines = text_model()
    exact, ignored = (
        operation(Autocomplete, loaded, AutocompleteRequest(text=lines[0], casing=casing), LIMITS)
        for casing in ("exact", "ignore")
    )
    assert list(exact.prepare()) == []
    (step,) = ignored.prepare()
    step()
    assert loaded.ngram_texts.is_ranked(loaded.token_trie.folded.ids)
    assert list(ignored.prepare()) == []
