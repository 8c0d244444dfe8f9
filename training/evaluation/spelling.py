"""Evaluation of spelling correction: errors are put into held-out text and looked for.

Kinds of errors:

real_word   a word becomes another word one edit away, common ones more often: their, there
non_word    one or two random edits make no word: four in five have one (Damerau 1964)
space       a word is split, or loses the space before the next one

Every line is corrupted once for each kind and checked. Precision, recall and F0.5 use a threshold
that is chosen on every other line and applied to the rest, for the checker and for two baselines:
the surprisal of a word given the text before it, and the checker without the text after a word.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import inf, log
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from models.checking.calibration import Calibration, CalibrationPoint
from models.checking.candidates import run_calls
from models.checking.checker import Checker, Issue, find_issues
from models.checking.error_model import CandidateSettings, CheckSettings
from models.checking.lexicon import FuzzyLexicon
from models.checking.rescoring import RescoredBatch
from models.checking.sentences import Sentence, Word, is_alphabetic, one_edit_strings
from models.checkpoint.documents import CalibrationStore
from models.checkpoint.load import Checkpoint, load_checkpoint
from models.checkpoint.registry import Address, open_registry
from models.errors import InvalidInputError, UnsupportedParameterError
from models.tokenizers import WordTokenizer
from training.corpus import Corpus, read_corpus
from training.evaluation.published import training_counts
from training.progress import Progress
from training.texts import read_default_corpus

Kind = Literal["real_word", "non_word", "space"]
KINDS: tuple[Kind, ...] = ("real_word", "non_word", "space")

_TWO_EDITS_SHARE = 0.2
_MIN_LETTERS = 2

WordReplacement: TypeAlias = tuple[str, int]
"""What stands in the place of a word, and how many words it takes the place of."""


class InjectedError(NamedTuple):
    """An error in a damaged line.

    Attributes:
        start: where it begins in the damaged line, in code points.
        end: where it ends.
        meant: what stood there.
    """

    start: int
    end: int
    meant: str


class CorruptedLine(NamedTuple):
    """A line with errors.

    Attributes:
        text: the line.
        errors: in it, in order.
    """

    text: str
    errors: tuple[InjectedError, ...]


class ErrorInjector:
    """Puts errors of one kind into lines.

    Args:
        counts: how often words occur; every other string is no word.
        kind: of error.
        rate: the share of words that become errors, of those that can.
        random: draws.
    """

    def __init__(
        self, counts: Mapping[str, int], *, kind: Kind, rate: float, random: np.random.Generator
    ) -> None:
        self._words = [word for word in counts if is_alphabetic(word)]
        self._counts = np.array([counts[word] for word in self._words], dtype=np.float64)
        self._is_word = frozenset(counts)
        self._lexicon = FuzzyLexicon(self._words)
        self._letters = "".join(
            sorted({letter for word in self._words for letter in word if letter.isalpha()})
        )
        self._rate, self._random = rate, random
        self._damaged: Callable[[Sequence[Word], int], WordReplacement | None] = {
            "real_word": self._real_word,
            "non_word": self._non_word,
            "space": self._space,
        }[kind]

    def inject_errors(self, sentence: Sentence) -> CorruptedLine:
        """A line with errors in some of its known words; neighbours are never wrong both."""
        text, errors, at = "", [], 0
        words, number = sentence.words, 0
        while number < len(words):
            word = words[number]
            number += 1
            replaced = None
            if word.known and word.text in self._is_word and self._random.random() < self._rate:
                replaced = self._damaged(words, number - 1)
            if replaced is None:
                continue
            new, count = replaced
            end = words[number - 1 + count - 1].end
            text += sentence.text[at : word.start]
            errors.append(InjectedError(len(text), len(text) + len(new), sentence.text[word.start : end]))
            text += new
            at, number = end, number + count  # the next word stays as it is
        return CorruptedLine(text + sentence.text[at:], tuple(errors))

    def _real_word(self, words: Sequence[Word], number: int) -> WordReplacement | None:
        near = self._lexicon.fuzzy_matches(words[number].text, 1).indices
        if not near.size or not is_alphabetic(words[number].text):
            return None
        weights = self._counts[near]
        chosen = self._random.choice(near, p=weights / weights.sum())
        return self._words[int(chosen)], 1

    def _non_word(self, words: Sequence[Word], number: int) -> WordReplacement | None:
        word = words[number].text
        if len(word) < _MIN_LETTERS or not is_alphabetic(word):
            return None
        for _ in range(1 + (self._random.random() < _TWO_EDITS_SHARE)):
            strings = one_edit_strings(word, self._letters)
            word = strings[self._random.integers(len(strings))]
        return None if word in self._is_word or word == words[number].text else (word, 1)

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


ScoreArray = npt.NDArray[np.float64]

_BETA_SQUARED = 0.25
"""Of F0.5: precision counts twice as much as recall, since people mind false alarms more (Ng et al. 2014)."""


class Detections(NamedTuple):
    """What a method made of a text with errors.

    Attributes:
        errors: the score of each error [E]; minus infinity where nothing was found.
        corrected: whether its first suggestion is what was meant [E].
        alarms: scores of what was found where no error is [A].
    """

    errors: ScoreArray
    corrected: npt.NDArray[np.bool_]
    alarms: ScoreArray


class DetectionFigures(NamedTuple):
    """A method with one threshold.

    Attributes:
        threshold: above or at which a score is an issue.
        precision: the share of issues that are errors; 1 where there are none.
        recall: the share of errors that are issues.
        f0_5: their weighted harmonic mean.
        correction_accuracy: of errors that are issues, those whose first suggestion is right; None without any.
    """

    threshold: float
    precision: float
    recall: float
    f0_5: float
    correction_accuracy: float | None

    def as_facts(self) -> dict[str, Any]:
        """The figures by name."""
        return self._asdict()


def concatenate_detections(parts: Sequence[Detections]) -> Detections:
    """All of several."""
    return Detections(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def figures_at_threshold(found: Detections, threshold: float) -> DetectionFigures:
    """A method's figures with a threshold."""
    hit = found.errors >= threshold
    right, wrong = int(hit.sum()), int((found.alarms >= threshold).sum())
    precision = right / (right + wrong) if right + wrong else 1.0
    recall = right / len(found.errors) if len(found.errors) else 0.0
    accuracy = float(found.corrected[hit].mean()) if right else None
    return DetectionFigures(threshold, precision, recall, f_score(precision, recall), accuracy)


