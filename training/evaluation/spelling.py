"""Evaluation of spelling correction: errors injected into held-out text are detected.

Kinds of errors:

real_word   a word becomes another word one edit away, sampled by frequency: their, there
non_word    one or two random edits make a non-word: four in five have one (Damerau 1964)
space       a word is split, or joined with the next word
misspelling a word, known or not, becomes one of its misspellings in a list

Every line is corrupted and checked per kind. Precision, recall and F0.5 use a threshold
chosen on every other line and applied to the rest, for the checker and two baselines: the
surprisal of a word given the text before it, and the checker without the text after a word.
"""

import hashlib
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from math import inf, log
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from models.arrays import Bools, Float64s
from models.calls import run_to_completion
from models.checking.checker import Checker, find_issues
from models.checking.error_model import (
    Calibration,
    CalibrationPoint,
    CalibrationStore,
    CandidateSettings,
    CheckSettings,
    ErrorTable,
    ErrorTableStore,
)
from models.checking.lexicon import FuzzyLexicon
from models.checking.sentences import Sentence, Word, one_edit_strings
from models.checkpoint.load import Checkpoint, load_checkpoint
from models.checkpoint.registry import Address, open_registry
from models.errors import FormatError, InputError, UnsupportedError
from models.tokenizers import WordTokenizer
from models.words import is_alphabetic
from training.corpus import read_corpus, read_lines
from training.evaluation.breakdown import training_counts
from training.progress import Progress, console_progress
from training.texts import read_default_corpus

Kind = Literal["real_word", "non_word", "space"]
KINDS: tuple[Kind, ...] = ("real_word", "non_word", "space")

_TWO_EDITS_SHARE = 0.2
_MIN_LETTERS = 2

Misspellings: TypeAlias = Mapping[str, Sequence[str]]
"""Misspellings by correct word."""

WordReplacement: TypeAlias = tuple[str, int]
"""Replacement text and number of words replaced."""

_BETA_SQUARED = 0.25
"""β² of F0.5, which weights precision twice as much as recall to avoid false alarms (Ng et al. 2014)."""

_MIN_PROBABILITY = 1e-4
"""Minimum probability of an issue."""

_Detection: TypeAlias = tuple[int, int, float, str]
"""Start and end in the text, score and first suggestion."""

_LEFT_ONLY = CandidateSettings(right_tokens=0)

ERROR_RATE = 0.05
"""Share of the eligible words to corrupt."""

DEFAULT_CHECK_WORDS = 5_000
"""Words to check per kind of error."""

_BATCH_LINES = 32
_MIN_LINES = 2

THRESHOLDS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
"""Thresholds for reports and calibration of precision and recall."""


def read_misspellings(path: Path, digest: "hashlib._Hash | None" = None) -> Misspellings:
    """Read misspellings: on each line, wrong and right word with a tab or `->` between.

    After `->`, several right words and a comment may follow, each after a comma, as in codespell's format.

    `digest` is updated with the file's bytes.

    Raises:
        FormatError: the file cannot be read, or a line has another format.
    """
    misspellings = defaultdict[str, list[str]](list)
    for number, line in enumerate(map(str.strip, read_lines(path, digest=digest)), start=1):
        if not line:
            continue
        wrong, arrow, right = map(str.strip, line.partition("\t" if "\t" in line else "->"))
        rights = right.split(",")[:-1] if arrow else ()
        words = {word.strip() for word in rights or [right]} - {"", wrong}
        if not wrong or not words or "\t" in right:
            problem = f"line {number} is {line!r:.80}; it must be 'wrong->right', or have a tab instead of the arrow"
            raise FormatError(path, problem)
        for word in words:
            misspellings[word].append(wrong)
    return misspellings


class InjectedError(NamedTuple):
    """An error in a corrupted line.

    Attributes:
        start: start offset in the corrupted line, in code points.
        end: end offset in the corrupted line.
        meant: the original text.
    """

    start: int
    end: int
    meant: str


class CorruptedLine(NamedTuple):
    """A line with errors.

    Attributes:
        text: the corrupted line.
        errors: its errors, in order.
    """

    text: str
    errors: tuple[InjectedError, ...]


