"""Lattices against enumeration of their paths: totals, n-best strings, the oracle; file round trips."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.lattices.formats import format_kaldi, format_slf, read_kaldi, read_slf
from models.lattices.graph import LabelTokenizer, PathWeights
from models.lattices.lattice import NON_WORD_LABELS, SymbolTable
from models.lattices.rescoring import nbest_candidates, nbest_paths, oracle_errors, rescore
from models.lattices.token_passing import LatticeSearch
from models.phrases import Phrase, PhraseList
from tests.reference.lattices import all_paths, brute_force, edit_distance, random_lattice, text_of
from tests.support import families

TOKENIZER = families.tokenizer()
SPELLER = LabelTokenizer(TOKENIZER)
WORDS = [*families.WORDS[:6], "unheard", "of"]
EXACT = LatticeSearch(max_tokens_per_node=1_000_000, recombination_order=None)

some_lattice = st.builds(
    lambda seed, nodes, arcs, silence, words: random_lattice(
        np.random.default_rng(seed), words=words, num_nodes=nodes, num_arcs=arcs, silence=silence
    ),
    st.integers(0, 2**32),
    st.integers(2, 8),
    st.integers(0, 12),
    st.sampled_from([0.0, 0.2, 0.7]),
    st.sampled_from([WORDS, WORDS[:2]]),
)
some_weights = st.builds(
    lambda am, old_lm, lm, words, unk: PathWeights(am=am, old_lm=old_lm, lm=lm, words=words, unk=unk),
    *[st.sampled_from([-0.7, 0.0, 0.3, 1.0, 2.5])] * 5,
)


@pytest.mark.parametrize("name", ["ngram", "lstm", "mixture by context"])
@settings(max_examples=15, deadline=None)
@given(lattice=some_lattice, weights=some_weights, count=st.integers(1, 12))
def test_the_n_best_strings_are_those_of_all_paths(name, lattice, weights, count):
    model = families.model(name)
    [one] = rescore([lattice], model, SPELLER, weights=[weights], search=EXACT)
    found = nbest_paths(one, count)
    expected = brute_force(lattice, model, TOKENIZER, weights)
    best = sorted((total for total, _ in expected.values()), reverse=True)
    assert [path.total for path in found] == pytest.approx(best[:count], abs=1e-4)
    assert len({path.text for path in found}) == min(count, len(expected))
    for path in found:
        assert path.total == pytest.approx(expected[path.text][0], abs=1e-4)


@pytest.mark.parametrize("name", ["ngram", "gru"])
@settings(max_examples=25, deadline=None)
@given(lattice=some_lattice)
def test_log_probs_are_those_of_the_sentences_scored_whole(name, lattice):
    model = families.model(name)
    [one] = rescore([lattice], model, SPELLER, weights=[PathWeights()], search=EXACT)
    expected = brute_force(lattice, model, TOKENIZER, PathWeights())
    for candidate in nbest_candidates(one, 5).candidates:
        assert candidate.features["lm"] == pytest.approx(expected[candidate.text][1]["lm"], abs=1e-5)


@settings(max_examples=25, deadline=None)
@given(lattice=some_lattice, weights=some_weights)
def test_features_add_up_to_the_total(lattice, weights):
    model = families.model("ngram")
    [one] = rescore([lattice], model, SPELLER, weights=[weights], search=EXACT)
    expected = brute_force(lattice, model, TOKENIZER, weights)
    given_list = nbest_candidates(one, 5)
    for candidate, path in zip(given_list.candidates, nbest_paths(one, 5), strict=True):
        total = sum(weight * candidate.features[name] for name, weight in weights.by_feature().items())
        assert total == pytest.approx(path.total, abs=1e-9)
        for name in ("words", "unk"):
            assert candidate.features[name] == expected[candidate.text][1][name]


some_phrases = st.lists(
    st.tuples(
        st.lists(st.sampled_from(WORDS[-4:]), min_size=1, max_size=3).map(" ".join),
        st.sampled_from([0.1, 1.0, 7.0]),
        st.sampled_from(["", "kind"]),
    ),
    max_size=5,
    unique_by=lambda phrase: phrase[0],
).map(
    lambda given: PhraseList(
        [Phrase.model_validate({"text": t, "weight": w, "class": c}) for t, w, c in given]
    )
)


@pytest.mark.parametrize("name", ["ngram", "lstm", "mixture by context"])
@settings(max_examples=40, deadline=None)
@given(
    lattice=some_lattice, weights=some_weights, phrases=some_phrases, value=st.sampled_from([-2.0, 0.5, 9.0])
)
def test_phrases_of_the_n_best_strings_are_those_of_the_whole_texts(name, lattice, weights, phrases, value):
    model = families.model(name)
    weights = replace(weights, phrases=dict.fromkeys(phrases.features, value))
    [one] = rescore([lattice], model, SPELLER, weights=[weights], search=EXACT, phrases=phrases)
    expected = brute_force(lattice, model, TOKENIZER, weights, phrases)
    best = sorted((total for total, _ in expected.values()), reverse=True)
    found = nbest_paths(one, 10)
    assert [path.total for path in found] == pytest.approx(best[:10], abs=1e-4)
    for candidate, path in zip(nbest_candidates(one, 10).candidates, found, strict=True):
        total, features = expected[candidate.text]
        assert path.total == pytest.approx(total, abs=1e-4)
        assert candidate.features["lm"] == pytest.approx(features["lm"], abs=1e-4)
        for feature in ("unk", *phrases.features):
            assert candidate.features[feature] == pytest.approx(features[feature], abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(lattice=some_lattice, weights=some_weights)
def test_paths_without_phrases_have_the_features_that_they_have_without_any(lattice, weights):
    model = families.model("ngram")
    phrases = PhraseList([Phrase(text=f"{word} nowhere") for word in WORDS])
    weighted = replace(weights, phrases={"phrases": 0.3})
    [plain] = rescore([lattice], model, SPELLER, weights=[weights], search=EXACT)
    [named] = rescore([lattice], model, SPELLER, weights=[weighted], search=EXACT, phrases=phrases)
    features = {one.text: one.features for one in nbest_candidates(plain, 1000).candidates}
    for candidate in nbest_candidates(named, 1000).candidates:
        assert candidate.features == {**features[candidate.text], "phrases": 0.0}


@settings(max_examples=25, deadline=None)
@given(lattice=some_lattice, phrases=some_phrases)
def test_a_rescored_lattice_keeps_the_totals_of_paths_with_phrases(lattice, phrases):
    weights = PathWeights(am=0.2, words=-0.3, unk=-1.0, phrases=dict.fromkeys(phrases.features, 2.0))
    [one] = rescore(
        [lattice], families.model("ngram"), SPELLER, weights=[weights], search=EXACT, phrases=phrases
    )
    written, scales = one.as_lattice(), one.as_lattice().scales
    best = max(
        scales.am * written.am[list(path)].sum()
        + scales.lm * written.old_lm[list(path)].sum()
        + scales.words * len(text_of(written, path).split())
        for path in all_paths(written)
    )
    assert best == pytest.approx(nbest_paths(one, 1)[0].total)


@settings(max_examples=25, deadline=None)
@given(lattice=some_lattice, beam=st.floats(0, 20), most=st.integers(1, 4))
def test_a_beam_never_beats_all_paths(lattice, beam, most):
    model, weights = families.model("ngram"), PathWeights(am=0.3)
    search = LatticeSearch(beam=beam, max_tokens_per_node=most)
    exact, pruned = (
        rescore([lattice], model, SPELLER, weights=[weights], search=which)[0] for which in (EXACT, search)
    )
    totals = {path.text: path.total for path in nbest_paths(exact, 10_000)}
    for path in nbest_paths(pruned, 3):
        assert path.total <= totals[path.text] + 1e-9


@settings(max_examples=30, deadline=None)
@given(lattice=some_lattice, reference=st.lists(st.sampled_from([*WORDS[:4], "other"]), max_size=8))
def test_the_oracle_is_the_best_of_all_paths(lattice, reference):
    strings = {text_of(lattice, path) for path in all_paths(lattice)}
    fewest = min(edit_distance(text.split(), reference) for text in strings)
    assert oracle_errors(lattice, reference) == fewest


def paths_of(lattice):
    """All paths with their scores, sorted for comparison."""
    return sorted(
        (text_of(lattice, path), float(lattice.am[list(path)].sum()), float(lattice.old_lm[list(path)].sum()))
        for path in all_paths(lattice)
    )


words_of_files = st.lists(
    st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=6).filter(
        lambda word: word not in NON_WORD_LABELS and word != "#0" and len(word.split()) == 1
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), words=words_of_files)
def test_slf_is_read_back_as_it_was_written(seed, words):
    lattice = random_lattice(np.random.default_rng(seed), words=words)
    again = read_slf(format_slf(lattice).encode().split(b"\n"), "written")
    assert (again.name, again.words, again.scales) == (lattice.name, lattice.words, lattice.scales)
    for column in ("sources", "targets", "labels", "am", "old_lm", "times"):
        assert np.array_equal(getattr(again, column), getattr(lattice, column))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), words=words_of_files)
def test_kaldi_is_read_back_as_it_was_written(seed, words):
    lattice = random_lattice(np.random.default_rng(seed), words=words)
    ids = {"<eps>": 0, **{word: number for number, word in enumerate(set(words), start=1)}}
    symbols = SymbolTable({number: word for word, number in ids.items()}, ids)
    text = 2 * format_kaldi(lattice, symbols)
    again, twice = read_kaldi(text.encode().split(b"\n"), "written", symbols=symbols)
    assert paths_of(twice) == paths_of(again)
    for (one, *scores), (other, *others) in zip(paths_of(again), paths_of(lattice), strict=True):
        assert one == other
        assert scores == pytest.approx(others)
