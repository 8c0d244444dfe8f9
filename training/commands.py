"""Training and evaluation commands, as the command line calls them.

In distributed training, all processes first compare their command lines and training texts; on
several machines nothing else would detect a difference.
"""

import contextlib
import json
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from models.checkpoint.documents import CalibrationStore
from models.checkpoint.load import Checkpoint, load_checkpoint
from models.checkpoint.manifest import Version, check_name
from models.checkpoint.precision import FLOAT32, check_precision
from models.checkpoint.registry import Address, open_registry
from models.checkpoint.registry_interface import Registry
from models.errors import InvalidInputError, UnsupportedParameterError
from models.files import atomic_writer
from models.neural.network import resolve_device
from models.tokenizers import Tokenizer
from training.console import console_progress
from training.corpus import EncodedCorpus, read_corpus, read_lines
from training.evaluation.autocomplete import DEFAULT_WORDS, autocomplete_figures
from training.evaluation.breakdown import DEFAULT_SAMPLE, EvaluationOptions, SampledMean
from training.evaluation.evaluate import (
    CONTEXTS,
    Context,
    CorpusScores,
    evaluation_facts,
    score_corpus,
    summarise_scores,
)
from training.evaluation.published import (
    OOV_POLICY,
    check_comparable,
    compare_models,
    evaluation_details,
)
from training.evaluation.spelling import DEFAULT_CHECK_WORDS as CHECKED_WORDS
from training.evaluation.spelling import KINDS, Kind, calibration, check_figures, check_kinds
from training.mixture import mixture_tokenizer
from training.model_card import card_notes, fitted_note, overlap_notes
from training.neural.distributed import Processes, Terminated, exit_on_sigterm, join_processes
from training.neural.resume import own_version, text_hash
from training.overlap import overlap_with_files, overlaps
from training.progress import SILENT, Progress
from training.publish import RunContext, command_line, publish
from training.recipe import Recipe, load_recipe
from training.scale.engines import require_engine
from training.scale.options import ScaleOptions, check_relational, engine_memory_bytes
from training.scale.tables import workspace
from training.scale.training import EstimationJob, train_out_of_core
from training.single_model import ResumableRuns
from training.texts import (
    EncodedTexts,
    Texts,
    encode_texts,
    read_default_corpus,
    read_fitting_text,
    read_texts,
)
from training.tokenizer import encode_corpus, learn_tokenizer
from training.train import network_recipes, train, train_as_follower
from training.trained import Trained


def training_result(
    store: Registry, version: Version, trained: Trained, run: RunContext, *, first_notes: Sequence[str]
) -> dict[str, Any]:
    """Return the version's address, directory, notes and held-out figures.

    Args:
        store: registry of the version.
        version: the published version.
        trained: the model.
        run: its training run.
        first_notes: notes to put before the derived notes.
    """
    metrics = json.loads(store.read_file(version, "metrics.json"))
    notes = [
        *first_notes,
        *filter(None, [fitted_note(metrics)]),
        *card_notes(metrics),
        *overlap_notes(run.overlap),
    ]
    return {
        "model": version.address,
        "path": store.location_of(version),
        "seconds": trained.seconds,
        "notes": notes,
        **metrics,
    }


def check_same_command(
    recipe: Recipe, parts: Mapping[str, Recipe], *, device: str, resume: bool
) -> list[str]:
    """Check that all processes run the same command; call it before any work is done.

    Args:
        recipe: of the model.
        parts: the networks' recipes, by title.
        device: to compute on.
        resume: whether to resume from saved state.

    Returns:
        Notes on permitted differences.

    Raises:
        InvalidInputError: the commands differ; the message names the processes, the setting and both values.
        ProcessLostError: a process is gone.
    """
    facts = {
        "the program's version": own_version(),
        "--device": torch.device(device).type,
        "--resume": resume,
        **_recipe_keys("", recipe),
        **{
            name: value
            for title, part in parts.items()
            for name, value in _recipe_keys(f"{title}: ", part).items()
        },
    }
    facts_by_rank = _gather_facts(facts, torch=torch.__version__)
    check_agreement(facts_by_rank)
    versions = {str(process["torch"]) for process in facts_by_rank}
    return [f"the processes have different versions of torch: {', '.join(sorted(versions))}"][
        : len(versions) - 1
    ]


