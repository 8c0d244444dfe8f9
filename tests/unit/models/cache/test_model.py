"""Cache models against a slow double-precision reference; batch-invariant cache kernels."""

import math
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from models.arrays import to_numpy
from models.cache.config import CacheConfig, MarginalsConfig
from models.cache.kernels import SEGMENT_TOKENS, SimilarityDecay, inner_products, to_unit_vectors
from models.cache.model import FREQUENCIES_FILE, CacheModel, History, score_with_history
from models.errors import InputError, ManifestError
from models.kernels.math import VECTOR_WIDTH
from models.language_model import BOS, EOS, SCORES, STATE, pad_sequences, prefill_sequences, score_sequences
from tests.support.fake_models import FakeModel, FeaturedModel, fake_vocabulary

VOCABULARY = fake_vocabulary()
FREQUENCIES = np.random.default_rng(7).dirichlet(np.ones(len(VOCABULARY))).astype(np.float32)
MARGINALS = MarginalsConfig(half_life=8.0, exponent=1.3, prior=2.5, floor=0.3)
CONFIGS = [
    CacheConfig(kind="continuous", window=5, flatness=2.5, half_life=3.5, weight=0.3),
    CacheConfig(kind="continuous", window=200, flatness=0.0, half_life=None, weight=0.6),
    CacheConfig(kind="continuous", window=6, flatness=1.5, half_life=3.5, weight=0.7, prior=0.4),
    CacheConfig(kind="unigram", window=5, half_life=None, weight=0.3),
    CacheConfig(kind="unigram", window=4, half_life=9.0, weight=0.9, prior=2.5),
    CacheConfig(kind="unigram", window=300, half_life=80.0, weight=0.1),
    CacheConfig(kind="continuous", window=7, flatness=2.5, half_life=3.5, weight=0.3, gate=(-1.2, 0.4, 1.1)),
    CacheConfig(kind="unigram", window=11, half_life=9.0, weight=0.4, prior=0.7, marginals=MARGINALS),
    CacheConfig(
        kind="continuous",
        window=40,
        flatness=4.0,
        half_life=30.0,
        weight=0.3,
        gate=(0.3, -0.2, 0.8),
        marginals=MARGINALS,
    ),
]


def wrapped(config):
    """Cache model around a suitable inner model, and the inner model."""
    inner = FeaturedModel(VOCABULARY) if config.kind == "continuous" else FakeModel(VOCABULARY)
    return CacheModel(inner, config, FREQUENCIES if config.marginals else None), inner


@pytest.fixture(params=CONFIGS, ids=lambda c: f"{c.kind}-{c.window}")
def config(request):
    return request.param


def text(length, seed=0):
    """Random tokens, control tokens included."""
    return np.random.default_rng(seed).integers(0, len(VOCABULARY), length)


def cosine(one, other):
    lengths = np.linalg.norm(one) * np.linalg.norm(other)
    return one @ other / lengths if lengths else 0.0


def adapted(p, words, marginals):
    """Reference of dynamic marginals, for words of which the last is the newest."""
    if marginals is None:
        return p
    counts = np.zeros(len(p))
    for age, word in enumerate(reversed(words)):
        counts[word] += 0.5 ** (age / marginals.half_life)
    expected = counts.sum() * FREQUENCIES.astype(np.float64)
    base = marginals.prior * expected + marginals.floor
    p = p * ((counts + base) / (expected + base)) ** marginals.exponent
    return p / p.sum()


