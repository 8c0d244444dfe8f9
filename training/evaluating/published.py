"""Everything that `gramophone evaluate` says of a published model beside its plain figures."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.checkpoint.load import Checkpoint
from models.errors import InvalidInputError
from training.corpora.encoded import EncodedCorpus
from training.evaluating.breakdown import (
    TokenGroup,
    by_frequency,
    by_position,
    positions_in_sentence,
    positions_since_start,
    token_counts,
)
from training.evaluating.comparing import log_prob_difference, mean_divergence
from training.evaluating.entropy import SampledMean, mean_entropy
from training.evaluating.scoring import Context, CorpusScores, score_corpus
from training.evaluation import evaluation_facts, summarise_scores
from training.progress import Progress

OOV_POLICY = (
    "unknown tokens are charged at p(<unk>) and counted in every figure but perplexity_without_oov, "
    "which leaves them out of sum and count"
)
COUNTS_FILE = "token_counts.npy"
"""In a checkpoint: how often each token occurs in the training text [V], int64."""


class EvaluationOptions(NamedTuple):
    """How a text is looked at.

    Attributes:
        context: see `training.evaluating.scoring`.
        window: tokens in a window, for `document`.
        sample: predictions of which whole distributions are looked at, at most.
    """

    context: Context
    window: int
    sample: int


def evaluation_details(
    checkpoint: Checkpoint,
    corpus: EncodedCorpus,
    targets: CorpusScores,
    way: EvaluationOptions,
    *,
    entropy: SampledMean | None = None,
    progress: Progress,
) -> dict[str, Any]:
    """The entropy of the predictions, unless it is given, and figures by frequency and position, by name.

    Frequencies are those in the training text where the checkpoint knows them, else in the text itself.
    """
    vocab_size = len(checkpoint.model.vocabulary)
    known = training_counts(checkpoint.path, vocab_size)
    counts = token_counts(corpus, vocab_size) if known is None else known
    entropy = entropy or mean_entropy(checkpoint.model, corpus, **way._asdict(), progress=progress)
    told: dict[str, Any] = {
        "entropy": entropy._asdict(),
        "frequency_in": "evaluated text" if known is None else "training text",
        "by_frequency": _as_table(by_frequency(targets, counts)),
    }
    if way.context != "document":
        told["by_position_in_sentence"] = _as_table(by_position(targets, positions_in_sentence(corpus)))
    if way.context != "sentence":
        since_start = positions_since_start(corpus, context=way.context, window=way.window)
        told["by_position_since_start"] = _as_table(by_position(targets, since_start))
    return told


def compare_models(
    a: Checkpoint,
    b: Checkpoint,
    corpus: EncodedCorpus,
    targets: CorpusScores,
    way: EvaluationOptions,
    *,
    progress: Progress,
) -> dict[str, Any]:
    """A second model's figures on the same text, by how much the first is better, and their divergence, by name.

    Args:
        a: the first model.
        b: the second; see `check_comparable`.
        corpus: the text.
        targets: what the first said of it.
        way: how it was looked at.
        progress: told of each stage.
    """
    of_b = score_corpus(b.model, corpus, context=way.context, window=way.window, progress=progress)
    difference = log_prob_difference(targets, of_b, corpus, context=way.context)
    divergence = mean_divergence(a.model, b.model, corpus, **way._asdict(), progress=progress)
    return {
        **evaluation_facts(summarise_scores(b.model, corpus, of_b, context=way.context)),
        "difference": difference._asdict(),
        "divergence": divergence._asdict(),
    }


def check_comparable(a: Checkpoint, b: Checkpoint, names: tuple[str, str]) -> None:
    """Refuse two models whose predictions cannot be compared token by token.

    Raises:
        InvalidInputError: their vocabularies or tokenizers differ, or the order they read in.
    """
    vocabularies = [c.model.vocabulary for c in (a, b)]
    if vocabularies[0].fingerprint != vocabularies[1].fingerprint:
        sizes = " and ".join(
            f"{len(v):,} tokens ({name})" for v, name in zip(vocabularies, names, strict=True)
        )
        raise InvalidInputError(
            f"--against needs a model with the same vocabulary, but these differ: {sizes}; "
            "evaluate each alone and compare perplexities per word or byte",
            parameter="against",
        )
    if a.tokenizer.fingerprint != b.tokenizer.fingerprint:
        raise InvalidInputError(
            f"--against needs a model with the same tokenizer: {names[0]} and {names[1]} split texts differently",
            parameter="against",
        )
    if a.manifest.direction != b.manifest.direction:
        raise InvalidInputError(
            f"--against: {names[0]} reads {a.manifest.direction}, {names[1]} {b.manifest.direction}",
            parameter="against",
        )


def training_counts(directory: Path, vocab_size: int) -> npt.NDArray[np.int64] | None:
    """How often each token occurs in the text a checkpoint was trained on [V]; None where it does not say."""
    path = directory / COUNTS_FILE
    if not path.is_file():
        return None
    counts: npt.NDArray[np.int64] = np.load(path, allow_pickle=False)
    return counts if counts.shape == (vocab_size,) else None


def _as_table(groups: list[TokenGroup]) -> list[dict[str, Any]]:
    return [group._asdict() for group in groups]
