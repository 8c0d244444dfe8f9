"""Estimates, scores, perplexities and count pruning against KenLM on the reference corpus."""

import lzma
import math
from pathlib import Path
from typing import NamedTuple

import kenlm
import numpy as np
import pytest

from models.language_model import BOS, EOS, Vocabulary, pad_sequences, score_sequences
from models.ngram.build import list_ngrams
from models.tokenizers import WordTokenizer
from tests.reference.backoff import estimated_orders, weights_by_words
from training.corpus import EncodedCorpus
from training.evaluation.evaluate import evaluate
from training.ngram.estimate import NGramEstimate, estimate
from training.progress import Progress

LN_10 = math.log(10)
BATCH = 512


class Estimated(NamedTuple):
    tokenizer: WordTokenizer
    result: NGramEstimate


def lines_of(path: Path) -> list[str]:
    data = path.read_bytes()
    return (lzma.decompress(data) if path.suffix == ".xz" else data).decode().splitlines()


def estimated(lines: list[str], order: int) -> Estimated:
    """Estimate a model from lines of space-separated words; "<unk>" is an ordinary word."""
    tokenizer = WordTokenizer(Vocabulary(dict.fromkeys(word for line in lines for word in line.split())))
    corpus = EncodedCorpus.from_sentences(tokenizer.encode_all(lines))
    return Estimated(tokenizer, estimate(corpus, tokenizer.vocabulary, order=order, progress=Progress()))


def scores_of(model: Estimated, lines: list[str]) -> np.ndarray:
    """Natural-log probabilities of every word and `</s>`, line by line."""
    ngram = model.result.model
    answer = []
    for begin in range(0, len(lines), BATCH):
        encoded = [[*ids, EOS] for ids in model.tokenizer.encode_all(lines[begin : begin + BATCH])]
        tokens, lengths = pad_sequences(encoded)
        scores = score_sequences(ngram, ngram.initial_state(len(encoded)), tokens, lengths)
        answer.append(scores[np.arange(tokens.shape[1]) < lengths[:, None]])
    return np.concatenate(answer)


def perplexity(model: Estimated, lines: list[str]) -> float:
    return math.exp(-scores_of(model, lines).mean(dtype=np.float64))


def ngrams_of(model: Estimated) -> dict[str, tuple[float, float]]:
    """Every n-gram in words, with its log10 probability and back-off, as the automaton lists it."""
    table, spelt = {}, [""]
    for ngrams, weights in list_ngrams(model.result.model.automaton):
        words = [model.tokenizer.vocabulary[word] for word in ngrams.words.tolist()]
        spelt = [
            f"{spelt[p]} {word}".lstrip() for p, word in zip(ngrams.prefixes.tolist(), words, strict=True)
        ]
        backoffs = weights.log10_backoffs.tolist() or [0.0] * len(spelt)
        table |= zip(spelt, zip(weights.log10_probs.tolist(), backoffs, strict=True), strict=True)
    return table


def read_arpa(path: Path) -> dict[str, tuple[float, float]]:
    rows = (line.split("\t") for line in lines_of(path) if "\t" in line)
    return {row[1]: (float(row[0]), float(row[2]) if len(row) == 3 else 0.0) for row in rows}


def assert_same_model(got: dict[str, tuple[float, float]], expected: dict[str, tuple[float, float]]) -> None:
    assert got.keys() == expected.keys()
    ours = np.array([got[ngram] for ngram in expected])
    theirs = np.array(list(expected.values()))
    start = list(expected).index("<s>")
    assert ours[start, 0] == -np.inf  # KenLM writes 0; `<s>` is never predicted
    ours[start, 0] = theirs[start, 0]
    assert np.abs(ours - theirs).max() < 1e-5


@pytest.fixture(scope="module")
def reference(data_dir) -> Estimated:
    return estimated(lines_of(data_dir / "reference" / "corpus.txt.xz"), 4)


@pytest.mark.data
def test_every_ngram_of_the_reference_has_the_same_weights(data_dir, reference):
    """785,747 n-grams: an identical set, each probability and back-off within 1e-5 in log10."""
    assert_same_model(ngrams_of(reference), read_arpa(data_dir / "reference" / "order4.arpa.xz"))


@pytest.mark.data
def test_discounts_of_the_reference_are_the_published_ones(reference):
    published = [
        (0.555157, 1.03688, 1.49089),
        (0.754417, 1.14312, 1.44433),
        (0.868311, 1.22752, 1.50002),
        (0.931595, 1.34742, 1.4888),
    ]
    assert np.allclose(reference.result.facts["discounts"], published, atol=1e-5)


@pytest.mark.data
def test_fallback_discounts_give_the_same_toy_model(data_dir):
    toy = estimated(lines_of(data_dir / "reference" / "toy.txt"), 3)
    assert toy.result.facts["fallback_orders"] == [1, 2, 3]
    assert_same_model(ngrams_of(toy), read_arpa(data_dir / "reference" / "toy.arpa"))


@pytest.mark.data
def test_every_token_scores_as_with_kenlm(data_dir, reference, tmp_path):
    arpa = tmp_path / "order4.arpa"
    arpa.write_bytes(lzma.decompress((data_dir / "reference" / "order4.arpa.xz").read_bytes()))
    oracle = kenlm.Model(str(arpa))
    lines = lines_of(data_dir / "reference" / "test.txt.xz")
    expected = [log10 * LN_10 for line in lines for log10, _, _ in oracle.full_scores(line)]
    assert np.abs(scores_of(reference, lines) - expected).max() < 1e-4


