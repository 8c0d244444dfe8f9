"""Simulated typist: types held-out lines letter by letter with a model's completions.

The completion list is computed before each letter. The searches of several lines run as one batch;
`gramophone evaluate --task autocomplete` compares one model, or two over the same lines.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from models.arrays import FloatArray, to_numpy
from models.checking.sentences import word_pattern
from models.checkpoint.load import Checkpoint
from models.completion.prefix import split_prefix
from models.completion.search import CompletionSearch, CompletionSettings, SearchResult, next_step_batch
from models.completion.token_trie import TokenTrie
from models.errors import InvalidInputError
from models.language_model import LanguageModel, pad_sequences, prefill_sequences
from models.tokenizers import Tokenizer, WordTokenizer
from models.vocabulary import BOS, EOS, UNK
from training.evaluation.autocomplete_metrics import (
    LIST_LENGTHS,
    CompletionRank,
    Ranks,
    Ratio,
    TypedLine,
    TypingLine,
    WordSpan,
    acceptance,
    bootstrap_counts,
    bootstrap_difference,
    bootstrap_interval,
    ratios,
    recall_by_letters,
    saved_keys,
)
from training.evaluation.evaluate import Context
from training.progress import Progress


class TypingContexts:
    """A state a text, and the distribution over the token that follows it.

    Args:
        model: any family.
        start: the state that each text begins after, one row.
        batch: the number of texts.
    """

    def __init__(self, model: LanguageModel[Any], start: Any, batch: int) -> None:
        self._model = model
        self._start = start
        self._ids: list[Sequence[int] | None] = [None] * batch
        self._state: Any = start.select(np.zeros(batch, dtype=np.int64))
        self._log_probs: list[FloatArray] = [np.zeros((1, 0), dtype=np.float32)] * batch

    def read(self, wanted: Mapping[int, Sequence[int]]) -> None:
        """Make texts stand at given ids, by number; what they have in common with where they stood is not read again.

        A text that does not go on from there, as its last word is tokenised otherwise now, is read from its beginning.
        """
        moved = [number for number, ids in wanted.items() if ids != self._ids[number]]
        if not moved:
            return
        rests, rows = [], []
        for number in moved:
            known, ids = self._ids[number] or [], wanted[number]
            goes_on = ids[: len(known)] == known
            rests.append(ids[len(known) :] if goes_on else ids)
            rows.append(number if goes_on else len(self._ids))
        state = self._state.concatenate([self._start]).select(np.array(rows))
        tokens, lengths = pad_sequences(rests)
        if tokens.shape[1]:
            state = prefill_sequences(self._model, state, tokens, lengths)
        self._keep(moved, state)
        log_probs = to_numpy(self._model.next_log_probs(state))
        for place, number in enumerate(moved):
            self._ids[number] = wanted[number]
            self._log_probs[number] = log_probs[place : place + 1]

    def state(self, number: int) -> Any:
        """The state of one text, one row."""
        return self._state.select(np.array([number]))

    def log_probs(self, number: int) -> FloatArray:
        """Natural-log probabilities of what follows one text [1, V]."""
        return self._log_probs[number]

    def _keep(self, moved: Sequence[int], state: Any) -> None:
        places = np.arange(len(self._ids))
        places[moved] = len(places) + np.arange(len(moved))
        self._state = self._state.concatenate([state]).select(places)


def run_searches(model: LanguageModel[Any], searches: Sequence[CompletionSearch]) -> None:
    """Answer what searches ask, until none asks any more.

    Args:
        model: any family.
        searches: each has been told of the context that it starts from.
    """
    while (asked := next_step_batch(searches)) is not None:
        state = model.advance(asked.state, asked.tokens)
        asked.update(state, to_numpy(model.next_log_probs(state)))


UNKNOWN_MARK = "<unk>"
"""What stands for rare words in some corpora: nobody types it, and it is no completion."""

_MARK = re.compile(rf"(?<!\S){UNKNOWN_MARK}(?!\S)")
_NOT_SPACE = re.compile(r"\S+")
_SEED = 1


def typing_line(tokenizer: Tokenizer, text: str) -> TypingLine:
    """A line as a model's typist types it.

    A word is what the tokenizer calls one, or a run of word characters if it has no words. For a tokenizer
    that lower-cases, the line is lower-cased: case does not count. Marks of unknown words are not typed.
    """
    if isinstance(tokenizer, WordTokenizer):
        text = text.lower() if tokenizer.lowercase else text
        pattern = _NOT_SPACE if tokenizer.pattern is None else re.compile(tokenizer.pattern)
        spans = [match.span() for match in pattern.finditer(text) if match.group()]
    else:
        spans = [match.span() for match in word_pattern().finditer(text)]
    marks = [match.span() for match in _MARK.finditer(text)]
    words: list[WordSpan] = []
    for begin, end in spans:
        if any(first <= begin < last for first, last in marks):
            continue
        joined = bool(words) and begin == words[-1].end + 1 and text[begin - 1] == " "
        words.append(WordSpan(begin, end, spaced=text[end : end + 1] in {"", " "}, joined=joined))
    num_keys = len(text) + 1 - sum(last - first + 1 for first, last in marks)
    return TypingLine(text, num_keys, tuple(words))


def sample_lines(texts: Sequence[str], words: int, *, consecutive: bool = False) -> list[str]:
    """Lines until they have so many words between white space, marks of unknown ones aside.

    Args:
        texts: all lines.
        words: how many words are enough.
        consecutive: take the first lines; else lines at random, always the same, in the text's order.
    """
    order = (
        range(len(texts)) if consecutive else np.random.default_rng(_SEED).permutation(len(texts)).tolist()
    )
    chosen: list[int] = []
    count = 0
    for number in order:
        if count >= words:
            break
        chosen.append(number)
        count += sum(word != UNKNOWN_MARK for word in texts[number].split())
    return [texts[number] for number in sorted(chosen)]


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
            `training.evaluation.evaluate`; else each starts afresh.
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


DEFAULT_WORDS = 2_000
"""Typed, at least: keystroke savings are then known to about one point of a hundred."""

_TIMED_KEYSTROKES = 400
_WARMUP_KEYSTROKES = 20  # the first ones find cold caches


class _ModelFigures(NamedTuple):
    """What one model's typist told: figures with intervals to come, and the rest as JSON can carry it."""

    ratios: dict[str, Ratio]
    facts: dict[str, Any]


