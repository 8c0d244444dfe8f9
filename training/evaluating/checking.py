"""`gramophone evaluate --task check`: how well a published model finds and corrects errors put into held-out text.

Every line is damaged once for each kind of error, and checked. A threshold is chosen on every other line and told on
the rest, for the method and for two baselines alike: the surprisal of a word given what stands before it, which is what
a left-to-right model tells without a second look; and the method itself without the text after a word.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from models.checking.calibration import Calibration, CalibrationPoint
from models.checking.checker import Checker
from models.checking.letters import is_alphabetic
from models.checkpoint.calibrations import CalibrationStore
from models.checkpoint.load import Checkpoint, load_checkpoint
from models.checkpoint.registry import Address, open_registry
from models.errors import InvalidInputError, UnsupportedParameterError
from models.tokenizers import WordTokenizer
from training.corpora.default import read_default_corpus
from training.corpora.reading import Corpus, read_corpus
from training.evaluating.checking_errors import KINDS, ErrorInjector, Kind
from training.evaluating.checking_figures import (
    Detections,
    best_threshold,
    concatenate_detections,
    figures_at_threshold,
)
from training.evaluating.checking_lines import LineDetections, detect_errors
from training.evaluating.published import training_counts
from training.progress import Progress

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
