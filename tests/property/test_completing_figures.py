"""What holds of figures whatever was seen."""

from hypothesis import given
from hypothesis import strategies as st

from training.evaluation.autocomplete_metrics import (
    CompletionRank,
    Ranks,
    TypedLine,
    TypingLine,
    WordSpan,
    ratios,
    recall_by_letters,
    recoverable_letters,
    saved_keys,
)


@st.composite
def typed_lines(draw):
    """Lines whose words were anywhere in the list before each letter."""
    lines = []
    for _ in range(draw(st.integers(1, 4))):
        words, looks = [], []
        for _ in range(draw(st.integers(1, 5))):
            ranks = draw(st.lists(st.integers(0, 10), min_size=1, max_size=7))
            words.append(
                WordSpan(0, len(ranks), draw(st.booleans()), joined=bool(words) and draw(st.booleans()))
            )
            looks.append(tuple(CompletionRank(rank, 0.5) for rank in ranks))
        num_keys = sum(word.num_letters + 1 for word in words)
        lines.append(TypedLine(TypingLine("", num_keys, tuple(words)), tuple(looks)))
    return lines


@given(typed_lines())
def test_longer_lists_spare_and_find_no_less(lines):
    ranks = Ranks.of(lines)
    for length in range(1, 10):
        assert (saved_keys(ranks, length + 1) >= saved_keys(ranks, length)).all()
        assert (recoverable_letters(ranks, length + 1) >= recoverable_letters(ranks, length)).all()
    assert all(row["top_3"] >= row["top_1"] for row in recall_by_letters(ranks))


@given(typed_lines())
def test_figures_are_shares_and_longer_phrases_match_no_more(lines):
    told = ratios(Ranks.of(lines))
    for name, ratio in told.items():
        assert (ratio.numerator >= 0).all()
        assert "length" in name or (ratio.numerator <= ratio.denominator).all()
    matches = [told[f"phrase_match_{n}"].numerator.sum() for n in range(1, 6)]
    assert matches == sorted(matches, reverse=True)
    assert told["next_word_mrr"].numerator.sum() >= told["next_word_recall_top_1"].numerator.sum()
