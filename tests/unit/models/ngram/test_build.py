"""N-gram checkpoints: round trips, malformed files, eight-bit quantisation."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models.errors import ManifestError
from models.files import CONFIG_FILE
from models.language_model import UNK, Vocabulary, score_sequences
from models.ngram.automaton import AUTOMATON_FILE, Automaton
from models.ngram.build import (
    MAX_UNRANKED_ARCS,
    NUM_CODES,
    encode_values,
    list_ngrams,
    quantise_automaton,
    verify_automaton,
)
from models.ngram.model import NGramModel
from models.tensor_files import map_tensors
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Progress


@pytest.fixture
def saved(model, tmp_path):
    model.save(tmp_path)
    return tmp_path


def test_the_file_is_to_the_byte_what_the_safetensors_library_writes(model, tmp_path):
    for number, automaton in enumerate((model.automaton, quantise_automaton(model.automaton))):
        automaton.save(tmp_path / f"ours-{number}")
        save_file(automaton._asdict(), tmp_path / f"theirs-{number}")
        assert (tmp_path / f"ours-{number}").read_bytes() == (tmp_path / f"theirs-{number}").read_bytes()


def load(directory, vocabulary):
    return NGramModel.load(directory, vocabulary, device="cpu")


def test_a_loaded_model_is_the_saved_one(model, saved, vocabulary):
    loaded = load(saved, vocabulary)
    assert loaded.normalised == model.normalised
    for before, after in zip(model.automaton, loaded.automaton, strict=True):
        assert np.array_equal(before, after)


def test_a_loaded_model_answers_bit_for_bit(model, saved, vocabulary):
    loaded = load(saved, vocabulary)
    state = model.advance(model.initial_state(3), np.array([3, 5, 9]))
    assert np.array_equal(model.next_log_probs(state), loaded.next_log_probs(state))


def test_the_file_is_a_safetensors_file(model, saved):
    arrays = load_file(saved / AUTOMATON_FILE)
    assert np.array_equal(arrays["log10_probs"], model.automaton.log10_probs)


def test_loaded_arrays_are_views_of_the_file(saved):
    for array in Automaton.load(saved / AUTOMATON_FILE):
        assert not array.flags.owndata
        assert not array.flags.writeable


def test_an_unnormalised_model_stays_one(model, tmp_path, vocabulary):
    NGramModel(model.automaton, vocabulary, normalised=False).save(tmp_path)
    assert load(tmp_path, vocabulary).normalised is False


@pytest.mark.parametrize("name", [AUTOMATON_FILE, CONFIG_FILE])
def test_a_missing_file_is_named(saved, vocabulary, name):
    (saved / name).unlink()
    with pytest.raises(ManifestError, match=name):
        load(saved, vocabulary)


def test_another_vocabulary_is_refused(saved):
    with pytest.raises(ManifestError, match="has 10 unigrams, the vocabulary 4 tokens"):
        load(saved, Vocabulary(["a"]))


def test_another_order_in_the_configuration_is_refused(saved, vocabulary):
    (saved / CONFIG_FILE).write_text(json.dumps({"order": 4, "normalised": True}), encoding="utf-8")
    with pytest.raises(ManifestError, match=r"order is 4, ngram.bin has 3"):
        load(saved, vocabulary)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"order": 3}', "{", pytest.param("[" * 100_000, id="nested")]
)
def test_a_configuration_that_is_none_is_refused(saved, vocabulary, text):
    (saved / CONFIG_FILE).write_text(text, encoding="utf-8")
    with pytest.raises(ManifestError, match=CONFIG_FILE):
        load(saved, vocabulary)


BREAKAGES = {
    "words": [(-1, 10), (12, -1), (3, 4), (0, 1)],
    "suffixes": [(1, 1), (0, 1), (14, 14), (3, -1)],
    "first_arcs": [(0, 1), (-1, 29), (4, 2**32 - 1)],
    "order_starts": [(1, 2), (2, 12), (-1, 16)],
    "log10_probs": [(4, np.nan), (4, 0.5)],
    "log10_backoffs": [(4, np.nan), (4, np.inf), (4, 301)],
    "ranked_states": [(0, 1)],
    "ranked_starts": [(0, 1)],
    "ranked_arcs": [(3, 28)],
    "ranked_masses": [(0, np.nan), (0, 0.5)],
}


@pytest.mark.parametrize(
    ("array", "place", "value"),
    [(array, *case) for array, cases in BREAKAGES.items() for case in cases],
)
def test_a_value_that_would_lead_astray_is_refused(saved, vocabulary, array, place, value):
    path = saved / AUTOMATON_FILE
    arrays = load_file(path)
    arrays[array][place] = value
    save_file(arrays, path)
    with pytest.raises(ManifestError, match="not a back-off automaton"):
        load(saved, vocabulary)


@pytest.mark.parametrize(("to", "of"), [(1, 0), ([0, 9], [9, 0])])
def test_a_rank_with_an_arc_twice_or_out_of_order_is_refused(saved, vocabulary, to, of):
    """Otherwise the top-k search would never end."""
    path = saved / AUTOMATON_FILE
    arrays = load_file(path)
    arrays["ranked_arcs"][to] = arrays["ranked_arcs"][of]
    save_file(arrays, path)
    with pytest.raises(ManifestError, match="ranked_arcs are not the arcs of their state"):
        load(saved, vocabulary)


def test_a_state_of_many_arcs_without_a_rank_is_refused(tmp_path):
    """Otherwise ranking its arcs would overflow a buffer."""
    vocabulary = Vocabulary([f"w{i}" for i in range(MAX_UNRANKED_ARCS)])
    corpus = EncodedCorpus.from_sentences([[3, w] for w in range(3, len(vocabulary))] + [[3]])
    model = estimate(corpus, vocabulary, order=2, progress=Progress()).model
    assert model.automaton.ranked_states.tolist() == [0, 4]
    whole = len(vocabulary)
    model.automaton._replace(
        ranked_states=model.automaton.ranked_states[:1],
        ranked_starts=model.automaton.ranked_starts[:2],
        ranked_arcs=model.automaton.ranked_arcs[:whole],
        ranked_masses=model.automaton.ranked_masses[:1],
    ).save(path := tmp_path / AUTOMATON_FILE)
    with pytest.raises(ManifestError, match="a state of many arcs is not among ranked_states"):
        verify_automaton(Automaton.load(path), path)


def test_charges_that_only_together_are_too_much_are_refused(saved, vocabulary):
    """The product of the back-off weights of a context and its suffix overflows a float."""
    path = saved / AUTOMATON_FILE
    arrays = load_file(path)
    state = int(np.flatnonzero(arrays["suffixes"])[0])
    arrays["log10_backoffs"][[state, arrays["suffixes"][state]]] = 200
    save_file(arrays, path)
    with pytest.raises(ManifestError, match="product of a state's and its suffixes' is infinite"):
        load(saved, vocabulary)


@pytest.mark.parametrize(
    ("order_starts", "problem"),
    [
        ([0, 10, 20, *[28] * 254], "its order is 256, it can be 1 to 255"),
        ([0, 10, 20, 20, 28], "do not match the n-grams of the next length"),
        ([0], "its order is 0"),
    ],
)
def test_lengths_that_no_ngram_has_are_refused(saved, vocabulary, order_starts, problem):
    path = saved / AUTOMATON_FILE
    arrays = load_file(path)
    assert arrays["order_starts"].tolist() == [0, 10, 20, 28]
    save_file(arrays | {"order_starts": np.array(order_starts)}, path)
    with pytest.raises(ManifestError, match=problem):
        load(saved, vocabulary)


@pytest.mark.parametrize("array", Automaton._fields)
def test_an_array_that_is_too_short_is_refused(model, tmp_path, array):
    """Uses a quantised file, in which no array is empty."""
    path = tmp_path / AUTOMATON_FILE
    quantise_automaton(model.automaton).save(path)
    arrays = load_file(path)
    save_file(arrays | {array: arrays[array][:-1].copy()}, path)
    with pytest.raises(ManifestError, match="not a back-off automaton"):
        Automaton.load(path)


def test_an_array_of_another_type_is_refused(saved):
    path = saved / AUTOMATON_FILE
    arrays = load_file(path)
    save_file(arrays | {"words": arrays["words"].astype(np.int64)}, path)
    with pytest.raises(ManifestError, match="words is int64"):
        Automaton.load(path)


def test_a_missing_array_is_refused(saved):
    path = saved / AUTOMATON_FILE
    arrays = load_file(path)
    del arrays["suffixes"]
    save_file(arrays, path)
    with pytest.raises(ManifestError, match="it has the arrays"):
        Automaton.load(path)


@pytest.mark.parametrize("size", [0, 4, 8, 60, 400, -1])
def test_a_cut_file_is_refused(saved, size):
    path = saved / AUTOMATON_FILE
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ManifestError, match=AUTOMATON_FILE):
        map_tensors(path)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]},
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [1], "data_offsets": [1, 5]},
        {"dtype": "F32", "shape": [1]},
        {"dtype": "F32", "shape": [float("inf")], "data_offsets": [0, 4]},
        [],
    ],
)
def test_a_header_that_lies_is_refused(tmp_path, entry):
    header = json.dumps({"a": entry}).encode()
    header += b" " * (-len(header) % 8)
    path = tmp_path / "x.bin"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ManifestError, match=r"x\.bin is not a safetensors file"):
        map_tensors(path)


def test_a_header_nested_too_deeply_is_refused(tmp_path):
    header = b"[" * 100_000
    path = tmp_path / "x.bin"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ManifestError, match=r"x\.bin is not a safetensors file"):
        map_tensors(path)


VOCABULARY = Vocabulary([f"w{i}" for i in range(400)])


@pytest.fixture(scope="module")
def exact() -> NGramModel:
    """About 20,000 n-grams with more distinct values than codes."""
    random = np.random.default_rng(5)
    rows = [(random.zipf(1.3, size=12) % 400) + 3 for _ in range(1500)]
    return estimate(EncodedCorpus.from_sentences(rows), VOCABULARY, order=3, progress=Progress()).model


@pytest.fixture(scope="module")
def coded(exact) -> NGramModel:
    return NGramModel(quantise_automaton(exact.automaton), VOCABULARY, normalised=False)


def test_the_same_ngrams_are_listed_with_values_nearby(exact, coded):
    for (ngrams, weights), (same, rounded) in zip(
        list_ngrams(exact.automaton), list_ngrams(coded.automaton), strict=True
    ):
        assert np.array_equal(ngrams.words, same.words)
        assert np.array_equal(ngrams.prefixes, same.prefixes)
        for values, nearby in zip(weights, rounded, strict=True):
            finite = np.isfinite(values)
            assert np.array_equal(finite, np.isfinite(nearby))
            apart = np.abs(values[finite] - nearby[finite])
            assert apart.max(initial=0) < 0.5
            assert apart.sum() < 0.01 * len(apart) + 1e-9


def test_rows_sum_to_almost_one(coded):
    states = coded.initial_state(1).concatenate([coded.empty_state(1)])
    assert np.abs(np.exp(coded.next_log_probs(states)).sum(axis=1) - 1).max() < 0.03


def test_unknown_words_are_charged_what_they_were(exact, coded):
    unknown = [model.next_log_probs(model.empty_state(1))[0, UNK] for model in (exact, coded)]
    assert unknown[0] == unknown[1]


def test_every_answer_agrees_with_the_others(coded):
    """Scores, distributions and top-k of a quantised model are consistent."""
    state = coded.advance(coded.initial_state(2), np.array([4, 5]))
    row = coded.next_log_probs(state)
    top = coded.top_k(state, 20)
    assert np.array_equal(np.take_along_axis(row, top.ids, 1), top.log_probs)
    scores = score_sequences(coded, state, top.ids[:, :1], np.ones(2, np.int64))
    assert np.array_equal(scores, top.log_probs[:, :1])


def test_few_values_are_kept_as_they_are():
    values = np.random.default_rng(1).choice(np.float32([-np.inf, -3.25, -0.1, 0, 0.5]), size=1000)
    table, codes = encode_values(values)
    assert len(table) == NUM_CODES
    assert np.array_equal(table[codes], values)


def test_nothing_and_certainty_are_kept_among_many_values():
    values = -np.random.default_rng(1).exponential(size=100_000).astype(np.float32)
    values[:2] = -np.inf, 0
    table, codes = encode_values(values)
    assert table[codes[:2]].tolist() == [-np.inf, 0]
    nearest = np.abs(values[2:1002, None] - table).min(axis=1)
    assert np.abs(table[codes[2:1002]] - values[2:1002]) == pytest.approx(nearest, abs=1e-6)


def test_a_quantised_file_takes_fewer_bytes(exact, coded, tmp_path):
    exact.automaton.save(tmp_path / "exact")
    coded.automaton.save(tmp_path / "coded")
    assert (tmp_path / "coded").stat().st_size < 0.7 * (tmp_path / "exact").stat().st_size
    loaded = NGramModel(type(coded.automaton).load(tmp_path / "coded"), VOCABULARY)
    state = loaded.initial_state(1)
    assert np.array_equal(loaded.next_log_probs(state), coded.next_log_probs(state))
