"""Training and evaluation commands of the command line."""

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from models.checkpoint.load import NGRAM_FAMILY, Checkpoint, load_checkpoint
from models.checkpoint.manifest import check_name, version_address
from models.checkpoint.precision import FLOAT32, check_precision
from models.checkpoint.registry import Address, open_registry
from models.checkpoint.registry_interface import Registry
from models.completion.corrections import MAX_EDITS
from models.completion.ranked import RankingSettings
from models.errors import InputError, ModelNotFoundError, require_package
from models.files import atomic_writer
from models.precompile import DECODING, WORDS, compile_groups, groups_of
from models.slot_model import with_slots
from models.slots import Slots, check_slots
from models.tokenizers import WordTokenizer
from models.training_status import RUNS_FOLDER
from training.corpus import read_corpus, read_lines, read_members
from training.ensemble import divide_minutes
from training.evaluation.autocomplete import DEFAULT_WORDS, autocomplete_figures
from training.evaluation.breakdown import (
    DEFAULT_SAMPLE,
    OOV_POLICY,
    EvaluationOptions,
    check_comparable,
    compare_models,
    evaluation_details,
)
from training.evaluation.evaluate import Context, score_corpus, summarise_scores
from training.mixture import (
    continue_ngrams,
    network_recipes,
    published_teachers,
    shared_tokenizer,
    train_mixture,
)
from training.model_card import overlap_notes
from training.progress import (
    SILENT,
    Progress,
    Terminated,
    console_progress,
    exit_on_sigterm,
    shown_progress,
)
from training.publish import RunContext, facts_by_split, publish, published_result
from training.purpose import TypingPlan, choose_candidate, typing_candidates
from training.recipe import Recipe, load_recipe
from training.scale.options import ScaleOptions, check_relational, engine_memory_bytes, require_engine
from training.scale.training import train_out_of_core, workspace
from training.single_model import (
    ResumableRuns,
    Trained,
    TrainingInputs,
    continue_from,
    fit_network,
    in_model_direction,
    train_single,
)
from training.texts import (
    Texts,
    encode_texts,
    overlap_with_files,
    overlaps,
    read_default_corpus,
    read_fitting_text,
    read_texts,
)
from training.tokenizer import count_words, encode_corpus, learn_lexicon, learn_tokenizer, mark_members

if TYPE_CHECKING:
    from training.neural.distributed import Processes

T = TypeVar("T")

