"""Details of an evaluated checkpoint: entropy, breakdowns, a second model, the cost of int8."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.checkpoint.load import Checkpoint
from models.checkpoint.precision import MAX_INT8_COST, int8_problems, to_int8
from models.errors import InvalidInputError
from models.language_model import LanguageModel
from training.corpus import EncodedCorpus
from training.evaluation.breakdown import (
    SampledMean,
    TokenGroup,
    by_frequency,
    by_position,
    log_prob_difference,
    mean_divergence,
    mean_entropy,
    positions_in_sentence,
    positions_since_start,
    token_counts,
)
from training.evaluation.evaluate import (
    Context,
    CorpusScores,
    evaluate,
    evaluation_facts,
    score_corpus,
    summarise_scores,
)
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
        context: see `training.evaluation.evaluate`.
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


INT8_TOKENS = 20_000
"""Tokens that perplexities are compared on, at most: of so many, the ratio is certain to a few in ten thousand."""


def int8_facts(
    model: LanguageModel[Any], text: EncodedCorpus, *, context: Context, progress: Progress
) -> dict[str, Any]:
    """What metrics.json says of a model's int8; nothing if it has no network.

    Returns:
        Under `int8`: `perplexity` in int8 and `perplexity_float32` over `tokens` of the text, `cost`, their
        ratio less 1, and `default`, whether that is little enough; under `problems`, why a network in
        it stays in single precision.
    """
    problems = int8_problems(model)
    rounded = to_int8(model)
    if rounded is model or not text.num_sentences:
        return {"int8": {"problems": problems}} if problems else {}
    some = first_sentences(text, INT8_TOKENS)
    single, integers = (
        evaluate(one, some, context=context, progress=progress).perplexity for one in (model, rounded)
    )
    facts = {"tokens": some.num_tokens, "perplexity_float32": single, "perplexity": integers}
    if single and integers:
        cost = integers / single - 1
        facts |= {"cost": cost, "default": cost <= MAX_INT8_COST}
    return {"int8": {**facts, **({"problems": problems} if problems else {})}}


def first_sentences(text: EncodedCorpus, tokens: int) -> EncodedCorpus:
    """The first sentences, of so many tokens in all or of one sentence; words and bytes are not counted."""
    ends = text.offsets[1:] + np.arange(1, len(text.offsets))
    count = max(1, int(np.searchsorted(ends, tokens, side="right")))
    return EncodedCorpus(text.tokens[: text.offsets[count]], text.offsets[: count + 1], 0, 0)
