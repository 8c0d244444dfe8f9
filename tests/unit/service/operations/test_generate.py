"""Generation: batched rows, choices, beams and reported values."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.calls import ModelCall, iter_outputs, run_call, run_to_completion
from models.decoding import choices as prompts_module
from models.decoding.choices import Prompt
from models.decoding.decode import Decode
from models.decoding.generate import continue_prompts
from models.decoding.parameters import DecodingParameters
from models.errors import InputError
from models.language_model import EOS, pad_sequences, score_sequences
from models.phrases import Phrase
from models.text_model import Limits, TextModel
from service.operations.completions import Completions
from service.operations.generate import Generate
from tests.support import families
from tests.unit.conftest import operation

LIMITS = Limits(max_texts=100, max_tokens_per_sequence=1000, max_new_tokens=1000)
PROMPTS = [np.array(ids, np.int64) for ids in ((3, 4), (), (5,), (3, 4), (7, 8, 9))]


def work(loaded, prompts=PROMPTS, *, continues=True, limits=LIMITS, bos=None, top=0, emit=None, **options):
    parameters = DecodingParameters(**{"max_tokens": 8, "seed": 1, **options})
    starts = [True] * len(prompts) if bos is None else bos
    given = [Prompt(number, ids, starts[number], continues) for number, ids in enumerate(prompts)]
    return continue_prompts(loaded, given, parameters, limits=limits, top=top, emit=emit)


def run(loaded, prompts=PROMPTS, **options):
    return run_to_completion(work(loaded, prompts, **options))


def said(continuations):
    return [
        (one.prompt.number, one.text, one.token_ids, one.logprobs, one.finish_reason) for one in continuations
    ]


def test_choices_are_numbered_by_prompt_then_sample(words):
    done = run(words, n=3)
    assert [one.choice for one in done] == list(range(15))
    assert [one.prompt.number for one in done] == [i for i in range(5) for _ in range(3)]


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize(
    "options",
    [
        {"n": 4},
        {"n": 2, "best_of": 3, "repetition_penalty": 1.5, "frequency_penalty": 0.5},
        {
            "strategy": "beam",
            "num_beams": 3,
            "n": 2,
            "bad_words": ("cat", "on mat"),
            "repetition_penalty": 1.5,
        },
        {"strategy": "greedy", "presence_penalty": 1.0, "min_tokens": 3},
    ],
)
def test_a_choice_is_the_same_however_many_rows_are_decoded_together(words, monkeypatch, rows, options):
    together = said(run(words, **options))
    monkeypatch.setattr(prompts_module, "MAX_CHOICE_ROWS", rows)
    assert said(run(words, **options)) == together


def test_more_choices_change_none_of_the_first(words):
    """A larger `n` leaves each prompt's first choice unchanged."""
    few, many = said(run(words, n=1)), said(run(words, n=5))
    assert few == many[::5]
    assert len({tuple(one[2]) for one in many}) > 5


def test_another_seed_gives_another_text_and_none_a_new_one_each_time(words):
    assert said(run(words)) != said(run(words, seed=2))
    assert said(run(words, seed=None, n=5)) != said(run(words, seed=None, n=5))


@pytest.mark.parametrize(
    ("options", "decoded"), [({}, [4]), ({"emit": iter}, [1] * 4), ({"stop": ("xyz",)}, [1] * 4)]
)
def test_all_rows_are_one_call_whose_answer_is_waited_for_unless_somebody_looks(words, options, decoded):
    words.model.table[:, EOS] = -20
    told, answer = work(words, PROMPTS[:3], n=2, max_tokens=4, **options), None
    calls = []
    try:
        while True:
            call, answer = told.send(answer), None
            if isinstance(call, ModelCall):
                answer = run_call(call)
            if isinstance(call, Decode):
                calls.append((len(call.state), call.count))
    except StopIteration:
        pass
    assert calls == [(6, count) for count in decoded]


def test_equal_prompts_are_read_once(words):
    told = work(words, [np.array([3, 4])] * 4)
    first = next(told)
    assert len(first.state) == 1
    told.close()


def test_prompts_may_begin_with_and_without_bos(words):
    options = {"strategy": "greedy", "max_tokens": 3}
    empty = [np.zeros(0, np.int64)] * 3
    mixed = run(words, empty, bos=[True, False, True], **options)
    after, nothing = run(words, empty[:1], **options), run(words, empty[:1], bos=[False], **options)
    assert [one.logprobs for one in mixed] == [one[0].logprobs for one in (after, nothing, after)]
    assert after[0].logprobs != nothing[0].logprobs