_ESTIMATION_FOLDER = "estimation"


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
    typing: TypingPlan | None = None,
) -> dict[str, Any]:
    """Train a model from a recipe and publish it; under torchrun only rank 0 publishes.

    See `gramophone train` for the arguments; without `scale`, n-grams are estimated in memory. With
    `typing`, a keystroke is measured with each model, and the first that fits is published.

    Returns:
        The new version's address, directory and held-out figures; empty unless the rank is 0.

    Raises:
        DomainError: invalid input, or an unwritable registry; nothing is published.
    """
    check_name(name)
    require_package("matplotlib", "training")  # for the model card, at the end
    recipe = load_recipe(recipe_name, assignments)
    files = (corpus, valid, test)
    if scale is not None:
        store = open_registry(registry, create=True)
        return _train_out_of_core(recipe_name, recipe, files, (store, name), scale)
    title = Path(recipe_name).stem
    networks = network_recipes(title, recipe)  # rejects invalid parts before reading text
    with exit_on_sigterm(), _joined(device, trains_network=bool(networks)) as (resolved, processes):
        is_leader = processes is None or processes.is_leader
        store = open_registry(registry, create=True)
        base: Checkpoint | None = None
        if recipe.train.base is not None:
            (base,) = _load_published("train.from", [recipe.train.base], store, device="cpu")
            recipe = continue_from(recipe, base, source=recipe_name)
            networks = network_recipes(title, recipe)
        runs = ResumableRuns(store.work_folder, name, resume=resume)
        if is_leader:  # compile, during the training, what evaluation and serving need
            groups = [group for network in networks.values() for group in groups_of(network.neural.cell)]
            if recipe.family != "neural":
                of_words = recipe.tokenizer.kind == WordTokenizer.kind
                quantised = recipe.ngram.quantize_bits is not None
                groups += groups_of(NGRAM_FAMILY, quantised=quantised, of_words=of_words)
            compile_groups([WORDS, *groups, *([DECODING] if networks else [])])
        with (
            _resume_hint(runs.resume_hint, processes),
            runs.locked() if networks and is_leader else contextlib.nullcontext(),
            shown_progress(store.work_folder, name)
            if is_leader
            else contextlib.nullcontext(SILENT) as progress,
        ):
            if processes is not None:
                from training.neural.distributed import check_same_command, check_same_text  # imports torch

                runs.notes += check_same_command(recipe, networks, device=resolved, resume=resume)
            published, teachers, texts, run = _prepare(
                recipe, base, store, files, device=resolved, progress=progress
            )
            if processes is not None:
                check_same_text(texts, run.encoded, run.tokenizer)
            if run.tokenizer.slots or recipe.tokenizer.slots:
                runs.notes.append(
                    "figures count the mark of a class as one token; gramophone evaluate counts the members"
                )
            inputs = TrainingInputs(run.tokenizer, run.encoded, resolved, progress, runs, teachers, base=base)
            if not is_leader:
                for part_title, part in divide_minutes(recipe, networks, resolved).items():
                    directed = in_model_direction(run.encoded, part)
                    fit_network(part_title, part, inputs._replace(texts=directed))
                return {}
            held_out = {"valid": texts.valid if valid else None, "test": texts.test if test else None}
            overlap = _in_background(overlaps, held_out, texts.train)
            typed = list((texts.test or texts.valid).sentences)
            del texts  # frees the training sentences once they are compared
            # slow to import; for the model card
            pictures = _in_background(importlib.import_module, "matplotlib.figure")
            trained = _train(title, recipe, inputs, published)
            run = run._replace(overlap=overlap.result())
            pictures.result()  # keystrokes are measured without other threads
            trained, run = _for_typing(typing, trained, run, typed, inputs, store, files)
            version = publish(store, name, trained, run)
            runs.close()
            return published_result(store, version, trained.seconds, first_notes=runs.notes)


def _train(title: str, recipe: Recipe, inputs: TrainingInputs, published: Sequence[Checkpoint]) -> Trained:
    if recipe.family == "mixture":
        return train_mixture(title, recipe, inputs, published)
    if inputs.base is not None and recipe.family == NGRAM_FAMILY:
        return continue_ngrams(title, recipe, inputs, inputs.base)
    return train_single(title, recipe, inputs)


def _for_typing(
    typing: TypingPlan | None,
    trained: Trained,
    run: RunContext,
    texts: Sequence[str],
    inputs: TrainingInputs,
    store: Registry,
    files: Sequence[Sequence[Path]],
) -> tuple[Trained, RunContext]:
    """Return the model to publish: of those trained, or one of words that carries more typists."""
    if typing is None or trained.recipe.reading_direction == "backward":
        return trained, run
    progress, typists = inputs.progress, typing.typists
    candidates = typing_candidates(trained, run, texts, progress=progress)
    if not candidates:
        inputs.note("no keystroke was measured: the held-out text has no word")
        return trained, run
    able = any(one.facts["typists"] >= (typists or 0) for one in candidates)
    if typing.of_words and not able:
        recipe = load_recipe(NGRAM_FAMILY, typing.of_words)
        _, _, _, other = _prepare(recipe, None, store, files, device=inputs.device, progress=progress)
        own = inputs._replace(tokenizer=other.tokenizer, texts=other.encoded)
        words = train_single(f"{NGRAM_FAMILY} of words", recipe, own)
        other = other._replace(overlap=run.overlap)
        candidates += typing_candidates(words, other, texts, progress=progress)
    chosen = choose_candidate(candidates, typists)
    if reason := chosen.trained.facts["typing"]["reason"]:
        inputs.note(reason)
    return chosen.trained, chosen.run