def check_same_text(texts: Texts, tokenizer: Tokenizer, encoded: EncodedTexts) -> None:
    """Check that all processes train on the same text, tokenised alike.

    Raises:
        InvalidInputError: they do not; the message names the processes, the text and both hashes.
        ProcessLostError: a process is gone.
    """
    if Processes.current().count == 1:
        return
    hashes = {
        "the training text": texts.train.sha256,
        "the validation text": texts.valid.sha256,
        "the tokenizer": tokenizer.fingerprint,
        "the training text in tokens": text_hash(encoded.train),
        "the validation text in tokens": text_hash(encoded.valid),
    }
    facts_by_rank = _gather_facts({name: f"sha256 {value[:12]}" for name, value in hashes.items()})
    check_agreement(facts_by_rank, shown=1)  # the first difference causes the others


def check_agreement(facts_by_rank: Sequence[Mapping[str, Any]], *, shown: int = 3) -> None:
    """Compare the facts of each process, by rank, with those of rank 0.

    Raises:
        InvalidInputError: they differ; the message lists the first `shown` differences.
    """
    first = facts_by_rank[0]
    for rank, process in enumerate(facts_by_rank):
        differences = list(_differences(first["facts"], process["facts"]))
        if differences:
            listed = "; ".join(differences[:shown])
            more = f"; and {len(differences) - shown} more" if len(differences) > shown else ""
            raise InvalidInputError(
                f"process {rank} on {process['machine']} would train something else than process 0 on "
                f"{first['machine']}: {listed}{more}; give all machines the same program, command and text"
            )


def _gather_facts(facts: Mapping[str, Any], **more: str) -> list[dict[str, Any]]:
    """Gather the facts and host name of every process, by rank."""
    own = {"machine": socket.gethostname(), "facts": facts, **more}
    return [json.loads(text) for text in Processes.current().gather_texts(json.dumps(own))]