class ErrorInjector:
    """Injector of one kind of error.

    Args:
        counts: word counts; every other string is a non-word.
        kind: kind of error, or the misspellings to choose from.
        rate: share of the eligible words to corrupt.
        random: random number generator.
    """

    def __init__(
        self,
        counts: Mapping[str, int],
        *,
        kind: Kind | Misspellings,
        rate: float,
        random: np.random.Generator,
    ) -> None:
        self._misspellings = {} if isinstance(kind, str) else kind
        self._words = [word for word in counts if is_alphabetic(word)]
        self._counts = np.array([counts[word] for word in self._words], np.float64)
        self._known_words = frozenset(counts)
        self._lexicon = FuzzyLexicon(self._words)
        self._letters = "".join(sorted(filter(str.isalpha, {*chain.from_iterable(self._words)})))
        self._rate, self._random = rate, random
        self._replacement_of: Callable[[Sequence[Word], int], WordReplacement | None] = self._misspelling
        if isinstance(kind, str):
            self._replacement_of = getattr(self, f"_{kind}")

    def inject_errors(self, sentence: Sentence) -> CorruptedLine:
        """Corrupt some known or listed words of a line, never two adjacent ones."""
        text, errors, copied, following = "", [], 0, 0
        for number, word in enumerate(words := sentence.words):
            eligible = self._misspellings or (self._known_words if word.known else ())
            eligible = eligible if word.checked else ()
            if number < following or word.text not in eligible or self._random.random() >= self._rate:
                continue
            if (replaced := self._replacement_of(words, number)) is None:
                continue
            new, count = replaced
            end = words[number + count - 1].end
            text += sentence.text[copied : word.start]
            errors.append(InjectedError(len(text), len(text) + len(new), sentence.text[word.start : end]))
            text += new
            # skips a word, so errors are not adjacent
            copied, following = end, number + count + 1
        return CorruptedLine(text + sentence.text[copied:], tuple(errors))

    def _misspelling(self, words: Sequence[Word], number: int) -> WordReplacement:
        return str(self._random.choice(self._misspellings[words[number].text])), 1

    def _real_word(self, words: Sequence[Word], number: int) -> WordReplacement | None:
        neighbours = self._lexicon.fuzzy_matches(words[number].text, 1).indices
        if not neighbours.size or not is_alphabetic(words[number].text):
            return None
        weights = self._counts[neighbours]
        chosen = self._random.choice(neighbours, p=weights / weights.sum())
        return self._words[int(chosen)], 1

    def _non_word(self, words: Sequence[Word], number: int) -> WordReplacement | None:
        word = words[number].text
        if len(word) < _MIN_LETTERS or not is_alphabetic(word):
            return None
        for _ in range(1 + (self._random.random() < _TWO_EDITS_SHARE)):
            strings = one_edit_strings(word, self._letters)
            word = strings[self._random.integers(len(strings))]
        return None if word in self._known_words or word == words[number].text else (word, 1)

    def _space(self, words: Sequence[Word], number: int) -> WordReplacement | None:
        word = words[number]
        if not is_alphabetic(word.text):
            return None
        if self._random.random() < 0.5:  # noqa: SIM102 - what follows is the other half
            if number + 1 < len(words) and is_alphabetic(words[number + 1].text):
                following = words[number + 1]
                if word.end + 1 == following.start and following.known:
                    return word.text + following.text, 2
        if len(word.text) < 2 * _MIN_LETTERS:
            return None
        cut = int(self._random.integers(_MIN_LETTERS, len(word.text) - _MIN_LETTERS + 1))
        return f"{word.text[:cut]} {word.text[cut:]}", 1


class Detections(NamedTuple):
    """A method's detections in a text with errors.

    Attributes:
        errors: score of each error [E]; minus infinity if undetected.
        corrected: True for errors whose first suggestion is the original text [E].
        alarms: scores of the false alarms [A].
    """

    errors: Float64s
    corrected: Bools
    alarms: Float64s