@contextlib.contextmanager
def _joined(device: str, *, trains_network: bool) -> "Iterator[tuple[str, Processes | None]]":
    """Join the processes that torchrun started, and leave them at the end.

    Yields compute device and processes, None for a single one. Without torchrun,
    n-grams are estimated without torch, whose import takes a second, on the CPU.
    """
    if device == "cpu" and not trains_network and "TORCHELASTIC_RUN_ID" not in os.environ:  # noqa: TID251 - of torchrun
        yield device, None
        return
    require_package("torch", "training networks" if trains_network else f"device {device}", param="device")
    from models.neural.network import resolve_device
    from training.neural.distributed import Processes, join_processes

    with join_processes(resolve_device(device)) as resolved:
        processes = Processes.current()
        yield str(resolved), processes if processes.count > 1 else None


@contextlib.contextmanager
def _resume_hint(hint: Callable[[], str], processes: "Processes | None") -> Iterator[None]:
    """Print how to resume if SIGTERM ends the command."""
    try:
        with exit_on_sigterm():
            yield
    except Terminated as ended:
        is_leader = processes is None or processes.is_leader
        instruction = hint() if is_leader else "process 0 reports the saved state"
        if ended.unsaved:
            instruction = f"{ended.unsaved}; {instruction}"
        subject = "" if processes is None else f"process {processes.rank} was "
        sys.stderr.write(f"gramophone: {subject}ended by SIGTERM; {instruction}\n")
        raise


def _prepare(
    recipe: Recipe,
    base: Checkpoint | None,
    store: Registry,
    files: Sequence[Sequence[Path]],
    *,
    device: str,
    progress: Progress,
) -> tuple[Sequence[Checkpoint], Mapping[str, Checkpoint], Texts, RunContext]:
    """Load published parts, and teachers by name; read and encode training, validation and test files."""
    # static mixing runs on the CPU
    part_device = "cpu" if recipe.mixture.kind == "static" else device
    published = _load_published("mixture.models", recipe.mixture.models, store, device=part_device)
    names = published_teachers(recipe)
    teachers = _load_published("train.teacher", names, store, device=device)
    lenders = published if base is None else [base]
    shared = shared_tokenizer(recipe, lenders, teachers)
    trains = recipe.family != "mixture" or bool(recipe.mixture.recipes or recipe.mixture.parts)
    read_corpora = read_texts if trains else read_fitting_text
    texts = read_corpora(*files, unit=recipe.corpus.unit, progress=progress)
    classes = recipe.tokenizer.slots
    if shared is not None and classes:
        problem = "the model has the classes and members of the published models that it begins with"
        raise InputError(f"tokenizer.slots: {problem}; omit the key", param="tokenizer.slots")
    given = {name: Path(path) for name, path in classes.items() if path}
    lists = read_members(given) if shared is None else shared.slots
    known_classes = classes if shared is None else shared.classes
    slots: Slots = check_slots(lists, known=known_classes, param="tokenizer.slots")
    if slots:
        given_texts = [text for text in texts if text is not None]
        marked, slots = mark_members(shared or recipe.tokenizer, slots, given_texts, progress=progress)
        texts = Texts(*marked, *texts[len(marked) :])
    known = () if shared is None else shared.vocabulary.ids
    if shared is None or (base is not None and "min_count" in recipe.tokenizer.model_fields_set):
        shared = learn_tokenizer(recipe.tokenizer, texts.train.sentences, known=known, progress=progress)
    if lent := [model.tokenizer for model in (*lenders, *teachers)]:
        lexica = [one.lexicon for one in lent]
        words = count_words(shared, texts.train.sentences, progress)
        if trains and all(lexica):
            lexica.append(learn_lexicon(words))
        shared.misspellings = recipe.tokenizer.misspelling_finder()(words, [one.misspellings for one in lent])
        shared.lexicon = tuple(dict.fromkeys(chain.from_iterable(lexica))) if all(lexica) else ()
    shared.slots = slots
    encoded = encode_texts(shared, texts, progress=progress)
    named = dict(zip(names, teachers, strict=True))
    return published, named, texts, RunContext(shared, facts_by_split(texts), encoded)


