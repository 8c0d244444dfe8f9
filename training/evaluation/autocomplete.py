"""Simulated typist, who types held-out lines letter by letter with a model's completions, and metrics with intervals.

`gramophone evaluate --task autocomplete` evaluates one model, or compares two on the same lines. The searches of
several lines run as one batch.

Keystroke savings = 1 − keys pressed / keys without completions (Trnka and McCoy 2008; Trnka et al.
2009) of the text as it is written, by one rule for all tokenizers. Every code point is a key, and so is a
line's end. The typist reads the list before each character except a space. A completion is right if it
spells the next characters, in their case, up to a word's end. It is selected as soon as it saves a key, the
furthest-reaching first, by one key that also writes a space, as in `autocomplete.js`: closing punctuation
replaces the space, any other character takes a key to delete it. Everything else is typed; no key is wrong.

Word savings are for comparison: completions must equal the model's own words, in any case if it lower-cases;
the key also ends the line, and writes only wanted spaces; `<unk>` marks are not typed. The metrics below
are about these words, too.

Recall: the share of words in the list. MRR: the mean of 1 / rank, 0 beyond the tenth; before the first
letter, and over all positions before a letter. Recoverable length: the number of a word's last letters
that need not be typed, back to the last position where the list lacks the word (Kim 2019). A phrase of
n words matches if the most probable word, the most probable word after it, … are the next n words of
the text (ExactMatch of Chen et al. 2019, greedy). Acceptance: a service that shows its first completion
only above a probability shows it at a share of positions (coverage) and is correct at a share of the
shown positions (precision).

Intervals are percentile intervals of a bootstrap over lines (Efron and Tibshirani 1993, chapter 13).
The words of a line are dependent, so entire lines are resampled. Every metric is a ratio of two sums over
lines; two models are compared on the same lines, resample by resample.
"""

import math
import re
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from models.arrays import AnyArray, Bools, Float64s, FloatArray, Int64s, to_numpy
from models.calls import run_calls
from models.checkpoint.load import Checkpoint
from models.checkpoint.manifest import version_address
from models.completion.prefix import PrefixSplit, split_prefix
from models.completion.search import CompletionSearch, CompletionSettings, SearchResult, run_searches
from models.completion.token_trie import TokenTrie
from models.errors import InvalidInputError
from models.language_model import LanguageModel, pad_sequences, prefill_sequences
from models.tokenizers import Tokenizer, WordTokenizer
from models.vocabulary import BOS, EOS, UNK
from models.words import is_word_character, word_pattern
from training.evaluation.evaluate import Context
from training.progress import Progress

_SEED = 1
_RESAMPLES = 1_000
_PERCENTILES = (2.5, 97.5)


class Ratio(NamedTuple):
    """Metric as a ratio of two sums over lines.

    Attributes:
        numerator: numerator of each line [L].
        denominator: denominator of each line [L].
    """

    numerator: Float64s
    denominator: Float64s


def bootstrap_counts(num_lines: int) -> Float64s:
    """Draw bootstrap resamples with a fixed seed: counts of each line [1000, L]."""
    random = np.random.default_rng(_SEED)
    counts = random.multinomial(num_lines, np.full(num_lines, 1 / num_lines), size=_RESAMPLES)
    return counts.astype(np.float64)


def bootstrap_interval(
    ratio: Ratio, draws: Float64s, *, less: Ratio | None = None
) -> dict[str, float | None]:
    """Compute a figure, `value`, with the ends of its 95 % interval, `low` and `high`.

    All are None if the denominator is 0.

    Args:
        ratio: the figure of L lines.
        draws: `bootstrap_counts` of L lines.
        less: another model's figure on the same lines, to subtract.
    """
    value, resampled = _value(ratio), _resampled_values(ratio, draws)
    if less is not None:
        value, resampled = value - _value(less), resampled - _resampled_values(less, draws)
    known = resampled[np.isfinite(resampled)]
    if not math.isfinite(value) or not len(known):
        return {"value": None, "low": None, "high": None}
    low, high = np.percentile(known, _PERCENTILES)
    return {"value": value, "low": float(low), "high": float(high)}


