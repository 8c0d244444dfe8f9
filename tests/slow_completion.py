"""What a text goes on as, by adding up every text there is: the oracle of the search for completions."""

import codecs
import re

import numpy as np

from models.vocabulary import BOS, CONTROL_TOKENS, EOS, UNK

WORD = re.compile(r"\w+(?:['\u2019-]\w+)*")
DEPTH = 4
"""Tokens of the longest text of `Branching`."""


class Pieces:
    """As much of a tokenizer as spelling takes."""

    def __init__(self, pieces):
        self.token_bytes = (b"<unk>", b"", b"", *pieces)


class Histories:
    """A state that is all tokens so far [B]."""

    def __init__(self, rows):
        self.rows = list(rows)

    def __len__(self):
        return len(self.rows)

    def select(self, rows):
        return Histories(self.rows[row] for row in rows)

    def concatenate(self, others):
        return Histories([*self.rows, *(row for other in others for row in other.rows)])


class Branching:
    """Every history has a distribution of its own; texts end after `DEPTH` tokens at the latest."""

    def __init__(self, size, seed):
        rows = np.random.default_rng(seed).dirichlet(np.full(size, 0.4), size=101) + 1e-4
        rows[:, BOS] = 0
        self.rows = rows / rows.sum(axis=1, keepdims=True)
        self.last = np.eye(size)[EOS]

    def initial_state(self, batch):
        return Histories([()] * batch)

    def advance(self, state, tokens):
        return Histories((*row, token) for row, token in zip(state.rows, tokens.tolist(), strict=True))

    def next_log_probs(self, state):
        with np.errstate(divide="ignore"):
            return np.log(np.array([self.after(row) for row in state.rows], dtype=np.float32))

    def after(self, history):
        return self.last if len(history) == DEPTH else self.rows[hash(history) % 101]


def masses(model, token_bytes, spelled, *, max_words=1, ignore_case=False):
    """How probable each phrase is, by number of words, jointly with the bytes given: {text: mass} each."""
    found = [{} for _ in range(max_words)]

    def add(history, mass):
        texts = phrases(history, token_bytes, spelled.decode(), max_words, ignore_case)
        for length, text in enumerate(texts):
            found[length][text] = found[length].get(text, 0.0) + mass

    def go_on(history, mass):
        row = model.after(history)
        for token in np.flatnonzero(row):
            longer = (*history, int(token))
            if token in {EOS, UNK}:
                add(longer, mass * row[token])
            else:
                go_on(longer, mass * row[token])

    go_on((), 1.0)
    return found


def phrases(history, token_bytes, spelled, max_words, ignore_case):
    """The phrases of 1, 2, … words that a text begins with; none if it does not go on as was typed."""
    raw = b"".join(token_bytes[token] for token in history if token >= len(CONTROL_TOKENS))
    ended = history[-1] == EOS
    text, _ = codecs.utf_8_decode(raw, "replace", ended)
    case = str.casefold if ignore_case else str
    space = spelled[: len(spelled) - len(spelled.removeprefix(" "))]
    if not text.startswith(space):
        return []
    at, found = len(space), []
    while len(found) < max_words and (word := WORD.match(text, at)):
        rest = text[word.end() :]
        if not ended and rest in {"", "'", "\u2019", "-"}:  # it may go on
            break
        if not found and not case(word.group()).startswith(case(spelled.removeprefix(" "))):
            break
        found.append(text[len(space) : word.end()])
        if not rest.startswith(" "):
            break
        at = word.end() + 1
    return found