def _load_published(key: str, addresses: Sequence[str], store: Registry, *, device: str) -> list[Checkpoint]:
    """Load published models, given in a recipe's key, in single precision."""
    try:
        versions = [store.resolve(address) for address in addresses]
    except (InputError, ModelNotFoundError) as error:
        raise InputError(f"{key}: {error}", param=key) from None
    return [
        load_checkpoint(store.fetch(version), device=device, precision=FLOAT32, members=False)
        for version in versions
    ]


def _in_background(function: Callable[..., T], *arguments: object) -> Future[T]:
    """Call a function in a thread that an interrupted command does not wait for."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function(*arguments))
        except Exception as error:  # noqa: BLE001 - raised where the result is needed
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _train_out_of_core(
    recipe_name: str,
    recipe: Recipe,
    files: Sequence[Sequence[Path]],
    target: tuple[Registry, str],
    options: ScaleOptions,
) -> dict[str, Any]:
    """Estimate n-grams by the relational plan and publish, in rank 0 only; on success, remove the stages."""
    hint = "the same command continues after the last finished stage"
    with (
        exit_on_sigterm(),
        _joined("cpu", trains_network=False) as (_, processes),
        _resume_hint(lambda: hint, processes),
    ):
        if processes is not None and not processes.is_leader:
            return {}
        check_relational(recipe, options.engine, name=recipe_name)
        require_engine(options.engine)
        if options.engine == "duckdb":
            # rejects a low limit before reading text
            engine_memory_bytes(options.memory_limit_bytes)
        store, name = target
        folder = options.work_dir or store.work_folder / RUNS_FOLDER / name / _ESTIMATION_FOLDER
        with workspace(folder) as work:
            title = Path(recipe_name).stem
            trained, run, notes = train_out_of_core(title, recipe, files, options, work, console_progress())
            version = publish(store, name, trained, run)
            result = published_result(store, version, trained.seconds, first_notes=notes)
            work.remove()
        if options.work_dir is None:
            with contextlib.suppress(OSError):  # may hold an unfinished network run of this name
                folder.rmdir()
                folder.parent.rmdir()
        return result


def run_evaluate(
    address: str,
    *,
    corpus: Sequence[Path],
    registry: Address,
    context: Context,
    unit: str,
    window: int,
    device: str,
    precision: str = "auto",
    detail: bool = False,
    sample: int = DEFAULT_SAMPLE,
    against: str | None = None,
    overlap: Sequence[Path] = (),
    dynamic: bool = False,
    slots: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Evaluate a published model on files, or the test part of the default corpus.

    See `gramophone evaluate` for the arguments; a `dynamic` model has no entropy in its `detail`.

    Raises:
        DomainError: a model, file or option is invalid, or a dynamic model has no gradient.
    """
    _check_counts(window=window, sample=sample)
    options = EvaluationOptions("stream" if dynamic else context, window, sample)
    if dynamic and check_precision(precision) not in {"auto", FLOAT32}:
        problem = f"--precision is {precision}; --dynamic computes gradients and requires float32"
        raise InputError(problem, param="precision")
    precision = FLOAT32 if dynamic else precision
    store, progress = open_registry(registry), console_progress()
    checkpoints = _load_models(store, (address, against), slots, device=device, precision=precision)
    checkpoint, name = checkpoints[0], version_address(checkpoints[0].path)
    if against is not None:
        check_comparable(checkpoint, checkpoints[1])
    backward = checkpoint.manifest.direction == "backward"
    if backward and not dynamic and context != "sentence":
        problem = f"--context is {context!r}; {name} reads right to left and supports only 'sentence'"
        raise InputError(problem, param="context")
    texts = _held_out_texts(corpus, options.context, unit, progress)
    encoded = encode_corpus(checkpoint.tokenizer, texts, progress=progress)
    encoded = encoded.reversed() if backward else encoded
    if dynamic:
        from training.dynamic_evaluation import dynamic_evaluation  # imports torch

        targets = dynamic_evaluation(checkpoint.model, encoded, progress=progress)
    else:
        targets = score_corpus(
            checkpoint.model, encoded, context=options.context, window=window, progress=progress
        )
    if not len(targets.tokens):
        raise InputError("the text has no token to predict", param="corpus")
    result = {
        "model": name,
        "precision": checkpoint.precision,
        **summarise_scores(checkpoint.model, encoded, targets, context=options.context).facts(),
        "oov_policy": OOV_POLICY,
    }
    notes = []
    if dynamic:
        notes = ["dynamic evaluation: a copy of the model learned from each segment after scoring it"]
        result |= {"dynamic": True, "notes": notes}
    if detail:
        result["detail"] = evaluation_details(
            checkpoint, encoded, targets, options, with_entropy=not dynamic, progress=progress
        )
    if against is not None:
        result["against"] = compare_models(
            checkpoint, checkpoints[1], encoded, targets, options, progress=progress
        )
    if overlap:
        sentences = [line for text in texts for line in text.split("\n")]
        facts = overlap_with_files(sentences, overlap, unit=unit, progress=progress)
        result["overlap"] = {"training_text": [path.name for path in overlap], **facts}
        result["notes"] = [*notes, *overlap_notes({"evaluated text": facts})]
    return result


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise InputError(f"--{name} is {value}; it must be at least 1", param=name)