def _value(ratio: Ratio) -> float:
    denominator = float(ratio.denominator.sum())
    return float(ratio.numerator.sum()) / denominator if denominator else math.nan


def _resampled_values(ratio: Ratio, draws: Float64s) -> Float64s:
    """Return the figure of each draw; NaN if the denominator is 0."""
    denominators = draws @ ratio.denominator
    values: Float64s = np.divide(
        draws @ ratio.numerator, denominators, out=np.full(len(draws), np.nan), where=denominators > 0
    )
    return values


class WordSpan(NamedTuple):
    """A word of a line.

    Attributes:
        begin: start offset in the line, in code points.
        end: end offset in the line.
        spaced: True if a space or the line's end follows, which a completion includes.
        joined: True if a single space separates it from the previous word.
    """

    begin: int
    end: int
    spaced: bool
    joined: bool


class TypingLine(NamedTuple):
    """A line to type.

    Attributes:
        text: the line.
        spelled: the line as the model's own words spell it: lower-cased if the tokenizer lower-cases.
        num_keys: keys without completions: one per code point, and one for the line's end; without `<unk>` marks.
        words: the model's own words, in order.
    """

    text: str
    spelled: str
    num_keys: int
    words: tuple[WordSpan, ...]


LIST_LENGTHS = (1, 3)
"""Numbers of completions shown to the typist."""


class CompletionRank(NamedTuple):
    """Completion list before one keystroke.

    Attributes:
        rank: rank of the model's own word in the list of completions, from 1; 0 if it is not listed.
        probability: probability of the first completion; 0 without completions.
        ends: for a list of each of `LIST_LENGTHS`, the furthest offset in the line to which a right completion
            spells the text; 0 if none is right.
    """

    rank: int
    probability: float
    ends: tuple[int, ...] = (0,) * len(LIST_LENGTHS)


_NO_EXTRA_KEY = frozenset(("", " ", *".,;:!?)]}"))
"""Characters after a completion that take no key to delete its space; punctuation replaces it in `autocomplete.js`."""


class TypedLine(NamedTuple):
    """A typed line with its completion ranks.

    Attributes:
        line: the line.
        ranks: completion lists before each character except spaces, by offset.
    """

    line: TypingLine
    ranks: Mapping[int, CompletionRank]

    @property
    def completion_ranks(self) -> list[list[CompletionRank]]:
        """Ranks of each word after 0, 1, 2, … letters, until one letter is left."""
        spans = [range(word.begin, word.end) for word in self.line.words]
        return [[self.ranks.get(offset, CompletionRank(0, 0.0)) for offset in span] for span in spans]

    def keys_pressed(self, number: int) -> int:
        """Count the keys for the line and its end, with a list of `LIST_LENGTHS[number]` completions."""
        text, keys, offset = self.line.text, 1, 0
        while offset < len(text):
            end = self.ranks[offset].ends[number] if offset in self.ranks else 0
            following = text[end : end + 1]
            cost = 1 if following in _NO_EXTRA_KEY else 2
            reached = end + (following == " ")
            keys, offset = (keys + cost, reached) if reached - offset > cost else (keys + 1, offset + 1)
        return keys


MAX_PHRASE_WORDS = 5
"""Number of words of the longest compared phrase."""
COVERAGES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)
_MAX_LETTERS = 10


