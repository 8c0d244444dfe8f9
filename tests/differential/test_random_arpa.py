"""Random ARPA files, read here and by KenLM: probability, matched order and what comes after agree."""

import itertools
import math
from pathlib import Path
from typing import NamedTuple

import kenlm
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.ngram.arpa_reader import read_arpa
from models.ngram.build import build_automaton
from models.ngram.model import NGramModel, NGramState
from models.vocabulary import EOS, Vocabulary

LN_10 = math.log(10)
LETTERS = "abcdefgh"
NGram = tuple[str, ...]


class Read(NamedTuple):
    """A file as it was written, as it is read here, and as KenLM reads it."""

    listed: set[NGram]
    vocabulary: Vocabulary
    model: NGramModel
    oracle: kenlm.Model


def closed(ngrams: set[NGram]) -> set[NGram]:
    """With every part of every n-gram."""
    return {n[i:j] for n in ngrams for i in range(len(n)) for j in range(i + 1, len(n) + 1)}


def random_ngrams(random: np.random.Generator, order: int, *, pruned: bool, unknown: bool) -> set[NGram]:
    """N-grams whose prefixes are listed; if `pruned`, a few lack their suffix, as entropy pruning leaves them."""
    inner = [*LETTERS[: random.integers(1, len(LETTERS) + 1)], *(["<unk>"] if unknown else [])]
    listed = {(word,) for word in ["<s>", "</s>", *inner]}
    for _ in range(random.integers(3, 40)):
        words = random.choice(inner, size=random.integers(1, order + 1)).tolist()
        text = ["<s>"] * (random.random() < 0.4) + words + ["</s>"] * (random.random() < 0.3)
        listed.add(tuple(text[:order]))
    listed |= {("<s>", *inner[:1])}
    listed = closed(listed)
    if pruned:
        prefixes = {n[:-1] for n in listed}
        for longer in sorted(listed, key=lambda n: (len(n), n)):
            fellows = sum(len(n) == len(longer) - 1 for n in listed)
            if len(longer) > 2 and longer[1:] not in prefixes and random.random() < 0.5 and fellows > 12:
                listed.discard(longer[1:])
                break  # KenLM has room for few
    return listed


def arpa_text(random: np.random.Generator, listed: set[NGram], *, largest_backoff: float) -> str:
    """The file, lines of each order in any order; some back-offs are left out."""
    top = max(map(len, listed))
    orders = [sorted(n for n in listed if len(n) == k) for k in range(1, top + 1)]
    lines = ["\\data\\", *(f"ngram {k}={len(ngrams)}" for k, ngrams in enumerate(orders, start=1))]
    for k, ngrams in enumerate(orders, start=1):
        lines += ["", f"\\{k}-grams:"]
        for place in random.permutation(len(ngrams)):
            ngram = ngrams[place]
            prob = random.choice([0, -99]) if ngram == ("<s>",) else -random.exponential()
            has_backoff = k < top and ngram[-1] != "</s>" and random.random() < 0.8
            backoff = f"\t{min(random.normal(-0.3, 0.5), largest_backoff):.6f}" if has_backoff else ""
            lines.append(f"{prob:.6f}\t{' '.join(ngram)}{backoff}")
    return "\n".join([*lines, "", "\\end\\", ""])


def written(folder: Path, random: np.random.Generator, order: int, *, pruned: bool, unknown: bool) -> Read:
    listed = random_ngrams(random, order, pruned=pruned, unknown=unknown)
    path = folder / "random.arpa"
    # KenLM works out the n-grams that are missing, and takes no more than 1 for their probability
    text = arpa_text(random, listed, largest_backoff=0 if pruned else np.inf)
    path.write_text(text, encoding="utf-8")
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE
    read = read_arpa(path)
    model = NGramModel(build_automaton(read.orders), read.vocabulary, normalised=False)
    return Read(listed, read.vocabulary, model, kenlm.Model(str(path), config))


def theirs(oracle: kenlm.Model, words: list[str], *, bos: bool) -> list[tuple[float, int]]:
    """Natural-log probability and matched order of each word."""
    state, after = kenlm.State(), kenlm.State()
    (oracle.BeginSentenceWrite if bos else oracle.NullContextWrite)(state)
    scores = []
    for word in words:
        full = oracle.BaseFullScore(state, word, after)
        scores.append((full.log_prob * LN_10, full.ngram_length))
        state, after = after, kenlm.State()
    return scores


def longest(listed: set[NGram], text: NGram) -> int:
    return max(n for n in range(1, len(text) + 1) if text[-n:] in listed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("arpa")


@given(st.integers(0, 2**32), st.integers(2, 6), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_a_file_means_what_it_means_to_kenlm(folder, seed, order, pruned, unknown, bos):
    random = np.random.default_rng(seed)
    listed, vocabulary, model, oracle = written(folder, random, order, pruned=pruned, unknown=unknown)
    words = [*random.choice([*LETTERS, "x"], size=15).tolist(), "</s>"]
    ids = np.array([[*(vocabulary.id_of(word) for word in words[:-1]), EOS]])
    start = model.initial_state(1) if bos else model.empty_state(1)
    ours = model.score_detailed(start, ids, np.array([len(words)]))
    expected = theirs(oracle, words, bos=bos)
    logprobs = [logprob for logprob, _ in expected]
    # relative: an unlisted <unk> has 10^-100, whose logarithm has no more digits in single precision
    assert np.allclose(ours.log_probs[0], logprobs, atol=1e-5, rtol=1e-7)
    known = [vocabulary[i] for i in ids[0]]
    texts = [(*["<s>"] * bos, *known[: i + 1])[-model.order :] for i in range(len(known))]
    assert ours.orders[0].tolist() == [longest(listed | {("<unk>",)}, text) for text in texts]
    # KenLM lists the suffixes that a file lacks
    assert [n for _, n in expected] == [longest(closed(listed) | {("<unk>",)}, text) for text in texts]


@given(st.integers(0, 2**32), st.integers(2, 6))
@settings(max_examples=50, deadline=None)
def test_texts_in_one_state_have_one_future_with_kenlm(folder, seed, order):
    random = np.random.default_rng(seed)
    _, vocabulary, model, oracle = written(folder, random, order, pruned=False, unknown=True)
    texts = [random.choice(list(LETTERS), size=6).tolist() for _ in range(40)]
    state = NGramState(np.full(40, model.automaton.initial, np.int32))
    for column in zip(*texts, strict=True):
        state = model.advance(state, np.array([vocabulary.id_of(word) for word in column]))
    future = random.choice(list(LETTERS), size=4).tolist()
    scores = [[score for score, _ in theirs(oracle, [*text, *future], bos=True)[6:]] for text in texts]
    by_state = sorted(zip(state.ids.tolist(), scores, strict=True))
    for _, group in itertools.groupby(by_state, key=lambda pair: pair[0]):
        assert np.ptp([row for _, row in group], axis=0).max() < 1e-5