@pytest.mark.parametrize(
    "options",
    [
        {"n": 3},
        {"n": 2, "stop": ("at", "o")},
        {"strategy": "beam", "n": 2, "stop": ("t m",)},
        {"max_tokens": 1},
    ],
)
@pytest.mark.parametrize("continues", [True, False])
def test_events_add_up_to_the_result(characters, options, continues):
    characters.model.table[:, EOS] = -4
    told = list(iter_outputs(work(characters, continues=continues, emit=iter, top=2, **options)))
    done = told.pop().value
    assert said(done) == said(run(characters, continues=continues, top=2, **options))
    for one in done:
        pieces = [e.value for e in told if e.value.choice == one.choice]
        assert [piece.end for piece in pieces] == [None] * (len(pieces) - 1) + [one]
        assert "".join(piece.text for piece in pieces) + one.rest == one.text
        tokens = [piece.token for piece in pieces if piece.token is not None]
        assert [token_id for token_id, _, _ in tokens] == one.token_ids
        assert [logprob for _, logprob, _ in tokens] == one.logprobs
        assert all(top is not None for _, _, top in tokens)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 3.0, "top_k": 4, "logit_bias": ((6, 5.0),), "repetition_penalty": 2.0},
        {"strategy": "beam", "n": 3, "frequency_penalty": 1.0},
    ],
)
def test_log_probs_are_the_models_own(words, options):
    """Alternatives also have the model's log-probabilities; `</s>` has its own."""
    for one in run(words, **{"n": 3, "top": 3, "max_tokens": 30, **options}):
        last = [int(PROMPTS[one.prompt.number][-1]) if len(PROMPTS[one.prompt.number]) else 1, *one.token_ids]
        tables = words.model.table[last]
        assert one.logprobs == [float(row[i]) for row, i in zip(tables, one.token_ids, strict=False)]
        for top, row in zip(one.tops, tables, strict=False):
            assert top.ids.tolist() == np.argsort(-row, kind="stable")[:3].tolist()
        if one.ended_by_eos:
            assert one.eos_logprob == float(tables[-1, EOS])
            assert one.eos_top.ids.tolist() == np.argsort(-tables[-1], kind="stable")[:3].tolist()


def test_the_best_of_several_are_those_with_the_highest_mean(words):
    every = run(words, n=10, max_tokens=5)
    best = run(words, n=3, best_of=10, max_tokens=5)
    assert [one.choice for one in best] == list(range(15))
    for prompt in range(5):
        means = sorted(
            (
                np.mean([*one.logprobs, *([one.eos_logprob] if one.ended_by_eos else [])])
                for one in every
                if one.prompt.number == prompt
            ),
            reverse=True,
        )
        assert [one.score for one in best if one.prompt.number == prompt] == pytest.approx(means[:3])


@pytest.mark.parametrize("kind", [Generate, Completions])
def test_best_of_cannot_be_streamed(kind):
    with pytest.raises(InputError, match="best_of is 3 and n is 2"):
        operation(kind, None, kind.request(prompt="", n=2, best_of=3, stream=True), LIMITS)


def test_one_beam_is_greedy(words):
    for penalty in (0.0, 1.0, 5.0):
        beam = run(words, strategy="beam", num_beams=1, length_penalty=penalty)
        assert said(beam) == said(run(words, strategy="greedy"))


def test_more_beams_find_nothing_worse(words):
    best = [
        [one.score for one in run(words, strategy="beam", num_beams=k, length_penalty=0.0)] for k in (1, 64)
    ]
    assert (np.array(best[1]) >= np.array(best[0]) - 1e-9).all()
    assert best[1] != best[0]


def test_beams_of_a_prompt_are_the_same_whatever_is_beside_it(words):
    options = {"strategy": "beam", "n": 4, "num_beams": 8, "num_beam_groups": 2, "diversity_penalty": 0.5}
    alone = [run(words, [prompt], **options) for prompt in PROMPTS]
    assert [one[1:] for one in said(run(words, **options))] == [
        one[1:] for each in alone for one in said(each)
    ]


def test_beams_end_at_stop_strings(characters):
    for one in run(characters, strategy="beam", n=4, num_beams=8, stop=("e", "ab"), max_tokens=20):
        assert "e" not in one.text
        assert "ab" not in one.text
        if not one.ended_by_eos:
            assert one.finish_reason == ("length" if len(one.text) == 20 else "stop")


def test_sentences_end_after_min_tokens_or_never(words):
    words.model.table[:, EOS] = 5.0
    assert all(len(one.token_ids) <= 2 for one in run(words, max_tokens=30))
    for strategy in ("sample", "greedy", "beam"):
        options = {"strategy": strategy, "max_tokens": 9}
        assert {len(one.token_ids) for one in run(words, **options, min_tokens=5)} <= {5, 6, 7}
        assert {len(one.token_ids) for one in run(words, **options, ignore_eos=True)} == {9}


def test_a_bias_of_a_token_that_is_none_is_refused_by_name(words):
    with pytest.raises(InputError, match=r"logit_bias has token id 99, but .* 0 to 12") as caught:
        run(words, logit_bias=((99, 1.0),))
    assert caught.value.param == "logit_bias.99"


