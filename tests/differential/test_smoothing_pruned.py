"""Count pruning against KenLM's estimator: thresholds 0 0 1 1 on the reference corpus."""

import lzma

import numpy as np
import pytest

from models.tokenizers import WordTokenizer
from models.vocabulary import BOS, Vocabulary
from training.corpus import EncodedCorpus
from training.evaluation.evaluate import evaluate
from training.ngram.estimate import NGramEstimate, estimate, smooth
from training.progress import Silent

ORDER, PRUNE = 4, (0, 0, 1, 1)


def lines_of(path):
    return lzma.decompress(path.read_bytes()).decode().splitlines()


@pytest.fixture(scope="module")
def tokenizer(data_dir):
    lines = lines_of(data_dir / "reference" / "corpus.txt.xz")
    return WordTokenizer(Vocabulary(dict.fromkeys(word for line in lines for word in line.split())))


@pytest.fixture(scope="module")
def corpus(data_dir, tokenizer):
    lines = lines_of(data_dir / "reference" / "corpus.txt.xz")
    return EncodedCorpus.from_sentences(tokenizer.encode_all(lines))


def weights_by_words(orders, vocabulary):
    """Every n-gram in words, with its log10 probability and back-off; 0 where there is none."""
    table, shorter = {}, [""]
    for ngrams, weights in orders:
        spelt = [
            f"{shorter[p]} {vocabulary[w]}".lstrip()
            for p, w in zip(ngrams.prefixes.tolist(), ngrams.words.tolist(), strict=True)
        ]
        backoffs = weights.log10_backoffs if len(weights.log10_backoffs) else np.zeros(len(spelt))
        table.update(zip(spelt, zip(weights.log10_probs, backoffs, strict=True), strict=True))
        shorter = spelt
    return table


@pytest.mark.data
def test_every_weight_of_the_pruned_reference_is_the_same(data_dir, corpus, tokenizer):
    """210,970 n-grams: the same set, each probability and back-off within 1e-5 in log10."""
    result = smooth(corpus, len(tokenizer.vocabulary), order=ORDER, prune=PRUNE, progress=Silent())
    got = weights_by_words(result.orders, tokenizer.vocabulary)
    rows = [line.split("\t") for line in lines_of(data_dir / "reference" / "order4-pruned.arpa.xz")]
    expected = {r[1]: (float(r[0]), float(r[2]) if len(r) == 3 else 0.0) for r in rows if len(r) > 1}
    assert got.keys() == expected.keys()
    assert got.pop("<s>")[0] == -np.inf  # there it is 0, and means that it is never asked for
    del expected["<s>"]
    ours = np.array([got[ngram] for ngram in expected])
    assert np.abs(ours - np.array(list(expected.values()))).max() < 1e-5
    assert result.orders[0][0].words[BOS] == BOS


@pytest.fixture(scope="module")
def pruned(corpus, tokenizer) -> NGramEstimate:
    return estimate(corpus, tokenizer.vocabulary, order=ORDER, prune=PRUNE, progress=Silent())


@pytest.mark.data
def test_as_many_ngrams_are_left_as_published(pruned):
    assert pruned.num_ngrams == (17_036, 138_159, 38_015, 17_760)


@pytest.mark.data
def test_perplexities_of_the_pruned_reference_are_the_published_ones(data_dir, pruned, tokenizer):
    lines = lines_of(data_dir / "reference" / "test.txt.xz")
    figures = evaluate(
        pruned.model, EncodedCorpus.from_sentences(tokenizer.encode_all(lines)), progress=Silent()
    )
    assert figures.perplexity == pytest.approx(243.56, rel=1e-4)
    assert figures.perplexity_without_oov == pytest.approx(168.16, rel=1e-4)
