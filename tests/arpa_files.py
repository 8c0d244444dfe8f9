"""ARPA files to read: a small one, random ones, and a reader that is a dozen lines of Python."""

import numpy as np

SMALL = """\
\\data\\
ngram 1=5
ngram 2=4
ngram 3=2

\\1-grams:
-1.5\t<unk>
-99\t<s>\t-0.3
-0.7\t</s>
-0.6\ta\t-0.2
-0.8\tb\t-0.1

\\2-grams:
-0.2\t<s> a\t-0.15
-0.3\ta b\t-0.25
-0.4\tb </s>
-0.5\ta a

\\3-grams:
-0.1\t<s> a b
-0.05\ta b </s>

\\end\\
"""


def random_arpa(rng, *, order, num_words=8, unknown=True, orphans=0, start="-99"):
    """A file with the n-grams of random sentences, in random order.

    Args:
        rng: draws everything.
        order: of the longest n-grams.
        num_words: apart from control tokens.
        unknown: whether `<unk>` is among the words.
        orphans: how many n-grams are left out that are the suffix of another; KenLM copes with few.
        start: the log-probability of `<s>`.

    Returns:
        The text, and the words that are not control tokens.
    """
    words = [f"{'äbc'[i % 3]}{i}" for i in range(num_words)]
    inner = [*words, "<unk>"] if unknown else words
    ngrams = {(word,) for word in ["<s>", "</s>", *inner]}
    for _ in range(2 * num_words):
        sentence = ["<s>", *rng.choice(inner, rng.integers(order, 2 * order)).tolist(), "</s>"]
        ngrams |= {
            tuple(sentence[i : i + k]) for k in range(1, order + 1) for i in range(len(sentence) - k + 1)
        }
    prefixes, suffixes = ({n[part] for n in ngrams} for part in (slice(-1), slice(1, None)))
    ngrams -= set(sorted(n for n in ngrams & suffixes - prefixes if len(n) > 1)[:orphans])
    levels = [sorted(n for n in ngrams if len(n) == k) for k in range(1, order + 1)]
    lines = ["\\data\\", *(f"ngram {k}={len(level)}" for k, level in enumerate(levels, start=1))]
    for k, level in enumerate(levels, start=1):
        lines += ["", f"\\{k}-grams:"]
        for i in rng.permutation(len(level)):
            prob = start if level[i] == ("<s>",) else _number(rng, -4)
            backoff = "" if k == order or rng.random() < 0.3 else f"\t{_number(rng, rng.choice([-1.5, 0.4]))}"
            lines.append(f"{prob}\t{' '.join(level[i])}{backoff}")
    return "\n".join([*lines, "", "\\end\\", ""]), words


def _number(rng, limit):
    """A decimal between 0 and a limit, as long as tools write them."""
    return f"{rng.uniform(min(limit, 0), max(limit, 0)):.{rng.choice([6, 7, 9, 17])}g}"


def parse_arpa(text):
    """{words: (log10 probability, back-off weight)} as Python's own numbers."""
    table = {}
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) > 1:
            table[tuple(fields[1].split(" "))] = (float(fields[0]), float(fields[2]) if fields[2:] else 0.0)
    return table


def listed(vocabulary, orders):
    """The same of a model given order by order, as float32."""
    table, shorter = {}, [()]
    for ngrams, weights in orders:
        shorter = [(*shorter[p], vocabulary[w]) for p, w in zip(ngrams.prefixes, ngrams.words, strict=True)]
        backoffs = (
            weights.log10_backoffs if len(weights.log10_backoffs) else np.zeros(len(shorter), np.float32)
        )
        table |= dict(zip(shorter, zip(weights.log10_probs, backoffs, strict=True), strict=True))
    return table
