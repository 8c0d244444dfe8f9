"""Relational estimation plan: named stages, each one SELECT over the tables of earlier stages.

The SQL is the common subset of DuckDB and Spark. Counts are BIGINT, probabilities
DOUBLE. Only integers are summed, so results are bit-identical for all orders of rows.

    windows      w1 … wN of every position in the text followed by N words, or at <s>
    counts_N     the N-grams with c, their count
    counts_k     counts_(k+1), grouped by all words except the first: every k-gram that does not begin
                 with <s> follows a word, so its c is the sum over the group, and the number of distinct
                 words before it is the group's size; `starts` counts the windows that begin with <s>
    shares_k     of the listed k-grams: (c − D(c)) / Σ c, and γ of the context, over partitions by prefix
    probs_k      the interpolated probabilities: one join with sorted_(k−1) by the suffix
    sorted_k     probs_k in lexicographic order, as the automaton requires

Words are columns w1, w2, … of ids; `a` is the adjusted count for smoothing. See
`training.ngram.smoothing` for the formulas, and Heafield et al. (2013) for the counts.
"""

from typing import NamedTuple

from models.language_model import BOS
from training.ngram.smoothing.kneser_ney import Discounts

_TOTAL = "CAST(sum(c) AS BIGINT)"
ABSENT = -1
"""Filler of a window after `</s>`."""

PLAN_VERSION = 1
"""Incremented when a text's tables change: stages of another version are not reused."""


class Stage(NamedTuple):
    """Stage of the plan, which creates one table.

    Attributes:
        name: name of the table.
        sql: SELECT that creates it.
        inputs: names of the tables it reads.
        purpose: description for progress and messages.
    """

    name: str
    sql: str
    inputs: tuple[str, ...]
    purpose: str


def word_columns(first: int, last: int, table: str = "") -> str:
    """Return the columns `w<first>, …, w<last>`, with an optional table prefix."""
    return ", ".join(f"{table}w{i}" for i in range(first, last + 1))


def counting_stages(order: int, *, continuations: bool) -> list[Stage]:
    """Return the stages that count n-grams of all orders, the highest first.

    Args:
        order: N, the length of the longest n-grams.
        continuations: True if lower orders' `a` is the number of distinct words before an n-gram.
    """
    words = word_columns(1, order)
    sql = f"SELECT {words}, count(*) AS c FROM windows WHERE w1 = {BOS} GROUP BY {words}"
    stages = [Stage("starts", sql, ("windows",), "counting sentence starts")] if order > 1 else []
    adjusted = "count(*)" if continuations else _TOTAL
    stages += [_counts(k, order, adjusted) for k in range(order, 1, -1)]
    return [*stages, _unigram_counts(order, adjusted)]


def counts_of_counts(k: int) -> str:
    """Return a SELECT of the numbers of k-grams with adjusted counts 1 to 4: rows of `a`, `n`."""
    return f"SELECT a, count(*) AS n FROM counts_{k} WHERE a BETWEEN 1 AND 4 GROUP BY a"


def estimation_stages(k: int, *, threshold: int, discounts: Discounts, vocab_size: int) -> list[Stage]:
    """Return the stages that estimate k-grams' probabilities from those of order k − 1.

    Args:
        k: length of the n-grams.
        threshold: k-grams with counts up to it are dropped.
        discounts: discounts of the counts.
        vocab_size: V.
    """
    words = word_columns(1, k)
    sql = f"SELECT {words}, p, g FROM probs_{k} ORDER BY {words}"
    sorting = Stage(f"sorted_{k}", sql, (f"probs_{k}",), f"sorting {k}-grams")
    return [_shares(k, threshold, discounts), _probs(k, vocab_size), sorting]


def _counts(k: int, order: int, adjusted: str) -> Stage:
    longer, table, total = "", "windows", "count(*)"
    if k < order:
        table, total = "starts", _TOTAL
        longer = f"{_by_suffix(k, adjusted)} UNION ALL "
    words = word_columns(1, k)
    sql = (
        f"{longer}SELECT {words}, {total} AS a, {total} AS c FROM {table} "
        f"WHERE w{k} <> {ABSENT} GROUP BY {words}"
    )
    inputs = (f"counts_{k + 1}", table) if longer else (table,)
    return Stage(f"counts_{k}", sql, inputs, f"counting {k}-grams")


