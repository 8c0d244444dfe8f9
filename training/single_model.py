"""Train a model of one family from a recipe, with metrics, and resume an interrupted run.

Rows of an n-gram model are checked to sum to 1.

The registry's work folder has an unfinished run's state in `.runs/<model>/<recipe>/`. One
process at a time locks `.runs/<model>`; the system releases the lock when the process dies.
"""

import atexit
import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from models.checkpoint.folders import locked_folder as lock_folder
from models.checkpoint.folders import report_write_errors
from models.checkpoint.load import Checkpoint, StorableModel
from models.checkpoint.manifest import MANIFEST_FILE, file_entries, sha256_of, version_address
from models.checkpoint.precision import NEURAL_FAMILIES
from models.errors import InputError
from models.language_model import EOS, LanguageModel
from models.neural.config import NetworkConfig
from models.ngram.model import NGramModel, NGramState
from models.tokenizers import PieceTokenizer, Tokenizer, WordTokenizer
from models.training_status import RUNS_FOLDER
from training.corpus import EncodedCorpus
from training.evaluation.evaluate import Context, evaluate
from training.ngram.estimate import estimate, make_smoothing
from training.progress import HistoryRecord, Progress
from training.recipe import Recipe, merge_tables, parse_recipe
from training.texts import EncodedTexts
from training.tokenizer import TokenizerSettings

if TYPE_CHECKING:
    from training.neural.embeddings import Embeddings
    from training.neural.streams import SoftTargets
    from training.neural.trainer import TrainingResult


SUM_TOLERANCE = 1e-5
"""Maximum deviation from 1 attributed to rounding."""

_CONTEXTS_BY_LENGTH = 100
_BATCH = 8
_STATE_FILE = "state.pt"
_NOT_SHAPE = frozenset(
    {"dropout", "input_dropout", "hidden_dropout", "embedding_dropout", "weight_drop", "variational"}
)
"""Keys of `neural` that may differ from the base."""

_WORD_RULES = {"pattern": None, "lowercase": False, "marked_unknown": "word", "unicode_spaces": False}
Figures: TypeAlias = dict[str, dict[str, Any]]


def row_sum_facts(model: NGramModel) -> dict[str, Any]:
    """Sum next-token probabilities after the empty context, `<s>` and 100 of each length.

    Returns:
        For metrics.json: the number of `contexts`, the `largest_deviation` |Σp − 1|, and `normalised`, True if
        all sums are 1 up to rounding.
    """
    automaton, worst = model.automaton, 0.0
    sampled = [np.array([0, automaton.initial])]
    for begin, end in pairwise(automaton.order_starts[:-1].tolist()):
        # [n, 1]; quantised: bytes, the lowest first [n, 3]; n may be 0
        words = automaton.words[begin:end].reshape(end - begin, *automaton.words.shape[1:] or (1,))
        is_end = (words == np.array([EOS, 0, 0])[: words.shape[1]]).all(axis=1)  # no token follows
        arcs = np.flatnonzero(~is_end) + begin
        chosen = np.linspace(0, len(arcs) - 1, min(len(arcs), _CONTEXTS_BY_LENGTH)).astype(np.int64)
        sampled.append(arcs[chosen] + 1)  # arc i leads to state i + 1
    states = np.concatenate(sampled).astype(np.int32)
    for begin in range(0, len(states), _BATCH):
        rows = np.exp(model.next_log_probs(NGramState(states[begin : begin + _BATCH])), dtype=np.float64)
        worst = max(worst, float(np.abs(rows.sum(axis=1) - 1).max()))
    return {"contexts": len(states), "largest_deviation": worst, "normalised": worst <= SUM_TOLERANCE}