class Ranks(NamedTuple):
    """The words of typed lines as arrays.

    Attributes:
        table: ranks after 0, 1, 2, … letters [N, K]; 0 where a word is not listed, -1 past its last letter.
        letters: number of letters of each word [N].
        spaced: True if a space or the line's end follows [N].
        joined: True if a single space separates the word from the previous word of the line [N].
        lines: line index of each word [N].
        num_keys: `TypingLine.num_keys` of each line [L].
        keys: keys for each line without completions, and with a list of each of `LIST_LENGTHS` [L, 3].
    """

    table: Int64s
    letters: Int64s
    spaced: Bools
    joined: Bools
    lines: Int64s
    num_keys: Float64s
    keys: Float64s

    @classmethod
    def of(cls, typed: list[TypedLine]) -> "Ranks":
        """Collect the words of all lines."""
        numbers = range(len(LIST_LENGTHS))
        words = np.array([word for line in typed for word in line.line.words], np.int64).reshape(-1, 4)
        begins, ends, spaced, joined = words.T
        letters = ends - begins
        table = np.full((len(words), letters.max(initial=0)), -1, dtype=np.int64)
        word_ranks = (ranks for line in typed for ranks in line.completion_ranks)
        for row, ranks in enumerate(word_ranks):
            table[row, : len(ranks)] = [rank.rank for rank in ranks]
        return cls(
            table=table,
            letters=letters,
            spaced=spaced.astype(np.bool_),
            joined=joined.astype(np.bool_),
            lines=np.repeat(np.arange(len(typed)), [len(line.line.words) for line in typed]),
            num_keys=np.array([line.line.num_keys for line in typed], dtype=np.float64),
            keys=np.array(
                [[len(one.line.text) + 1, *map(one.keys_pressed, numbers)] for one in typed], float
            ),
        )

    def by_line(self, values: AnyArray) -> Float64s:
        """Sum a value per word [N] over each line's words [L]."""
        return np.bincount(self.lines, values, minlength=len(self.num_keys)).astype(np.float64)

    def shown(self, length: int) -> Bools:
        """Return True for words among the first `length` completions, before each letter [N, K]."""
        return (self.table > 0) & (self.table <= length)


def ratios(ranks: Ranks) -> dict[str, Ratio]:
    """Return all figures with an interval, by name."""
    words = ranks.by_line(np.ones(len(ranks.letters)))
    first = ranks.table[:, 0]
    figures: dict[str, Ratio] = {}
    keys, *pressed = ranks.keys.T
    for length, with_list in zip(LIST_LENGTHS, pressed, strict=True):
        figures[f"keystroke_savings_top_{length}"] = Ratio(keys - with_list, keys)
    for length in LIST_LENGTHS:
        figures[f"word_savings_top_{length}"] = Ratio(
            ranks.by_line(saved_keys(ranks, length)), ranks.num_keys
        )
    for length in LIST_LENGTHS:
        figures[f"next_word_recall_top_{length}"] = Ratio(
            ranks.by_line((first > 0) & (first <= length)), words
        )
    figures["next_word_mrr"] = Ratio(ranks.by_line(_reciprocal_ranks(first)), words)
    reciprocal = _reciprocal_ranks(ranks.table).sum(axis=1)
    figures["mrr"] = Ratio(ranks.by_line(reciprocal), ranks.by_line(ranks.letters))
    for length in LIST_LENGTHS:
        recovered = ranks.by_line(recoverable_letters(ranks, length))
        figures[f"mean_recoverable_length_top_{length}"] = Ratio(recovered, words)
    for count, (matches, phrases) in enumerate(_phrase_matches(ranks), start=1):
        figures[f"phrase_match_{count}"] = Ratio(ranks.by_line(matches), ranks.by_line(phrases))
    return figures


def saved_keys(ranks: Ranks, length: int) -> Int64s:
    """Return the number of keys that a list of `length` completions saves at each word, for word savings [N]."""
    shown = ranks.shown(length)
    typed = np.where(shown.any(axis=1), shown.argmax(axis=1), ranks.letters)
    return np.maximum(ranks.letters - typed + ranks.spaced - 1, 0)


def recoverable_letters(ranks: Ranks, length: int) -> Int64s:
    """Return the number of trailing letters of each word at which the list always contains it [N]."""
    missing = ~ranks.shown(length) & (ranks.table >= 0)
    columns = np.arange(ranks.table.shape[1])
    last = np.where(missing, columns, -1).max(axis=1, initial=-1)
    recoverable: Int64s = ranks.letters - 1 - last
    return recoverable


