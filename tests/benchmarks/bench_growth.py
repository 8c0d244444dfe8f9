"""Number of distinct n-grams of a growing text, by order: planning figures for a corpus larger than memory.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_growth.py [--order 5] [--parts 5] [--sentences N]

Counts are of the novels' training text (without the public data: of Python's documentation), its first part, twice as
much, and so on. The exponent is that of Heaps' law, distinct = K·N^β, between neighbouring points.
It falls with every doubling, so it is an upper bound for a larger text of the same kind; other kinds of text (the
web, many languages) have more.
"""

import argparse
import itertools
import math

from preparation import data_folder, novels_or_documentation

from training.corpus import EncodedCorpus
from training.ngram.counts import count_ngrams
from training.progress import SILENT
from training.tokenizer import TokenizerSettings, encode_corpus, learn_tokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--parts", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=None, help="number of sentences; all by default")
    given = parser.parse_args()
    lines = novels_or_documentation(data_folder(), given.sentences)["train"]
    tokenizer = learn_tokenizer(TokenizerSettings(), lines)
    points = []
    for part in range(given.parts - 1, -1, -1):
        some = lines[: len(lines) >> part]
        corpus: EncodedCorpus = encode_corpus(tokenizer, some)
        counted = count_ngrams(corpus, len(tokenizer.vocabulary), order=given.order, progress=SILENT)
        distinct = [int((ngrams.counts > 0).sum()) for ngrams in counted]
        once = [int((ngrams.counts == 1).sum()) for ngrams in counted]
        points.append((corpus.num_tokens + corpus.num_sentences, distinct))
        shares = "  ".join(f"{100 * a / b:4.1f} %" for a, b in zip(once, distinct, strict=True))
        print(
            f"{points[-1][0]:>12,} tokens   {'  '.join(f'{n:>11,}' for n in distinct)}   once: {shares}",
            flush=True,
        )
    for (n, before), (m, after) in itertools.pairwise(points):
        exponents = [math.log(b / a) / math.log(m / n) for a, b in zip(before, after, strict=True)]
        print(f"{n:>12,} to {m:,}: β {'  '.join(f'{beta:.3f}' for beta in exponents)}")


if __name__ == "__main__":
    main()
