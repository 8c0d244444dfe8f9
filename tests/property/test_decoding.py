"""Decoding for any texts, distributions and parameters."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from models.decoding.batch import SequenceBatch
from models.decoding.parameters import DecodingParameters
from models.decoding.rules import BannedSequences, StopBytes, StopStrings, Tail, TokenBias, compile_rules
from models.decoding.sampling import choose_tokens
from models.decoding.top_k import top_of_rows, top_tokens
from models.language_model import EOS
from models.phrases import PhraseAutomaton
from tests.reference import decoding

pieces = st.lists(st.text(alphabet="ab", max_size=4), max_size=12)
stops = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3)
values = st.integers(-60, 0).map(lambda n: n / 4) | st.just(-np.inf)
logits = arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=12), elements=values)
rows = arrays(np.float32, st.tuples(st.just(3), st.integers(4, 30)), elements=values)
shares = st.integers(1, 20).map(lambda n: n / 20.3)
parameters = st.builds(
    DecodingParameters,
    max_tokens=st.just(50),
    temperature=st.sampled_from([0.0, 1e-30, 0.3, 1.0, 1.7]),
    top_k=st.none() | st.integers(1, 12),
    top_p=st.just(1.0) | shares,
    typical_p=st.just(1.0) | shares,
    min_p=st.just(0.0) | shares | st.just(1.0),
    repetition_penalty=st.sampled_from([1.0, 1.0, 0.5, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.4, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.7, -0.3]),
    logit_bias=st.dictionaries(st.integers(0, 3), st.sampled_from([-100.0, 3.0, 8.0]), max_size=2).map(
        lambda biases: tuple(biases.items())
    ),
    ignore_eos=st.booleans(),
    min_tokens=st.integers(0, 3),
)
tokens = st.lists(st.integers(0, 3), max_size=5)
draws = st.floats(0, 1, exclude_max=True)


def made(given_, count, prompt=()):
    """Batch of `count` rows of one request."""
    return SequenceBatch.of([compile_rules(given_, np.array(prompt, np.int64))] * count)


def through(stop, parts):
    filtered = StopStrings(stop)
    released = [filtered.push(part) for part in parts]
    return "".join(released) + ("" if filtered.stopped else filtered.flush()), filtered.stopped


@given(pieces, stops)
@settings(max_examples=300)
def test_text_in_pieces_stops_where_the_whole_would(parts, stop):
    """Released text ends before the first complete stop string, wherever the text is split."""
    text, stopped = through(stop, parts)
    whole = "".join(parts)
    assert whole.startswith(text)
    assert not any(s in text for s in stop)
    assert stopped == any(s in whole for s in stop)
    assert stopped or text == whole


@given(pieces, stops)
def test_only_the_beginning_of_a_stop_string_is_held_back(parts, stop):
    filtered, pushed, released = StopStrings(stop), "", ""
    for part in parts:
        pushed += part
        released += filtered.push(part)
        if filtered.stopped:
            return
        held = pushed.removeprefix(released)
        assert not held or any(s.startswith(held) and s != held for s in stop)


@given(pieces, stops.filter(len))
def test_branching_texts_stop_where_a_single_one_does(parts, stop):
    found = StopBytes(stop, [part.encode() for part in parts], strip_space=False)
    tail, filtered = Tail(), StopStrings(stop)
    for token, part in enumerate(parts):
        tail = found.advance(tail, token)
        filtered.push(part)
        assert tail.stopped == filtered.stopped
        if tail.stopped:
            return


def banned_sequences(sequences):
    different = {*map(tuple, sequences)}
    return BannedSequences(different, [1.0] * len(different))


@given(rows, parameters, tokens, tokens, st.lists(draws, min_size=3, max_size=3), st.data())
@settings(max_examples=400)
def test_the_kernel_chooses_as_the_definition_does(log_probs, given_, prompt, generated, numbers, data):
    """Each row's random number falls into its token's interval of the reference distribution."""
    banned = data.draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=3))
    biases = TokenBias(given_.logit_bias, banned_sequences(banned))
    batch = SequenceBatch.of([compile_rules(given_, np.array(prompt, np.int64), biases)] * 3)
    for token in generated:
        batch = batch.append(np.full(3, token), np.zeros(3, np.float32))
    chosen = choose_tokens(log_probs, batch.rows(), np.array(numbers))
    forbidden = [ids[-1] for ids in banned if generated[len(generated) + 1 - len(ids) :] == ids[:-1]]
    for row, token, number in zip(log_probs, chosen.tokens.tolist(), numbers, strict=True):
        scores = decoding.scores(row, given_, prompt=prompt, generated=generated, banned=forbidden)
        if not np.isfinite(scores).any():
            assert token == EOS
        elif given_.greedy:
            assert scores[token] >= scores.max() - 1e-5
        else:
            ends = np.cumsum(decoding.distribution(scores, given_))
            begin = ends[token - 1] if token else 0.0
            assert ends[token] > begin
            assert begin - 1e-5 <= number <= ends[token] + 1e-5


@given(rows, parameters, st.lists(draws, min_size=3, max_size=3), st.integers(0, 2))
def test_a_row_is_given_the_same_token_whoever_is_beside_it(log_probs, given_, numbers, row):
    together = choose_tokens(log_probs, made(given_, 3).rows(), np.array(numbers))
    alone = choose_tokens(log_probs[row : row + 1], made(given_, 1).rows(), np.array(numbers[row : row + 1]))
    assert (alone.tokens[0], alone.log_probs[0]) == (together.tokens[row], together.log_probs[row])


@given(rows, parameters, st.lists(draws, min_size=3, max_size=3))
def test_sampling_does_not_change_the_log_probabilities(log_probs, given_, numbers):
    before = log_probs.copy()
    log_probs.flags.writeable = False
    choose_tokens(log_probs, made(given_, 3, prompt=np.arange(3)).rows(), np.array(numbers))
    np.testing.assert_array_equal(log_probs, before)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=6), st.data())
def test_no_banned_sequence_is_ever_completed(sequences, data):
    """Only tokens that would complete a banned sequence are banned."""
    banned = banned_sequences(sequences)
    node, generated = banned.START, []
    for _ in range(12):
        forbidden = banned.banned(node)
        completing = {
            ids[-1]
            for ids in sequences
            if len(ids) <= len(generated) + 1 and generated[len(generated) + 1 - len(ids) :] == ids[:-1]
        }
        assert forbidden == completing
        allowed = sorted({0, 1, 2} - forbidden)
        assume(allowed)
        generated.append(data.draw(st.sampled_from(allowed)))
        node, _ = banned.advance(node, generated[-1])


sequence_weights = st.dictionaries(
    st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple),
    st.sampled_from([0.5, 1.0, 3.0]),
    max_size=6,
)


@given(sequence_weights, st.lists(st.integers(0, 3), max_size=12))
def test_phrase_biases_along_a_text_sum_to_the_weights_of_its_phrases(weights, text):
    automaton = PhraseAutomaton(list(weights), list(weights.values()))
    biases = TokenBias([(3, 0.25)], phrases=automaton)
    nodes, total = biases.START, 0.0
    for token in text:
        total += dict(zip(*map(np.ndarray.tolist, biases.after(nodes)), strict=True)).get(token, 0.0)
        nodes = biases.advance(nodes, token)
        total += biases.taken_back(nodes)
    phrases = [list(weights)[index] for index in automaton.find(text)]
    assert total == pytest.approx(sum(weights[one] for one in phrases) + 0.25 * text.count(3), abs=1e-5)


@given(logits, st.integers(1, 12))
def test_top_tokens_are_the_head_of_the_sorted_row(log_probs, k):
    k = min(k, log_probs.shape[1])
    found = top_of_rows(log_probs, k)
    for row, ids, top in zip(log_probs, *found, strict=True):
        expected = sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]
        assert ids.tolist() == top_tokens(row, k).ids.tolist() == expected
        assert top.tolist() == row[expected].tolist()