def recall_by_letters(ranks: Ranks) -> list[dict[str, Any]]:
    """Return recall after 0, 1, 2, … letters, over the words that have more letters."""
    rows: list[dict[str, Any]] = []
    for letters in range(min(_MAX_LETTERS + 1, ranks.table.shape[1])):
        longer = ranks.table[:, letters] >= 0
        recalls = {f"top_{n}": float(ranks.shown(n)[longer, letters].mean()) for n in LIST_LENGTHS}
        rows.append({"letters": letters, "words": int(longer.sum()), **recalls})
    return rows


def acceptance(typed: list[TypedLine], *, first_only: bool) -> list[dict[str, float]]:
    """Compute the precision of first completions shown above a probability threshold, a row per coverage.

    Args:
        typed: the lines.
        first_only: count only positions before a word's first letter; else before every letter.

    Returns:
        Coverage, threshold (lowest probability shown), mean probability shown, and precision, which equals the
        mean probability for a calibrated model.
    """
    last = 1 if first_only else None
    ranks = [rank for line in typed for word_ranks in line.completion_ranks for rank in word_ranks[:last]]
    ranks.sort(key=lambda rank: -rank.probability)
    right = np.cumsum([rank.rank == 1 for rank in ranks])
    sums = np.cumsum([rank.probability for rank in ranks])
    counts = {coverage: max(1, round(coverage * len(ranks))) for coverage in COVERAGES if ranks}
    return [
        {
            "coverage": coverage,
            "threshold": ranks[count - 1].probability,
            "mean_probability": float(sums[count - 1]) / count,
            "precision": float(right[count - 1]) / count,
        }
        for coverage, count in counts.items()
    ]


def _phrase_matches(ranks: Ranks) -> Sequence[tuple[Bools, Bools]]:
    """Return, for n = 1, 2, …, masks of the words where n greedy words match, and where n words exist [N]."""
    is_first = ranks.table[:, 0] == 1
    matches, phrases = is_first, np.ones_like(is_first)
    rows = [(matches, phrases)]
    for count in range(2, MAX_PHRASE_WORDS + 1):
        begins = max(len(is_first) - count + 1, 0)
        exists, right = np.zeros((2, len(is_first)), dtype=np.bool_)
        exists[:begins] = phrases[:begins] & ranks.joined[count - 1 :]
        right[:begins] = matches[:begins] & is_first[count - 1 :] & exists[:begins]
        matches, phrases = right, exists
        rows.append((matches, phrases))
    return rows


def _reciprocal_ranks(table: Int64s) -> Float64s:
    """Return 1 / rank; 0 where a word is not listed."""
    return np.divide(1.0, table, out=np.zeros(table.shape), where=table > 0)


class TypingContexts:
    """Model states of several texts, and the next-token distribution of each.

    Args:
        model: model of any family.
        start: initial state of each text, one row.
        batch: number of texts.
    """

    def __init__(self, model: LanguageModel[Any], start: Any, batch: int) -> None:
        self._model = model
        self._start = start
        self._ids: list[Sequence[int] | None] = [None] * batch
        self._state: Any = start.select(np.zeros(batch, dtype=np.int64))
        self._log_probs: list[FloatArray] = [np.zeros((1, 0), dtype=np.float32)] * batch

    def read(self, wanted: Mapping[int, Sequence[int]]) -> None:
        """Advance texts, by index, to the given ids; only new ids are computed.

        A text is read again if its ids do not extend the earlier ids because its last word is tokenised differently.
        """
        changed = [index for index, ids in wanted.items() if ids != self._ids[index]]
        if not changed:
            return
        new_ids, rows = [], []
        for index in changed:
            known, ids = self._ids[index] or [], wanted[index]
            is_extension = ids[: len(known)] == known
            new_ids.append(ids[len(known) :] if is_extension else ids)
            rows.append(index if is_extension else len(self._ids))
        state = self._state.concatenate([self._start]).select(np.array(rows))
        tokens, lengths = pad_sequences(new_ids)
        if tokens.shape[1]:
            state = prefill_sequences(self._model, state, tokens, lengths)
        kept = np.arange(len(self._ids))
        kept[changed] = len(kept) + np.arange(len(changed))
        self._state = self._state.concatenate([state]).select(kept)
        log_probs = to_numpy(self._model.next_log_probs(state))
        for row, index in enumerate(changed):
            self._ids[index] = wanted[index]
            self._log_probs[index] = log_probs[row : row + 1]

    def state(self, number: int) -> Any:
        """Return the state of one text, one row."""
        return self._state.select(np.array([number]))

    def log_probs(self, number: int) -> FloatArray:
        """Return natural-log probabilities of one text's next token [1, V]."""
        return self._log_probs[number]