def test_a_reply_of_too_many_tokens_is_refused_before_it_is_computed(words):
    few = dataclasses.replace(LIMITS, max_reply_entries=100)
    with pytest.raises(InputError, match=r"max_tokens is 21 for 5 choices: 105 entries.*at most 100"):
        run(words, max_tokens=21, limits=few)
    with pytest.raises(InputError, match="with 3 alternatives per token: 120 entries"):
        run(words, top=3, limits=few)


def test_a_row_that_was_copied_goes_on_by_itself(words):
    """The second token of a bad word is banned only for beams that end with the first."""
    for one in run(words, strategy="beam", n=16, num_beams=16, bad_words=("the cat", "a", "dog ran of")):
        text = f" {one.text} "
        assert not any(f" {word} " in text for word in ("the cat", "a", "dog ran of"))


@given(st.lists(st.text(alphabet="abc ", min_size=1, max_size=4), min_size=1, max_size=4), st.integers(0, 99))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_bad_words_never_appear(characters, texts, seed):
    characters.model.table[:, 7:29] = -12  # rare, so a, b and c are frequent
    for one in run(characters, PROMPTS[:2], bad_words=tuple(texts), seed=seed, n=2, max_tokens=25):
        assert not any(text in one.text for text in texts)


def test_bad_words_are_banned_alike_in_every_strategy(words):
    for strategy in ("greedy", "sample", "beam"):
        free = {word for one in run(words, strategy=strategy, max_tokens=20) for word in one.text.split()}
        banned = sorted(free)[:2]
        for one in run(words, strategy=strategy, max_tokens=20, bad_words=tuple(banned)):
            assert not {*banned} & {*one.text.split()}


def test_penalties_make_words_come_less_often(words):
    words.model.table[:, EOS] = -20
    plain, other = (
        np.bincount(np.concatenate([one.token_ids for one in run(words, n=4, max_tokens=60, **options)]))
        for options in ({}, {"frequency_penalty": 2.0})
    )
    assert other[3:].std() < plain[3:].std() / 2


@pytest.mark.parametrize("family", ["ngram", "lstm"])
@pytest.mark.parametrize(
    "options",
    [
        {"n": 3, "temperature": 1.5},
        {"strategy": "greedy"},
        {"strategy": "beam", "n": 3, "num_beams": 6},
        {"strategy": "beam", "n": 3, "num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 1.0},
    ],
)
def test_every_row_goes_on_from_its_own_state(family, options):
    """Reported log-probabilities equal the scores of prompt and continuation, for models with longer contexts."""
    model, tokenizer = families.model(family), families.tokenizer()
    loaded = TextModel("m@1", model, tokenizer)
    prompts = [np.array(ids, np.int64) for ids in ((30, 31), (), (5,), (30, 31), (7, 8, 9))]
    done = run(loaded, prompts, **options)
    assert "strategy" in options or len({len(one.token_ids) for one in done}) > 1
    for one in done:
        ids = [*one.token_ids, *([EOS] if one.ended_by_eos else [])]
        tokens, lengths = pad_sequences([[*prompts[one.prompt.number], *ids]])
        scores = score_sequences(model, model.initial_state(1), tokens, lengths)[
            0, len(prompts[one.prompt.number]) :
        ]
        reported = [*one.logprobs, *([one.eos_logprob] if one.ended_by_eos else [])]
        np.testing.assert_allclose(reported, scores, atol=1e-5)


def favoured(*weighted):
    return tuple(Phrase(text=text, weight=weight) for text, weight in weighted)


def test_beams_rank_by_the_log_probability_and_the_weights_of_phrases(words):
    phrases = favoured(("cat sat", 16.0), ("sat on", 12.0), ("dog", 4.0))
    options = {"strategy": "beam", "num_beams": 64, "n": 64, "max_tokens": 2, "length_penalty": 0.0}
    plain = {tuple(one.token_ids): one for one in run(words, [PROMPTS[0]], **options)}
    vocabulary = words.tokenizer.vocabulary
    cat, sat, on, dog = (vocabulary.ids[word] for word in ("cat", "sat", "on", "dog"))
    # an unfinished phrase at the end of the text may still follow
    worth = {(cat, sat): 16.0, (sat, on): 12.0, (dog, sat): 4.0 + 6.0, (dog, cat): 4.0 + 8.0, (cat, dog): 4.0}
    found = {tuple(one.token_ids): one for one in run(words, [PROMPTS[0]], phrases=phrases, **options)}
    for ids, value in worth.items():
        assert found[ids].score == pytest.approx(sum(found[ids].logprobs) + value, abs=1e-4)
    for ids in plain.keys() & found.keys():
        assert found[ids].logprobs == pytest.approx(plain[ids].logprobs)


def test_rows_of_requests_with_and_without_phrases_are_decoded_together(words):
    options = {"n": 2, "phrases": favoured(("cat sat on", 6.0)), "logit_bias": ((4, 1.0),)}
    together = run(words, **options)
    alone = [one for prompt in range(5) for one in run(words, PROMPTS[: prompt + 1], **options)[-2:]]
    assert said(together) == said(alone)
    assert said(together) != said(run(words, **options | {"phrases": ()}))
