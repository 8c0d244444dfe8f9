"""The simulated typist: he types held-out lines letter by letter and looks at the completions before each."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from models.completion.found import SearchResult
from models.completion.search import CompletionSearch, CompletionSettings
from models.completion.spelled import TokenTrie
from models.completion.typed import split_prefix
from models.protocol import LanguageModel
from models.scoring import pad_sequences, prefill_sequences
from models.tokenizers import Tokenizer
from models.vocabulary import BOS, EOS
from training.evaluating.completing.contexts import TypingContexts
from training.evaluating.completing.looks import CompletionRank, TypedLine, TypingLine, WordSpan
from training.evaluating.completing.searching import run_searches
from training.evaluating.completing.words import UNKNOWN_MARK
from training.progress import Progress

MAX_COMPLETIONS = 10
"""Completions in the list that ranks are read off."""
_SETTINGS = CompletionSettings(
    limit=MAX_COMPLETIONS + 1
)  # one more, as the mark of unknown words is not shown

_BATCH_LINES = 32
"""Typed side by side, so that the model is asked for many rows at a time."""


class Typist:
    """Looks at a model's completions of the texts of several lines.

    Args:
        model: any family that reads forward.
        tokenizer: the one that belongs to it.
        carries_state: whether a line goes on where the one before it ended, as `stream` does in
            `training.evaluating.scoring`; else each starts afresh.
    """

    def __init__(
        self, model: LanguageModel[Any], tokenizer: Tokenizer, *, carries_state: bool = False
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._tokens = TokenTrie(tokenizer)
        self._carries_state = carries_state

    def type_lines(self, lines: Sequence[TypingLine], *, progress: Progress) -> list[TypedLine]:
        """Type all words of all lines.

        Args:
            lines: to type.
            progress: told of words.
        """
        progress.start(f"typing with the {self._model.family}", sum(len(line.words) for line in lines))
        if self._carries_state:
            typed = [
                self._type_batch([line], start, progress)[0]
                for line, start in zip(lines, self.starts(lines), strict=True)
            ]
        else:
            typed = self._by_length(lines, progress)
        progress.finish()
        return typed

    def starts(self, lines: Sequence[TypingLine]) -> Iterator[Any]:
        """The state that each line begins after, one row."""
        state = self._model.initial_state(1)
        for line in lines:
            yield state
            if self._carries_state:
                tokens, lengths = pad_sequences([[*self._tokenizer.encode(line.text), EOS, BOS]])
                state = prefill_sequences(self._model, state, tokens, lengths)

    def type_line(self, line: TypingLine, start: Any) -> Iterator[CompletionRank]:
        """Type one line, a look at a time: what a look costs here, a key costs a service that answers one request."""
        contexts = TypingContexts(self._model, start, 1)
        for word in line.words:
            for letters in range(word.num_letters):
                yield from self._rank_completions(contexts, {0: (line, word)}, letters)

    def _by_length(self, lines: Sequence[TypingLine], progress: Progress) -> list[TypedLine]:
        """Type lines of about as many words side by side; told in the order given."""
        order = sorted(range(len(lines)), key=lambda number: len(lines[number].words))
        start = self._model.initial_state(1)
        typed: dict[int, TypedLine] = {}
        for begin in range(0, len(order), _BATCH_LINES):
            numbers = order[begin : begin + _BATCH_LINES]
            seen = self._type_batch([lines[number] for number in numbers], start, progress)
            typed.update(zip(numbers, seen, strict=True))
        return [typed[number] for number in range(len(lines))]

    def _type_batch(self, lines: Sequence[TypingLine], start: Any, progress: Progress) -> list[TypedLine]:
        """Type the first words of all lines, then the second ones, …."""
        contexts = TypingContexts(self._model, start, len(lines))
        seen: list[list[tuple[CompletionRank, ...]]] = [[] for _ in lines]
        for place in range(max((len(line.words) for line in lines), default=0)):
            typing = {n: (line, line.words[place]) for n, line in enumerate(lines) if len(line.words) > place}
            for number, looks in self._type_words(contexts, typing).items():
                seen[number].append(tuple(looks))
            progress.advance(len(typing))
        return [TypedLine(line, tuple(looks)) for line, looks in zip(lines, seen, strict=True)]

    def _type_words(
        self, contexts: TypingContexts, typing: Mapping[int, tuple[TypingLine, WordSpan]]
    ) -> dict[int, list[CompletionRank]]:
        """Type a word a line, by the line's number, all letter by letter."""
        seen: dict[int, list[CompletionRank]] = {number: [] for number in typing}
        letters = 0
        while typing:
            for number, look in zip(typing, self._rank_completions(contexts, typing, letters), strict=True):
                seen[number].append(look)
            letters += 1
            typing = {number: own for number, own in typing.items() if letters < own[1].num_letters}
        return seen

    def _rank_completions(
        self, contexts: TypingContexts, typing: Mapping[int, tuple[TypingLine, WordSpan]], letters: int
    ) -> list[CompletionRank]:
        """Look at the completions after so many letters of a word a line."""
        cuts = {
            number: split_prefix(self._tokenizer, line.text[: word.begin + letters])
            for number, (line, word) in typing.items()
        }
        contexts.read({number: self._tokenizer.encode(typed.context) for number, typed in cuts.items()})
        searches = []
        for number, typed in cuts.items():
            search = CompletionSearch(self._tokens, typed.spelled, _SETTINGS)
            search.update(contexts.state(number), contexts.log_probs(number))
            searches.append(search)
        run_searches(self._model, searches)
        return [
            _completion_rank(search.result(), "" if typed.space else line.text[typed.start : word.end])
            for search, typed, (line, word) in zip(searches, cuts.values(), typing.values(), strict=True)
        ]


def _completion_rank(found: SearchResult, wanted: str) -> CompletionRank:
    """Where the word that is wanted stands among what was found; "" where a space that is not wanted comes with any."""
    shown = [one for one in found.completions if one.is_complete and one.text != UNKNOWN_MARK][
        :MAX_COMPLETIONS
    ]
    rank = next((place for place, one in enumerate(shown, start=1) if one.text == wanted), 0)
    return CompletionRank(rank, shown[0].mass / found.live_mass if shown else 0.0)
