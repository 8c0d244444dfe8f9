"""Prefill, scoring, next-token and generation as plain generators; prefix trees of candidates."""

import dataclasses
from unittest.mock import Mock

import numpy as np
import pytest

from models.arrays import runs_by_cost
from models.calls import Read, iter_outputs, materialize, run_to_completion
from models.errors import ContextLengthError, InputError
from models.language_model import UNK
from models.prefix_cache import NextTokenCache
from models.reranking.candidates import Candidate, CandidateList
from models.scoring import sequences as scoring
from models.scoring.candidate_texts import find_distinct_texts, tokenise_texts
from models.scoring.sequences import build_tree, may_be_cheaper, prefill, score_sequence_list, tree_is_cheaper
from models.text_model import ContextEncoder, EncodedText, Limits
from service.operations import next_token as next_token_module
from service.operations.generate import Generate, GenerateRequest
from service.operations.next_token import NextToken, NextTokenRequest
from service.operations.score import Detail, ScoreItem, ScoreSettings, score
from tests.unit.conftest import operation

LIMITS = Limits(max_texts=10_000, max_tokens_per_sequence=100_000, max_new_tokens=100)


class Memory:
    """Model whose state is the complete text read, so every wrong read is detected."""

    family, prefix_cache = "memory", None

    @property
    def model(self):
        return self

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def select(self, rows):
        return Memory([self.rows[i] for i in rows])

    def concatenate(self, others):
        return Memory(sum((other.rows for other in others), self.rows))

    def initial_state(self, batch):
        return Memory([("<s>",)] * batch)

    def empty_state(self, batch):
        return Memory([()] * batch)

    def advance(self, state, tokens):
        return Memory([(*row, int(t)) for row, t in zip(state.rows, tokens, strict=True)])


@pytest.mark.parametrize("lengths", [[0], [3], [2, 2], [0, 3, 1, 3, 0, 2], [5, 0]])
@pytest.mark.parametrize("bos", [True, False])
def test_prefill_reads_each_context_once_and_in_order(finish, lengths, bos):
    contexts = [np.arange(10 * i, 10 * i + n) for i, n in enumerate(lengths)]
    state, _ = finish(prefill(Memory([]), contexts, bos=bos))
    assert materialize(state).rows == [(*(["<s>"] if bos else []), *context.tolist()) for context in contexts]


def test_long_work_is_asked_for_in_bounded_calls(words, finish):
    contexts = [np.full(300, 4) for _ in range(40)]
    assert finish(prefill(words, contexts, bos=True))[1] >= 6
    sequences = [EncodedText(np.zeros(0, dtype=np.int64), np.full(500, 4))] * 40
    assert finish(score_sequence_list(words, sequences, bos=True))[1] >= 8


def test_scores_do_not_depend_on_the_chunks(words, finish):
    rng = np.random.default_rng(0)
    sequences = [
        EncodedText(rng.integers(3, 13, size=min(n, 2)), rng.integers(3, 13, size=n))
        for n in rng.integers(1, 700, size=60)
    ]
    together, _ = finish(score_sequence_list(words, sequences, bos=False))
    for sequence, scores in zip(sequences, together, strict=True):
        alone, _ = finish(score_sequence_list(words, [sequence], bos=False))
        np.testing.assert_array_equal(scores, alone[0])


def test_no_sequences_score_to_nothing(words, finish):
    assert finish(score_sequence_list(words, [], bos=True)) == ([], 0)


@pytest.mark.parametrize(("given", "context"), [((3, 4), ()), ("the cat", ""), ("the", "a "), ((UNK,), ())])
def test_bytes_are_those_of_the_text(words, finish, given, context):
    options = ScoreSettings()
    (result,), _ = finish(score(words, [ScoreItem("texts[0]", given, context)], options, LIMITS))
    text = given if isinstance(given, str) else words.tokenizer.decode(given)
    assert result.num_bytes == len(text.encode())


def events(work):
    return [item.value for item in iter_outputs(work) if not item.last]


def test_distributions_come_in_bounded_parts(words):
    many = dataclasses.replace(LIMITS, max_texts=90_000)
    command = NextTokenRequest(context=["the"] * 90_000, top_k=1)
    parts = events(operation(NextToken, words, command, many).rows())
    assert len(parts) > 1
    assert sum(len(part) for part in parts) == 90_000