def slow_distributions(inner, config, ids):
    """Reference p(· | ids[:t]) for each t from 0 to T, after `<s>`, with lists and dictionaries."""
    state, remembered, answers = inner.initial_state(1), [], []
    for token in [*ids, None]:
        p = np.exp(to_numpy(inner.next_log_probs(state))[0].astype(np.float64))
        h = inner.features(state)[0].astype(np.float64) if config.kind == "continuous" else None
        masses = {}
        for age, (word, vector) in enumerate(reversed(remembered)):
            likeness = cosine(h, vector) if config.kind == "continuous" else 0.0
            decay = 1.0 if config.half_life is None else 0.5 ** (age / config.half_life)
            masses[word] = masses.get(word, 0.0) + math.exp(config.flatness * (likeness - 1)) * decay
        if masses:
            p = adapted(p, [word for word, _ in remembered], config.marginals)
            weight, prior, evidence = config.weight, config.prior, sum(masses.values())
            if config.gate:
                inputs = np.array([1, math.log(evidence), math.log(max(masses.values()) / evidence)])
                weight, prior = 1 / (1 + math.exp(-(config.gate @ inputs))), 0.0
            of_cache = prior * p
            for word, mass in masses.items():
                of_cache[word] += mass
            p = (1 - weight) * p + weight * of_cache / (prior + evidence)
        answers.append(p)
        if token is not None:
            if token != BOS:
                remembered = [*remembered, (token, h)][-config.window :]
            state = inner.advance(state, np.array([token]))
    return np.array(answers)


def test_every_distribution_is_what_the_definition_says(config):
    model, inner = wrapped(config)
    ids = text(40)
    expected = slow_distributions(inner, config, ids)
    state = model.initial_state(1)
    for t, token in enumerate(ids):
        assert np.exp(model.next_log_probs(state)[0]) == pytest.approx(expected[t], abs=1e-6)
        state = model.advance(state, np.array([token]))
    assert np.exp(model.next_log_probs(state)[0]) == pytest.approx(expected[-1], abs=1e-6)


def test_scores_are_what_the_definition_says_far_beyond_window_and_blocks(config):
    model, inner = wrapped(config)
    ids = text(700)
    expected = slow_distributions(inner, config, ids)[np.arange(700), ids]
    scores = score_sequences(model, model.initial_state(1), *pad_sequences([ids]))
    assert np.exp(scores[0]) == pytest.approx(expected, abs=1e-6)


def test_scores_are_the_same_bits_step_by_step_whole_and_in_pieces(config, monkeypatch):
    model, _ = wrapped(config)
    ids = text(90)
    whole = score_sequences(model, model.initial_state(1), *pad_sequences([ids]))[0]
    state, stepwise = model.initial_state(1), []
    for token in ids:
        stepwise.append(model.next_log_probs(state)[0, token])
        state = model.advance(state, np.array([token]))
    monkeypatch.setattr("models.cache.model._SEGMENT_TOKENS", 17)
    monkeypatch.setattr("models.cache.model._MAX_FEATURE_VALUES", 1)
    in_pieces = score_sequences(model, model.initial_state(2), *pad_sequences([ids, ids[:7]]))
    assert (whole == stepwise).all()
    assert (whole == in_pieces[0]).all()


def test_a_long_context_is_read_at_once_as_it_is_step_by_step(config, monkeypatch):
    model, _ = wrapped(config)
    ids = text(60)
    expected = model.initial_state(1)
    for token in ids:
        expected = model.advance(expected, np.array([token]))
    monkeypatch.setattr("models.cache.model._SEGMENT_TOKENS", 16)
    state = prefill_sequences(model, model.initial_state(3), *pad_sequences([ids[:9], ids, []]))
    assert (state.histories[1].tokens == expected.histories[0].tokens).all()
    assert (state.histories[1].features == expected.histories[0].features).all()
    assert (model.next_log_probs(state)[1] == model.next_log_probs(expected)[0]).all()


def test_rows_with_windows_of_different_fill_are_picked_and_joined(config):
    model, _ = wrapped(config)
    state = prefill_sequences(model, model.initial_state(3), *pad_sequences([text(9), [], text(3, seed=1)]))
    before = model.next_log_probs(state)
    joined = state.select(np.array([2, 1])).concatenate([state, state.select(np.array([0, 0]))])
    assert (model.next_log_probs(joined) == before[[2, 1, 0, 1, 2, 0, 0]]).all()


def test_two_continuations_of_one_state_do_not_meet(config):
    model, _ = wrapped(config)
    state = prefill_sequences(model, model.initial_state(1), *pad_sequences([text(7)]))
    one = model.advance(state, np.array([5]))
    other = model.advance(state, np.array([8]))
    again = model.advance(state, np.array([5]))
    assert one.histories[0].tokens[-1] == 5
    assert other.histories[0].tokens[-1] == 8
    assert (model.next_log_probs(one) == model.next_log_probs(again)).all()


