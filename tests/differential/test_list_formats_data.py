"""The public n-best lists through the formats: the figures that their own page gives, and nothing lost on the way."""

from dataclasses import replace

import pytest

from models.reranking.formats import read_bytes, read_lists, to_text
from models.reranking.formats.fields import one_line
from models.reranking.formats.summary import summarise

pytestmark = pytest.mark.data


@pytest.mark.parametrize(
    ("file", "lists", "first", "oracle"),
    [("common-voice.json", 2000, 15.44, 11.32), ("librispeech-clean.json", 2620, 1.79, 0.89)],
)
def test_hyporadises_error_rates(data_dir, file, lists, first, oracle):
    figures = summarise(read_lists(data_dir / "nbest" / file)).figures()
    assert (figures["lists"], figures["lists_with_references"], figures["duplicates"]) == (lists, lists, 0)
    assert round(figures["first_wer"], 2) == first
    assert round(figures["oracle_wer"], 2) == oracle


def test_translations_go_through_moses_and_jsonl(data_dir):
    lists = list(read_lists(data_dir / "nbest" / "mt-de-en.jsonl.xz"))
    assert [len(one.candidates) for one in lists] == [9] * 1984
    assert list(read_bytes("".join(to_text(lists, "jsonl")).encode(), "jsonl")) == lists
    moses = read_bytes("".join(to_text(lists, "moses")).encode(), "moses")
    spaced_once = [[replace(c, text=one_line(c.text)) for c in one.candidates] for one in lists]
    assert [list(one.candidates) for one in moses] == spaced_once
