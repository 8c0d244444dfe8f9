"""The completions operation: prompts, prompt scores, token texts and offsets."""

import dataclasses

import numpy as np
import pytest

from models.arrays import to_numpy
from models.calls import Predict, Rank, iter_outputs, run_call, run_to_completion
from models.decoding import choices as module
from models.decoding.choices import Prompt, score_prompt_tokens
from models.decoding.parameters import DecodingParameters
from models.errors import InputError, UnsupportedError
from models.language_model import BOS, EOS, UNK, TopTokens, score_sequences
from models.text_model import Limits, TextModel
from service.operations.completions import CompletionRequest, EntryBuilder, complete_prompts, no_entries
from service.schemas.replies import Usage
from tests.support import families
from tests.support.pretrained import pretrained
from training.progress import Progress
from training.tokenizer import TokenizerSettings, learn_tokenizer

LIMITS = Limits(max_texts=100, max_tokens_per_sequence=1000, max_new_tokens=100)
W2 = 5  # the id of the word w2


def loaded(direction="forward"):
    tokenizer = families.tokenizer()
    return TextModel("lstm@1", families.model("lstm"), tokenizer, direction == "backward")


PARAMETERS = DecodingParameters(max_tokens=3, strategy="greedy", ignore_eos=True)


def completing(prompt, *, parameters=PARAMETERS, limits=LIMITS, direction="forward", **options):
    request = CompletionRequest(prompt=prompt, **{"logprobs": 0, **options})
    return complete_prompts(loaded(direction), request, parameters, limits)


def complete(prompt, **options):
    return run_to_completion(completing(prompt, **options))


def best_after(*ids, after_bos):
    """Log-probability of the most probable token except control tokens."""
    model = families.model("lstm")
    state = (model.initial_state if after_bos else model.empty_state)(1)
    for token in ids:
        state = model.advance(state, np.array([token]))
    return to_numpy(model.next_log_probs(state))[0, 3:].max()


def test_a_text_is_read_after_the_start_and_ids_as_they_are():
    texts, ids = complete(["w2", ""]), complete([[BOS, W2], [W2], [BOS]])
    text, nothing, start_and_id, only_id, start = (
        choice.logprobs.token_logprobs[0] for choice in (*texts.choices, *ids.choices)
    )
    with_start, without = best_after(W2, after_bos=True), best_after(W2, after_bos=False)
    assert with_start != pytest.approx(without, abs=1e-4)
    assert [text, start_and_id, only_id] == pytest.approx([with_start, with_start, without], abs=1e-5)
    assert [nothing, start] == pytest.approx([best_after(after_bos=True)] * 2, abs=1e-5)


def test_an_echo_scores_a_text_after_the_start_and_ids_as_they_are():
    options = {"echo": True, "parameters": None}
    texts, ids = complete("w2 w2", **options), complete([[BOS, W2, W2], [W2, W2]], **options)
    text, with_start, without = (choice.logprobs.token_logprobs for choice in (*texts.choices, *ids.choices))
    assert text[0] is with_start[0] is without[0] is None
    assert text[1] == with_start[2] != without[1]


def test_long_prompts_are_not_said_again_for_every_choice():
    few = dataclasses.replace(LIMITS, max_reply_entries=10)
    options = {"echo": True, "logprobs": None, "parameters": None, "limits": few}
    with pytest.raises(InputError, match="repeat 180 characters of prompts; at most 160"):
        complete("w2 " * 20, n=3, **options)
    assert complete("w2 " * 60, n=1, **options).choices[0].text == "w2 " * 60


def test_fields_of_other_endpoints_are_ignored():
    others = {"strategy": "beam", "bad_words": 5, "typical_p": "low", "num_beams": None}
    request = CompletionRequest(prompt="w2", **others)
    assert request.parameters(LIMITS) == CompletionRequest(prompt="w2").parameters(LIMITS)


def test_prompts_read_from_right_to_left_are_refused():
    with pytest.raises(UnsupportedError):
        complete("w2", direction="backward")


def test_events_are_the_echo_then_each_token_the_last_with_the_end():
    told = [item.value for item in iter_outputs(completing("w2", echo=True, stream=True))]
    *parts, done = told
    assert [(choice.finish_reason, count) for choice, count, _ in parts] == [
        (None, 0),
        (None, 1),
        (None, 1),
        ("length", 1),
    ]
    assert (done.choices, done.usage) == ([], Usage(1, 3, 4))


