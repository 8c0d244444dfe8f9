"""Compiled walk of a model's words for the beginnings that typed letters may mean.

Words sorted by their letters are a trie whose nodes need not be stored: a word
shares nodes with the one before it. The walk aligns the letters on the way to a
node with the typed ones. Beginnings that reach the end of the typed letters are
found once, at their shortest.
"""

from typing import Any

import numpy as np
from numba import types

from models.kernels.compilation import kernel


@kernel(
    types.int64(
        types.uint16[::1], types.int64[::1], types.int64[::1], types.float64[:, ::1], types.float64, types.float64,
        types.int64, types.boolean, types.boolean, types.int64[:, ::1], types.float64[::1],
    )
)  # fmt: skip
def find_beginnings(  # noqa: C901, PLR0912 - words, letters, typed letters and edits
    letters: Any, starts: Any, shared: Any, typed: Any, edit: Any, least: Any, most: Any,
    with_ties: Any, with_parts: Any, found: Any, scores: Any,
) -> Any:  # fmt: skip
    """Find the beginnings of sorted words that typed letters may mean; return how many.

    Args:
        letters: letters of all words.
        starts: start of each word, and the end [N + 1].
        shared: letters that each word shares with the one before it [N].
        typed: ln of the probability of each typed letter if a letter is meant [M,
            A].
        edit: ln of an edit's probability.
        least: least ln of the probability of all typed letters.
        most: maximum edits.
        with_ties: find longer beginnings, too, if they are as probable.
        with_parts: find whole words, too, that stand for the first typed letters
            only.
        found: output: word, its letters, the typed letters they stand for, and
            edits [n, 4].
        scores: output: ln of the probability of these typed letters [n].
    """
    size, count, dead = len(typed), 0, 1 << 30
    depths = 1
    for word in range(len(shared)):
        depths = max(depths, starts[word + 1] - starts[word] + 1)
    # of the letters up to a depth, with so many edits, for the first typed letters
    best = np.full((depths, most + 1, size + 1), -np.inf)
    reached = np.full(depths, -np.inf)  # best beginning found on the way
    for edits in range(min(most, size) + 1):
        best[0, edits, edits] = edit * edits
    for word in range(len(shared)):
        if shared[word] >= dead:
            continue
        dead = 1 << 30
        start, length = starts[word], starts[word + 1] - starts[word]
        for depth in range(shared[word] + 1, length + 1):
            letter, row, above = letters[start + depth - 1], best[depth], best[depth - 1]
            row[:] = -np.inf
            open_score = -np.inf
            for at in range(max(0, depth - most), min(size, depth + most) + 1):
                for edits in range(most + 1):
                    score = -np.inf
                    if at:
                        score = above[edits, at - 1] + typed[at - 1, letter]
                    if edits:
                        score = max(score, above[edits - 1, at] + edit)  # omitted
                        if at:
                            score = max(score, above[edits - 1, at - 1] + edit, row[edits - 1, at - 1] + edit)
                        if at > 1 and depth > 1:
                            before = letters[start + depth - 2]
                            swapped = typed[at - 2, letter] + typed[at - 1, before]
                            score = max(score, best[depth - 2, edits - 1, at - 2] + swapped + edit)
                    if score < least:
                        score = -np.inf
                    row[edits, at] = score
                    if at < size:
                        open_score = max(open_score, score)
            whole, edits = row[:, size].max(), row[:, size].argmax()
            reached[depth] = max(reached[depth - 1], whole)
            is_better = whole > reached[depth - 1] or (with_ties and whole == reached[depth - 1])
            if whole > -np.inf and is_better and count < len(found):
                found[count, 0], found[count, 1], found[count, 2], found[count, 3] = word, depth, size, edits
                scores[count] = whole
                count += 1
            if with_parts and depth == length:
                for at in range(1, size):
                    part, own = row[:, at].max(), row[:, at].argmax()
                    if part > -np.inf and count < len(found):
                        found[count, 0], found[count, 1], found[count, 2], found[count, 3] = (
                            word,
                            depth,
                            at,
                            own,
                        )
                        scores[count] = part
                        count += 1
            # more letters make it no more probable
            is_over = open_score < reached[depth] or (open_score == reached[depth] and not with_ties)
            if open_score == -np.inf or (is_over and not with_parts):
                dead = depth
                break
    return count
