"""Hypotheses with their errors shown."""

import pytest

from service.local.tune_report import mark_errors


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the cat sat", "the cat sat"),
        ("the bat sat", "the <mark>bat</mark> sat"),
        ("the cat", "the cat <s>sat</s>"),
        ("the cat sat down", "the cat sat <mark>down</mark>"),
        ("", "<s>the</s> <s>cat</s> <s>sat</s>"),
    ],
)
def test_errors_are_shown_by_their_kind(text, shown):
    assert mark_errors(text, "the cat sat") == shown


def test_texts_cannot_become_markup():
    assert mark_errors("<b>&", "<i>") == "<mark>&lt;b&gt;&amp;</mark>"