def test_with_nothing_remembered_the_wrapped_model_answers(config):
    model, inner = wrapped(config)
    state, own = model.initial_state(2), inner.initial_state(2)
    assert (model.next_log_probs(state) == to_numpy(inner.next_log_probs(own))).all()
    again = model.advance(state, np.array([BOS, BOS]))
    assert all(len(history) == 0 for history in again.histories)


def test_unknown_words_and_ends_are_remembered():
    model, _ = wrapped(CONFIGS[0])
    state = prefill_sequences(model, model.initial_state(1), *pad_sequences([[0, EOS, BOS]]))
    assert state.histories[0].tokens.tolist() == [0, EOS]


def test_history_of_a_long_text_is_bounded_by_the_window():
    history = History.empty(window=100, width=3)
    for token in range(1_000):
        history = history.appended(np.array([token]), np.full((1, 3), token, np.float32))
        assert len(history.buffer.tokens) <= 125
    assert history.tokens.tolist() == list(range(900, 1_000))
    assert history.features[:, 2].tolist() == list(range(900, 1_000))


def test_continuing_a_text_copies_what_is_remembered_now_and_then_only():
    history, buffers = History.empty(window=1_000, width=2), set()
    for token in range(10_000):
        history = history.appended(np.array([token]), np.zeros((1, 2), np.float32))
        buffers.add(id(history.buffer.tokens))
    assert len(buffers) < 60


def test_features_without_length_are_like_nothing():
    inner = FeaturedModel(VOCABULARY)
    inner.embedding[:] = 0
    model = CacheModel(inner, CONFIGS[0])
    ids = text(12)
    expected = slow_distributions(model.inner, CONFIGS[0], ids)[np.arange(12), ids]
    assert np.exp(score_sequences(model, model.initial_state(1), *pad_sequences([ids]))[0]) == pytest.approx(
        expected, abs=1e-6
    )


def test_a_continuous_cache_needs_features():
    with pytest.raises(InputError, match="family fake has no features"):
        CacheModel(FakeModel(VOCABULARY), CONFIGS[0])


@pytest.mark.parametrize("token", [-1, len(VOCABULARY)])
def test_tokens_outside_the_vocabulary_are_refused(token):
    model, _ = wrapped(CONFIGS[2])
    batch = pad_sequences([[5, token]])
    for want in (SCORES, STATE):
        with pytest.raises(InputError, match="token ids are 0 to 12"):
            model.read(model.initial_state(1), *batch, want)
    with pytest.raises(InputError, match="token ids are 0 to 12"):
        model.advance(model.initial_state(1), np.array([token]))


@pytest.mark.parametrize(
    ("field", "value", "limits"),
    [
        ("window", 0, "greater than or equal to 1"),
        ("window", 2.5, "valid integer"),
        ("flatness", -0.1, "greater than or equal to 0"),
        ("flatness", 64.1, "less than or equal to 64"),
        ("flatness", math.nan, "finite"),
        ("half_life", 0.0, "greater than 0"),
        ("half_life", math.nan, "finite"),
        ("half_life", math.inf, "finite"),
        ("half_life", "long", "valid number"),
        ("weight", 0.0, "greater than 0"),
        ("weight", 1.0, "less than 1"),
        ("weight", True, "valid number"),
        ("weight", [0.5], "valid number"),
        ("prior", -0.1, "greater than or equal to 0"),
        ("prior", math.inf, "finite"),
        ("kind", "big", "'continuous' or 'unigram'"),
        ("kind", ["unigram"], "'continuous' or 'unigram'"),
    ],
)
def test_a_configuration_outside_its_limits_is_refused_by_name(field, value, limits):
    options = {
        "kind": "continuous",
        "window": 5,
        "flatness": 0.1,
        "half_life": 2.0,
        "weight": 0.2,
        field: value,
    }
    with pytest.raises(ValidationError, match=rf"(?s)CacheConfig\n{field}.*{limits}"):
        CacheConfig(**options)


