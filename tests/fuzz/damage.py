"""Damaged variants of valid files, and calls of models read from them."""

import json
import re

import numpy as np
from hypothesis import strategies as st

from models.arrays import to_numpy
from models.language_model import EOS, Want, pad_sequences, prefill_sequences, score_sequences
from models.ngram.build import list_ngrams

NASTY_NUMBERS = [
    *(b"0", b"-0", b"-1", b"1", b"2", b"255", b"256", b"0.5", b"-99", b"1e-400", b"1e999", b"-1e308", b"1e308"),
    *(b"nan", b"inf", b"-inf", b"1_0", b"0x10", b"+", b"", "\u0663".encode(), b"9" * 5000, b"0." + b"1" * 500),
    *(str(number).encode() for number in (2**31 - 1, 2**31, 2**32, 2**40, 2**63, 2**64, -(2**63))),
]  # fmt: skip
NASTY_BYTES = [
    *(b"\0", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\n", b"\r\n", b"\r", b"\t", b" ", b"\\", b'"', b"\x85"),
    *("\u2028".encode(), "\u00a0".encode(), b"\xc3", b"\xed\xa0\x80", b"[" * 990, b"{" * 3, b"a" * 70_000),
    *(number.to_bytes(8, "little", signed=True) for number in (-1, 1, 2**31, 2**40, 2**63 - 1, -(2**63))),
]  # fmt: skip
NASTY_VALUES = [
    *(None, True, False, 0, -1, 1, 2, 0.5, -0.5, 1e308, float("nan"), float("inf"), 2**31, 2**40, 2**63, 2**64),
    *(10**400, "", "x", "\ud800", "\0", "../x", "/etc/passwd", "x" * 1000, [], {}, [[]], [0] * 300, {"": 0}),
]  # fmt: skip

_NUMBER = re.compile(rb"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_FIELD = re.compile(rb"[^\s,:]+")
_places = st.integers(0, 1 << 20)


@st.composite
def damaged(draw, sources, words=()):
    """Draw a valid file with one to three edits of bytes, numbers, fields or lines.

    Args:
        draw: hypothesis' draw function.
        sources: strategy for the contents of valid files.
        words: byte strings with a meaning in the format.
    """
    content = draw(sources)
    nasty = st.sampled_from([*NASTY_BYTES, *words])
    for edit in draw(st.lists(st.sampled_from(_EDITS), min_size=1, max_size=3)):
        content = edit(draw, content, nasty)
    return content


def any_bytes():
    """Draw bytes of no format."""
    return st.binary(max_size=200)


@st.composite
def damaged_json(draw, sources, values=()):
    """Draw JSON with one or two values replaced, removed or doubled.

    Args:
        draw: hypothesis' draw function.
        sources: strategy for the parsed JSON of valid files.
        values: values with a meaning in the format.
    """
    whole = draw(sources)
    nasty = st.sampled_from([*NASTY_VALUES, *values])
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(list(_paths(whole))))
        whole = _replaced(whole, path, draw(st.sampled_from(("set", "drop", "double"))), draw(nasty))
    return json.dumps(whole, indent=draw(st.sampled_from([None, 1]))).encode()


def _paths(value, path=()):
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from _paths(value[key], (*path, key))


def _replaced(whole, path, how, new):
    if not path:
        return new if how == "set" else [whole]
    copy = dict(whole) if isinstance(whole, dict) else list(whole)
    first, rest = path[0], path[1:]
    if rest:
        copy[first] = _replaced(copy[first], rest, how, new)
    elif how == "drop":
        del copy[first]
    elif how == "double" and isinstance(copy, list):
        copy.append(copy[first])
    elif how == "double":
        copy[f"{first}x"] = copy[first]
    else:
        copy[first] = new
    return copy


def _flip(draw, content, _):
    place = draw(_places) % max(len(content), 1)
    return (
        content[:place]
        + bytes(b ^ (1 << draw(st.integers(0, 7))) for b in content[place:][:1])
        + content[place + 1 :]
    )


def _insert(draw, content, nasty):
    place = draw(_places) % (len(content) + 1)
    return content[:place] + draw(nasty) + content[place:]


def _overwrite(draw, content, nasty):
    place, new = draw(_places) % (len(content) + 1), draw(nasty)
    return content[:place] + new + content[place + len(new) :]


def _cut(draw, content, _):
    return content[: draw(_places) % (len(content) + 1)]


def _remove(draw, content, _):
    place = draw(_places) % (len(content) + 1)
    return content[:place] + content[place + draw(st.integers(1, 40)) :]


def _repeat(draw, content, _):
    place = draw(_places) % (len(content) + 1)
    return content[:place] + content[place : place + 60] * draw(st.integers(2, 3)) + content[place + 60 :]


def _change_number(draw, content, _):
    return _with_match(draw, content, _NUMBER, draw(st.sampled_from(NASTY_NUMBERS)))


def _change_field(draw, content, nasty):
    return _with_match(draw, content, _FIELD, draw(nasty))


def _swap_fields(draw, content, _):
    fields = list(_FIELD.finditer(content))
    return _with_match(draw, content, _FIELD, fields[draw(_places) % len(fields)][0] if fields else b"")


def _with_match(draw, content, pattern, new):
    found = list(pattern.finditer(content))
    if not found:
        return content + new
    one = found[draw(_places) % len(found)]
    return content[: one.start()] + new + content[one.end() :]


def _move_line(draw, content, _):
    lines = content.split(b"\n")
    line = lines.pop(draw(_places) % len(lines))
    lines.insert(draw(_places) % (len(lines) + 1), line)
    return b"\n".join(lines)


def _drop_line(draw, content, _):
    lines = content.split(b"\n")
    del lines[draw(_places) % len(lines)]
    return b"\n".join(lines)


def _double_line(draw, content, _):
    lines = content.split(b"\n")
    place = draw(_places) % len(lines)
    return b"\n".join([*lines[:place], *lines[place : place + 1] * 2, *lines[place + 1 :]])


_EDITS = [
    *(_flip, _insert, _overwrite, _cut, _remove, _repeat, _change_number, _change_field, _swap_fields),
    *(_move_line, _drop_line, _double_line, _change_number),
]


def ask_model(model, *, normalised):
    """Check that scores, states and distributions of a model are numbers and agree.

    Args:
        model: a model of any family.
        normalised: True if rows must sum to 1.
    """
    size = len(model.vocabulary)
    random = np.random.default_rng(1)
    rows = [random.integers(0, size, length).tolist() for length in (1, 4, 9)] + [[size - 1, 0, EOS]]
    tokens, lengths = pad_sequences(rows)
    start = model.initial_state(len(rows))
    scores = score_sequences(model, start, tokens, lengths)
    _check_log_probs(scores)
    state = start
    for column in range(2):
        log_probs = to_numpy(model.next_log_probs(state))
        _check_log_probs(log_probs)
        if normalised:
            sums = np.exp(log_probs.astype(np.float64)).sum(axis=1)
            assert np.abs(sums - 1).max() < 1e-3, f"rows sum to {sums}"
        inside = column < lengths
        told = log_probs[np.arange(len(rows)), tokens[:, column]]
        np.testing.assert_allclose(scores[inside, column], told[inside], rtol=1e-3, atol=1e-3)
        state = model.advance(state, np.where(inside, tokens[:, column], EOS))


def ask_ngram(model):
    """Check the methods that only n-gram models have, as well."""
    ask_model(model, normalised=False)  # a file may list any numbers
    size, rows = len(model.vocabulary), 6
    tokens = np.random.default_rng(2).integers(0, size, (rows, 5))
    lengths = np.full(rows, 5)
    states = prefill_sequences(model, model.empty_state(rows), tokens, lengths)
    detailed = model.score_detailed(states, tokens, lengths)
    _check_log_probs(detailed.log_probs)
    assert (detailed.orders >= 1).all()
    assert (detailed.orders <= model.order).all()
    before = model.read(states, tokens, lengths, Want(before=True)).before
    assert (model.context_lengths(before) < model.order).all()
    log_probs = model.next_log_probs(states)
    for k in (1, size):
        top = model.top_k(states, k)
        np.testing.assert_array_equal(top.log_probs, -np.sort(-log_probs, axis=1)[:, :k])
        np.testing.assert_array_equal(np.take_along_axis(log_probs, top.ids, axis=1), top.log_probs)
    assert sum(len(ngrams.words) for ngrams, _ in list_ngrams(model.automaton)) == model.automaton.num_arcs


def _check_log_probs(log_probs):
    assert not np.isnan(log_probs).any(), "a probability is not a number"
    assert (log_probs < np.inf).all(), "a probability is infinite"
