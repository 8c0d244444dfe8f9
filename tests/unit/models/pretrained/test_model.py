"""Pretrained transformers against transformers itself, and against themselves in other orders of computation."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from models.arrays import to_numpy
from models.language_model import (
    BOS,
    EOS,
    UNK,
    Want,
    pad_sequences,
    prefill_sequences,
    read_sequences,
    read_step_by_step,
    score_choices,
    score_sequences,
)
from tests.support.pretrained import CONFIGS, TEXTS, WINDOW, pretrained

ALL = Want(scores=True, state=True, before=True)


@pytest.fixture(params=CONFIGS)
def kind(request):
    return request.param


def texts_of(tokenizer, count=6):
    return tokenizer.encode_all([*TEXTS[:: len(TEXTS) // count], "ûber 日本"])


def their_log_probs(kind, ids):
    """Distributions over our ids after `<s>` and each token [T + 1, V], by transformers."""
    original, _, tokenizer = pretrained(kind)
    numbers = tokenizer.numbers
    given = torch.as_tensor(numbers[[BOS, *ids]])[None]
    with torch.inference_mode():
        logits = original(given).logits[0].double().numpy()
    is_predicted = numbers >= 0
    is_predicted[BOS] = False
    chosen = np.where(is_predicted, logits[:, np.maximum(numbers, 0)], -np.inf)
    return chosen - np.log(np.exp(chosen).sum(axis=1, keepdims=True))


def test_distributions_are_those_of_transformers_and_sum_to_one(kind):
    _, model, tokenizer = pretrained(kind)
    for ids in texts_of(tokenizer):
        expected = their_log_probs(kind, ids)
        state = model.initial_state(1)
        for token, row in zip([*ids, EOS], expected, strict=True):
            found = to_numpy(model.next_log_probs(state))[0]
            np.testing.assert_allclose(found, row, atol=1e-4)
            assert np.exp(found, dtype=np.float64).sum() == pytest.approx(1, abs=1e-5)
            assert found[BOS] == -np.inf
            state = model.advance(state, np.array([token]))


def test_scores_in_a_batch_are_those_of_transformers(kind):
    _, model, tokenizer = pretrained(kind)
    texts = [[*ids, EOS] for ids in texts_of(tokenizer)]
    scores = score_sequences(model, model.initial_state(len(texts)), *pad_sequences(texts))
    for row, ids in zip(scores, texts, strict=True):
        expected = their_log_probs(kind, ids[:-1])[range(len(ids)), ids]
        np.testing.assert_allclose(row[: len(ids)], expected, atol=1e-4)


def test_step_by_step_equals_whole_and_batched_equals_single(kind):
    _, model, tokenizer = pretrained(kind)
    texts = texts_of(tokenizer)
    tokens, lengths = pad_sequences([*texts, []])
    state = model.initial_state(len(lengths))
    whole, steps = (read(model, state, tokens, lengths, ALL) for read in (read_sequences, read_step_by_step))
    np.testing.assert_allclose(whole.log_probs, steps.log_probs, atol=1e-4)
    for part in ("state", "before"):
        one, other = (model.next_log_probs(getattr(result, part)) for result in (whole, steps))
        np.testing.assert_allclose(one, other, atol=1e-4)
    for row, ids in enumerate(texts):
        single = score_sequences(model, model.initial_state(1), *pad_sequences([ids]))
        np.testing.assert_allclose(single[0], whole.log_probs[row, : len(ids)], atol=1e-4)


def test_candidates_after_one_context_equal_each_alone(kind):
    _, model, tokenizer = pretrained(kind)
    context, *texts = texts_of(tokenizer)
    texts *= 40  # more than one group
    after = prefill_sequences(model, model.initial_state(1), *pad_sequences([context]))
    together = score_sequences(model, after.select(np.zeros(len(texts), np.int64)), *pad_sequences(texts))
    for row, ids in zip(together[:6], texts[:6], strict=True):
        alone = score_sequences(model, model.initial_state(1), *pad_sequences([[*context, *ids]]))[0]
        np.testing.assert_allclose(row[: len(ids)], alone[len(context) :], atol=1e-4)
    assert np.abs(together[-6:] - together[:6]).max() < 1e-4


def test_forks_do_not_disturb_one_another(kind):
    _, model, tokenizer = pretrained(kind)
    first, second, *_ = texts_of(tokenizer)
    begun = prefill_sequences(model, model.initial_state(1), *pad_sequences([first]))
    before = model.next_log_probs(begun)
    branches = [begun, begun.select(np.array([0, 0])).select(np.array([1])), begun]
    for token in second:
        branches = [model.advance(branch, np.array([token + n])) for n, branch in enumerate(branches)]
    np.testing.assert_array_equal(model.next_log_probs(begun), before)
    for number, branch in enumerate(branches):
        path = [*first, *(token + number for token in second)]
        alone = prefill_sequences(model, model.initial_state(1), *pad_sequences([path]))
        np.testing.assert_allclose(model.next_log_probs(branch), model.next_log_probs(alone), atol=1e-4)


def test_threads_may_continue_one_state():
    _, model, tokenizer = pretrained("llama")
    first, *texts = texts_of(tokenizer)
    begun = prefill_sequences(model, model.initial_state(1), *pad_sequences([first]))

    def continued(ids):
        state = begun
        for token in ids:
            state = model.advance(state, np.array([token]))
        return model.next_log_probs(state)

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(continued, texts * 4))
    for ids, found in zip(texts * 4, together, strict=True):
        np.testing.assert_allclose(found, continued(ids), atol=1e-4)


def test_a_long_text_forgets_the_older_half_of_its_tokens_step_by_step_as_in_one_pass(kind):
    _, model, tokenizer = pretrained(kind)
    ids = [token for text in texts_of(tokenizer, 16) for token in text]
    assert len(ids) > 2 * WINDOW
    tokens, lengths = pad_sequences([ids, ids[:5]])
    state = model.initial_state(2)
    whole, steps = (read(model, state, tokens, lengths, ALL) for read in (read_sequences, read_step_by_step))
    np.testing.assert_allclose(whole.log_probs, steps.log_probs, atol=1e-4)
    # after WINDOW tokens, `<s>` among them, the last half of them is read again from the first position on
    full, half = WINDOW - 1, WINDOW // 2
    state = model.empty_state(1)
    for token in ids[full - half : full]:
        state = model.advance(state, np.array([token]))
    expected = score_sequences(
        model, model.advance(state, np.array([ids[full]])), tokens[:1, full + 1 : full + 9], np.array([8])
    )
    np.testing.assert_allclose(whole.log_probs[0, full + 1 : full + 9], expected[0], atol=1e-4)
    assert model.window == WINDOW


def test_greedy_generation_is_that_of_transformers(kind):
    original, model, tokenizer = pretrained(kind)
    ids = texts_of(tokenizer)[1][:4]
    numbers = tokenizer.numbers
    theirs = original.generate(
        torch.as_tensor(numbers[[BOS, *ids]])[None],
        max_new_tokens=12,
        do_sample=False,
        pad_token_id=0,
        suppress_tokens=sorted(set(range(original.config.vocab_size)) - {*numbers[EOS:].tolist()}),
    )[0, len(ids) + 1 :].tolist()
    state, found = prefill_sequences(model, model.initial_state(1), *pad_sequences([ids])), []
    while len(found) < len(theirs):
        token = int(to_numpy(model.next_log_probs(state))[0, EOS:].argmax()) + EOS
        found.append(int(numbers[token]))
        state = model.advance(state, np.array([token]))
    assert found == theirs


def test_choices_features_and_states_of_no_rows(kind):
    original, model, tokenizer = pretrained(kind)
    state = prefill_sequences(model, model.initial_state(2), *pad_sequences(texts_of(tokenizer)[:2]))
    rows, tokens = np.array([0, 0, 1]), np.array([5, 9, 7])
    expected = to_numpy(model.next_log_probs(state))[rows, tokens]
    np.testing.assert_allclose(score_choices(model, state, rows, tokens), expected, atol=1e-5)
    assert model.features(state).shape == (2, model.feature_size)
    nothing = state.select(np.zeros(0, np.int64))
    assert to_numpy(model.next_log_probs(nothing)).shape == (0, len(model.vocabulary))
    assert len(nothing.concatenate([state, nothing])) == 2
    assert model.num_parameters == original.num_parameters()


def test_tokens_that_are_never_predicted():
    original, model, tokenizer = pretrained("gpt2")
    assert (
        len(tokenizer.vocabulary) == original.config.vocab_size - 6 + 2
    )  # one token for start and end, and no `<unk>`
    scores = score_sequences(model, model.initial_state(1), np.array([[UNK, BOS, EOS, 5]]), np.array([4]))[0]
    assert np.isneginf(scores[:2]).all()
    assert np.isfinite(scores[2:]).all()


def test_states_count_the_memory_that_they_hold():
    _, model, tokenizer = pretrained("llama")
    ids = texts_of(tokenizer)[0]
    state = prefill_sequences(model, model.initial_state(1), *pad_sequences([ids]))
    per_token = 2 * 2 * 2 * 16 * 4  # keys and values, layers, heads, width, bytes
    outputs = 64 * 4
    slots = len(
        state.contexts[0].buffer.ids
    )  # of the whole buffer, which lives as long as any state that uses it
    assert len(ids) + 1 <= slots <= max(16, 1.25 * (len(ids) + 1))
    assert state.nbytes == slots * per_token + outputs
    assert state.select(np.zeros(100, np.int64)).nbytes == slots * per_token + 100 * outputs
