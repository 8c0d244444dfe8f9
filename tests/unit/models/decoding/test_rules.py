"""Validation of decoding parameters; masks, biases and penalties against hand-computed values."""

import numpy as np
import pytest

from models.decoding import rules
from models.decoding.batch import SequenceBatch
from models.decoding.parameters import DecodingParameters
from models.decoding.rules import BannedSequences, TokenBias, compile_rules
from models.decoding.sampling import adjust_scores
from models.errors import InputError
from models.language_model import EOS
from models.phrases import PhraseAutomaton

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("strategy", "dream"),
        ("temperature", -0.5),
        ("temperature", 999_999.0),
        ("temperature", NAN),
        ("top_k", 0),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_p", NAN),
        ("typical_p", 0.0),
        ("typical_p", 1.01),
        ("min_p", -0.1),
        ("min_p", NAN),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", INF),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("frequency_penalty", NAN),
        ("min_tokens", 3),
        ("n", 0),
        ("n", 65),
        ("best_of", 65),
        ("length_penalty", INF),
        ("seed", -1),
        ("seed", 2**64),
    ],
)
def test_a_value_outside_its_limits_is_refused_by_name_and_value(field, value):
    with pytest.raises(InputError, match=f"{field} is {value}") as caught:
        DecodingParameters(**{"max_tokens": 2, field: value})
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 65}, "num_beams is 65; it must be from n, which is 1, to 64"),
        ({"num_beams": 2, "n": 3}, "num_beams is 2; it must be from n, which is 3"),
        (
            {"num_beams": 6, "num_beam_groups": 4},
            "num_beam_groups is 4; it must divide num_beams, which is 6",
        ),
        ({"num_beam_groups": 0}, "num_beam_groups is 0"),
        ({"diversity_penalty": -1.0}, "diversity_penalty is -1.0; it must be from 0 to 100"),
        ({"n": 2, "best_of": 3}, "best_of is 3, but strategy 'beam' does not sample"),
    ],
)
def test_beams_have_limits_of_their_own(options, message):
    with pytest.raises(InputError, match=message):
        DecodingParameters(max_tokens=1, strategy="beam", **options)


@pytest.mark.parametrize("field", ["num_beams", "num_beam_groups", "diversity_penalty"])
def test_beam_options_are_refused_with_other_strategies(field):
    with pytest.raises(InputError, match=f"{field} is 3; it needs strategy 'beam'"):
        DecodingParameters(max_tokens=1, **{field: 3})


def test_the_best_are_chosen_of_at_least_as_many():
    with pytest.raises(InputError, match="best_of is 2; it must be from n, which is 3, to 64"):
        DecodingParameters(max_tokens=1, n=3, best_of=2)


@pytest.mark.parametrize("stop", [("",), ("x" * 257,), ("x",) * 33])
def test_stop_strings_are_neither_empty_nor_long_nor_many(stop):
    with pytest.raises(InputError, match="stop"):
        DecodingParameters(max_tokens=1, stop=stop)


@pytest.mark.parametrize("words", [("",), ("x" * 257,), ("x",) * 1025, ("x" * 200,) * 200])
def test_bad_words_are_neither_empty_nor_long_nor_many(words):
    with pytest.raises(InputError, match="bad_words"):
        DecodingParameters(max_tokens=1, bad_words=words)


def test_biases_are_few_bounded_and_of_different_tokens():
    for biases, message in (
        (tuple((i, 0.0) for i in range(1025)), "logit_bias is 1025 entries long"),
        (((7, 101.0),), "logit_bias.7 is 101.0; it must be from -100 to 100"),
        (((7, NAN),), "logit_bias.7 is nan"),
        (((7, 1.0), (7, 2.0)), "twice"),
    ):
        with pytest.raises(InputError, match=message):
            DecodingParameters(max_tokens=1, logit_bias=biases)


def test_temperature_zero_means_greedy():
    assert DecodingParameters(max_tokens=1, temperature=0).greedy
    assert not DecodingParameters(max_tokens=1).greedy


@pytest.mark.parametrize(("options", "beams"), [({}, 4), ({"n": 7}, 7), ({"num_beams": 2}, 2)])
def test_there_are_four_beams_or_as_many_as_choices(options, beams):
    assert DecodingParameters(max_tokens=1, strategy="beam", **options).beams == beams


P = np.array([0.1, 0.0, 0.1, 0.5, 0.2, 0.1])
with np.errstate(divide="ignore"):
    LOG = np.log(P).astype(np.float32)


def adjusted(*generated, prompt=(), banned=(), **options):
    """Adjusted scores of a single row, as unnormalised probabilities."""
    parameters = DecodingParameters(max_tokens=9, **options)
    biases = TokenBias(parameters.logit_bias, BannedSequences(banned, [1.0] * len(banned)))
    batch = SequenceBatch.of([compile_rules(parameters, np.array(prompt, np.int64), biases)])
    for token in generated:
        batch = batch.append(np.array([token]), LOG[[token]])
    scores, counts = LOG.copy(), np.zeros(len(LOG), np.int32)
    adjust_scores(scores, 0, batch.rows(), counts)
    assert not counts.any()
    return np.exp(scores)


def test_unknown_and_start_are_impossible():
    np.testing.assert_allclose(adjusted(), [0, 0, 0.1, 0.5, 0.2, 0.1], rtol=1e-6)


def test_a_repeated_token_has_its_probability_raised_to_the_penalty():
    """The penalty applies once to tokens of the prompt and of the generated text."""
    got = adjusted(4, 4, prompt=(3, 3), repetition_penalty=2.0)
    np.testing.assert_allclose(got, [0, 0, 0.1, 0.25, 0.04, 0.1], rtol=1e-6)


