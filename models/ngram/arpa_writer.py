"""Write ARPA files: every n-gram and weight of a back-off model, losslessly.

Lines are `log-probability TAB words TAB back-off weight`, in order of word ids. Numbers are the
shortest decimals that read as the same floats. The back-off weight is omitted at the highest order,
and if it is 0 and the n-gram is no prefix of another. `<s>`, never predicted, has the
log-probability -99.

A comment before the data heading, which other readers skip, holds what ARPA cannot express: words
are escaped, the model reads right to left, and the value for a back-off weight of minus infinity,
which KenLM rejects. Log-probabilities above 0, which KenLM rejects too, are rounding errors, written
as 0.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from models.arrays import Bools, Float32s, Int32s, Int64s, UInt8s
from models.files import atomic_writer
from models.kernels.compilation import kernel
from models.language_model import BOS, Vocabulary
from models.ngram.arpa_kernels import MAX_NUMBER_BYTES, write_number
from models.ngram.arpa_reader import (
    BACKWARD_OPTION,
    COMMENT_MARK,
    DATA_HEADING,
    END_HEADING,
    ESCAPED_OPTION,
    LOG_ZERO_OPTION,
    escape_tokens,
    section_heading,
)
from models.ngram.build import NGrams, NGramWeights

_START_LOG10 = -99.0
_CHUNK = 1 << 16
_TAB, _LINE_END, _SPACE = (np.uint8(c) for c in b"\t\n ")


class ArpaWriteReport(NamedTuple):
    """Summary of a written file.

    Attributes:
        counts: number of n-grams by order.
        escaped_words: number of words that need escaping; with any, all words are escaped.
        log_zero: value for a back-off weight of minus infinity, or None if there is none.
    """

    counts: tuple[int, ...]
    escaped_words: int
    log_zero: np.float32 | None


def write_arpa(
    path: Path,
    vocabulary: Vocabulary,
    orders: Sequence[tuple[NGrams, NGramWeights]],
    *,
    backward: bool = False,
    on_write: Callable[[int], None] = lambda _: None,
) -> ArpaWriteReport:
    """Write a back-off model; the file gets its name when complete.

    Args:
        path: the suffixes .gz, .xz, .zst and .bz2 select compression.
        vocabulary: words of the ids.
        orders: n-grams and weights of the orders 1, 2, …, as `list_ngrams` returns them.
        backward: whether the model reads right to left, noted in a comment.
        on_write: called with the number of n-grams written since the last call.

    Raises:
        FormatError: the file cannot be written.
    """
    tokens, escaped = escape_tokens(vocabulary.tokens)
    words = [token.encode() for token in tokens]
    starts = np.zeros(len(words) + 1, np.int64)
    np.cumsum([len(word) for word in words], out=starts[1:])
    spelling = np.frombuffer(b"".join(words), np.uint8)
    counts = tuple(len(ngrams.words) for ngrams, _ in orders)
    backoffs, log_zero = [weights.log10_backoffs for _, weights in orders[:-1]], None
    if any(np.isneginf(values).any() for values in backoffs):
        unused = (np.float32(-99 - more) for more in range(1000))
        log_zero = next(mark for mark in unused if not any((values == mark).any() for values in backoffs))
    options = dict([ESCAPED_OPTION] * (escaped > 0) + [BACKWARD_OPTION] * backward)
    if log_zero is not None:
        options[LOG_ZERO_OPTION] = f"{log_zero:g}"
    comment = [" ".join([COMMENT_MARK, *map("=".join, options.items())])] if options else []
    sizes = [f"ngram {order}={count}" for order, count in enumerate(counts, start=1)]
    with atomic_writer(path) as write:
        write("\n".join([*comment, DATA_HEADING.decode(), *sizes, ""]).encode())
        for order in range(1, len(orders) + 1):
            write(b"\n" + section_heading(order) + b"\n")
            for lines in _batches(orders, order, log_zero):
                num_bytes = int(np.diff(starts)[lines[0]].sum()) + lines[0].size
                out = np.empty(num_bytes + len(lines[1]) * (2 * MAX_NUMBER_BYTES + 2), np.uint8)
                write(out[: _write_lines(*lines, spelling, starts, out)].tobytes())
                on_write(len(lines[1]))
        write(b"\n" + END_HEADING + b"\n")
    return ArpaWriteReport(counts, escaped, log_zero)


def _batches(
    orders: Sequence[tuple[NGrams, NGramWeights]], order: int, log_zero: np.float32 | None
) -> Iterator[tuple[Int32s, Float32s, Float32s, Bools]]:
    """Yield the n-grams of one order as arguments of `_write_lines`, up to `_CHUNK` at a time."""
    ngrams, (log10_probs, log10_backoffs) = orders[order - 1]
    is_context = np.zeros(len(ngrams.words), np.bool_)
    if order < len(orders):
        is_context[orders[order][0].prefixes] = True
    for begin in range(0, len(ngrams.words), _CHUNK):
        here = slice(begin, begin + _CHUNK)
        rows: slice | Int32s = here
        words = []  # from the last to the first, along the prefixes
        for shorter, _ in reversed(orders[:order]):
            words.append(shorter.words[rows])
            rows = shorter.prefixes[rows]
        probs = np.minimum(log10_probs[here], np.float32(0))
        probs[np.isneginf(probs) & (words[0] == BOS)] = _START_LOG10
        if order == len(orders):
            backoffs, full = probs, np.zeros(len(probs), np.bool_)
        else:
            backoffs = log10_backoffs[here].copy()
            if log_zero is not None:
                backoffs[np.isneginf(backoffs)] = log_zero
            full = is_context[here] | (backoffs.view(np.int32) != 0)  # minus zero stays
        yield np.stack(words[::-1]), probs, backoffs, full


@kernel()
def _write_lines(
    words: Int32s,
    log10_probs: Float32s,
    log10_backoffs: Float32s,
    with_backoff: Bools,
    spelling: UInt8s,
    starts: Int64s,
    out: UInt8s,
) -> int:
    """Write the lines of n-grams [order, n] to `out`; return their number of bytes.

    A word's bytes in `spelling` begin at its entry of `starts`.
    """
    offset = 0
    for row in range(len(log10_probs)):
        offset = write_number(log10_probs[row], out, offset)
        for position in range(len(words)):
            out[offset] = _TAB if position == 0 else _SPACE
            offset += 1
            word = words[position, row]
            for spot in range(starts[word], starts[word + 1]):
                out[offset] = spelling[spot]
                offset += 1
        if with_backoff[row]:
            out[offset] = _TAB
            offset = write_number(log10_backoffs[row], out, offset + 1)
        out[offset] = _LINE_END
        offset += 1
    return offset