class DetectionFigures(NamedTuple):
    """Figures of a method at one threshold.

    Attributes:
        threshold: minimum score of an issue.
        precision: share of issues that are errors; 1 without issues.
        recall: share of errors that are detected.
        f0_5: weighted harmonic mean of precision and recall.
        correction_accuracy: share of detected errors whose first suggestion is right; None without any.
    """

    threshold: float
    precision: float
    recall: float
    f0_5: float
    correction_accuracy: float | None


def concatenate_detections(parts: Sequence[Detections]) -> Detections:
    """Concatenate the detections of several texts."""
    return Detections(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def figures_at_threshold(detections: Detections, threshold: float) -> DetectionFigures:
    """Compute the figures of a method at a threshold."""
    hit = detections.errors >= threshold
    right, wrong = int(hit.sum()), int((detections.alarms >= threshold).sum())
    precision = right / (right + wrong) if right + wrong else 1.0
    recall = right / len(detections.errors) if len(detections.errors) else 0.0
    accuracy = float(detections.corrected[hit].mean()) if right else None
    return DetectionFigures(threshold, precision, recall, f_score(precision, recall), accuracy)


def best_threshold(detections: Detections) -> float:
    """Return the highest threshold with the best F0.5; 1 if no error was detected."""
    candidates = np.unique(detections.errors[np.isfinite(detections.errors)])
    if not candidates.size:
        return 1.0
    errors, alarms = np.sort(detections.errors), np.sort(detections.alarms)
    right = len(errors) - np.searchsorted(errors, candidates)
    wrong = len(alarms) - np.searchsorted(alarms, candidates)
    scores = f_score(right / (right + wrong), right / len(errors))
    return float(candidates[len(scores) - 1 - int(np.argmax(scores[::-1]))])


def f_score(precision: Any, recall: Any) -> Any:
    """Compute F0.5 of numbers or arrays; 0 if precision and recall are the number 0."""
    total = _BETA_SQUARED * precision + recall
    return (1 + _BETA_SQUARED) * precision * recall / total if np.any(total) else 0.0


class LineDetections(NamedTuple):
    """Detections by the checker, also without right context, and by surprisal alone."""

    method: Detections
    left_only: Detections
    surprisal: Detections


def detect_errors(
    checkpoint: Checkpoint, checker: Checker, lines: Sequence[CorruptedLine], table: ErrorTable | None = None
) -> Iterator[LineDetections]:
    """Detect errors in a batch of corrupted lines; yield each line's detections, matched with its errors."""
    sentences, offset = list(checker.sentences("\n".join(line.text for line in lines))), 0
    rescored, left_only = (
        [run_to_completion(calls) for calls in checker.rescore_all(checkpoint.model, sentences, settings)]
        for settings in (CheckSettings(errors=table), CheckSettings(search=_LEFT_ONLY, errors=table))
    )
    find = partial(find_issues, tokens=checkpoint.tokenizer.vocabulary.tokens, threshold=_MIN_PROBABILITY)
    issues, issues_left_only = (
        [
            (issue.start, issue.end, issue.probability, issue.suggestions[0].text)
            for batch in batches
            for issue in run_to_completion(find(batch, max_suggestions=1))
        ]
        for batches in (rescored, left_only)
    )
    surprisals = [  # in bits, given the text before
        (slot.start, slot.end, bits, "")
        for batch in rescored
        for slot, bits in zip(batch.slots, (-batch.word_log_probs / log(2)).tolist(), strict=False)
        if not slot.exempt
    ]
    for line in lines:
        detections = (issues, issues_left_only, surprisals)
        yield LineDetections(*(_match_errors(line, offset, found) for found in detections))
        offset += len(line.text) + 1


def _match_errors(line: CorruptedLine, offset: int, detections: Sequence[_Detection]) -> Detections:
    """Assign detections to overlapping errors of a line; those without overlap are false alarms."""
    errors, end = line.errors, offset + len(line.text)
    scores, corrected = [-inf] * len(errors), [False] * len(errors)
    alarms: list[float] = []
    found = detections[bisect_left(detections, (offset,)) : bisect_left(detections, (end,))]
    for begin, past, score, first in found:
        start, stop = begin - offset, past - offset
        index = next((k for k, e in enumerate(errors) if e.start < stop and start < e.end), None)
        if index is None:
            alarms.append(score)
        elif score > scores[index]:
            scores[index] = score
            error = errors[index]
            corrected[index] = (start, stop) == (error.start, error.end) and first == error.meant
    return Detections(np.array(scores), np.array(corrected, bool), np.array(alarms))


def run_check_task(
    address: str,
    *,
    corpus: Sequence[Path],
    registry: Address,
    device: str,
    precision: str = "auto",
    sample: int = DEFAULT_CHECK_WORDS,
    seed: int = 0,
    kinds: Sequence[Kind] | None = None,
    misspellings: Path | None = None,
    save_calibration: bool = False,
) -> dict[str, Any]:
    """Evaluate error checking with a published model, by kind of error.

    See `gramophone evaluate` for the arguments; at least `sample` words are checked per kind, fewer if the text
    has fewer.

    Raises:
        DomainError: the model, a file or option is invalid.
    """
    if kinds is None:
        kinds = () if misspellings else KINDS
    _check_options(sample, kinds, misspellings)
    errors: dict[str, Kind | Misspellings] = {kind: kind for kind in kinds}
    if misspellings:
        errors["misspelling"] = read_misspellings(misspellings)
    store, progress = open_registry(registry), console_progress()
    version = store.resolve(address)
    checkpoint = load_checkpoint(store.fetch(version), device=device, precision=precision)
    if checkpoint.manifest.direction == "backward":
        raise UnsupportedError(
            f"model {version.address} reads from right to left; checking requires a model that reads left to right",
            param="model",
        )
    text = read_corpus(corpus, unit="line", progress=progress) if corpus else read_default_corpus(progress)[2]
    random = np.random.default_rng(seed)
    sentences = list(text.sentences)
    lines = _sample_lines(sentences, sample, random)
    counts = _word_counts(checkpoint, sentences)
    checker, table = Checker(checkpoint.tokenizer), ErrorTableStore(registry).read(version.name)
    by_kind: dict[str, Any] = {}
    all_detections: list[Detections] = []
    words = 0
    for kind, source in errors.items():
        rate = ERROR_RATE if isinstance(source, str) else _misspelling_rate(source, checker, lines)
        injector = ErrorInjector(counts, kind=source, rate=rate, random=random)
        detect = partial(detect_errors, checkpoint, checker, table=table)
        halves, words = _detect_in_halves(detect, checker, injector, lines, progress=progress, title=kind)
        by_kind[kind] = _figures(*halves)
        all_detections += [half.method for half in halves]
    pooled = concatenate_detections(all_detections)
    if save_calibration:
        calibration = _calibration(version.address, pooled, list(errors), words * len(errors), text.sha256)
        CalibrationStore(registry).write(calibration)
    return {
        "task": "check",
        "model": version.address,
        "precision": checkpoint.precision,
        "lines": len(lines),
        "words": words,
        "error_rate": ERROR_RATE,
        "seed": seed,
        "kinds": by_kind,
        "thresholds": [figures_at_threshold(pooled, t)._asdict() for t in THRESHOLDS],
        "calibration_saved": save_calibration,
    }


def _misspelling_rate(misspellings: Misspellings, checker: Checker, lines: Sequence[str]) -> float:
    """Return the share of words with misspellings to corrupt: `ERROR_RATE` of all words, or less."""
    words = [word.text for line in lines for word in checker.splitter.sentence(line).words]
    return min(1.0, ERROR_RATE * len(words) / max(sum(word in misspellings for word in words), 1))


def _check_options(sample: int, kinds: Sequence[Kind], misspellings: Path | None) -> None:
    if sample < 1:
        raise InputError(f"--sample is {sample}; it must be at least 1", param="sample")
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not (kinds or misspellings):
        problem = f"contains {unknown[0]!r}" if unknown else "is empty"
        raise InputError(f"--kinds {problem}; the kinds are {', '.join(KINDS)}", param="kinds")


def _sample_lines(sentences: Sequence[str], words: int, random: np.random.Generator) -> list[str]:
    """Sample lines without replacement until they have `words` white-space words; at least two."""
    lines: list[str] = []
    for index in random.permutation(len(sentences)).tolist():
        if words <= 0 and len(lines) >= _MIN_LINES:
            break
        lines.append(sentences[index])
        words -= len(sentences[index].split())
    if len(lines) < _MIN_LINES:
        raise InputError(
            f"the text has {len(lines)} line; at least {_MIN_LINES} are needed, one to choose a threshold and "
            "one to measure it",
            param="corpus",
        )
    return lines


def _word_counts(checkpoint: Checkpoint, sentences: Sequence[str]) -> Mapping[str, int]:
    """Return training counts of a word tokenizer's vocabulary, else word counts of the text."""
    tokenizer = checkpoint.tokenizer
    if isinstance(tokenizer, WordTokenizer):
        counts = training_counts(checkpoint.path, len(tokenizer.vocabulary))
        numbers = np.ones(len(tokenizer.vocabulary), np.int64) if counts is None else counts + 1
        words = tokenizer.vocabulary.tokens
        return {words[i]: int(numbers[i]) for i in tokenizer.vocabulary.ids.values()}
    splitter = Checker(tokenizer).splitter
    return Counter(
        word.text for line in sentences for word in splitter.sentence(line).words if is_alphabetic(word.text)
    )


def _detect_in_halves(
    detect: Callable[[Sequence[CorruptedLine]], Iterable[LineDetections]],
    checker: Checker,
    injector: ErrorInjector,
    lines: Sequence[str],
    *,
    progress: Progress,
    title: str,
) -> tuple[list[LineDetections], int]:
    """Return detections in even and in odd lines, and the number of words."""
    parts: tuple[list[LineDetections], list[LineDetections]] = ([], [])
    words, size = 0, sum(len(line.split()) for line in lines)
    with progress.stage(f"finding {title.replace('_', ' ')} errors", size):
        for first in range(0, len(lines), _BATCH_LINES):
            batch = [
                injector.inject_errors(checker.splitter.sentence(line))
                for line in lines[first : first + _BATCH_LINES]
            ]
            for number, outcome in enumerate(detect(batch), start=first):
                parts[number % 2].append(outcome)
            count = sum(len(line.text.split()) for line in batch)
            words += count
            progress.advance(count)
    halves = [LineDetections(*map(concatenate_detections, zip(*part, strict=True))) for part in parts if part]
    return halves, words


def _figures(chosen_on: LineDetections, measured_on: LineDetections) -> dict[str, Any]:
    """Compute figures of one kind on one half, each at the threshold chosen on the other."""
    method, left_only, surprisal = (
        figures_at_threshold(measured, best_threshold(chosen))
        for measured, chosen in zip(measured_on, chosen_on, strict=True)
    )
    return {
        "errors": len(measured_on.method.errors),
        "tuned": method._asdict(),
        "left_only": left_only._asdict(),
        "surprisal": {**surprisal._asdict(), "correction_accuracy": None},
        "gain": method.f0_5 / surprisal.f0_5 - 1 if surprisal.f0_5 else None,
        "at_thresholds": [figures_at_threshold(measured_on.method, t)._asdict() for t in THRESHOLDS],
    }


def _calibration(address: str, pooled: Detections, kinds: list[str], words: int, sha256: str) -> Calibration:
    if not len(pooled.errors):
        raise InputError(
            f"no error was injected into the text, where one in {1 / ERROR_RATE:.0f} eligible words is corrupted; "
            "give more lines to calibrate a model",
            param="corpus",
        )
    figures = [figures_at_threshold(pooled, t) for t in THRESHOLDS]
    return Calibration(
        model=address,
        kinds=kinds,
        words_per_error=max(words / len(pooled.errors), 1.0),
        points=[CalibrationPoint(threshold=t, precision=p, recall=r) for t, p, r, *_ in figures],
        corpus_sha256=sha256,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