def test_little_that_is_remembered_changes_little_where_the_prior_is_large():
    inner = FakeModel(VOCABULARY)
    config = CacheConfig(kind="unigram", window=300, half_life=None, weight=0.5, prior=50.0)
    state = CacheModel(inner, config).advance(CacheModel(inner, config).initial_state(1), np.array([5]))
    alone = np.exp(inner.next_log_probs(inner.advance(inner.initial_state(1), np.array([5]))))
    cached = np.exp(CacheModel(inner, config).next_log_probs(state))
    assert np.abs(cached - alone).sum() == pytest.approx(2 * 0.5 / 51 * (1 - alone[0, 5]), rel=1e-4)


@pytest.mark.parametrize(
    ("field", "value", "limits"),
    [
        ("half_life", 0.0, "greater than 0"),
        ("exponent", 4.5, "less than or equal to 4"),
        ("prior", -1.0, "greater than or equal to 0"),
        ("floor", 0.0, r"greater than or equal to 0\.001"),
        ("floor", math.nan, "finite"),
    ],
)
def test_a_value_of_dynamic_marginals_outside_its_limits_is_refused(field, value, limits):
    with pytest.raises(ValidationError, match=rf"(?s)MarginalsConfig\n{field}.*{limits}"):
        replace(MARGINALS, **{field: value})


def test_a_gate_has_three_numbers():
    with pytest.raises(ValidationError, match=r"(?s)gate\.2.*required"):
        CacheConfig(kind="unigram", window=5, half_life=2.0, weight=0.2, gate=(1.0, 2.0))


def test_dynamic_marginals_need_the_frequencies_of_the_vocabulary(tmp_path):
    config = CONFIGS[7]
    for frequencies in (None, FREQUENCIES[1:]):
        with pytest.raises(InputError, match="frequencies"):
            CacheModel(FakeModel(VOCABULARY), config, frequencies)
    model, inner = wrapped(config)
    model.save(tmp_path)
    (tmp_path / FREQUENCIES_FILE).unlink()
    with pytest.raises(ManifestError, match=r"frequencies\.safetensors"):
        CacheModel.load(tmp_path, [inner])


def test_a_unigram_cache_has_no_flatness():
    with pytest.raises(ValidationError, match=r"flatness must be 0 for a unigram cache, given 0\.1"):
        CacheConfig(kind="unigram", window=5, flatness=0.1, half_life=2.0, weight=0.2)


def test_loaded_cache_model_equals_the_saved_one(tmp_path, config):
    model, inner = wrapped(config)
    model.save(tmp_path)
    loaded = CacheModel.load(tmp_path, [inner])
    assert loaded.config == config
    state = prefill_sequences(model, model.initial_state(1), *pad_sequences([text(9)]))
    assert (loaded.next_log_probs(state) == model.next_log_probs(state)).all()


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "[",
        pytest.param("[" * 100_000, id="nested"),
        "[1]",
        '{"kind": "unigram", "window": 0, "flatness": 0, "half_life": null, "weight": 0.5}',
        '{"kind": "unigram", "window": 9, "flatness": 0, "half_life": NaN, "weight": 0.5}',
        '{"kind": "unigram", "window": 9, "flatness": 0, "weight": 0.5}',
        '{"kind": "unigram", "window": 9, "half_life": 3, "weight": 0.5, "of_a_later_version": 1}',
    ],
)
def test_a_damaged_configuration_is_told_by_its_file(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ManifestError, match=r"config\.json"):
        CacheModel.load(tmp_path, [FakeModel(VOCABULARY)])


RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(("rows", "count"), [(1, 1), (1, 131), (3, 2), (4, 4), (7, 131), (130, 9)])
def test_products_are_those_of_double_precision(rows, count):
    queries, keys = (RANDOM.normal(size=(n, 3 * VECTOR_WIDTH)).astype(np.float32) for n in (rows, count))
    out = np.zeros((rows, count + 11), np.float32)
    inner_products(queries, keys, 9, out)
    expected = queries.astype(np.float64) @ keys.T.astype(np.float64)
    assert out[:, 9:-2] == pytest.approx(expected, abs=1e-5)
    assert not out[:, :9].any()
    assert not out[:, -2:].any()