def test_a_work_that_is_closed_closes_what_it_waits_for():
    work = completing("w2", stream=True)
    next(work)
    work.close()
    assert work.gi_frame is None


PROMPTS = [
    Prompt(0, np.array(ids), after_bos, continues=False)
    for ids, after_bos in [
        ([4, 5, 6, 0, 9, 2, 1, 7], True),
        ([5], False),
        ([BOS, 7, 8, 9, EOS], False),
        ([4, 5, 6, 0, 9, 2, 1, 7], False),
        ([4, 5, 6, 0, 9, 2, 1, 7], True),
        ([30, 31, 32], True),
    ]
]


def step_by_step(model, prompt):
    """Complete distributions at each prompt token except the first."""
    state = (model.initial_state if prompt.bos else model.empty_state)(1)
    rows = []
    for token in prompt.ids[:-1]:
        state = model.advance(state, np.array([token]))
        rows.append(to_numpy(model.next_log_probs(state))[0])
    return np.array(rows).reshape(-1, len(model.vocabulary))


@pytest.mark.parametrize("top", [0, 1, 3, 100])
@pytest.mark.parametrize("name", families.NAMES)
def test_scores_and_ranks_are_those_of_a_slow_loop(name, top, monkeypatch):
    model = families.model(name)
    monkeypatch.setattr(module, "BLOCK_ENTRIES", 3 * len(model.vocabulary))
    for prompt, (log_probs, tops) in zip(
        PROMPTS, run_to_completion(score_prompt_tokens(model, PROMPTS, top=top)), strict=True
    ):
        want = step_by_step(model, prompt)
        chosen = want[np.arange(len(want)), prompt.ids[1:]]
        assert log_probs[1:] == pytest.approx(chosen, abs=2e-5)
        assert tops.ids.shape == (len(prompt.ids), min(top, len(model.vocabulary)))
        best = -np.sort(-want, axis=1)[:, :top]
        assert tops.log_probs[1:] == pytest.approx(best, abs=2e-5)
        of_ids = np.take_along_axis(want, tops.ids[1:], axis=1)
        assert of_ids == pytest.approx(best, abs=2e-5)


@pytest.mark.parametrize("name", ["ngram", "lstm", "mixture"])
def test_a_ranked_score_is_that_of_scoring_whole(name):
    model = families.model(name)
    ids = np.random.default_rng(0).integers(3, 40, 500)
    ((log_probs, tops),) = run_to_completion(
        score_prompt_tokens(model, [Prompt(0, ids, bos=True, continues=False)], top=100)
    )
    whole = score_sequences(model, model.initial_state(1), ids[None], np.array([500]))[0]
    assert log_probs[1:] == pytest.approx(whole[1:], abs=1e-5)
    position, rank = np.nonzero(tops.ids[1:] == ids[1:, None])
    assert len(position)
    np.testing.assert_array_equal(tops.log_probs[1:][position, rank], log_probs[1:][position])


def predictions(work):
    """Number of distributions that each call requests."""
    answer, counts = None, []
    while True:
        try:
            call = work.send(answer)
        except StopIteration:
            return counts
        if isinstance(call, Predict | Rank):
            counts.append(len(call.state))
        answer = run_call(call) if call is not None else None


def test_no_more_distributions_than_a_block_are_held(monkeypatch):
    model = families.model("ngram")
    monkeypatch.setattr(module, "BLOCK_ENTRIES", 10 * len(model.vocabulary))
    prompts = [
        Prompt(0, np.full(length, 5 + length), bos=True, continues=False) for length in (31, 30, 29, 7, 1)
    ]
    counts = predictions(score_prompt_tokens(model, prompts, top=1))
    assert max(counts) <= 10
    assert sum(counts) == sum(len(prompt.ids) - 1 for prompt in prompts)


def test_equal_prompts_are_read_once():
    model = families.model("ngram")
    one = Prompt(0, np.array([5, 6, 7, 8]), bos=True, continues=False)
    assert sum(predictions(score_prompt_tokens(model, [one] * 9, top=1))) == 3


TEXT = ["the cat sat on the mat .", "the dog <unk> the cat !", "Über <s> naïve </s> café 漢字"] * 30
KINDS = [
    {"kind": "word"},
    {"kind": "char"},
    {"kind": "bpe", "vocab_size": 320},
    {"kind": "unigram", "vocab_size": 283},
]