def _by_suffix(k: int, adjusted: str) -> str:
    renamed = ", ".join(f"w{i + 1} AS w{i}" for i in range(1, k + 1))
    return (
        f"SELECT {renamed}, {adjusted} AS a, {_TOTAL} AS c "
        f"FROM counts_{k + 1} GROUP BY {word_columns(2, k + 1)}"
    )


def _unigram_counts(order: int, adjusted: str) -> Stage:
    """List every word of the vocabulary; `<s>` is never predicted, so its count is 0."""
    if order == 1:
        source, found = "windows", "SELECT w1, count(*) AS a, count(*) AS c FROM windows GROUP BY w1"
    else:
        source, found = "counts_2", _by_suffix(1, adjusted)
    sql = (
        f"SELECT v.w1, CASE WHEN v.w1 = {BOS} THEN 0 ELSE coalesce(x.a, 0) END AS a, coalesce(x.c, 0) AS c "
        f"FROM vocabulary v LEFT JOIN ({found}) x ON v.w1 = x.w1"
    )
    return Stage("counts_1", sql, ("vocabulary", source), "counting words")


def _shares(k: int, threshold: int, discounts: Discounts) -> Stage:
    """Compute listed k-grams' discounted shares, and γ of contexts: the pruned and discounted mass.

    γ is a quotient, not 1 minus a sum, so it is exactly 0 if no mass is freed.
    """
    # unigrams are the vocabulary
    words, lists_all = word_columns(1, k), k == 1 or threshold == 0
    listed = "TRUE" if lists_all else f"c > {threshold}"
    context = f"PARTITION BY {word_columns(1, k - 1)}" if k > 1 else ""

    def total(value: str, condition: str) -> str:
        return f"CAST(sum(CASE WHEN {condition} THEN {value} ELSE 0 END) OVER ({context}) AS DOUBLE)"

    one, two, more = (_double(discount) for discount in discounts)
    freed = [
        f"{discount} * {total('1', f'{listed} AND {condition}')}"
        for discount, condition in ((one, "a = 1"), (two, "a = 2"), (more, "a > 2"))
    ]
    pruned = [] if lists_all else [total("a", f"NOT ({listed})")]
    inner = (
        f"SELECT {words}, c, CAST(a AS DOUBLE) AS a, {total('a', 'TRUE')} AS total, "
        f"{' + '.join(pruned + freed)} AS freed FROM counts_{k}"
    )
    discount = (
        f"CASE WHEN a = 0 THEN {_double(0)} WHEN a = 1 THEN {one} WHEN a = 2 THEN {two} ELSE {more} END"
    )
    sql = (
        f"SELECT {words}, ({_double(1)} / total) * (a - {discount}) AS own, "
        f"({_double(1)} / total) * freed AS g FROM ({inner}) x WHERE {listed}"
    )
    return Stage(f"shares_{k}", sql, (f"counts_{k}",), f"discounting {k}-grams")


def _probs(k: int, vocab_size: int) -> Stage:
    """Interpolate k-grams with the (k−1)-gram of the last k − 1 words, words with the uniform distribution."""
    if k == 1:
        uniform = _double(1.0 / (vocab_size - 1))
        probability = f"CASE WHEN w1 = {BOS} THEN {_double(0)} ELSE own + g * {uniform} END"
        sql = f"SELECT w1, {probability} AS p, g FROM shares_1"
        return Stage("probs_1", sql, ("shares_1",), "interpolating words")
    same = " AND ".join(f"x.w{i + 1} = s.w{i}" for i in range(1, k))
    sql = (
        f"SELECT {word_columns(1, k, 'x.')}, x.own + x.g * s.p AS p, x.g "
        f"FROM shares_{k} x JOIN sorted_{k - 1} s ON {same}"
    )
    return Stage(f"probs_{k}", sql, (f"shares_{k}", f"sorted_{k - 1}"), f"interpolating {k}-grams")


def _double(value: float) -> str:
    """Format a DOUBLE literal with all digits; a literal without an exponent is a DECIMAL."""
    return f"{value:.17e}"
