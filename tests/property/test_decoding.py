"""Decoding, over all texts and distributions."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from models.decoding.processors import keep_top_k, keep_top_p
from models.decoding.ranking import top_tokens
from models.decoding.stopping import StopStrings

pieces = st.lists(st.text(alphabet="ab", max_size=4), max_size=12)
stops = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3)
logits = arrays(
    np.float32,
    array_shapes(min_dims=2, max_dims=2, max_side=12),
    elements=st.floats(-30, 0, width=32) | st.just(-np.inf),
).filter(lambda a: np.isfinite(a).any(axis=1).all())


def through(stop, parts):
    filtered = StopStrings(stop)
    released = [filtered.push(part) for part in parts]
    return "".join(released) + ("" if filtered.stopped else filtered.flush()), filtered.stopped


@given(pieces, stops)
@settings(max_examples=300)
def test_text_in_pieces_stops_where_the_whole_would(parts, stop):
    """The text let through ends before the first stop string that has arrived, however it was cut."""
    text, stopped = through(stop, parts)
    whole = "".join(parts)
    assert whole.startswith(text)
    assert not any(s in text for s in stop)
    assert stopped == any(s in whole for s in stop)
    assert stopped or text == whole


@given(pieces, stops)
def test_only_the_beginning_of_a_stop_string_is_held_back(parts, stop):
    filtered, pushed, released = StopStrings(stop), "", ""
    for part in parts:
        pushed += part
        released += filtered.push(part)
        if filtered.stopped:
            return
        held = pushed.removeprefix(released)
        assert not held or any(s.startswith(held) and s != held for s in stop)


@given(logits, st.integers(1, 12))
def test_top_k_keeps_k_of_the_largest(log_probs, k):
    k = min(k, log_probs.shape[1])
    out = keep_top_k(log_probs, k)
    for before, after in zip(log_probs, out, strict=True):
        kept = np.isfinite(after)
        assert kept.sum() == min(k, np.isfinite(before).sum())
        assert before[kept].min() >= np.where(kept, -np.inf, before).max()


@given(logits, st.floats(0.01, 0.99))
def test_top_p_is_the_smallest_set_that_reaches_p(log_probs, p):
    out = keep_top_p(log_probs, p)
    for before, after in zip(log_probs, out, strict=True):
        mass = np.exp(before.astype(np.float64) - before.max())
        kept = np.isfinite(after)
        share = mass[kept].sum() / mass.sum()
        assert share >= p - 1e-9
        assert share - mass[kept].min() / mass.sum() < p + 1e-9  # without its least token it falls short


@given(logits.filter(lambda a: a.shape[1] > 1), st.integers(1, 12))
def test_top_tokens_are_the_head_of_the_sorted_row(log_probs, k):
    row = log_probs[0]
    k = min(k, len(row))
    expected = sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]
    assert top_tokens(row, k).ids.tolist() == expected
