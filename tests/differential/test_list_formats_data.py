"""The public n-best lists through the formats: the figures that their own page gives, and nothing lost on the way."""

from dataclasses import replace

import pytest

from models.reranking.formats.format import collapse_whitespace
from models.reranking.formats.reader import read_bytes, read_lists
from models.reranking.formats.summary import summarise_lists
from models.reranking.formats.writer import format_lists

pytestmark = pytest.mark.data


@pytest.mark.parametrize(
    ("file", "lists", "first", "oracle"),
    [("common-voice.json", 2000, 15.44, 11.32), ("librispeech-clean.json", 2620, 1.79, 0.89)],
)
def test_hyporadises_error_rates(data_dir, file, lists, first, oracle):
    figures = summarise_lists(read_lists(data_dir / "nbest" / file)).figures()
    assert (figures["lists"], figures["lists_with_references"], figures["duplicates"]) == (lists, lists, 0)
    assert round(figures["first_wer"], 2) == first
    assert round(figures["oracle_wer"], 2) == oracle


def test_translations_go_through_moses_and_jsonl(data_dir):
    lists = list(read_lists(data_dir / "nbest" / "mt-de-en.jsonl.xz"))
    assert [len(one.candidates) for one in lists] == [9] * 1984
    assert list(read_bytes("".join(format_lists(lists, "jsonl")).encode(), "jsonl")) == lists
    moses = read_bytes("".join(format_lists(lists, "moses")).encode(), "moses")
    spaced_once = [[replace(c, text=collapse_whitespace(c.text)) for c in one.candidates] for one in lists]
    assert [list(one.candidates) for one in moses] == spaced_once