def autocomplete_figures(
    checkpoint: Checkpoint,
    texts: Sequence[str],
    *,
    words: int,
    context: Context = "sentence",
    against: Checkpoint | None = None,
    progress: Progress,
) -> dict[str, Any]:
    """How much typing a model's completions spare on held-out lines, by name; see `figures` for what is counted.

    Args:
        checkpoint: the model.
        texts: lines.
        words: typed at least; fewer if the text has fewer.
        context: `sentence`: lines drawn at random, each from its start; `stream`: the first lines, as one text.
        against: a second model, of any tokenizer, for the same lines.
        progress: told of words.

    Raises:
        InvalidInputError: a model reads backward, or there is no word to type, or the context is another.
    """
    if context == "document":
        raise InvalidInputError(
            "--context is 'document', but lines are typed one by one: it can be 'sentence' or 'stream'",
            parameter="context",
        )
    for one in (checkpoint, against):
        if one is not None and one.manifest.direction == "backward":
            raise InvalidInputError(
                "--task autocomplete needs a model that reads left to right, this one reads right to left",
                parameter="task",
            )
    carries_state = context == "stream"
    drawn = sample_lines(texts, words, consecutive=carries_state)
    outcome = _model_figures(checkpoint, drawn, progress, carries_state=carries_state)
    draws = bootstrap_counts(len(drawn))
    told = {
        "context": context,
        **outcome.facts,
        "figures": {
            name: bootstrap_interval(ratio, draws)._asdict() for name, ratio in outcome.ratios.items()
        },
    }
    if against is not None:
        other = _model_figures(against, drawn, progress, carries_state=carries_state)
        told["against"] = {
            **other.facts,
            "figures": {
                name: bootstrap_interval(ratio, draws)._asdict() for name, ratio in other.ratios.items()
            },
            "difference": {
                name: bootstrap_difference(ratio, other.ratios[name], draws)._asdict()
                for name, ratio in outcome.ratios.items()
            },
        }
    return told


def _model_figures(
    checkpoint: Checkpoint, texts: Sequence[str], progress: Progress, *, carries_state: bool
) -> _ModelFigures:
    lines = [typing_line(checkpoint.tokenizer, text) for text in texts]
    spelled = [line.text[word.begin : word.end] for line in lines for word in line.words]
    if not spelled:
        raise InvalidInputError("the text has no word to type", parameter="corpus")
    typist = Typist(checkpoint.model, checkpoint.tokenizer, carries_state=carries_state)
    typed = typist.type_lines(lines, progress=progress)
    ranks = Ranks.of(typed)
    unknown = sum(UNK in ids for ids in checkpoint.tokenizer.encode_all(spelled))
    num_keys = int(ranks.num_keys.sum())
    facts = {
        "precision": checkpoint.precision,
        "lines": len(lines),
        "words": len(spelled),
        "unknown_words": unknown,
        "keys": num_keys,
        "keys_pressed": {f"top_{n}": num_keys - int(saved_keys(ranks, n).sum()) for n in LIST_LENGTHS},
        "recall_by_letters": recall_by_letters(ranks),
        "acceptance": {
            "next_word": acceptance(typed, first_only=True),
            "any_letter": acceptance(typed, first_only=False),
        },
        "keystroke_ms": _keystroke_ms(typist, lines, progress),
    }
    return _ModelFigures(ratios(ranks), facts)


def _keystroke_ms(typist: Typist, lines: Sequence[TypingLine], progress: Progress) -> dict[str, Any]:
    """What one key costs in this process, one text at a time: percentiles of wall-clock time in ms.

    The state before a word and its distribution are kept while the word is typed, as the service keeps them.
    """
    progress.start("timing keystrokes", _TIMED_KEYSTROKES)
    times_s = list(islice(_time_keystrokes(typist, lines), _WARMUP_KEYSTROKES + _TIMED_KEYSTROKES))
    told = times_s[_WARMUP_KEYSTROKES:] or times_s
    progress.advance(len(told))
    progress.finish()
    p50, p99 = (1e3 * float(np.percentile(told, q)) for q in (50, 99))
    return {"p50": p50, "p99": p99, "keystrokes": len(told)}


def _time_keystrokes(typist: Typist, lines: Sequence[TypingLine]) -> Iterator[float]:
    """Seconds that each look of each line took."""
    for line, start in zip(lines, typist.starts(lines), strict=True):
        looks = typist.type_line(line, start)
        began = time.perf_counter()
        for _ in looks:
            yield time.perf_counter() - began
            began = time.perf_counter()