def best_threshold(found: Detections) -> float:
    """The threshold with the highest F0.5, the highest of several; 1 if no error was found at all."""
    candidates = np.unique(found.errors[np.isfinite(found.errors)])
    if not candidates.size:
        return 1.0
    errors, alarms = np.sort(found.errors), np.sort(found.alarms)
    right = len(errors) - np.searchsorted(errors, candidates)
    wrong = len(alarms) - np.searchsorted(alarms, candidates)
    precision, recall = right / (right + wrong), right / len(errors)
    scores = (1 + _BETA_SQUARED) * precision * recall / (_BETA_SQUARED * precision + recall)
    return float(candidates[len(scores) - 1 - int(np.argmax(scores[::-1]))])


def f_score(precision: float, recall: float) -> float:
    """F0.5; 0 where both are."""
    if not precision and not recall:
        return 0.0
    return (1 + _BETA_SQUARED) * precision * recall / (_BETA_SQUARED * precision + recall)


_MIN_PROBABILITY = 1e-4
"""Issues that are less probable are not looked at."""

_MAX_SUGGESTIONS = 1
_LEFT_ONLY = CandidateSettings(right_tokens=0)


class LineDetections(NamedTuple):
    """What was made of some lines: by the method, by the same without right context, and by surprisal alone."""

    method: Detections
    left_only: Detections
    surprisal: Detections


def detect_errors(
    checkpoint: Checkpoint, checker: Checker, lines: Sequence[CorruptedLine]
) -> Iterator[LineDetections]:
    """What is found in each line, errors of one being those that were put into it.

    Args:
        checkpoint: the model.
        checker: for its tokenizer.
        lines: looked at together.
    """
    text = "\n".join(line.text for line in lines)
    weighed = _check_line(checkpoint, checker, text, CandidateSettings())
    tokens = checkpoint.tokenizer.vocabulary.tokens
    surprises = [one for batch in weighed for one in _surprisal_detections(batch)]
    issues, left_only = (
        [
            _detection(issue)
            for batch in batches
            for issue in find_issues(
                batch, tokens, threshold=_MIN_PROBABILITY, max_suggestions=_MAX_SUGGESTIONS
            )
        ]
        for batches in (weighed, _check_line(checkpoint, checker, text, _LEFT_ONLY))
    )
    offset = 0
    for line in lines:
        yield LineDetections(
            *(_match_errors(line, offset, found) for found in (issues, left_only, surprises))
        )
        offset += len(line.text) + 1


def _check_line(
    checkpoint: Checkpoint, checker: Checker, text: str, search: CandidateSettings
) -> list[RescoredBatch]:
    works = checker.rescore_all(checkpoint.model, list(checker.sentences(text)), CheckSettings(search=search))
    return [run_calls(checkpoint.model, work) for work in works]


class _Detection(NamedTuple):
    """A place in the checked lines, its score, and the first suggestion."""

    start: int
    end: int
    score: float
    first: str = ""