@pytest.fixture(params=KINDS, ids=lambda settings: settings["kind"])
def spoken(request, load):
    return load(learn_tokenizer(TokenizerSettings(**request.param), TEXT, progress=Progress()))


def entries_of(loaded, ids, **options):
    speller, entries = EntryBuilder(loaded, **{"continues": False, **options}), no_entries()
    for token in ids:
        speller.add(entries, token, -1.0)
    return entries


def test_every_token_has_a_name_of_its_own(spoken):
    speller = EntryBuilder(spoken, continues=False)
    names = [speller.name(token) for token in range(spoken.vocab_size)]
    assert len(set(names)) == len(names)
    assert (names[UNK], names[BOS], names[EOS]) == ("<unk>", "<s>", "</s>")


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_tokens_of_pretrained_models_have_names_of_their_own(load, kind):
    tokenizer = pretrained(kind)[2]
    loaded = load(tokenizer)
    assert len(set(loaded.token_names)) == loaded.vocab_size
    for name, text, spelled in zip(
        loaded.token_names, loaded.token_texts, tokenizer.token_bytes, strict=True
    ):
        as_bytes = "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)
        assert name in {as_bytes, text, f" {text}"}
        assert (name == as_bytes) or "\ufffd" not in name
    assert "bytes:\\xe2" in loaded.token_names


@pytest.mark.parametrize("text", ["the   cat\tsat", "the zzz cat", "cafe\u0301 \ufb01 the", "漢 x"])
def test_an_echoed_text_has_offsets_as_sent(spoken, text):
    request = CompletionRequest(prompt=text, echo=True, logprobs=1, max_tokens=0)
    choice = run_to_completion(complete_prompts(spoken, request, None, LIMITS)).choices[0]
    assert choice.text == text
    assert choice.logprobs.text_offset == spoken.tokenizer.token_starts(text).tolist()


def test_names_joined_are_the_text(spoken):
    names = entries_of(spoken, spoken.tokenizer.encode("the cat sat")).tokens
    assert "".join(names).removeprefix(" ") == "the cat sat"


@pytest.mark.parametrize("text", ["the cat sat", "Über naïve 漢字 zz 🦉!", "漢", ""])
def test_offsets_are_where_tokens_begin(spoken, text):
    ids = spoken.tokenizer.encode(text)
    offsets = entries_of(spoken, ids).text_offset
    whole = spoken.tokenizer.decode(ids)
    assert offsets == sorted(offsets)
    for place, offset in enumerate(offsets):
        begun = spoken.tokenizer.decode(ids[:place]).rstrip("\ufffd")
        assert whole[:offset].rstrip("\ufffd") == begun


def test_offsets_go_on_after_a_prompt(spoken):
    ids = spoken.tokenizer.encode("the cat sat")
    shift = 1 if spoken.tokenizer.leading_space else 0  # the first space is then part of the text
    first, second, *_ = entries_of(spoken, ids, continues=True, offset=7).text_offset
    assert (first, second) == (7, 7 + entries_of(spoken, ids).text_offset[1] + shift)


def test_the_token_itself_is_among_the_most_probable_with_the_very_same_number(spoken):
    entries = no_entries()
    top = TopTokens(np.array([5, 6]), np.array([-0.1, -np.inf], dtype=np.float32))
    speller = EntryBuilder(spoken, continues=True)
    speller.add(entries, 7, float(np.float32(-2.3)), top)
    speller.add(entries, 5, float(top.log_probs[0]), top)
    speller.add(entries, 8, -np.inf)
    speller.add(entries, 9, None)
    names = [speller.name(token) for token in (5, 6, 7, 8)]
    assert entries.top_logprobs[0] == {
        names[0]: entries.token_logprobs[1],
        names[1]: -np.inf,
        names[2]: entries.token_logprobs[0],
    }
    assert entries.top_logprobs[1] == {names[0]: entries.token_logprobs[1], names[1]: -np.inf}
    assert entries.top_logprobs[2:] == [{names[3]: -np.inf}, None]
    assert entries.token_logprobs[2:] == [-np.inf, None]


def test_tokens_may_be_called_by_their_ids(spoken):
    assert entries_of(spoken, [5, EOS], as_ids=True).tokens == ["token_id:5", "token_id:2"]