def test_a_product_is_the_same_bits_whatever_is_computed_beside_it():
    queries, keys = (RANDOM.normal(size=(n, 25 * VECTOR_WIDTH)).astype(np.float32) for n in (23, 71))
    whole = np.empty((23, 71), np.float32)
    inner_products(queries, keys, 0, whole)
    for rows in (slice(0, 1), slice(5, 8), slice(2, 9), slice(21, 23)):
        for columns in (slice(0, 1), slice(67, 71), slice(30, 69)):
            alone = np.empty(whole[rows, columns].shape, np.float32)
            inner_products(queries[rows], keys[columns], 0, alone)
            assert (alone == whole[rows, columns]).all()


def test_unit_vectors_have_length_one_and_their_direction():
    features = (
        RANDOM.normal(size=(9, 37)).astype(np.float32) * np.logspace(-15, 15, 9, dtype=np.float32)[:, None]
    )
    units = to_unit_vectors(features)
    assert units.shape == (9, 3 * VECTOR_WIDTH)
    exact = features.astype(np.float64)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    np.testing.assert_allclose(units[:, :37], exact, rtol=2e-7)
    assert not units[:, 37:].any()
    assert all((to_unit_vectors(features[n : n + 1])[0] == units[n]).all() for n in range(9))


def test_a_vector_without_length_stays_zero():
    assert not to_unit_vectors(np.zeros((2, 5), np.float32)).any()


def slowly(tokens, units, window, flatness, half_life):
    """Reference share of the last token in the cache, and the total weight, in double precision."""
    *remembered, target = tokens[-window - 1 :]
    alike = units[-len(remembered) - 1 : -1].astype(np.float64) @ units[-1].astype(np.float64)
    ages = np.arange(len(remembered))[::-1]
    weights = np.exp(flatness * alike) * 0.5 ** (0 if half_life is None else ages / half_life)
    share = weights[np.array(remembered) == target].sum() / weights.sum()
    return share, weights.sum() * np.exp(-flatness)


def test_shares_are_those_of_double_precision():
    """The window exceeds one segment, and adjacent vectors are similar."""
    count, window = 3 * SEGMENT_TOKENS, SEGMENT_TOKENS + 77
    tokens = RANDOM.integers(3, 40, count)
    units = to_unit_vectors(np.cumsum(RANDOM.normal(size=(count, 20)), axis=0).astype(np.float32))
    flatnesses, half_lives = (0.0, 14.0, 32.0), (1.5, 300.0, None)
    weighing = SimilarityDecay.of(flatnesses, half_lives, window=window)
    history = History.empty(window=window, width=units.shape[1])
    shares, evidence, _, _ = score_with_history(history, tokens, units, decay=weighing)
    assert not shares[0].any()
    assert not evidence[0].any()
    for t in (1, 2, *range(99, count, 997)):
        for f, flatness in enumerate(flatnesses):
            for h, half_life in enumerate(half_lives):
                share, total = slowly(tokens[: t + 1], units[: t + 1], window, flatness, half_life)
                assert shares[t, f, h] == pytest.approx(share, rel=1e-5, abs=1e-30)
                assert evidence[t, f, h] == pytest.approx(total, rel=1e-5, abs=1e-30)


def test_of_a_half_life_near_nothing_the_newest_token_is_left():
    tokens = np.array([5, 6, 6, 5])
    history = History.empty(window=4, width=0)
    weighing = SimilarityDecay.of((0.0,), (5e-324,), window=4)
    shares, evidence, _, _ = score_with_history(history, tokens, np.zeros((4, 0), np.float32), decay=weighing)
    assert shares[:, 0, 0].tolist() == [0, 0, 1, 0]
    assert evidence[:, 0, 0].tolist() == [0, 1, 1, 1]


def test_a_share_does_not_depend_on_what_else_is_tried():
    tokens = RANDOM.integers(3, 40, 3_000)
    units = to_unit_vectors(RANDOM.normal(size=(3_000, 20)).astype(np.float32))
    history = History.empty(window=2_100, width=units.shape[1])

    def shares(flatnesses, half_lives):
        weighing = SimilarityDecay.of(flatnesses, half_lives, window=2_100)
        return score_with_history(history, tokens, units, decay=weighing)[0]

    together = shares((3.0, 9.0), (50.0, None, 700.0))
    assert (together[:, 1, 2] == shares((9.0,), (700.0,))[:, 0, 0]).all()