class Trained(NamedTuple):
    """A newly trained model.

    Attributes:
        title: title of the recipe or model.
        recipe: the resolved recipe.
        model: the model.
        history: records of the neural trainer; empty for other families.
        facts: results by family, such as discounts, n-grams by order, weights.
        figures: held-out figures by split, from `Evaluation.facts`.
        seconds: wall time of training, without texts, tokenizer and figures.
        parts: parts of a mixture: newly trained or published models.
        part_figures: figures of each part on the same texts.
        unused: parts without weight, left out of a mixture.
    """

    title: str
    recipe: Recipe
    model: StorableModel[Any]
    history: Sequence[HistoryRecord]
    facts: dict[str, Any]
    figures: Figures
    seconds: float
    parts: "Sequence[Trained | Checkpoint]" = ()
    part_figures: Sequence[Figures] = ()
    unused: "Sequence[Trained | Checkpoint]" = ()

    @property
    def context(self) -> Context:
        """Context of the figures."""
        return self.recipe.mixture.fitted_context if self.recipe.family == "mixture" else "sentence"


def part_title(part: Trained | Checkpoint) -> str:
    """Return a part's title, or a published part's address."""
    return part.title if isinstance(part, Trained) else version_address(part.path)


def normalisation_facts(model: StorableModel[Any]) -> dict[str, Any]:
    """Measure row sums of an unnormalised n-gram model; empty for others."""
    if not isinstance(model, NGramModel) or model.normalised:
        return {}
    return {"normalisation": row_sum_facts(model)}


def held_out_texts(texts: EncodedTexts) -> dict[str, EncodedCorpus]:
    """Return the validation and, if given, the test text, by split."""
    return {"valid": texts.valid} | ({} if texts.test is None else {"test": texts.test})


def held_out_figures(model: LanguageModel[Any], texts: EncodedTexts, *, progress: Progress) -> Figures:
    """Compute sentence-context figures on the held-out texts."""
    return {s: evaluate(model, t, progress=progress).facts() for s, t in held_out_texts(texts).items()}


@contextlib.contextmanager
def locked_folder(folder: Path, *, busy: InputError) -> Iterator[None]:
    """Create a missing folder, and hold its lock; the system releases it when the process dies.

    Args:
        folder: folder to lock; the holder of the lock may remove it.
        busy: error to raise if another process holds the lock.

    Raises:
        InputError: another process holds the lock.
        RegistryError: a file operation failed.
    """
    with contextlib.ExitStack() as locks:
        with report_write_errors(folder):
            is_current = False
            while not is_current:  # the last holder may remove the opened folder
                folder.mkdir(parents=True, exist_ok=True)
                try:
                    descriptor = locks.enter_context(lock_folder(folder, wait=False))
                except BlockingIOError:
                    raise busy from None
                is_current = folder.exists() and os.path.samestat(os.fstat(descriptor), folder.stat())
        yield


