"""`gramophone evaluate`: a published model on held-out text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.checkpoint.load import load_checkpoint
from models.checkpoint.precision import FLOAT32, check_precision
from models.checkpoint.registry import Address, open_registry
from models.errors import InvalidInputError
from models.packed_files import atomic_writer
from training.console import console_progress
from training.corpora.default import read_default_corpus
from training.corpora.reading import read_corpus, read_lines
from training.evaluating.checking import DEFAULT_CHECK_WORDS as CHECKED_WORDS
from training.evaluating.checking import run_check_task
from training.evaluating.checking_errors import KINDS, Kind
from training.evaluating.completing.task import DEFAULT_WORDS, autocomplete_figures
from training.evaluating.distributions import DEFAULT_SAMPLE
from training.evaluating.published import (
    OOV_POLICY,
    EvaluationOptions,
    check_comparable,
    compare_models,
    evaluation_details,
)
from training.evaluating.scoring import CONTEXTS, DEFAULT_WINDOW_TOKENS, Context, score_corpus
from training.evaluation import evaluation_facts, summarise_scores
from training.notes import overlap_notes
from training.overlap import overlap_with_files
from training.progress import Progress
from training.tokenizing import encode_corpus


def run_evaluate(
    address: str,
    *,
    corpus: Sequence[Path],
    registry: Address,
    context: str,
    unit: str,
    window: int,
    device: str,
    precision: str = "auto",
    detail: bool = False,
    sample: int = DEFAULT_SAMPLE,
    against: str | None = None,
    overlap: Sequence[Path] = (),
) -> dict[str, Any]:
    """Held-out figures of a published model on files, or on the default corpus's test part.

    Args:
        address: of the model.
        corpus: the files.
        registry: where the model is.
        context: see `training.evaluating.scoring`.
        unit: what a sentence is in the files.
        window: tokens in a window, for `document`.
        device: to compute on.
        precision: of networks, see `models.checkpoint.load`.
        detail: tell of the predictions' entropy, and figures by frequency and position, too.
        sample: predictions of which whole distributions are looked at, at most.
        against: the address of a second model to compare with.
        overlap: training files to look for the text in.

    Raises:
        LanguageModelError: a model, a file or an option is wrong.
    """
    way = _evaluation_options(context, window, sample)
    store = open_registry(registry)
    version, other = store.resolve(address), None if against is None else store.resolve(against)
    progress = console_progress()
    checkpoint = load_checkpoint(store.fetch(version), device=device, precision=precision)
    second = (
        None if other is None else load_checkpoint(store.fetch(other), device=device, precision=precision)
    )
    if second is not None and other is not None:
        check_comparable(checkpoint, second, (version.address, other.address))
    backward = checkpoint.manifest.direction == "backward"
    if backward and way.context != "sentence":
        raise InvalidInputError(
            f"--context is {context!r}, but {version.address} reads right to left: only 'sentence' is possible",
            parameter="context",
        )
    texts = _held_out_texts(corpus, way.context, unit, progress)
    encoded = encode_corpus(checkpoint.tokenizer, texts, progress=progress)
    encoded = encoded.reversed() if backward else encoded
    targets = score_corpus(checkpoint.model, encoded, context=way.context, window=window, progress=progress)
    if not len(targets.tokens):
        raise InvalidInputError("the text has no token to predict", parameter="corpus")
    result = {
        "model": version.address,
        "precision": checkpoint.precision,
        **evaluation_facts(summarise_scores(checkpoint.model, encoded, targets, context=way.context)),
        "oov_policy": OOV_POLICY,
    }
    if detail:
        result["detail"] = evaluation_details(checkpoint, encoded, targets, way, progress=progress)
    if second is not None and other is not None:
        compared = compare_models(checkpoint, second, encoded, targets, way, progress=progress)
        result["against"] = {"model": other.address, **compared}
    if overlap:
        result |= _training_overlap(texts, overlap, unit, progress)
    return result


def _evaluation_options(context: str, window: int, sample: int) -> EvaluationOptions:
    """How the options say that the text is looked at."""
    for name, value in {"window": window, "sample": sample}.items():
        if value < 1:
            raise InvalidInputError(f"--{name} is {value}, it must be at least 1", parameter=name)
    for known in CONTEXTS:
        if context == known:
            return EvaluationOptions(known, window, sample)
    raise InvalidInputError(f"--context is {context!r}, it can be {', '.join(CONTEXTS)}", parameter="context")


def _training_overlap(
    texts: Sequence[str], files: Sequence[Path], unit: str, progress: Progress
) -> dict[str, Any]:
    """What of the text is in training files, and a warning if that is too much."""
    sentences = [line for text in texts for line in text.split("\n")]
    found = overlap_with_files(sentences, files, unit=unit, progress=progress).as_facts()
    return {
        "overlap": {"training_text": [path.name for path in files], **found},
        "notes": list(overlap_notes({"evaluated text": found})),
    }


def run_dynamic_evaluation(
    address: str,
    *,
    corpus: Sequence[Path],
    registry: Address,
    unit: str,
    device: str,
    precision: str = "auto",
    detail: bool = False,
    sample: int = DEFAULT_SAMPLE,
    overlap: Sequence[Path] = (),
) -> dict[str, Any]:
    """Figures of a published neural model, a copy of which learns from the text as it goes, a stream.

    Args:
        address: of the model.
        corpus: the files.
        registry: where the model is.
        unit: what a sentence is in the files.
        device: to compute on.
        precision: `float32`, or `auto`, which is the same here.
        detail: tell of the predictions' entropy, and figures by frequency and position, too.
        sample: predictions of which whole distributions are looked at, at most.
        overlap: training files to look for the text in.

    Raises:
        LanguageModelError: the model has no gradient, or it, a file or an option is wrong.
    """
    from training.dynamic_evaluation import SampledEntropies, dynamic_evaluation  # brings in torch

    way = _evaluation_options("stream", DEFAULT_WINDOW_TOKENS, sample)
    if check_precision(precision) not in {"auto", FLOAT32}:
        raise InvalidInputError(
            f"--precision is {precision}, but --dynamic learns by gradients, which need float32",
            parameter="precision",
        )
    store = open_registry(registry)
    version = store.resolve(address)
    progress = console_progress()
    checkpoint = load_checkpoint(store.fetch(version), device=device, precision=FLOAT32)
    texts = _held_out_texts(corpus, "stream", unit, progress)
    encoded = encode_corpus(checkpoint.tokenizer, texts, progress=progress)
    encoded = encoded.reversed() if checkpoint.manifest.direction == "backward" else encoded
    entropies = SampledEntropies(encoded.num_tokens, sample) if detail else None
    targets = dynamic_evaluation(checkpoint.model, encoded, entropies=entropies, progress=progress)
    if not len(targets.tokens):
        raise InvalidInputError("the text has no token to predict", parameter="corpus")
    result = {
        "model": version.address,
        "precision": checkpoint.precision,
        **evaluation_facts(summarise_scores(checkpoint.model, encoded, targets, context="stream")),
        "oov_policy": OOV_POLICY,
        "dynamic": True,
        "notes": ["a copy of the model went on learning from the text as it was scored"],
    }
    if entropies is not None:
        entropy = entropies.mean()
        result["detail"] = evaluation_details(
            checkpoint, encoded, targets, way, entropy=entropy, progress=progress
        )
    if overlap:
        found = _training_overlap(texts, overlap, unit, progress)
        result |= {**found, "notes": [*result["notes"], *found["notes"]]}
    return result


def run_evaluate_autocomplete(
    address: str,
    *,
    corpus: Sequence[Path],
    registry: Address,
    unit: str,
    device: str,
    context: Context = "sentence",
    precision: str = "auto",
    sample: int = DEFAULT_WORDS,
    against: str | None = None,
    report: Path | None = None,
) -> dict[str, Any]:
    """How much typing a published model's completions spare on files, or on the default corpus's test part.

    Args:
        address: of the model.
        corpus: the files.
        registry: where the model is.
        unit: what a sentence is in the files.
        device: to compute on.
        context: `sentence` or `stream`, see `training.evaluating.scoring`.
        precision: of networks, see `models.checkpoint.load`.
        sample: words typed, at least.
        against: the address of a second model to compare with; any tokenizer will do.
        report: an HTML file to write, too.

    Raises:
        LanguageModelError: a model, a file or an option is wrong.
    """
    if sample < 1:
        raise InvalidInputError(f"--sample is {sample}, it must be at least 1", parameter="sample")
    if report is not None and not report.parent.is_dir():
        raise InvalidInputError(
            f"--report is {report}, but there is no folder {report.parent}", parameter="report"
        )
    store = open_registry(registry)
    addresses = [store.resolve(one) for one in (address, *([against] if against else []))]
    progress = console_progress()
    models = [
        load_checkpoint(store.fetch(version), device=device, precision=precision) for version in addresses
    ]
    texts = _held_out_texts(corpus, "sentence", unit, progress)
    second = models[1] if against else None
    told = autocomplete_figures(
        models[0], texts, words=sample, context=context, against=second, progress=progress
    )
    result = {"model": addresses[0].address, "task": "autocomplete", **told}
    if against:
        result["against"] = {"model": addresses[1].address, **told["against"]}
    if report is not None:
        from training.report.completing_page import autocomplete_page

        with atomic_writer(report) as write:
            write(autocomplete_page(result))
    return result


def run_evaluate_check(
    address: str,
    *,
    corpus: Sequence[Path],
    registry: Address,
    device: str,
    precision: str = "auto",
    sample: int = CHECKED_WORDS,
    kinds: Sequence[Kind] = KINDS,
    save_calibration: bool = False,
) -> dict[str, Any]:
    """How well a published model finds and corrects errors put into files, or into the default corpus's test part.

    For the arguments see `training.evaluating.checking.run_check_task`.

    Raises:
        LanguageModelError: a model, a file or an option is wrong.
    """
    told = run_check_task(
        address,
        corpus=corpus,
        registry=registry,
        device=device,
        precision=precision,
        sample=sample,
        kinds=kinds,
        save_calibration=save_calibration,
        progress=console_progress(),
    )
    return {"task": "check", **told}


def _held_out_texts(corpus: Sequence[Path], context: str, unit: str, progress: Progress) -> Sequence[str]:
    """Sentences; of `document` whole files."""
    if not corpus:
        texts = read_default_corpus(progress).test.sentences
        return ["\n".join(texts)] if context == "document" else texts
    if context == "document":
        return ["\n".join(read_lines(path)) for path in corpus]
    return read_corpus(corpus, unit=unit, progress=progress).sentences
