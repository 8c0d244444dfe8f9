"""Beam search against exhaustive search; stop strings that are single tokens."""

import io
import itertools
import math

import numpy as np
import pytest
import sentencepiece

from models.decoding.batch import SequenceBatch
from models.decoding.beam_search import BeamSearch
from models.decoding.parameters import DecodingParameters
from models.decoding.rules import StopBytes, compile_rules, spellings
from models.language_model import EOS, Vocabulary
from models.tokenizers import CharacterTokenizer, PieceTokenizer, WordTokenizer

SIZE, MAX_TOKENS = 6, 3  # <unk>, <s>, </s>, and three words
WORDS = (3, 4, 5)


def model(seed):
    """Random log-probabilities of the next token, one table per history."""
    tables = {}

    def of(history):
        if history not in tables:
            rng = np.random.default_rng([seed, *history])
            p = rng.dirichlet(np.full(SIZE, 0.7)) + 1e-3
            tables[history] = np.log(p / p.sum()).astype(np.float32)
        return tables[history]

    return of


def everything(of, length_penalty, limit=MAX_TOKENS):
    """All continuations, best first: (score, tokens, ended by `</s>`)."""
    scored = []
    for length in range(limit + 1):
        for tokens in itertools.product(WORDS, repeat=length):
            total = sum(float(of(tokens[:i])[token]) for i, token in enumerate(tokens))
            if length == limit:
                scored.append((total / length**length_penalty, tokens, False))
            else:
                total += float(of(tokens)[EOS])
                scored.append((total / (length + 1) ** length_penalty, tokens, True))
    return sorted(scored, key=lambda one: -one[0])


def found(of, stops=None, **options):
    """Hypotheses found as (score, tokens, ended by `</s>`), and the number of steps."""
    parameters = DecodingParameters(**{"max_tokens": MAX_TOKENS, "strategy": "beam", **options})
    search, batch = (
        BeamSearch(parameters, 0, stops),
        SequenceBatch.of([compile_rules(parameters, np.zeros(0, np.int64))]),
    )
    histories, steps = [()], 0
    while search.live:
        search.step(np.stack([of(history) for history in histories]), batch.rows(), None)
        live, steps = search.live, steps + 1
        before, tokens = [beam.row for beam in live], [beam.end.token for beam in live]
        histories = [(*histories[row], token) for row, token in zip(before, tokens, strict=True)]
        for row, beam in enumerate(live):
            beam.row = row
        if live:
            batch = batch.select(np.array(before)).append(np.array(tokens), np.zeros(len(tokens)))
    answers = [
        (one.score, tuple(link.token for link in one.nodes()), one.eos is not None) for one in search.best()
    ]
    return answers, steps


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("length_penalty", [0.0, 0.7, 1.0, -1.0, 2.5])
def test_with_beams_for_everything_the_n_best_are_exact(seed, length_penalty):
    """27 beams hold every live continuation of three tokens, so the 40 best continuations are exact."""
    of = model(seed)
    answers, _ = found(of, num_beams=64, n=40, length_penalty=length_penalty)
    for got, want in zip(answers, everything(of, length_penalty)[:40], strict=True):
        assert got[1:] == want[1:]
        assert got[0] == pytest.approx(want[0], abs=1e-5)


@pytest.mark.parametrize("seed", range(20))
def test_the_search_ends_early_only_when_nothing_better_can_come(seed):
    """An early end returns the result of a full search."""
    of = model(seed)
    for penalty in (0.0, 0.5, 1.0, 2.0):
        answers, steps = found(of, num_beams=3, n=3, length_penalty=penalty, max_tokens=12)
        # a bias on an impossible token only removes the guarantee that scores fall, so the search is not cut short
        slow, most = found(
            of, num_beams=3, n=3, length_penalty=penalty, max_tokens=12, logit_bias=((0, 1.0),)
        )
        assert answers == slow
        assert steps <= most


def test_it_does_end_early():
    rng = np.full(SIZE, -9.0, np.float32)
    rng[EOS] = math.log(0.99)
    _, steps = found(lambda _: rng, num_beams=1, max_tokens=50)
    assert steps == 1
    _, steps = found(lambda _: rng, num_beams=3, n=3, max_tokens=50, length_penalty=0.0)
    assert steps <= 3


def long_or_short(first):
    """Log-probabilities of a first token; a text of 4 then ends, and one of 3 goes on."""

    def of(history):
        row = np.full(SIZE, -20.0, np.float32)
        for token, log_prob in {(): first, (4,): {EOS: -0.1}}.get(history, {3: -0.001}).items():
            row[token] = log_prob
        return row

    return of


def test_a_long_text_is_not_given_up_while_a_penalty_of_length_may_still_lift_it():
    """After two steps, three tokens would be worse than both finished texts, and twelve are better."""
    of = long_or_short({EOS: -1.0, 3: -3.0, 4: -1.1})
    answers, steps = found(of, num_beams=2, length_penalty=1.0, max_tokens=12)
    assert (answers[0][1], steps) == ((3,) * 12, 12)


def test_a_text_is_not_given_up_while_a_bias_may_still_lift_it():
    """After two steps it is worse than both finished texts; each further token adds almost 1 to its score."""
    of = long_or_short({EOS: -1.0, 3: -4.0, 4: -1.1})
    bias = {"logit_bias": ((3, 1.0),), "length_penalty": 0.0}
    answers, steps = found(of, num_beams=2, max_tokens=12, **bias)
    assert (answers[0][1], steps) == ((3,) * 12, 12)
    assert answers[0][0] == pytest.approx(-3 + 11 * 0.999, rel=1e-5)