class ResumableRuns:
    """Saved training states of a model and, for a mixture, its parts.

    Args:
        folder: the registry's work folder.
        name: name of the model.
        resume: resume from saved states; else remove them, with a note.

    Attributes:
        folder: folder of the saved states.
        notes: messages for the user.
        interrupted: True if Ctrl-C ended a run.
        seconds_before: training seconds before the runs were resumed.
    """

    def __init__(self, folder: Path, name: str, *, resume: bool) -> None:
        self.resume = resume
        self.notes: list[str] = []
        self.seconds_before = 0.0
        self._name = name
        self.folder = folder / RUNS_FOLDER / name
        self.interrupted = False

    def state_file(self, title: str) -> Path:
        """Return the path of this title's state file."""
        return self.folder / title / _STATE_FILE

    def discard(self, title: str, reason: str) -> None:
        """Remove this title's saved run, if any, noting the reason."""
        if (state := self.state_file(title)).exists():
            shutil.rmtree(state.parent)
            self.notes.append(f"the training of {title} started from the beginning: {reason}")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Prevent other processes from training a model of this name.

        Raises:
            InputError: another process is training one.
            RegistryError: a file operation failed.
        """
        busy = InputError(
            f"another process is training {self._name!r} in {self.folder.parent.parent}; wait until it ends, or give "
            "another --name",
            param="name",
        )
        with locked_folder(self.folder, busy=busy):
            if not self.resume and (unwanted := [path.parent for path in self._states()]):
                titles = ", ".join(folder.name for folder in unwanted)
                note = f"an unfinished training ({titles}) was removed; --resume would have continued it"
                self.notes.append(note)
                for folder in unwanted:
                    shutil.rmtree(folder, ignore_errors=True)
            try:
                yield
            finally:
                if not self._states():
                    shutil.rmtree(self.folder, ignore_errors=True)

    def add(self, title: str, runs: "ResumableRuns") -> None:
        """Add the end of a network's training in a parallel process."""
        self.interrupted |= runs.interrupted
        self.notes += [f"{title}: {note}" for note in runs.notes]
        self.seconds_before = max(self.seconds_before, runs.seconds_before)

    def close(self) -> None:
        """Remove the states after publication, unless a training was interrupted."""
        if self.interrupted:
            self.notes.append("the training was interrupted; the same command with --resume continues it")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def resume_hint(self) -> str:
        """Return instructions for resuming a terminated command."""
        if not self._states():
            return "nothing was saved yet; the same command starts from the beginning"
        option = "" if self.resume else " with --resume"
        return f"the training is saved in {self.folder}; the same command{option} continues it"

    def _states(self) -> list[Path]:
        return sorted(self.folder.glob(f"*/{_STATE_FILE}"))


class TrainingInputs(NamedTuple):
    """Inputs common to every training of a run.

    Attributes:
        tokenizer: tokenizer of the texts.
        texts: texts for training, validation and test.
        device: `cpu` or `cuda`; n-gram models are estimated on the CPU.
        progress: reports every stage.
        runs: saved states of networks, for resuming.
        teachers: trained and published models by name in `train.teacher`.
        soft_targets: distributions of networks' teachers, by network title.
        base: published model to start from; None to begin anew.
    """

    tokenizer: Tokenizer
    texts: EncodedTexts
    device: str
    progress: Progress
    runs: ResumableRuns | None = None
    teachers: Mapping[str, Trained | Checkpoint] = MappingProxyType({})
    soft_targets: "Mapping[str, SoftTargets]" = MappingProxyType({})
    base: Checkpoint | None = None

    def note(self, message: str) -> None:
        """Add a message for the user."""
        if self.runs is not None:
            self.runs.notes.append(message)


def train_single(title: str, recipe: Recipe, inputs: TrainingInputs) -> Trained:
    """Train a model except a mixture, and evaluate it on validation and test texts.

    A backward model is an ordinary one of reversed sentences, on which it is evaluated.
    """
    inputs = inputs._replace(texts=in_model_direction(inputs.texts, recipe))
    train = _train_ngram if recipe.family == "ngram" else _train_neural
    trained = train(title, recipe, inputs)
    return trained._replace(figures=held_out_figures(trained.model, inputs.texts, progress=inputs.progress))


def _train_ngram(title: str, recipe: Recipe, inputs: TrainingInputs) -> Trained:
    """Estimate an n-gram model; smoothing parameters are fitted on the validation text."""
    began = time.monotonic()
    settings = recipe.ngram
    parameters = settings.model_dump(include={"k", "buckets", "discounts"})
    result = estimate(
        inputs.texts.train,
        inputs.tokenizer.vocabulary,
        **settings.model_dump(include={"order", "prune", "prune_entropy"}),
        smoothing=make_smoothing(settings.smoothing, **parameters),
        quantise=settings.quantize_bits is not None,
        held_out=inputs.texts.valid,
        progress=inputs.progress,
    )
    facts = {"smoothing": settings.smoothing, **result.facts, **normalisation_facts(result.model)}
    return Trained(title, recipe, result.model, (), facts, {}, time.monotonic() - began)