def test_a_token_of_both_the_prompt_and_the_continuation_is_penalised_once():
    got = adjusted(4, prompt=(4, 5), repetition_penalty=2.0)
    np.testing.assert_allclose(got, [0, 0, 0.1, 0.5, 0.04, 0.01], rtol=1e-6)


def test_a_positive_score_is_divided_by_the_repetition_penalty():
    got = adjusted(3, repetition_penalty=2.0, logit_bias=((3, 4.0),))
    np.testing.assert_allclose(np.log(got[3]), (np.log(0.5) + 4) / 2, rtol=1e-6)


def test_presence_counts_once_and_frequency_every_time():
    """Only generated tokens count."""
    got = adjusted(4, 5, 4, 4, prompt=(3,), presence_penalty=0.5, frequency_penalty=0.25)
    np.testing.assert_allclose(
        got, [0, 0, 0.1, 0.5, 0.2 * np.exp(-0.5 - 3 * 0.25), 0.1 * np.exp(-0.5 - 0.25)], rtol=1e-6
    )


def test_repetition_comes_before_presence():
    got = adjusted(4, repetition_penalty=2.0, presence_penalty=1.0)
    np.testing.assert_allclose(got[4], 0.04 * np.exp(-1), rtol=1e-6)


def test_a_bias_is_added_but_makes_nothing_possible():
    got = adjusted(logit_bias=((0, 100.0), (1, 100.0), (3, -1.0), (5, 2.0)))
    np.testing.assert_allclose(got, [0, 0, 0.1, 0.5 / np.e, 0.2, 0.1 * np.e**2], rtol=1e-6)


@pytest.mark.parametrize(("generated", "possible"), [((), False), ((3,), False), ((3, 3), True)])
def test_the_end_waits_for_min_tokens(generated, possible):
    assert (adjusted(*generated, min_tokens=2)[EOS] > 0) == possible


def test_the_end_never_comes_when_it_is_ignored():
    assert adjusted(3, 3, ignore_eos=True)[EOS] == 0


def test_a_banned_sequence_cannot_be_completed():
    banned = [(3, 4), (5,)]
    np.testing.assert_allclose(adjusted(4, banned=banned), [0, 0, 0.1, 0.5, 0.2, 0], rtol=1e-6)
    biased = adjusted(4, banned=banned, logit_bias=((5, 100.0),))
    np.testing.assert_allclose(biased, [0, 0, 0.1, 0.5, 0.2, 0], rtol=1e-6)
    np.testing.assert_allclose(adjusted(4, 3, banned=banned), [0, 0, 0.1, 0.5, 0, 0], rtol=1e-6)


def grown(**options):
    """Three rows of twenty tokens each, more than the initial capacity."""
    parameters = DecodingParameters(max_tokens=99, **options)
    rules = compile_rules(
        parameters, np.zeros(0, np.int64), TokenBias(banned=BannedSequences([(4, 4)], [1.0]))
    )
    batch = SequenceBatch.of([rules] * 3, seeds=[7, 8, 9])
    for _ in range(20):
        batch = batch.append(np.array([3, 4, 5]), np.array([-3, -4, -5], np.float32))
    return batch


def past(batch):
    return [batch.last(row, 20) for row in range(len(batch))]


def biased_ids(rows):
    return [rows.bias_ids[begin:end].tolist() for begin, end in rows.bias_spans]


def test_selected_rows_keep_their_own_past():
    batch = grown(frequency_penalty=1.0).select(np.array([2, 1, 1]))
    assert past(batch) == [([token] * 20, [-float(token)] * 20) for token in (5, 4, 4)]
    assert batch.rows().lengths.tolist() == [20] * 3
    assert biased_ids(batch.rows()) == [[], [4], [4]]
    assert batch.seeds.tolist() == [9, 8, 8]


def test_rows_of_several_requests_keep_their_own_rules_and_past():
    rules = compile_rules(
        DecodingParameters(max_tokens=9, logit_bias=((3, 1.0), (5, 2.0))), np.zeros(0, np.int64)
    )
    joined = grown().concatenate(
        [SequenceBatch.of([rules] * 2).append(np.array([3, 4]), np.zeros(2, np.float32))]
    )
    rows = joined.rows()
    assert past(joined)[:3] == past(grown())
    assert [joined.last(row, 1)[0] for row in (3, 4)] == [[3], [4]]
    assert biased_ids(rows) == [[], [4], [], [3, 5], [3, 5]]


def test_a_batch_is_not_changed_by_what_follows_it():
    batch = grown()
    before = past(batch)
    batch.append(np.array([5, 5, 5]), np.zeros(3, np.float32))
    assert past(batch) == before


def test_a_row_that_fails_may_be_continued_again():
    """The same batch may be extended again, with any token."""
    batch = grown()
    batch.append(np.array([5, 5, 5]), np.zeros(3, np.float32))
    again = batch.append(np.array([4, 4, 4]), np.zeros(3, np.float32))
    assert [again.last(row, 2)[0] for row in range(3)] == [[3, 4], [4, 4], [5, 4]]


def test_values_after_many_nodes_are_not_all_kept(monkeypatch):
    monkeypatch.setattr(rules, "_MAX_VALUES", 10)
    phrase = (1, 2, 3, 4, 5, 6, 7, 8, 9)
    biases = TokenBias(phrases=PhraseAutomaton([phrase], [1.0]))
    nodes = biases.START
    for token in phrase:
        biases.after(nodes)
        nodes = biases.advance(nodes, token)
    assert sum(len(tokens) for tokens, _ in biases._values.values()) <= 10
    assert [values.tolist() for values in biases.after(biases.START)] == [[1], [pytest.approx(1 / 9)]]