def test_of_equal_extensions_those_of_the_first_beam_and_the_smallest_ids_are_kept():
    """Both beams could end at the second step, so only two of six equal words are among the best four."""
    row = np.array([-99.0, -99.0, -1.0, -2.0, -2.0, -2.0], np.float32)
    answers, _ = found(lambda _: row, num_beams=2, n=2, length_penalty=10.0)
    assert [tokens for _, tokens, _ in answers] == [(3, 3), (3, 4)]


def test_a_stop_string_ends_no_beam_for_which_other_tokens_are_better():
    stops = StopBytes(["b"], [b"", b"", b"", b"a", b"b", b"c"], strip_space=False)
    row = np.array([-99.0, -99.0, -9.0, -0.1, -2.5, -9.0], np.float32)
    ((_, tokens, _),), _ = found(lambda _: row, stops, num_beams=1)
    assert tokens == (3,) * MAX_TOKENS


@pytest.mark.parametrize("seed", range(10))
def test_one_beam_is_greedy_search(seed):
    of, history = model(seed), ()
    while len(history) < 12 and (token := max((2, 3, 4, 5), key=lambda i: of(history)[i])) != EOS:
        history += (token,)
    ((_, tokens, _),), _ = found(of, num_beams=1, max_tokens=12)
    assert tokens == history


@pytest.mark.parametrize("seed", range(10))
def test_a_greater_length_penalty_prefers_longer_ones(seed):
    """Lengths include `</s>`."""
    best = [found(model(seed), num_beams=64, length_penalty=a)[0][0] for a in (-2.0, 0.0, 1.0, 3.0, 10.0)]
    lengths = [len(tokens) + ended for _, tokens, ended in best]
    assert lengths == sorted(lengths)
    assert lengths[-1] == MAX_TOKENS


def test_early_stopping_takes_the_first_that_are_finished():
    of = model(3)
    _, early = found(of, num_beams=2, early_stopping=True, max_tokens=30)
    _, late = found(of, num_beams=2, max_tokens=30)
    assert early <= late


@pytest.mark.parametrize("seed", range(10))
def test_diverse_groups_begin_differently(seed):
    """A penalty above any score difference gives every group another first word."""
    answers, _ = found(model(seed), num_beams=3, n=3, num_beam_groups=3, diversity_penalty=50.0, max_tokens=2)
    firsts = [tokens[:1] for _, tokens, _ in answers]
    assert len(set(firsts)) == len(firsts) == 3


@pytest.mark.parametrize("seed", range(10))
def test_diversity_penalty_is_not_part_of_scores(seed):
    of = model(seed)
    true = {(tokens, ended): score for score, tokens, ended in everything(of, 1.0)}
    answers, _ = found(of, num_beams=6, n=6, num_beam_groups=3, diversity_penalty=3.0)
    for score, tokens, ended in answers:
        assert score == pytest.approx(true[tokens, ended], abs=1e-5)


@pytest.mark.parametrize("seed", range(10))
def test_groups_without_a_penalty_search_alike(seed):
    """Each group finds the result of a search of its size; duplicates are returned once."""
    alone, _ = found(model(seed), num_beams=2, n=2)
    assert found(model(seed), num_beams=6, n=6, num_beam_groups=3)[0] == alone


def test_a_stop_string_ends_a_beam():
    """A continuation that contains the stop string ends with it."""
    stops = StopBytes(["bc"], [b"", b"", b"", b"a", b"b", b"c"], strip_space=False)
    answers, _ = found(model(1), stops, num_beams=64, n=64)
    for _, tokens, ended in answers:
        assert (4, 5) not in itertools.pairwise(tokens[:-1])
        assert not (ended and tokens[-2:] == (4, 5))
    assert any(tokens[-2:] == (4, 5) for _, tokens, _ in answers)
    assert any(tokens == (4, 5) for _, tokens, _ in answers)


def test_beam_search_without_possible_tokens_ends():
    nothing = np.full(SIZE, -np.inf, np.float32)
    assert found(lambda _: nothing)[0] == [(0.0, (), False)]


LINES = [
    "the cat sat on the mat",
    "a cathedral and a concatenation",
    "scatter the cattle",
    "mats and hats",
] * 20


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def pieces(request):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        model_type=request.param,
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return PieceTokenizer(model.getvalue())


def test_words_are_spelled_in_one_way():
    words = WordTokenizer(Vocabulary(["the", "cat", "sat"]))
    assert spellings(words, "cat") == spellings(words, " cat") == [(4,)]
    assert spellings(words, "the cat") == [(3, 4)]


def test_sequence_with_an_unknown_word_has_no_spellings():
    assert spellings(WordTokenizer(Vocabulary(["the", "cat"])), "the dog") == []


def test_characters_are_spelled_one_by_one():
    characters = CharacterTokenizer(Vocabulary("abc "))
    assert spellings(characters, "ab") == [(3, 4)]
    assert spellings(characters, " a") == [(6, 3)]


def test_pieces_spell_a_word_at_its_start_and_in_the_middle(pieces):
    found = spellings(pieces, "cat")
    texts = {b"".join(pieces.token_bytes[i] for i in ids) for ids in found}
    assert texts == {b" cat", b"cat"}
    assert tuple(pieces.encode("cat")) in found


def test_a_leading_space_means_the_start_of_a_word(pieces):
    texts = {b"".join(pieces.token_bytes[i] for i in ids) for ids in spellings(pieces, " cat")}
    assert texts == {b" cat"}