@pytest.mark.parametrize("lengths", [[], [0], [9], [4, 6, 1, 0, 12, 3], [10, 10]])
def test_contexts_are_grouped_by_their_tokens(lengths):
    cut = [lengths[group] for group in runs_by_cost(lengths, 10)]
    assert [length for group in cut for length in group] == lengths
    assert all(sum(group) <= 10 or len(group) == 1 for group in cut)


def test_groups_of_contexts_change_no_answer(words, finish, monkeypatch):
    rng = np.random.default_rng(2)
    texts = [rng.integers(3, 13, size=n).tolist() for n in (5, 0, 7, 30, 2, 2)]
    command = NextTokenRequest(context=texts, top_k=3)
    sequences = [EncodedText(np.array(t, dtype=np.int64), np.array([4, 5])) for t in texts]
    whole, _ = finish(operation(NextToken, words, command, LIMITS).run())
    scores, _ = finish(score_sequence_list(words, sequences, bos=True))
    for module in (next_token_module, scoring):
        monkeypatch.setattr(module, "MAX_GROUP_TOKENS", 8)
    for got, want in zip(finish(operation(NextToken, words, command, LIMITS).run())[0], whole, strict=True):
        np.testing.assert_array_equal(got[0].ids, want[0].ids)
        assert got[1] == want[1]
    for got, want in zip(finish(score_sequence_list(words, sequences, bos=True))[0], scores, strict=True):
        np.testing.assert_array_equal(got, want)


def test_few_contexts_are_kept_at_once(words, finish, monkeypatch):
    """State size grows with the text read."""
    largest = 0

    def watched(loaded, contexts, *, bos):
        nonlocal largest
        largest = max(largest, sum(map(len, contexts)))
        return prefill(loaded, contexts, bos=bos)

    for module in (next_token_module, scoring):
        monkeypatch.setattr(module, "prefill", watched)
        monkeypatch.setattr(module, "MAX_GROUP_TOKENS", 100)
    command = NextTokenRequest(context=[[4] * 30] * 20, top_k=1, entropy=False)
    finish(operation(NextToken, words, command, LIMITS).run())
    events(operation(NextToken, words, command, LIMITS).rows())
    finish(
        score_sequence_list(words, [EncodedText(np.full(30, 4), np.array([4])) for _ in range(20)], bos=True)
    )
    assert largest <= 100


def test_a_model_that_can_only_say_unk_ends_the_sentence(words, finish):
    words.model.table[:] = -np.inf
    words.model.table[:, UNK] = 0
    request = GenerateRequest(prompt="the", max_tokens=5)
    (done,) = finish(operation(Generate, words, request, LIMITS).run())[0].choices
    assert (done.token_ids, done.finish_reason) == ([], "stop")


def test_a_prompt_over_the_limit_is_refused(words, finish):
    few = Limits(max_texts=1, max_tokens_per_sequence=3, max_new_tokens=1)
    request = GenerateRequest(prompt="a a a a", max_tokens=1)
    with pytest.raises(InputError, match="prompt has 4 tokens; at most 3"):
        finish(operation(Generate, words, request, few).run())


def test_a_long_text_is_scored_as_it_should_be(words, finish):
    text = np.random.default_rng(1).integers(3, 13, size=5000)
    (scores,), _ = finish(score_sequence_list(words, [EncodedText(np.array([3]), text)], bos=True))
    before = np.concatenate([[3], text[:-1]])
    np.testing.assert_array_equal(scores, words.model.table[before, text])


def test_one_long_context_among_many_short_ones_is_not_padded_for_all(words, finish, monkeypatch):
    largest = 0

    def watched(model, state, tokens, lengths, want):
        nonlocal largest
        largest = max(largest, tokens.size)
        return Read(model, state, tokens, lengths, want)

    monkeypatch.setattr(scoring, "Read", watched)
    contexts = [np.full(5000, 4), *[np.full(1, 4)] * 1000]
    finish(prefill(words, contexts, bos=True))
    assert largest <= max(5000, scoring.MAX_CALL_TOKENS)


def test_a_context_before_many_texts_is_kept_once(words, finish):
    encoder, context = ContextEncoder(words), (3, 4)
    first, second = (encoder.encode(context, (i,), param="token_ids[0]") for i in (5, 6))
    assert first.context is second.context
    assert (first.text.tolist(), second.text.tolist()) == ([5], [6])