def _load_models(
    store: Registry,
    names: Sequence[str | None],
    slots: Mapping[str, Sequence[str]],
    *,
    device: str,
    precision: str,
) -> list[Checkpoint]:
    """Load the named models, with members of their classes; a second may have none."""
    versions = [store.resolve(name) for name in names if name is not None]
    checkpoints = [
        load_checkpoint(store.fetch(version), device=device, precision=precision) for version in versions
    ]
    for index, checkpoint in enumerate(checkpoints if slots else ()):
        if index == 0 or checkpoint.tokenizer.classes:
            model, tokenizer = with_slots(checkpoint.model, checkpoint.tokenizer, slots)
            checkpoints[index] = checkpoint._replace(model=model, tokenizer=tokenizer)
    return checkpoints


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
    casing: str = "exact",
    fuzzy: int = 0,
    learn: bool = False,
    no_repeats: bool = False,
    report: Path | None = None,
    slots: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Evaluate a published model's autocomplete on files, or the test part of the default corpus.

    See `gramophone evaluate` for the arguments.

    Raises:
        DomainError: a model, file or option is invalid.
    """
    _check_counts(sample=sample)
    if fuzzy > MAX_EDITS:
        raise InputError.of("fuzzy", f"is {fuzzy}; at most {MAX_EDITS} errors in a word are corrected")
    if report is not None and not report.parent.is_dir():
        problem = f"--report is {report}; the folder {report.parent} does not exist"
        raise InputError(problem, param="report")
    store, progress = open_registry(registry), console_progress()
    models = _load_models(store, (address, against or None), slots, device=device, precision=precision)
    texts = _held_out_texts(corpus, "sentence", unit, progress)
    settings = RankingSettings(ignore_case=casing == "ignore", fuzzy=fuzzy)
    result = autocomplete_figures(
        models,
        texts,
        settings,
        words=sample,
        context=context,
        learns=learn,
        no_repeats=no_repeats,
        progress=progress,
    )
    if report is not None:
        from training.report import autocomplete_page

        with atomic_writer(report) as write:
            write(autocomplete_page(result))
    return result


def _held_out_texts(corpus: Sequence[Path], context: str, unit: str, progress: Progress) -> Sequence[str]:
    """Return the sentences; for `document`, one string per file."""
    if not corpus:
        texts = list(read_default_corpus(progress)[2].sentences)
        return ["\n".join(texts)] if context == "document" else texts
    if context == "document":
        return ["\n".join(read_lines(path)) for path in corpus]
    return list(read_corpus(corpus, unit=unit, progress=progress).sentences)