def _train_neural(title: str, recipe: Recipe, inputs: TrainingInputs) -> Trained:
    from training.neural.diagnostics import diagnose, log_normalisers
    from training.neural.embeddings import initial_embeddings  # imports torch

    began = time.monotonic()
    inputs = with_soft_targets({title: recipe}, inputs)
    embeddings = initial_embeddings(recipe, inputs.texts.train, inputs.tokenizer.vocabulary)
    result = fit_network(title, recipe, inputs, embeddings=embeddings)
    seconds = time.monotonic() - began + result.seconds_before
    source = Path(recipe.train.embeddings).name
    started = {"source": source, "tokens": len(embeddings.rows)} if embeddings is not None else None
    facts = {
        "stopped": result.stopped,
        "loss": result.loss,
        "device": inputs.device,
        "diagnostics": diagnose(result.model.network, inputs.texts.valid),
        **({"throughput": result.throughput} if result.throughput else {}),
        **({"embeddings": started} if started else {}),
        **({"base": base_facts(inputs.base)} if inputs.base is not None else {}),
        **({"teachers": list(inputs.soft_targets[title].teachers)} if recipe.train.teacher else {}),
    }
    if result.model.self_normalised:
        facts["log_normalisers"] = log_normalisers(result.model, inputs.texts.valid)
    return Trained(title, recipe, result.model, result.history, facts, {}, seconds)


def fit_network(
    title: str, recipe: Recipe, inputs: TrainingInputs, *, embeddings: "Embeddings | None" = None
) -> "TrainingResult":
    """Train a recipe's network, without evaluation; the texts are in reading order.

    In distributed training, only rank 0 needs embeddings: all start from its weights.
    """
    from training.neural.trainer import train_network

    runs = inputs.runs
    result = train_network(
        inputs.texts.train,
        inputs.texts.valid,
        inputs.tokenizer.vocabulary,
        recipe,
        device=inputs.device,
        progress=inputs.progress,
        embeddings=embeddings,
        base=None if inputs.base is None else inputs.base.model.network,  # type: ignore[attr-defined]  # of a network
        soft_targets=inputs.soft_targets.get(title),
        state_file=None if runs is None else runs.state_file(title),
        resume=runs is not None and runs.resume,
    )
    if runs is not None:
        runs.interrupted |= result.stopped == "interrupted"
        runs.notes += result.notes
        runs.seconds_before += result.seconds_before
    return result


def continue_from(recipe: Recipe, base: Checkpoint, *, source: str) -> Recipe:
    """Complete a recipe with `train.from` by the published model's values, the base; messages name `source`.

    Raises:
        InputError: the recipe sets another family, shape, direction or
            tokenizer than the base; the message names the keys and both values.
    """
    address, family = version_address(base.path), base.model.family
    is_ngram = recipe.family == NGramModel.family
    if family not in ({NGramModel.family} if is_ngram else NEURAL_FAMILIES):
        kind = "an n-gram model" if is_ngram else "a network"
        problem = f"train.from: {address} is of the family {family}; {kind} continues from {kind}"
        raise InputError(problem, param="train.from")
    shape, full_shape = dict[str, Any](), dict[str, Any]()
    if not is_ngram:
        config: NetworkConfig = base.model.config  # type: ignore[attr-defined]  # of a network
        shape = {"neural": config.model_dump(exclude_defaults=True, exclude={"self_normalised"})}
        full_shape = config.model_dump(exclude={*_NOT_SHAPE})
    direction, own = {"direction": base.manifest.direction}, recipe.model_dump(exclude_unset=True)
    rules, limits = _tokenizer_keys(base.tokenizer, recipe.tokenizer)
    compared = (
        ("", own, direction),
        ("neural.", own.get("neural", {}), full_shape),
        ("tokenizer.", own.get("tokenizer", {}), _WORD_RULES | rules | limits),
    )
    differences = [
        f"{prefix}{key} is {given[key]}, but {value} in {address}"
        for prefix, given, expected in compared
        for key, value in expected.items()
        if given.get(key) not in {None, value}
    ]
    if recipe.train.teacher and "min_count" in recipe.tokenizer.model_fields_set:
        differences.append("tokenizer.min_count adds words, which the models of train.teacher lack")
    if differences:
        hint = f"unset keys, as in the recipe finetune, have the values of {address}"
        raise InputError(f"train.from: {'; '.join(differences)}; {hint}", param="train.from")
    table = merge_tables({**direction, **shape, "tokenizer": rules}, own)
    return parse_recipe(merge_tables(table, {"train": {"from": address}}), source=source)