UNKNOWN_MARK = "<unk>"
"""Placeholder for rare words in some corpora; it is never offered, and no word of a model."""

_MARK = re.compile(rf"(?<!\S){UNKNOWN_MARK}(?!\S)")
_NOT_SPACE = re.compile(r"\S+")


def typing_line(tokenizer: Tokenizer, text: str) -> TypingLine:
    """Split a line into the model's own words.

    They are the words of a word tokenizer, else runs of word characters; `<unk>` marks are none. The line has the
    tokenizer's Unicode form.
    """
    text = tokenizer.normaliser.compose(text)
    read = tokenizer.normaliser(text)
    spelled = read if len(read) == len(text) else text
    if isinstance(tokenizer, WordTokenizer):
        spans = tokenizer.split.spans(spelled)
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
    return TypingLine(text, spelled, num_keys, tuple(words))


def sample_lines(texts: Sequence[str], words: int, *, consecutive: bool = False) -> list[str]:
    """Sample lines until they have `words` white-space words, without `<unk>` marks.

    Args:
        texts: all lines.
        words: minimum number of words.
        consecutive: take the first lines instead of random lines (fixed seed, in the text's order).
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
"""Length of the completion list that ranks refer to."""
_SETTINGS = CompletionSettings(limit=MAX_COMPLETIONS + 1)  # one more, because `<unk>` is not shown

_BATCH_LINES = 32
"""Number of lines typed in parallel, which gives model calls many rows."""


class Typist:
    """Simulated typist that ranks the wanted words in a model's completions, for several lines.

    Args:
        model: model of any family that reads forward.
        tokenizer: tokenizer of the model.
        carries_state: continue each line from the state after the previous line, like `stream` in
            `training.evaluation.evaluate`; else each line starts from the initial state.
    """

    def __init__(
        self, model: LanguageModel[Any], tokenizer: Tokenizer, *, carries_state: bool = False
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._tokens = TokenTrie(tokenizer)
        self._carries_state = carries_state

    def type_lines(self, lines: Sequence[TypingLine], *, progress: Progress) -> list[TypedLine]:
        """Type all characters of all lines.

        Args:
            lines: lines to type.
            progress: counts words.
        """
        progress.start(f"typing with the {self._model.family}", sum(len(line.words) for line in lines))
        order, size = list(range(len(lines))), 1
        if not self._carries_state:  # lines of similar numbers of words are typed together
            order.sort(key=lambda number: len(lines[number].words))
            size = _BATCH_LINES
        typed: dict[int, TypedLine] = {}
        for begin, start in zip(range(0, len(order), size), self.starts(lines), strict=False):
            numbers = order[begin : begin + size]
            batch = self._type_batch([lines[number] for number in numbers], start)
            typed.update(zip(numbers, batch, strict=True))
            progress.advance(sum(len(lines[number].words) for number in numbers))
        progress.finish()
        return [typed[number] for number in range(len(lines))]

    def starts(self, lines: Sequence[TypingLine]) -> Iterator[Any]:
        """Yield the initial state of each line, one row."""
        state = self._model.initial_state(1)
        for line in lines:
            yield state
            if self._carries_state:
                tokens, lengths = pad_sequences([[*self._tokenizer.encode(line.text), EOS, BOS]])
                state = prefill_sequences(self._model, state, tokens, lengths)

    def type_line(self, line: TypingLine, start: Any) -> Iterator[CompletionRank]:
        """Type one line; yield the rank at each keystroke, computed as for a single service request."""
        contexts = TypingContexts(self._model, start, 1)
        for offset, character in enumerate(line.text):
            if not character.isspace():
                yield from self._rank_completions(contexts, {0: (line, offset)}).values()

    def _type_batch(self, lines: Sequence[TypingLine], start: Any) -> list[TypedLine]:
        """Type the first white-space words of all lines, then the second ones, and so on."""
        contexts = TypingContexts(self._model, start, len(lines))
        ranks: list[dict[int, CompletionRank]] = [{} for _ in lines]  # by offset
        runs = [[range(*match.span()) for match in _NOT_SPACE.finditer(line.text)] for line in lines]
        for turn in zip_longest(*runs, fillvalue=()):
            for offsets in zip_longest(*turn):
                places = {n: (lines[n], offset) for n, offset in enumerate(offsets) if offset is not None}
                for index, rank in self._rank_completions(contexts, places).items():
                    ranks[index][offsets[index]] = rank
        return list(map(TypedLine, lines, ranks))

    def _rank_completions(
        self, contexts: TypingContexts, places: Mapping[int, tuple[TypingLine, int]]
    ) -> dict[int, CompletionRank]:
        """Rank the completions at one place of each line, by index; a place is a line and an offset."""
        cuts = {n: split_prefix(self._tokenizer, line.text[:offset]) for n, (line, offset) in places.items()}
        contexts.read({number: self._tokenizer.encode(typed.context) for number, typed in cuts.items()})
        searches = []
        for number, typed in cuts.items():
            search = CompletionSearch(self._tokens, typed.spelled, _SETTINGS)
            search.update(contexts.state(number), contexts.log_probs(number))
            searches.append(search)
        run_calls(run_searches(self._model, searches))
        return {
            number: _completion_rank(search.result(), cuts[number], *place)
            for search, (number, place) in zip(searches, places.items(), strict=True)
        }


def _completion_rank(result: SearchResult, cut: PrefixSplit, line: TypingLine, offset: int) -> CompletionRank:
    """Rank the model's own word, and find the right completions; none if all begin with an unwanted space."""
    shown = [c for c in result.completions if c.is_complete and c.text != UNKNOWN_MARK][:MAX_COMPLETIONS]
    probability = shown[0].mass / result.live_mass if shown else 0.0
    if cut.space:
        return CompletionRank(0, probability)
    number = bisect_right(line.words, offset, key=attrgetter("begin")) - 1
    wanted = line.spelled[cut.start : line.words[number].end] if number >= 0 else ""
    rank = next((rank for rank, c in enumerate(shown, start=1) if c.text == wanted), 0)
    ends = [cut.start + len(c.text) if line.text.startswith(c.text, cut.start) else 0 for c in shown]
    ends = [0 if is_word_character(line.text[end : end + 1] or " ") else end for end in ends]
    return CompletionRank(rank, probability, tuple(max(ends[:n], default=0) for n in LIST_LENGTHS))