def _detection(issue: Issue) -> _Detection:
    first = issue.suggestions[0].text if issue.suggestions else ""
    return _Detection(issue.start, issue.end, issue.probability, first)


def _surprisal_detections(weighed: RescoredBatch) -> list[_Detection]:
    """Each word that could be wrong, and its surprisal in bits given what stands before it."""
    bits = (-weighed.word_log_probs / log(2)).tolist()
    slots = weighed.slots[: len(bits)]
    return [
        _Detection(slot.start, slot.end, b) for slot, b in zip(slots, bits, strict=True) if not slot.exempt
    ]


def _match_errors(line: CorruptedLine, offset: int, found: Sequence[_Detection]) -> Detections:
    """Which errors of a line were found, and what else: anything that overlaps an error is about that error."""
    errors, end = line.errors, offset + len(line.text)
    scores, corrected = [-inf] * len(errors), [False] * len(errors)
    alarms: list[float] = []
    for one in found[bisect_left(found, (offset,)) : bisect_left(found, (end,))]:
        start, stop = one.start - offset, one.end - offset
        about = next((k for k, e in enumerate(errors) if e.start < stop and start < e.end), None)
        if about is None:
            alarms.append(one.score)
        elif one.score > scores[about]:
            scores[about] = one.score
            error = errors[about]
            corrected[about] = (start, stop) == (error.start, error.end) and one.first == error.meant
    return Detections(np.array(scores), np.array(corrected, dtype=bool), np.array(alarms))


ERROR_RATE = 0.05
"""The share of words that are made wrong, of those that can be."""

DEFAULT_CHECK_WORDS = 5_000
"""Words checked for each kind."""

_BATCH_LINES = 32
_MIN_LINES = 2
THRESHOLDS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
"""For which precision and recall are told, and calibrated."""


def run_check_task(
    address: str,
    *,
    corpus: Sequence[Path],
    registry: Address,
    device: str,
    progress: Progress,
    precision: str = "auto",
    sample: int = DEFAULT_CHECK_WORDS,
    seed: int = 0,
    kinds: Sequence[Kind] = KINDS,
    save_calibration: bool = False,
) -> dict[str, Any]:
    """Figures of error checking with a published model, by kind of error.

    Args:
        address: of the model.
        corpus: held-out files, a sentence a line; none for the default corpus's test part.
        registry: where the model is.
        device: to compute on.
        progress: told of words.
        precision: of networks, see `models.checkpoint.load`.
        sample: words checked for each kind, at least, if there are so many.
        seed: of lines and errors.
        kinds: of errors.
        save_calibration: keep what thresholds are worth, for /v1/check's `precision`.

    Raises:
        LanguageModelError: the model, a file or an option is wrong.
    """
    _check_options(sample, kinds)
    store = open_registry(registry)
    version = store.resolve(address)
    checkpoint = load_checkpoint(store.fetch(version), device=device, precision=precision)
    _check_direction(checkpoint, version.address)
    text = _held_out(corpus, progress)
    random = np.random.default_rng(seed)
    lines = _sample_lines(text.sentences, sample, random)
    counts = _word_counts(checkpoint, text.sentences)
    checker = Checker(checkpoint.tokenizer)
    told: dict[str, Any] = {}
    every: list[Detections] = []
    words = 0
    for kind in kinds:
        damager = ErrorInjector(counts, kind=kind, rate=ERROR_RATE, random=random)
        halves, words = _detect_in_halves(checkpoint, checker, damager, lines, progress=progress, title=kind)
        told[kind] = _figures(*halves)
        every += [half.method for half in halves]
    pooled = concatenate_detections(every)
    if save_calibration:
        found = _calibration(version.address, pooled, kinds, words * len(kinds), text.sha256)
        CalibrationStore(registry).write(found)
    return {
        "model": version.address,
        "precision": checkpoint.precision,
        "lines": len(lines),
        "words": words,
        "error_rate": ERROR_RATE,
        "seed": seed,
        "kinds": told,
        "thresholds": [figures_at_threshold(pooled, threshold).as_facts() for threshold in THRESHOLDS],
        "calibration_saved": save_calibration,
    }


def _check_direction(checkpoint: Checkpoint, address: str) -> None:
    if checkpoint.manifest.direction == "backward":
        raise UnsupportedParameterError(
            f"model {address} reads from right to left; checking asks what comes next", parameter="model"
        )


def _check_options(sample: int, kinds: Sequence[Kind]) -> None:
    if sample < 1:
        raise InvalidInputError(f"--sample is {sample}, it must be at least 1", parameter="sample")
    for kind in kinds:
        if kind not in KINDS:
            raise InvalidInputError(
                f"--kinds names {kind!r}; there are {', '.join(KINDS)}", parameter="kinds"
            )
    if not kinds:
        raise InvalidInputError(f"--kinds names none; there are {', '.join(KINDS)}", parameter="kinds")


