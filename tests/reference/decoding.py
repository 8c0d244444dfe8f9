"""Slow reference implementations of decoding and of the completion search."""

import codecs
import math
import re

import numpy as np

from models.language_model import BOS, CONTROL_TOKENS, EOS, UNK

ROUNDING = 1e-6


def scores(log_probs, parameters, *, prompt=(), generated=(), banned=()):
    """Scores [V] of one row after mask, bias and penalties."""
    out = np.array(log_probs, dtype=np.float64)
    forbidden = {UNK, BOS, *banned}
    if parameters.ignore_eos or len(generated) < parameters.min_tokens:
        forbidden.add(EOS)
    out[list(forbidden)] = -np.inf
    for token, bias in parameters.logit_bias:
        out[token] += bias
    for token in {*prompt, *generated}:
        penalty = parameters.repetition_penalty
        out[token] = out[token] / penalty if out[token] > 0 else out[token] * penalty
    for token in set(generated):
        count = list(generated).count(token)
        out[token] -= parameters.presence_penalty + parameters.frequency_penalty * count
    return out


def distribution(scored, parameters):
    """Probabilities [V] of a row of scores after temperature and all truncations."""
    left = [i for i in range(len(scored)) if scored[i] > -math.inf]
    peak = max(scored[i] for i in left)
    x = {i: (scored[i] - peak) / max(parameters.temperature, 1e-30) for i in left}
    left = [i for i in left if x[i] > -87]
    if parameters.top_k is not None:
        left = sorted(sorted(left, key=lambda i: (-x[i], i))[: parameters.top_k])
    if parameters.typical_p < 1:
        p = _normalised(left, x)
        entropy = -sum(p[i] * math.log(p[i]) for i in left)
        # rounded to keep ties exact
        left = _least(left, p, parameters.typical_p, key=lambda i: round(abs(-math.log(p[i]) - entropy), 9))
    if parameters.top_p < 1:
        left = _least(left, _normalised(left, x), parameters.top_p, key=lambda i: -x[i])
    if parameters.min_p > 0:
        p = _normalised(left, x)
        left = [i for i in left if p[i] >= parameters.min_p * (1 - ROUNDING) * max(p.values())]
    out = np.zeros(len(scored))
    for i, share in _normalised(left, x).items():
        out[i] = share
    return out


def _normalised(left, x):
    total = math.fsum(math.exp(x[i]) for i in left)
    return {i: math.exp(x[i]) / total for i in left}


def _least(left, p, share, *, key):
    """Fewest tokens with the least keys that reach the share; ties go to smaller ids."""
    kept, mass = [], 0.0
    for i in sorted(left, key=lambda i: (key(i), i)):
        if mass >= share * (1 - ROUNDING):
            break
        kept.append(i)
        mass += p[i]
    return sorted(kept)


WORD = re.compile(r"\w+(?:['\u2019-]\w+)*")
DEPTH = 4
"""Maximum tokens of a text of `Branching`."""


class Pieces:
    """Minimal tokenizer with the bytes of each token."""

    lexicon = ()
    members = None

    def __init__(self, pieces):
        self.token_bytes = (b"<unk>", b"", b"", *pieces)


class Histories:
    """State that holds all previous tokens of each row [B]."""

    def __init__(self, rows):
        self.rows = list(rows)

    def __len__(self):
        return len(self.rows)

    def select(self, rows):
        return Histories(self.rows[row] for row in rows)

    def concatenate(self, others):
        return Histories([*self.rows, *(row for other in others for row in other.rows)])


class Branching:
    """Model with a distribution per history; texts end after at most `DEPTH` tokens."""

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
    """Joint probability of each phrase and the given bytes, one {text: mass} per number of words."""
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
    """Phrases of 1, 2, … words at the start of a text; none if it does not continue the typed prefix."""
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
        if not ended and rest in {"", "'", "\u2019", "-"}:  # it may continue
            break
        if not found and not case(word.group()).startswith(case(spelled.removeprefix(" "))):
            break
        found.append(text[len(space) : word.end()])
        if not rest.startswith(" "):
            break
        at = word.end() + 1
    return found
