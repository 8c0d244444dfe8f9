"""Simulated typist: types held-out lines letter by letter with the service's ranked completions.

Completions are ranked before each character but spaces, in the case and form typed,
and as the settings say with corrections of the typed prefix and with the words of
the lines typed before. Calls of several lines are answered together. `gramophone
evaluate --task autocomplete` evaluates one model, or compares two on the same
lines.
"""

import re
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from operator import attrgetter
from typing import Any

import numpy as np

from models.arrays import Float64s, FloatArray, to_numpy
from models.calls import run_together
from models.checkpoint.load import Checkpoint
from models.checkpoint.manifest import version_address
from models.checkpoint.precision import to_int8
from models.completion.history import CompletionHistory
from models.completion.prefix import split_prefix
from models.completion.ranked import RankedCompletion, Ranking, RankingSettings
from models.completion.ranking import rank_completions
from models.completion.user_model import UserModel, UserModelLimits, split_word_sequences
from models.errors import InputError
from models.language_model import BOS, EOS, UNK, LanguageModel, pad_sequences, prefill_sequences
from models.prefix_cache import NextTokenEntry
from models.scoring.model_weights import WeightedModel
from models.text_model import Limits, TextModel
from models.tokenizers import Tokenizer, WordTokenizer
from models.words import is_word_character, word_pattern
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
    bootstrap_interval,
    list_names,
    ratios,
    recall_by_letters,
)
from training.evaluation.evaluate import Context
from training.progress import Progress

UNKNOWN_MARK = "<unk>"
"""Placeholder for rare words in some corpora; never offered, and no word of a model."""

_MARK = re.compile(rf"(?<!\S){UNKNOWN_MARK}(?!\S)")
_NOT_SPACE = re.compile(r"\S+")

_SEED = 1

_BATCH_LINES = 32
"""Lines typed in parallel, so model calls have many rows."""

_NO_LIMITS = Limits(max_texts=1, max_tokens_per_sequence=sys.maxsize, max_new_tokens=1)
DEFAULTS = RankingSettings()
"""Settings of a request that sets none."""

DEFAULT_WORDS = 2_000
"""Minimum typed words: measures keystroke savings to about a percentage point."""

_COST_WORDS = 200
"""Minimum typed words of `typing_cost`; its keystroke savings are rough."""

_TIMED_KEYSTROKES = 400
_WARMUP_KEYSTROKES = 20  # caches are cold at first