def _differences(first: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[str]:
    for name in {**first, **facts}:
        expected, found = first.get(name), facts.get(name)
        if expected != found:
            yield f"{name} is {found} there and {expected} in process 0"


def _recipe_keys(prefix: str, recipe: Recipe) -> dict[str, Any]:
    """Flatten a recipe into dotted keys, such as `train.batch_size`, and their values."""
    keys: dict[str, Any] = {}
    for name, value in recipe.model_dump(mode="json").items():
        inner = {f"{name}.{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value}
        keys |= {f"{prefix}{key}": v for key, v in inner.items()}
    return keys


QUICKSTART_NAME = "mixture"


def run_train(
    recipe_name: str,
    *,
    name: str,
    registry: Address,
    corpus: Sequence[Path] = (),
    valid: Sequence[Path] = (),
    test: Sequence[Path] = (),
    assignments: Sequence[str] = (),
    device: str = "cpu",
    resume: bool = False,
    scale: ScaleOptions | None = None,
) -> dict[str, Any]:
    """Train by a recipe and publish; of several processes started by torchrun, rank 0 publishes.

    Args:
        recipe_name: the recipe's name or path.
        name: to publish under.
        registry: to publish in.
        corpus: training files.
        valid: validation files.
        test: test files.
        assignments: overridden keys of the recipe.
        device: to compute on.
        resume: resume an interrupted training of this name, if there is one.
        scale: options of out-of-core n-gram estimation; None: in memory.

    Returns:
        The new version's address, directory and held-out figures; empty in other processes.

    Raises:
        LanguageModelError: bad input, or the registry refused; nothing is partly published.
    """
    check_name(name)
    recipe = load_recipe(recipe_name, assignments)
    title = Path(recipe_name).stem
    if scale is not None:
        target = (open_registry(registry, create=True), name)
        return _train_out_of_core(recipe, (corpus, valid, test), target, scale, recipe_name=recipe_name)
    networks = network_recipes(title, recipe)  # rejects invalid parts before the text is read
    with exit_on_sigterm(), join_processes(resolve_device(device)) as resolved:
        is_leader = Processes.current().is_leader
        store = open_registry(registry, create=True)
        runs = ResumableRuns(store.work_folder, name, resume=resume)
        with (
            _resume_hint(runs.resume_hint),
            runs.locked() if networks and is_leader else contextlib.nullcontext(),
        ):
            runs.notes += check_same_command(recipe, networks, device=str(resolved), resume=resume)
            progress = console_progress() if is_leader else SILENT
            prepared = _prepare(recipe, store, (corpus, valid, test), device=str(resolved), progress=progress)
            check_same_text(prepared.run.texts, prepared.run.tokenizer, prepared.run.encoded)
            if is_leader:
                return _train_and_publish(
                    title, recipe, prepared, (store, name), device=str(resolved), runs=runs, progress=progress
                )
            run = prepared.run
            train_as_follower(title, recipe, run.tokenizer, run.encoded, device=str(resolved), runs=runs)
            return {}


def _train_out_of_core(
    recipe: Recipe,
    files: Sequence[Sequence[Path]],
    target: tuple[Registry, str],
    options: ScaleOptions,
    *,
    recipe_name: str,
) -> dict[str, Any]:
    """Estimate n-grams with a relational engine, in rank 0 only."""
    hint = "the same command goes on from the stages that are finished"
    with exit_on_sigterm(), join_processes(resolve_device("cpu")), _resume_hint(lambda: hint):
        if not Processes.current().is_leader:
            return {}
        return train_out_of_core_command(
            recipe, files, target, options, recipe_name=recipe_name, progress=console_progress()
        )


@contextlib.contextmanager
def _resume_hint(hint: Callable[[], str]) -> Iterator[None]:
    """Print how to resume if SIGTERM ends the command."""
    try:
        with exit_on_sigterm():
            yield
    except Terminated as ended:
        processes = Processes.current()
        instruction = hint() if processes.is_leader else "process 0 tells what is saved"
        if ended.unsaved:
            instruction = f"{ended.unsaved}; {instruction}"
        subject = "" if processes.count == 1 else f"process {processes.rank} was "
        sys.stderr.write(f"gramophone: {subject}ended by SIGTERM; {instruction}\n")
        raise


class _PreparedRun(NamedTuple):
    """Inputs of training: a mixture's published parts, and the texts with their tokenizer."""

    published: Sequence[Checkpoint]
    run: RunContext


def _prepare(
    recipe: Recipe, store: Registry, files: Sequence[Sequence[Path]], *, device: str, progress: Progress
) -> _PreparedRun:
    """Load published parts, and read and encode the training, validation and test files."""
    part_device = "cpu" if recipe.mixture.kind == "static" else device  # static mixing is on the CPU
    published = [
        load_checkpoint(store.fetch(store.resolve(address)), device=part_device, precision="float32")
        for address in recipe.mixture.models
    ]
    shared = mixture_tokenizer(recipe.mixture, published) if recipe.family == "mixture" else None
    trains = recipe.family != "mixture" or bool(recipe.mixture.recipes)
    read_corpora = read_texts if trains else read_fitting_text
    texts = read_corpora(*files, unit=recipe.corpus.unit, progress=progress)
    tokenizer = shared or learn_tokenizer(recipe.tokenizer, texts.train.sentences, progress=progress)
    encoded = encode_texts(tokenizer, texts, progress=progress)
    _, valid, test = files
    overlap = overlaps(
        {"valid": texts.valid if valid else None, "test": texts.test if test else None},
        texts.train,
    )
    return _PreparedRun(published, RunContext(command_line(), tokenizer, texts, encoded, overlap))


def _train_and_publish(
    title: str,
    recipe: Recipe,
    prepared: _PreparedRun,
    target: tuple[Registry, str],
    *,
    device: str,
    runs: ResumableRuns,
    progress: Progress,
) -> dict[str, Any]:
    published, run = prepared
    trained = train(
        title,
        recipe,
        run.tokenizer,
        run.encoded,
        published=published,
        device=device,
        progress=progress,
        runs=runs,
    )
    version = publish(*target, trained, run)
    runs.close()
    return training_result(target[0], version, trained, run, first_notes=runs.notes)


_RUNS_FOLDER = Path(".runs")
_ESTIMATION_FOLDER = "estimation"


def train_out_of_core_command(
    recipe: Recipe,
    files: Sequence[Sequence[Path]],
    target: tuple[Registry, str],
    options: ScaleOptions,
    *,
    recipe_name: str,
    progress: Progress,
) -> dict[str, Any]:
    """Estimate n-grams by the relational plan and publish; remove its stages on success only.

    Args:
        recipe: of the model.
        files: for training, validation and test.
        target: the registry, and the name to publish under.
        options: the engine and its limits.
        recipe_name: the recipe's name or path.
        progress: reports every stage.

    Returns:
        The same as `run_train`.

    Raises:
        LanguageModelError: bad input, or the registry refused; nothing is partly published.
    """
    check_relational(recipe, options.engine, name=recipe_name)
    require_engine(options.engine)
    if options.engine == "duckdb":
        engine_memory_bytes(options.memory_limit_bytes)  # rejects too small a limit before any text is read
    store, name = target
    folder = options.work_dir or store.work_folder / _RUNS_FOLDER / name / _ESTIMATION_FOLDER
    with exit_on_sigterm(), workspace(folder) as work:
        job = EstimationJob(Path(recipe_name).stem, recipe, options, work, progress)
        outcome = train_out_of_core(job, files)
        version = publish(store, name, outcome.trained, outcome.run)
        result = training_result(store, version, outcome.trained, outcome.run, first_notes=outcome.notes)
        work.remove()
    if options.work_dir is None:
        with contextlib.suppress(OSError):  # an unfinished network of that name may be there
            folder.rmdir()
            folder.parent.rmdir()
    return result


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
    dynamic: bool = False,
) -> dict[str, Any]:
    """Evaluate a published model on files, or on the default corpus's test part.

    Args:
        address: of the model.
        corpus: the files.
        registry: holds the model.
        context: see `training.evaluation.evaluate`.
        unit: `line` or `paragraph`; see `training.corpus.read_corpus`.
        window: tokens in a window, for `document`.
        device: to compute on.
        precision: of networks, see `models.checkpoint.load`.
        detail: add the predictions' entropy, and figures by frequency and position.
        sample: maximum number of predictions with full distributions.
        against: the address of a second model to compare with.
        overlap: training files to compare the text with.
        dynamic: let a copy of the model, in float32, learn from the text after scoring it, as one stream.

    Raises:
        LanguageModelError: a model, a file or an option is wrong, or the model to learn has no gradient.
    """
    options = _evaluation_options(context, window, sample)
    if dynamic:
        options, precision = options._replace(context="stream"), _dynamic_precision(precision)
    progress = console_progress()
    (name, checkpoint), *others = _load_models(
        [address, *([] if against is None else [against])], registry, device, precision
    )
    for baseline, second in others:
        check_comparable(checkpoint, second, (name, baseline))
    backward = checkpoint.manifest.direction == "backward"
    if backward and options.context != "sentence" and not dynamic:
        raise InvalidInputError(
            f"--context is {context!r}, but {name} reads right to left: only 'sentence' is possible",
            parameter="context",
        )
    texts = _held_out_texts(corpus, options.context, unit, progress)
    encoded = encode_corpus(checkpoint.tokenizer, texts, progress=progress)
    encoded = encoded.reversed() if backward else encoded
    entropy = None
    if dynamic:
        targets, entropy = _score_dynamically(checkpoint, encoded, sample if detail else 0, progress)
    else:
        targets = score_corpus(
            checkpoint.model, encoded, context=options.context, window=window, progress=progress
        )
    result = _figures(name, checkpoint, encoded, targets, options)
    if dynamic:
        note = "a copy of the model went on learning from the text as it was scored"
        result |= {"dynamic": True, "notes": [note]}
    if detail:
        result["detail"] = evaluation_details(
            checkpoint, encoded, targets, options, entropy=entropy, progress=progress
        )
    for baseline, second in others:
        compared = compare_models(checkpoint, second, encoded, targets, options, progress=progress)
        result["against"] = {"model": baseline, **compared}
    if overlap:
        found, notes = _training_overlap(texts, overlap, unit, progress)
        result |= {"overlap": found, "notes": [*result.get("notes", ()), *notes]}
    return result


def _dynamic_precision(precision: str) -> str:
    """Return the precision that a copy learns in; refuse another."""
    if check_precision(precision) not in {"auto", FLOAT32}:
        raise InvalidInputError(
            f"--precision is {precision}, but --dynamic learns by gradients, which need float32",
            parameter="precision",
        )
    return FLOAT32


def _load_models(
    addresses: Sequence[str], registry: Address, device: str, precision: str
) -> list[tuple[str, Checkpoint]]:
    """Load published models, each with the address of its version."""
    store = open_registry(registry)
    versions = [store.resolve(address) for address in addresses]
    return [
        (version.address, load_checkpoint(store.fetch(version), device=device, precision=precision))
        for version in versions
    ]


def _figures(
    name: str,
    checkpoint: Checkpoint,
    encoded: EncodedCorpus,
    targets: CorpusScores,
    options: EvaluationOptions,
) -> dict[str, Any]:
    """Return the figures of a scored text by name.

    Raises:
        InvalidInputError: no token was predicted.
    """
    if not len(targets.tokens):
        raise InvalidInputError("the text has no token to predict", parameter="corpus")
    return {
        "model": name,
        "precision": checkpoint.precision,
        **evaluation_facts(summarise_scores(checkpoint.model, encoded, targets, context=options.context)),
        "oov_policy": OOV_POLICY,
    }


def _evaluation_options(context: str, window: int, sample: int) -> EvaluationOptions:
    """Validate the options of an evaluation."""
    _check_positive("window", window)
    _check_positive("sample", sample)
    for known in CONTEXTS:
        if context == known:
            return EvaluationOptions(known, window, sample)
    raise InvalidInputError(f"--context is {context!r}, it can be {', '.join(CONTEXTS)}", parameter="context")


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise InvalidInputError(f"--{name} is {value}, it must be at least 1", parameter=name)


def _training_overlap(
    texts: Sequence[str], files: Sequence[Path], unit: str, progress: Progress
) -> tuple[dict[str, Any], list[str]]:
    """Return the text's overlap with training files, and a warning if it is too high."""
    sentences = [line for text in texts for line in text.split("\n")]
    overlap = overlap_with_files(sentences, files, unit=unit, progress=progress)
    facts = {"training_text": [path.name for path in files], **overlap}
    return facts, list(overlap_notes({"evaluated text": overlap}))


def _score_dynamically(
    checkpoint: Checkpoint, encoded: EncodedCorpus, sample: int, progress: Progress
) -> tuple[CorpusScores, SampledMean]:
    """Score a text as one stream with a copy that learns from it; also the entropy of sampled predictions."""
    from training.dynamic_evaluation import SampledEntropies, dynamic_evaluation  # imports torch

    entropies = SampledEntropies(encoded.num_tokens, sample)
    targets = dynamic_evaluation(checkpoint.model, encoded, entropies=entropies, progress=progress)
    return targets, entropies.mean()


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
    """Evaluate a published model's autocomplete on files, or on the default corpus's test part.

    Args:
        address: of the model.
        corpus: the files.
        registry: holds the model.
        unit: `line` or `paragraph`; see `training.corpus.read_corpus`.
        device: to compute on.
        context: `sentence` or `stream`, see `training.evaluation.evaluate`.
        precision: of networks, see `models.checkpoint.load`.
        sample: minimum number of words typed.
        against: the address of a second model to compare with, of any tokenizer.
        report: path of an HTML report to write.

    Raises:
        LanguageModelError: a model, a file or an option is wrong.
    """
    _check_positive("sample", sample)
    if report is not None and not report.parent.is_dir():
        raise InvalidInputError(
            f"--report is {report}, but there is no folder {report.parent}", parameter="report"
        )
    progress = console_progress()
    (name, checkpoint), *others = _load_models(
        [address, *([against] if against else [])], registry, device, precision
    )
    texts = _held_out_texts(corpus, "sentence", unit, progress)
    second = others[0][1] if others else None
    figures = autocomplete_figures(
        checkpoint, texts, words=sample, context=context, against=second, progress=progress
    )
    result = {"model": name, "task": "autocomplete", **figures}
    if others:
        result["against"] = {"model": others[0][0], **figures["against"]}
    if report is not None:
        from training.report import autocomplete_page

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
    """Evaluate error checking with a published model, by kind of injected error.

    Args:
        address: of the model.
        corpus: held-out files, one sentence a line; empty: the default corpus's test part.
        registry: holds the model.
        device: to compute on.
        precision: of networks, see `models.checkpoint.load`.
        sample: minimum number of words checked per kind; fewer if the text has fewer.
        kinds: of errors.
        save_calibration: store precision and recall by threshold, for /v1/check's `precision`.

    Raises:
        LanguageModelError: the model, a file or an option is wrong.
    """
    _check_positive("sample", sample)
    check_kinds(kinds)
    progress = console_progress()
    [(name, checkpoint)] = _load_models([address], registry, device, precision)
    if checkpoint.manifest.direction == "backward":
        raise UnsupportedParameterError(
            f"model {name} reads from right to left; checking asks what comes next", parameter="model"
        )
    text = (
        read_corpus(corpus, unit="line", progress=progress) if corpus else read_default_corpus(progress).test
    )
    figures, pooled = check_figures(checkpoint, text.sentences, sample=sample, kinds=kinds, progress=progress)
    if save_calibration:
        words = figures["words"] * len(kinds)
        CalibrationStore(registry).write(calibration(name, pooled, kinds, words, text.sha256))
    return {"task": "check", "model": name, **figures, "calibration_saved": save_calibration}


def _held_out_texts(corpus: Sequence[Path], context: str, unit: str, progress: Progress) -> Sequence[str]:
    """Return the sentences; for `document`, one string per file."""
    if not corpus:
        texts = read_default_corpus(progress).test.sentences
        return ["\n".join(texts)] if context == "document" else texts
    if context == "document":
        return ["\n".join(read_lines(path)) for path in corpus]
    return read_corpus(corpus, unit=unit, progress=progress).sentences