def test_tokenising_a_long_context_for_each_of_many_texts_gives_others_their_turn(words, finish):
    options = ScoreSettings()
    items = [ScoreItem(f"texts[{i}]", "cat", "the " * 10_000) for i in range(10)]
    assert finish(score(words, items, options, LIMITS))[1] >= 5


def test_ranking_words_after_many_known_contexts_gives_others_their_turn(words, finish):
    remembering = dataclasses.replace(words, next_token_cache=NextTokenCache(1 << 20))
    command = NextTokenRequest(context=["the"] * 20, top_k=3, unit="word")
    answers, steps = finish(operation(NextToken, remembering, command, LIMITS).run())
    assert len(answers) == 20
    assert steps >= 19


def test_a_text_of_too_many_characters_is_refused_before_it_is_tokenised(words, finish):
    few = Limits(max_texts=1, max_tokens_per_sequence=3, max_new_tokens=1)
    command = NextTokenRequest(context="x" * 65_537, top_k=1)
    with pytest.raises(
        ContextLengthError, match=r"context has 65537 characters.*at most 65536 characters or 3 tokens"
    ):
        finish(operation(NextToken, words, command, few).run())


def test_a_reply_of_too_many_entries_is_refused(words, finish):
    few = dataclasses.replace(LIMITS, max_reply_entries=100)
    command = NextTokenRequest(context=["the"] * 11, top_k=10)
    with pytest.raises(InputError, match=r"top_k is 10 for 11 contexts: 110 entries.*at most 100"):
        finish(operation(NextToken, words, command, few).run())
    with pytest.raises(InputError, match=r"top_k is 10 for 11 contexts: 110 entries.*several requests"):
        finish(operation(NextToken, words, command.model_copy(update={"unit": "word"}), few).run())
    options = ScoreSettings(eos=False, detail=Detail.TOKEN)
    items = [ScoreItem("texts[0]", "the " * 101, "")]
    with pytest.raises(InputError, match="detail is 'token' for 1 sequences: 101 entries"):
        finish(score(words, items, options, few))
    options = ScoreSettings(eos=False, ngram_lengths=True)
    with pytest.raises(InputError, match="ngram_lengths is true for 1 sequences: 101 entries"):
        finish(score(words, items, options, few))


@pytest.mark.parametrize(
    ("count", "shared", "own", "spared"),
    [(200, 18, 2, True), (200, 14, 6, True), (200, 5, 15, False), (10, 18, 2, False), (1, 20, 0, False)],
)
def test_a_tree_is_walked_where_beginnings_and_levels_cost_less_than_tokens(count, shared, own, spared):
    tails = np.arange(count * own).reshape(count, own)
    tokens = np.concatenate([np.zeros((count, shared), int), tails + 1], axis=1)
    lengths = np.full(count, shared + own)
    levels = run_to_completion(build_tree(np.zeros(count, int), tokens, lengths))
    assert tree_is_cheaper(levels, 1, lengths) is spared
    assert may_be_cheaper(np.zeros(count, int), tokens, lengths) >= spared


def test_a_tree_is_not_built_where_texts_begin_differently():
    tokens = np.arange(320).reshape(16, 20)
    assert not may_be_cheaper(np.zeros(16, int), tokens, np.full(16, 20))
    assert not may_be_cheaper(np.arange(16), np.zeros((16, 20), int), np.full(16, 20))
    assert may_be_cheaper(np.zeros(200, int), np.zeros((200, 20), int), np.full(200, 20))


CANDIDATE_LIMITS = Limits(max_texts=1000, max_tokens_per_sequence=1000, max_new_tokens=1)


def test_name_of_a_text_is_found_at_most_once(characters, finish):
    """Finding a name searches all candidates, which takes seconds for the maximum of 65,536."""
    candidates = tuple(Candidate(f"a{'b' * length}") for length in range(50))
    named = Mock(return_value="lists[0].")
    distinct, _ = finish(find_distinct_texts([CandidateList(None, "a", candidates)], (), named))
    texts, _ = finish(tokenise_texts(characters, distinct, CANDIDATE_LIMITS, eos=True))
    assert len(texts.offsets) == 51
    assert named.call_count <= 1