class TypingContexts:
    """Model states and next-token distributions of several texts.

    Args:
        model: model of any family.
        start: initial state of each text, one row.
        batch: number of texts.

    Attributes:
        shown: of each text, what the lists of each of `LIST_LENGTHS` have shown.
    """

    def __init__(self, model: LanguageModel[Any], start: Any, batch: int) -> None:
        self._model = model
        self._start = start
        self._ids: list[Sequence[int] | None] = [None] * batch
        self._state: Any = start.select(np.zeros(batch, np.int64))
        self._log_probs: list[FloatArray] = [np.zeros((1, 0), np.float32)] * batch
        self.shown = [[CompletionHistory() for _ in LIST_LENGTHS] for _ in range(batch)]

    def read(self, wanted: Mapping[int, Sequence[int]]) -> None:
        """Advance texts, by index, to the given ids; only new ids are computed.

        A text is read again if its ids do not extend the earlier ones, as its last
        word is tokenised differently.
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


def typing_line(tokenizer: Tokenizer, text: str) -> TypingLine:
    """Split a line into the model's own words.

    These are the words of a word tokenizer, else runs of word characters, not
    `<unk>` marks. The line has the tokenizer's Unicode form.
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
        consecutive: take the first lines, not random ones (fixed seed, in the
            text's order).
    """
    order = (
        range(len(texts)) if consecutive else np.random.default_rng(_SEED).permutation(len(texts)).tolist()
    )
    chosen, count = list[int](), 0
    for number in order:
        if count >= words:
            break
        chosen.append(number)
        count += sum(word != UNKNOWN_MARK for word in texts[number].split())
    return [texts[number] for number in sorted(chosen)]


class Typist:
    """Simulated typist of several lines that ranks wanted words in a model's completions.

    Args:
        loaded: model that reads forward.
        settings: limits and order of the completions.
        carries_state: continue each line from the state after the previous one,
            like `stream` in `training.evaluation.evaluate`; else start from the
            initial state.
        learns: offer the words of earlier lines as a user's words; recent ones
            weigh more.
        no_repeats: also rank lists that show a completion once within a word.
    """

    def __init__(
        self,
        loaded: TextModel,
        settings: RankingSettings = DEFAULTS,
        *,
        carries_state: bool = False,
        learns: bool = False,
        no_repeats: bool = False,
    ) -> None:
        self._loaded, self._settings = loaded, settings
        self._model, self._tokenizer = loaded.model, loaded.tokenizer
        self._carries_state, self._no_repeats = carries_state, no_repeats
        self._user = UserModel() if learns else None
        self._types_together = not (carries_state or learns)

    def type_lines(self, lines: Sequence[TypingLine], *, progress: Progress) -> list[TypedLine]:
        """Type all characters of all lines; the progress counts words."""
        order, size = list(range(len(lines))), 1
        if self._types_together:  # lines of similar numbers of words
            order.sort(key=lambda number: len(lines[number].words))
            size = _BATCH_LINES
        typed: dict[int, TypedLine] = {}
        with progress.stage(f"typing with the {self._model.family}", sum(len(line.words) for line in lines)):
            for begin, start in zip(range(0, len(order), size), self.starts(lines), strict=False):
                numbers = order[begin : begin + size]
                batch = self._type_batch([lines[number] for number in numbers], start)
                typed.update(zip(numbers, batch, strict=True))
                if self._user is not None:
                    words = split_word_sequences(lines[begin].text, "")
                    self._user = self._user.updated(words, UserModelLimits())
                progress.advance(sum(len(lines[number].words) for number in numbers))
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
        """Type one line; yield the rank at each keystroke, computed as for one service request."""
        contexts = TypingContexts(self._model, start, 1)
        for offset, character in enumerate(line.text):
            if not character.isspace():
                yield from self._rank_completions(contexts, {0: (line, offset)}).values()

    def _type_batch(self, lines: Sequence[TypingLine], start: Any) -> list[TypedLine]:
        """Type the first white-space words of all lines, then the second ones, …."""
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
        """Rank completions at one place of each line, by index; a place is a line and an offset."""
        texts = {n: line.text[:offset] for n, (line, offset) in places.items()}
        read = {n: split_prefix(self._tokenizer, text).context for n, text in texts.items()}
        ids = {n: self._tokenizer.encode(context) for n, context in read.items()}
        contexts.read(ids)
        none: Sequence[CompletionHistory] = ()
        histories = {n: contexts.shown[n] if self._no_repeats else none for n in texts}
        rankings = run_together(
            [
                rank_completions(
                    [WeightedModel(self._loaded)],
                    text,
                    self._settings,
                    _NO_LIMITS,
                    user=self._user,
                    cached=NextTokenEntry(len(ids[n]), contexts.state(n), contexts.log_probs(n)),
                    shown=shown,
                )
                for n, text in texts.items()
                for shown in (None, *histories[n])
            ]
        )
        ranks, remaining = {}, iter(rankings)
        for n, (line, offset) in places.items():
            ranking = next(remaining)
            once = list(islice(remaining, len(histories[n])))
            ranks[n] = _completion_rank(ranking, once, self._tokenizer.normaliser, line, offset)
            for history, other, length in zip(histories[n], once, LIST_LENGTHS, strict=False):
                history.add(texts[n], other.typed.start, [c.text for c in _complete(other)[:length]])
        return ranks


def _complete(ranking: Ranking) -> list[RankedCompletion]:
    return [c for c in ranking.completions if c.is_complete]


def _completion_rank(
    ranking: Ranking, once: Sequence[Ranking], read: Callable[[str], str], line: TypingLine, offset: int
) -> CompletionRank:
    """Rank the model's own word, and find right completions; none if all begin with an unwanted space.

    `once` has a ranking without repeats for each list, if any; `read` gives a text
    in the model's form.
    """
    shown = _complete(ranking)
    probability = shown[0].probability if shown else 0.0
    start = ranking.typed.start
    if ranking.typed.space:
        return CompletionRank(0, probability, (0,) * (len(LIST_LENGTHS) + len(once)))
    number = bisect_right(line.words, offset, key=attrgetter("begin")) - 1
    wanted = line.spelled[start : line.words[number].end] if number >= 0 else ""
    rank = next((rank for rank, c in enumerate(shown, start=1) if wanted in {c.text, read(c.text)}), 0)
    ends = [_right_ends(_complete(one), one.typed.start, line, offset) for one in (ranking, *once)]
    lists = [*((ends[0], n) for n in LIST_LENGTHS), *zip(ends[1:], LIST_LENGTHS, strict=False)]
    return CompletionRank(rank, probability, tuple(max(own[:n], default=0) for own, n in lists))


def _right_ends(shown: Sequence[RankedCompletion], start: int, line: TypingLine, offset: int) -> list[int]:
    """Return the offsets to which right completions spell a line; 0 for wrong ones."""
    begins = [offset - len(c.begun) if c.begun else start for c in shown]
    ends = [
        begin + len(c.text) if line.text.startswith(c.text, begin) else 0
        for begin, c in zip(begins, shown, strict=True)
    ]
    return [0 if is_word_character(line.text[end : end + 1] or " ") else end for end in ends]


def autocomplete_figures(
    models: Sequence[Checkpoint],
    texts: Sequence[str],
    settings: RankingSettings,
    *,
    words: int,
    context: Context,
    learns: bool,
    no_repeats: bool = False,
    progress: Progress,
) -> dict[str, Any]:
    """Measure keystroke savings and other metrics of completions on held-out lines, by name.

    Args:
        models: the model, and optionally a second one for the same lines; its
            tokenizer may differ.
        texts: held-out lines.
        settings: limits and order of the completions.
        words: minimum words to type; fewer if the text has fewer.
        context: `sentence` types random lines, each from its start; `stream`, the
            first lines as one text.
        learns: offer the words of earlier lines as a user's words.
        no_repeats: also measure lists that show a completion once within a word.
        progress: counts words.

    Raises:
        InputError: a model reads backward, there is no word to type, or the context
            is `document`.
    """
    if context == "document":
        raise InputError(
            "--context is 'document', but lines are typed one by one; it must be 'sentence' or 'stream'",
            param="context",
        )
    if any(model.manifest.direction == "backward" for model in models):
        raise InputError(
            "--task autocomplete requires a model that reads left to right; this one reads right to left",
            param="task",
        )
    carries_state = context == "stream"
    sampled_lines = sample_lines(texts, words, consecutive=carries_state)
    draws = bootstrap_counts(len(sampled_lines))
    options = {"carries_state": carries_state, "learns": learns, "no_repeats": no_repeats}
    (facts, own), *others = [
        _model_figures(model, sampled_lines, draws, progress, settings, **options) for model in models
    ]
    casing = "ignore" if settings.ignore_case else "exact"
    ranked = {"casing": casing, "fuzzy": settings.fuzzy, "learn": learns}
    figures = {"model": facts["model"], "task": "autocomplete", "context": context, **ranked, **facts}
    for other_facts, other in others:
        gaps = {name: bootstrap_interval(ratio, draws, less=other[name]) for name, ratio in own.items()}
        figures["against"] = {**other_facts, "difference": gaps}
    return figures


def _model_figures(
    checkpoint: Checkpoint,
    texts: Sequence[str],
    draws: Float64s,
    progress: Progress,
    settings: RankingSettings,
    **options: bool,
) -> tuple[dict[str, Any], dict[str, Ratio]]:
    """Return a model's figures as JSON values, and those with intervals as ratios."""
    lines = [typing_line(checkpoint.tokenizer, text) for text in texts]
    spelled = [line.text[word.begin : word.end] for line in lines for word in line.words]
    if not spelled:
        raise InputError("the text has no word to type", param="corpus")
    loaded = TextModel(version_address(checkpoint.path), checkpoint.model, checkpoint.tokenizer)
    typed = Typist(loaded, settings, **options).type_lines(lines, progress=progress)
    timed = {**options, "no_repeats": False}
    figures = ratios(ranks := Ranks.of(typed))
    keys, *pressed = map(int, ranks.keys.sum(axis=0))
    facts = {
        "model": loaded.address,
        "precision": checkpoint.precision,
        "lines": len(lines),
        "words": len(spelled),
        "unknown_words": sum(UNK in ids for ids in checkpoint.tokenizer.encode_all(spelled)),
        "keys": keys,
        "keys_pressed": dict(zip(list_names(pressed), pressed, strict=True)),
        "recall_by_letters": recall_by_letters(ranks),
        "acceptance": {
            "next_word": acceptance(typed, first_only=True),
            "any_letter": acceptance(typed, first_only=False),
        },
        "keystroke_ms": _keystroke_ms(Typist(loaded, settings, **timed), lines, progress),
        "figures": {name: bootstrap_interval(ratio, draws) for name, ratio in figures.items()},
    }
    return facts, figures


def typing_cost(
    model: LanguageModel[Any], tokenizer: Tokenizer, texts: Sequence[str], *, progress: Progress
) -> dict[str, Any]:
    """Measure what a keystroke costs, and the keys that three completions save.

    Networks are in int8 if possible. Without words to type, the result is empty.
    """
    lines = [typing_line(tokenizer, text) for text in sample_lines(texts, _COST_WORDS)]
    if not any(line.words for line in lines):
        return {}
    typist = Typist(TextModel("", to_int8(model), tokenizer))
    typed = typist.type_lines(lines, progress=progress)
    keys, *_, pressed = map(int, Ranks.of(typed).keys.sum(axis=0))
    # timed last, as the first use of a kernel may compile it
    timed = _keystroke_ms(typist, lines, progress)
    return {
        "core_ms_per_key": timed["core"],
        "timed_keys": timed["keystrokes"],
        "words": sum(len(line.words) for line in lines),
        "keystroke_savings_top_3": 1 - pressed / keys,
    }


def _keystroke_ms(typist: Typist, lines: Sequence[TypingLine], progress: Progress) -> dict[str, Any]:
    """Measure ms per keystroke in this process, one text at a time: percentiles, mean of a core.

    As in the service, state and distribution before a word are reused while it is
    typed.
    """

    def seconds() -> Iterator[tuple[float, float]]:
        for line, start in zip(lines, typist.starts(lines), strict=True):
            keystrokes = typist.type_line(line, start)
            began, core = time.perf_counter(), time.process_time()
            for _ in keystrokes:
                yield time.perf_counter() - began, time.process_time() - core
                began, core = time.perf_counter(), time.process_time()

    with progress.stage("timing keystrokes", _TIMED_KEYSTROKES):
        times_s = list(islice(seconds(), _WARMUP_KEYSTROKES + _TIMED_KEYSTROKES))
        measured_s = times_s[_WARMUP_KEYSTROKES:] or times_s
        progress.advance(len(measured_s))
    elapsed_ms, core_ms = 1e3 * np.array(measured_s).T
    p50, p99 = (float(np.percentile(elapsed_ms, q)) for q in (50, 99))
    return {"p50": p50, "p99": p99, "core": float(core_ms.mean()), "keystrokes": len(measured_s)}
