"""Cost of the search for completions, without the model.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_completion.py [--texts 200]

N-gram models of order 5, of words and of pieces, complete prefixes of held-out lines of the novels (without the public
data: of Python's documentation). A row is a distribution that the search reads. Times are CPU times of one thread.
"""

import argparse
import random
import statistics
import time

import numpy as np
from preparation import data_folder, novels_or_documentation, read_lines

from models.calls import materialize, view
from models.completion.corrections import corrected_prefixes
from models.completion.pieces import PieceSearch
from models.completion.prefix import split_prefix
from models.completion.search import CompletionSearch, CompletionSettings, Reading
from models.completion.token_trie import TokenTrie
from models.completion.words import NextWords
from models.language_model import prefill_sequences
from training.ngram.estimate import estimate
from training.progress import Progress
from training.tokenizer import TokenizerSettings, encode_corpus, learn_tokenizer


def lines_of(data, split):
    """Return the lines of a split: some to train with, others to complete."""
    if data is None:
        return novels_or_documentation(None)[split]
    return read_lines(data / "novels-1m" / f"{split}.txt.xz")


def trained(kind, lines):
    """Return a tokenizer and an n-gram model over its tokens."""
    tokenizer = learn_tokenizer(TokenizerSettings(kind=kind), lines, progress=Progress())
    corpus = encode_corpus(tokenizer, lines, progress=Progress())
    return tokenizer, estimate(corpus, tokenizer.vocabulary, order=5, progress=Progress()).model


class Stopwatch:
    """Sums CPU times."""

    def __init__(self):
        self.total_s = 0.0

    def __call__(self, function, *arguments):
        begun = time.thread_time()
        answer = function(*arguments)
        self.total_s += time.thread_time() - begun
        return answer


def search(model, tokens, typed, state, log_probs, **options):
    """Return rows read, seconds of the first read, of the search, of the model, and the unexplored mass."""
    own, models = Stopwatch(), Stopwatch()
    settings, (row,) = CompletionSettings(**options), log_probs
    first = Reading(view(state), 0, NextWords.of_row(row) if tokens.whole_words else row)
    kind = CompletionSearch if tokens.whole_words else PieceSearch
    found = own(kind, tokens, first, typed.spelled, settings)
    first_s, num_rows = own.total_s, 1
    while (asked := own(found.next_step)) is not None:
        state = models(model.advance, materialize(asked[0]), asked[1])
        own(found.update, view(state), models(model.next_log_probs, state))
        num_rows += len(asked[1])
    return num_rows, first_s, own.total_s, models.total_s, own(found.result).unexplored_mass


def report(name, tokenizer, model, tokens, texts, **options):
    rows = []
    for text in texts:
        typed = split_prefix(tokenizer, text)
        ids = np.array([tokenizer.encode(typed.context)], np.int64)
        state = prefill_sequences(model, model.initial_state(1), ids, np.array([ids.shape[1]]))
        rows.append(search(model, tokens, typed, state, model.next_log_probs(state), **options))
    num_rows, first_s, own_s, model_s, unexplored = zip(*rows, strict=True)
    per_row = [
        1e6 * (own - first) / (n - 1) for n, first, own in zip(num_rows, first_s, own_s, strict=True) if n > 1
    ]
    print(
        f"{name:14} V = {len(tokens.token_bytes):6}   first look {1e6 * statistics.median(first_s):5.0f} µs"
        f"   a row more {statistics.median(per_row) if per_row else 0:4.0f} µs"
        f"   rows {statistics.mean(num_rows):5.1f}   in all {1e3 * statistics.median(own_s):5.2f} ms"
        f" + model {1e3 * statistics.median(model_s):5.2f} ms   unexplored {statistics.mean(unexplored):.3f}",
        flush=True,
    )


def report_mistyped(tokenizer, model, tokens, texts):
    row = model.next_log_probs(model.initial_state(1))[0]
    watch = Stopwatch()
    for text in texts:
        watch(corrected_prefixes, tokens, split_prefix(tokenizer, text).spelled, row, 2)
    print(
        f"{'two mistakes':14} V = {len(tokens.token_bytes):6}   {1e3 * watch.total_s / len(texts):.2f} ms",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=200)
    arguments = parser.parse_args()
    data = data_folder()
    lines = lines_of(data, "train")
    choice = random.Random(0)
    held_out = choice.sample(lines_of(data, "test"), arguments.texts)
    texts = [line[: choice.randrange(len(line) + 1)] for line in held_out]
    for kind in ("word", "unigram", "char"):
        tokenizer, model = trained(kind, lines)
        begun = time.thread_time()
        tokens = TokenTrie(tokenizer)
        print(f"{kind}: sorted in {1e3 * (time.thread_time() - begun):.0f} ms")
        report(kind, tokenizer, model, tokens, texts)
        if kind == "unigram":
            report("phrases of 3", tokenizer, model, tokens, texts, max_words=3)
            report("any case", tokenizer, model, tokens, texts, ignore_case=True)
        report_mistyped(tokenizer, model, tokens, texts)


if __name__ == "__main__":
    main()