DEFAULT_WORDS = 2_000
"""Minimum number of words typed: measures keystroke savings to about one percentage point."""

_TIMED_KEYSTROKES = 400
_WARMUP_KEYSTROKES = 20  # caches are cold at first


def autocomplete_figures(
    checkpoint: Checkpoint,
    texts: Sequence[str],
    *,
    words: int,
    context: Context = "sentence",
    against: Checkpoint | None = None,
    progress: Progress,
) -> dict[str, Any]:
    """Measure keystroke savings and other metrics of a model's completions on held-out lines, by name.

    Args:
        checkpoint: the model.
        texts: held-out lines.
        words: minimum number of words to type; fewer if the text has fewer.
        context: `sentence` types random lines, each from its start; `stream`, the first lines as one text.
        against: second model for the same lines; its tokenizer may differ.
        progress: counts words.

    Raises:
        InvalidInputError: a model reads backward, there is no word to type, or the context is `document`.
    """
    if context == "document":
        raise InvalidInputError(
            "--context is 'document', but lines are typed one by one; it must be 'sentence' or 'stream'",
            parameter="context",
        )
    for model in (checkpoint, against):
        if model is not None and model.manifest.direction == "backward":
            raise InvalidInputError(
                "--task autocomplete requires a model that reads left to right; this one reads right to left",
                parameter="task",
            )
    carries_state = context == "stream"
    sampled_lines = sample_lines(texts, words, consecutive=carries_state)
    draws = bootstrap_counts(len(sampled_lines))
    facts, own = _model_figures(checkpoint, sampled_lines, draws, progress, carries_state=carries_state)
    figures = {"model": facts["model"], "task": "autocomplete", "context": context, **facts}
    if against is not None:
        facts, other = _model_figures(against, sampled_lines, draws, progress, carries_state=carries_state)
        figures["against"] = {
            **facts,
            "difference": {
                name: bootstrap_interval(ratio, draws, less=other[name]) for name, ratio in own.items()
            },
        }
    return figures