def _held_out(corpus: Sequence[Path], progress: Progress) -> Corpus:
    return (
        read_corpus(corpus, unit="line", progress=progress) if corpus else read_default_corpus(progress).test
    )


def _sample_lines(sentences: Sequence[str], words: int, random: np.random.Generator) -> list[str]:
    """Lines drawn without repetition until they have so many words between white space; at least two.

    Raises:
        InvalidInputError: there are fewer.
    """
    lines: list[str] = []
    for place in random.permutation(len(sentences)).tolist():
        if words <= 0 and len(lines) >= _MIN_LINES:
            break
        lines.append(sentences[place])
        words -= len(sentences[place].split())
    if len(lines) < _MIN_LINES:
        raise InvalidInputError(
            f"the text has {len(lines)} line; at least {_MIN_LINES} are needed, to choose a threshold on one and "
            "tell what it is worth on the other",
            parameter="corpus",
        )
    return lines


def _word_counts(checkpoint: Checkpoint, sentences: Sequence[str]) -> Mapping[str, int]:
    """What is a word, and how common: the vocabulary by training counts, or the words of the text itself."""
    tokenizer = checkpoint.tokenizer
    if isinstance(tokenizer, WordTokenizer):
        counts = training_counts(checkpoint.path, len(tokenizer.vocabulary))
        numbers = np.ones(len(tokenizer.vocabulary), dtype=np.int64) if counts is None else counts + 1
        words = tokenizer.vocabulary.tokens
        return {words[i]: int(numbers[i]) for i in tokenizer.vocabulary.ids.values()}
    cutter = Checker(tokenizer).splitter
    return Counter(
        word.text for line in sentences for word in cutter.sentence(line).words if is_alphabetic(word.text)
    )


def _detect_in_halves(
    checkpoint: Checkpoint,
    checker: Checker,
    damager: ErrorInjector,
    lines: Sequence[str],
    *,
    progress: Progress,
    title: str,
) -> tuple[list[LineDetections], int]:
    """What is found in the lines with even numbers, and in the others; and how many words there are."""
    progress.start(f"finding {title.replace('_', ' ')} errors", sum(len(line.split()) for line in lines))
    parts: tuple[list[LineDetections], list[LineDetections]] = ([], [])
    words = 0
    for first in range(0, len(lines), _BATCH_LINES):
        some = [
            damager.inject_errors(checker.splitter.sentence(line))
            for line in lines[first : first + _BATCH_LINES]
        ]
        for number, outcome in enumerate(detect_errors(checkpoint, checker, some), start=first):
            parts[number % 2].append(outcome)
        count = sum(len(line.text.split()) for line in some)
        words += count
        progress.advance(count)
    progress.finish()
    halves = [LineDetections(*map(concatenate_detections, zip(*part, strict=True))) for part in parts if part]
    return halves, words


def _figures(chosen_on: LineDetections, told_on: LineDetections) -> dict[str, Any]:
    """The figures of one kind, each with the threshold that is best on the other half."""
    method, left_only, surprisal = (
        figures_at_threshold(told, best_threshold(chosen))
        for told, chosen in zip(told_on, chosen_on, strict=True)
    )
    return {
        "errors": len(told_on.method.errors),
        "tuned": method.as_facts(),
        "left_only": left_only.as_facts(),
        "surprisal": {**surprisal.as_facts(), "correction_accuracy": None},
        "gain": method.f0_5 / surprisal.f0_5 - 1 if surprisal.f0_5 else None,
        "at_thresholds": [
            figures_at_threshold(told_on.method, threshold).as_facts() for threshold in THRESHOLDS
        ],
    }


def _calibration(
    address: str, pooled: Detections, kinds: Sequence[Kind], words: int, sha256: str
) -> Calibration:
    """What the thresholds are worth.

    Raises:
        InvalidInputError: there was no error to find, so nothing is known of them.
    """
    if not len(pooled.errors):
        raise InvalidInputError(
            f"no error was put into the text, of whose words one in {1 / ERROR_RATE:.0f} is made wrong where it can "
            "be; to calibrate a model, give more lines",
            parameter="corpus",
        )
    points = [figures_at_threshold(pooled, threshold) for threshold in THRESHOLDS]
    return Calibration(
        model=address,
        kinds=list(kinds),
        words_per_error=max(words / max(len(pooled.errors), 1), 1.0),
        points=[
            CalibrationPoint(threshold=p.threshold, precision=p.precision, recall=p.recall) for p in points
        ],
        corpus_sha256=sha256,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
