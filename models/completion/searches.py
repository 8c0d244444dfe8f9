"""Searches for the continuations of a text, and the calls that run them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from models.arrays import TokenIds
from models.calls import Read, Step, Work, materialize, view
from models.completion.search import CompletionSearch, CompletionSettings, Reading
from models.completion.words import NextWords, WordSearch
from models.language_model import STATE
from models.prefix_cache import ContextKey, NextTokenEntry

if TYPE_CHECKING:
    from models.text_model import TextModel

Search: TypeAlias = CompletionSearch | WordSearch


def start_search(loaded: "TextModel", first: Reading, spelled: bytes, settings: CompletionSettings) -> Search:
    """Start a search after a context; it finds single words at once.

    Args:
        loaded: model.
        first: what the model read of the context; of n-grams of words, the state is
            enough.
        spelled: as for `CompletionSearch`.
        settings: limits of the search.
    """
    tokens, words = loaded.token_trie, next_words(loaded, first)
    if words is not None and settings.max_words == 1:
        return WordSearch(words, tokens, spelled, settings.limit, any_case=settings.ignore_case)
    known = Reading(view(first.states), 0, first.next if words is None else words, first.longer)
    if words is None and settings.max_words == 1:
        from models.completion.pieces import PieceSearch  # on demand: compiled code

        return PieceSearch(tokens, known, spelled, settings)
    return CompletionSearch(tokens, known, spelled, settings)


def next_words(loaded: "TextModel", first: Reading) -> NextWords | None:
    """Return the words after a context; None if tokens are no words."""
    if loaded.ngram_texts is not None and not first.next.size:
        return NextWords(*loaded.ngram_texts.after(first.states))
    return NextWords.of_row(first.next) if loaded.token_trie.whole_words else None


def run_searches(
    loaded: "TextModel", searches: Sequence[Search], context: ContextKey, entry: NextTokenEntry
) -> Work[Any, None]:
    """Run searches after a context to their ends, their next steps in one model call.

    The cache then counts what they read, also if they were cancelled.
    """
    try:
        running = [search for search in searches if isinstance(search, CompletionSearch)]
        while running:
            active = []
            for search in running:
                if (asked := search.next_step()) is not None:
                    active.append((search, *asked))
                if len(running) > 1:
                    yield None
            if not active:
                return
            first, *rest = (state for _, state, _ in active)
            tokens = np.concatenate([own for _, _, own in active])
            before = first.concatenate(rest) if rest else first
            state, rows = (yield from _read_tokens(loaded, before, tokens)) if len(tokens) else (before, [])
            begin = 0
            for search, _, own in active:
                end = begin + len(own)
                after = state.select(np.arange(begin, end))
                for at in range(begin, max(end, begin + 1), search.rows_at_once):
                    if at or not len(tokens):
                        yield None
                    search.update(after, rows[at : min(at + search.rows_at_once, end)], at - begin)
                begin = end
    finally:
        if entry.longer:
            loaded.next_token_cache.put(context, entry)


def _read_tokens(loaded: "TextModel", state: Any, tokens: TokenIds) -> Work[Any, tuple[Any, Any]]:
    """Read a token of each row; return the new state and the next tokens."""
    if loaded.ngram_texts is None:
        state, log_probs = yield from Step(loaded.model, state, tokens)
        rows: Any = np.asarray(log_probs)
        if loaded.token_trie.whole_words:
            rows = [*map(NextWords.of_row, np.array(rows))]
        return view(materialize(state)), rows
    result = yield from Read(loaded.model, state, tokens[:, None], np.ones_like(tokens), STATE)
    after = materialize(result.state)
    return view(after), [
        NextWords(*loaded.ngram_texts.after(after.select([row]))) for row in range(len(after))
    ]