def _model_figures(
    checkpoint: Checkpoint, texts: Sequence[str], draws: Float64s, progress: Progress, *, carries_state: bool
) -> tuple[dict[str, Any], dict[str, Ratio]]:
    """Return a model's figures as JSON values, and its figures with intervals as ratios."""
    lines = [typing_line(checkpoint.tokenizer, text) for text in texts]
    spelled = [line.text[word.begin : word.end] for line in lines for word in line.words]
    if not spelled:
        raise InvalidInputError("the text has no word to type", parameter="corpus")
    typist = Typist(checkpoint.model, checkpoint.tokenizer, carries_state=carries_state)
    typed = typist.type_lines(lines, progress=progress)
    ranks = Ranks.of(typed)
    figures = ratios(ranks)
    keys, *pressed = map(int, ranks.keys.sum(axis=0))
    unknown = sum(UNK in ids for ids in checkpoint.tokenizer.encode_all(spelled))
    facts = {
        "model": version_address(checkpoint.path),
        "precision": checkpoint.precision,
        "lines": len(lines),
        "words": len(spelled),
        "unknown_words": unknown,
        "keys": keys,
        "keys_pressed": {f"top_{n}": count for n, count in zip(LIST_LENGTHS, pressed, strict=True)},
        "recall_by_letters": recall_by_letters(ranks),
        "acceptance": {
            "next_word": acceptance(typed, first_only=True),
            "any_letter": acceptance(typed, first_only=False),
        },
        "keystroke_ms": _keystroke_ms(typist, lines, progress),
        "figures": {name: bootstrap_interval(ratio, draws) for name, ratio in figures.items()},
    }
    return facts, figures


def _keystroke_ms(typist: Typist, lines: Sequence[TypingLine], progress: Progress) -> dict[str, Any]:
    """Measure wall-clock time per keystroke in this process, one text at a time: percentiles in ms.

    As in the service, the state and the distribution before a word are reused while the word is typed.
    """

    def seconds() -> Iterator[float]:
        for line, start in zip(lines, typist.starts(lines), strict=True):
            keystrokes = typist.type_line(line, start)
            began = time.perf_counter()
            for _ in keystrokes:
                yield time.perf_counter() - began
                began = time.perf_counter()

    progress.start("timing keystrokes", _TIMED_KEYSTROKES)
    times_s = list(islice(seconds(), _WARMUP_KEYSTROKES + _TIMED_KEYSTROKES))
    measured_s = times_s[_WARMUP_KEYSTROKES:] or times_s
    progress.advance(len(measured_s))
    progress.finish()
    p50, p99 = (1e3 * float(np.percentile(measured_s, q)) for q in (50, 99))
    return {"p50": p50, "p99": p99, "keystrokes": len(measured_s)}