def _tokenizer_keys(base: Tokenizer, given: TokenizerSettings) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys of a base's tokenizer, and values of further keys that fit it."""
    kind, size, form = base.kind, len(base.vocabulary), base.normaliser.form
    if isinstance(base, PieceTokenizer):
        kind = given.kind if given.kind in {"bpe", "unigram"} else kind
        return {"normalise": form}, {"kind": kind, "vocab_size": size, "min_count": None}
    rules = base.rules if isinstance(base, WordTokenizer) else {"normalise": form}
    return {**rules, "kind": kind}, {"vocab_size": max(size, given.vocab_size or 0)}


def base_facts(base: Checkpoint) -> dict[str, Any]:
    """Return a base's address and training-text hash, for metrics.json."""
    text = base.metrics.get("data", {}).get("train", {})
    return {"model": version_address(base.path), "training_text_sha256": text.get("sha256")}


def with_soft_targets(networks: Mapping[str, Recipe], inputs: TrainingInputs) -> TrainingInputs:
    """Replace networks' teachers by their soft targets for the training text.

    Each combination of teachers reads it once. Files are removed with saved states.

    Args:
        networks: recipes of the networks by title.
        inputs: the run's texts in reading direction, and teachers of networks without soft targets.

    Raises:
        FormatError: a file cannot be written.
    """
    found = dict(inputs.soft_targets)
    for title, recipe in networks.items():
        if not recipe.train.teacher or title in found:
            continue
        import torch

        from training.neural.run import training_precision
        from training.neural.streams import SoftTargets, write_soft_targets

        teachers, corpus = [inputs.teachers[name] for name in recipe.train.teacher], inputs.texts.train
        hashes = "".join([corpus.token_hash(), *map(_model_hash, teachers)])
        if inputs.runs is None:
            folder = Path(tempfile.mkdtemp())
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
        else:
            folder = inputs.runs.folder
        path = folder / f"{hashlib.sha256(hashes.encode()).hexdigest()}.npy"
        if not path.exists():
            if inputs.runs is not None and any(isinstance(t, Trained) and t.history for t in teachers):
                inputs.runs.discard(title, "its teachers were trained further")
            models, device = [teacher.model for teacher in teachers], torch.device(inputs.device)
            precision = training_precision(recipe.train, device)
            write_soft_targets(
                path, models, corpus, device=device, precision=precision, progress=inputs.progress
            )
        found[title] = SoftTargets(path, tuple(map(part_title, teachers)))
    return inputs._replace(teachers={}, soft_targets=found)


def _model_hash(model: Trained | Checkpoint) -> str:
    """Return the SHA-256 (hex) of a published model's manifest, or a trained one's files."""
    if isinstance(model, Checkpoint):
        return sha256_of(model.path / MANIFEST_FILE)
    with tempfile.TemporaryDirectory() as folder:
        model.model.save(Path(folder))
        return "".join(entry.sha256 for entry in file_entries(Path(folder)).values())


def in_model_direction(texts: EncodedTexts, recipe: Recipe) -> EncodedTexts:
    """Return texts in the recipe's reading direction: reversed for backward models."""
    return texts if recipe.reading_direction == "forward" else texts.map(EncodedCorpus.reversed)