@pytest.mark.data
def test_perplexity_of_the_reference_is_the_published_one(data_dir, reference):
    lines = lines_of(data_dir / "reference" / "test.txt.xz")
    assert perplexity(reference, lines) == pytest.approx(243.79, rel=1e-4)


@pytest.mark.data
@pytest.mark.parametrize(
    ("order", "test", "valid"),
    [(2, 120.88, 127.37), (3, 107.79, 113.88), (4, 107.41, 113.40), (5, 107.17, 113.18)],
)
def test_perplexities_of_a_closed_vocabulary_are_the_published_ones(data_dir, order, test, valid):
    model = estimated(lines_of(data_dir / "novels-1m" / "train.txt.xz"), order)
    assert perplexity(model, lines_of(data_dir / "novels-1m" / "test.txt.xz")) == pytest.approx(
        test, rel=1e-3
    )
    assert perplexity(model, lines_of(data_dir / "novels-1m" / "valid.txt.xz")) == pytest.approx(
        valid, rel=1e-3
    )


def as_arpa(model: Estimated) -> str:
    """ARPA text of a small model."""
    by_order: dict[int, list[str]] = {}
    for text, (log10_prob, log10_backoff) in ngrams_of(model).items():
        shown = max(log10_prob, -99.0)
        by_order.setdefault(len(text.split()), []).append(f"{shown:.9g}\t{text}\t{log10_backoff:.9g}")
    top = max(by_order)
    by_order[top] = [row.rsplit("\t", 1)[0] for row in by_order[top]]
    head = ["\\data\\", *(f"ngram {k}={len(rows)}" for k, rows in by_order.items())]
    body = [line for k, rows in by_order.items() for line in ("", f"\\{k}-grams:", *rows)]
    return "\n".join([*head, *body, "", "\\end\\", ""])


@pytest.mark.parametrize("order", [2, 3, 4, 5])
def test_random_texts_score_as_with_kenlm(order, tmp_path):
    """Runs without the data folder: KenLM reads our estimate and scores unseen texts."""
    rng = np.random.default_rng(order)
    lines = [" ".join(rng.choice(list("abcdefgh"), size=rng.integers(0, 15))) for _ in range(60)]
    model = estimated(lines, order)
    path = tmp_path / "random.arpa"
    path.write_text(as_arpa(model), encoding="utf-8")
    oracle = kenlm.Model(str(path))
    unseen = [" ".join(rng.choice(list("abcdefghxy"), size=rng.integers(0, 15))) for _ in range(60)]
    expected = [log10 * LN_10 for line in unseen for log10, _, _ in oracle.full_scores(line)]
    assert np.abs(scores_of(model, unseen) - expected).max() < 1e-5


ORDER, PRUNE = 4, (0, 0, 1, 1)


def unpacked_lines(path):
    return lzma.decompress(path.read_bytes()).decode().splitlines()


@pytest.fixture(scope="module")
def tokenizer(data_dir):
    lines = unpacked_lines(data_dir / "reference" / "corpus.txt.xz")
    return WordTokenizer(Vocabulary(dict.fromkeys(word for line in lines for word in line.split())))


@pytest.fixture(scope="module")
def corpus(data_dir, tokenizer):
    lines = unpacked_lines(data_dir / "reference" / "corpus.txt.xz")
    return EncodedCorpus.from_sentences(tokenizer.encode_all(lines))


@pytest.mark.data
def test_every_weight_of_the_pruned_reference_is_the_same(data_dir, corpus, tokenizer):
    """210,970 n-grams: an identical set, each probability and back-off within 1e-5 in log10."""
    orders = estimated_orders(corpus, len(tokenizer.vocabulary), order=ORDER, prune=PRUNE)
    got = weights_by_words(orders, tokenizer.vocabulary)
    rows = [line.split("\t") for line in unpacked_lines(data_dir / "reference" / "order4-pruned.arpa.xz")]
    expected = {r[1]: (float(r[0]), float(r[2]) if len(r) == 3 else 0.0) for r in rows if len(r) > 1}
    assert got.keys() == expected.keys()
    assert got.pop("<s>")[0] == -np.inf  # KenLM writes 0; `<s>` is never predicted
    del expected["<s>"]
    ours = np.array([got[ngram] for ngram in expected])
    assert np.abs(ours - np.array(list(expected.values()))).max() < 1e-5
    assert orders[0][0].words[BOS] == BOS


@pytest.fixture(scope="module")
def pruned(corpus, tokenizer) -> NGramEstimate:
    return estimate(corpus, tokenizer.vocabulary, order=ORDER, prune=PRUNE, progress=Progress())


@pytest.mark.data
def test_as_many_ngrams_are_left_as_published(pruned):
    assert pruned.facts["ngrams"] == [17_036, 138_159, 38_015, 17_760]


@pytest.mark.data
def test_perplexities_of_the_pruned_reference_are_the_published_ones(data_dir, pruned, tokenizer):
    lines = unpacked_lines(data_dir / "reference" / "test.txt.xz")
    figures = evaluate(
        pruned.model, EncodedCorpus.from_sentences(tokenizer.encode_all(lines)), progress=Progress()
    )
    assert figures.perplexity == pytest.approx(243.56, rel=1e-4)
    assert figures.perplexity_without_oov == pytest.approx(168.16, rel=1e-4)
