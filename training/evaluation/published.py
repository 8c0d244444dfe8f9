"""Details of an evaluated checkpoint: entropy, breakdowns, comparison with a second model, cost of int8."""

import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from models.arrays import Int64s
from models.checkpoint.load import Checkpoint
from models.checkpoint.manifest import version_address
from models.checkpoint.precision import MAX_INT8_COST, int8_problems, to_int8
from models.errors import InvalidInputError
from models.language_model import LanguageModel
from models.vocabulary import UNK
from training.corpus import EncodedCorpus
from training.evaluation.breakdown import (
    EvaluationOptions,
    by_frequency,
    by_position,
    divergences_of,
    entropies_of,
    log_prob_difference,
    mean_over_positions,
    positions_in_sentence,
    positions_since_start,
    token_counts,
)
from training.evaluation.evaluate import Context, CorpusScores, evaluate, score_corpus, summarise_scores
from training.progress import Progress

OOV_POLICY = (
    "unknown tokens have the probability p(<unk>) and are counted in every figure except perplexity_without_oov, "
    "which excludes them from sum and count"
)
COUNTS_FILE = "token_counts.npy"
"""Checkpoint file with the count of each token in the training text [V], int64."""


def evaluation_details(
    checkpoint: Checkpoint,
    corpus: EncodedCorpus,
    targets: CorpusScores,
    options: EvaluationOptions,
    *,
    with_entropy: bool,
    progress: Progress,
) -> dict[str, Any]:
    """Compute the entropy of the predictions, if requested, and figures by frequency and position, by name.

    Frequencies come from the training text if the checkpoint has its counts, else from the evaluated text.
    """
    vocab_size = len(checkpoint.model.vocabulary)
    known = training_counts(checkpoint.path, vocab_size)
    counts = token_counts(corpus, vocab_size) if known is None else known
    details: dict[str, Any] = {
        "frequency_in": "evaluated text" if known is None else "training text",
        "by_frequency": by_frequency(targets, counts),
    }
    if with_entropy:
        title = f"entropy of the {checkpoint.model.family}"
        details["entropy"] = mean_over_positions(
            title, entropies_of, [checkpoint.model], corpus, options, progress
        )
    if options.context != "document":
        details["by_position_in_sentence"] = by_position(targets, positions_in_sentence(corpus))
    if options.context != "sentence":
        since_start = positions_since_start(corpus, context=options.context, window=options.window)
        details["by_position_since_start"] = by_position(targets, since_start)
    return details


def compare_models(
    a: Checkpoint,
    b: Checkpoint,
    corpus: EncodedCorpus,
    targets: CorpusScores,
    options: EvaluationOptions,
    *,
    progress: Progress,
) -> dict[str, Any]:
    """Compute a second model's figures on the same text, the paired difference and the divergence, by name.

    Args:
        a: the first model.
        b: the second model; see `check_comparable`.
        corpus: the text.
        targets: the first model's scores of the text.
        options: options of the evaluation.
        progress: reports each stage.
    """
    of_b = score_corpus(b.model, corpus, context=options.context, window=options.window, progress=progress)
    difference = log_prob_difference(targets, of_b, corpus, context=options.context)
    title = f"divergence of the {a.model.family} from the {b.model.family}"
    divergence = mean_over_positions(title, divergences_of, [a.model, b.model], corpus, options, progress)
    return {
        "model": version_address(b.path),
        **summarise_scores(b.model, corpus, of_b, context=options.context).facts(),
        "difference": difference,
        "divergence": divergence,
    }


def check_comparable(a: Checkpoint, b: Checkpoint) -> None:
    """Check that two models' predictions can be compared token by token.

    Raises:
        InvalidInputError: their vocabularies, tokenizers or reading directions differ.
    """
    (name_a, of_a), (name_b, of_b) = ((version_address(c.path), c.model.vocabulary) for c in (a, b))
    problem = None
    if of_a.fingerprint != of_b.fingerprint:
        problem = (
            " requires a model with the same vocabulary; the vocabularies have "
            f"{len(of_a):,} tokens ({name_a}) and {len(of_b):,} tokens ({name_b}); "
            "evaluate each model alone and compare perplexities per word or byte"
        )
    elif a.tokenizer.fingerprint != b.tokenizer.fingerprint:
        problem = f" requires a model with the same tokenizer; {name_a} and {name_b} split texts differently"
    elif a.manifest.direction != b.manifest.direction:
        problem = f": {name_a} reads {a.manifest.direction}, but {name_b} reads {b.manifest.direction}"
    if problem is not None:
        raise InvalidInputError(f"--against{problem}", parameter="against")


def training_counts(directory: Path, vocab_size: int) -> Int64s | None:
    """Read the token counts of a checkpoint's training text [V]; None if they are missing or of another size."""
    path = directory / COUNTS_FILE
    if not path.is_file():
        return None
    counts: Int64s = np.load(path, allow_pickle=False)
    return counts if counts.shape == (vocab_size,) else None


INT8_TOKENS = 20_000
"""Maximum number of compared tokens: measures the ratio of perplexities to a few in ten thousand."""


def int8_facts(
    model: LanguageModel[Any], text: EncodedCorpus, *, context: Context, progress: Progress
) -> dict[str, Any]:
    """Measure the cost of int8 for metrics.json; empty for a model without networks.

    Returns:
        Under `int8`: `perplexity` in int8 and `perplexity_float32` over `tokens` of the text; `cost`, their
        ratio minus 1; `default`, True if the cost is at most `MAX_INT8_COST`; `problems`, the reasons why a
        network stays in float32.
    """
    problems = int8_problems(model)
    rounded = to_int8(model)
    if rounded is model or not text.num_sentences:
        return {"int8": {"problems": problems}} if problems else {}
    sample = first_sentences(text, INT8_TOKENS)
    single, integers = (
        evaluate(m, sample, context=context, progress=progress).perplexity for m in (model, rounded)
    )
    facts = {"tokens": sample.num_tokens, "perplexity_float32": single, "perplexity": integers}
    if single and integers:
        cost = integers / single - 1
        facts |= {"cost": cost, "default": cost <= MAX_INT8_COST}
    return {"int8": {**facts, **({"problems": problems} if problems else {})}}


_STEPS, _FIRST_STEPS = 20, 3


def step_milliseconds(model: LanguageModel[Any]) -> float:
    """Measure one step of one text, the next distribution and the state after a token; networks in int8 if possible.

    Returns:
        The median over some steps, in milliseconds.
    """
    served, times = to_int8(model), []
    state = served.initial_state(1)
    for _ in range(_FIRST_STEPS + _STEPS):
        began = time.perf_counter()
        served.next_log_probs(state)
        state = served.advance(state, np.array([UNK]))
        times.append(1000 * (time.perf_counter() - began))
    return round(statistics.median(times[_FIRST_STEPS:]), 3)


def first_sentences(text: EncodedCorpus, tokens: int) -> EncodedCorpus:
    """Return the first sentences, up to `tokens` tokens but at least one sentence; words and bytes are 0."""
    ends = text.offsets[1:] + np.arange(1, len(text.offsets))
    count = max(1, int(np.searchsorted(ends, tokens, side="right")))
    return EncodedCorpus(text.tokens[: text.offsets[count]], text.offsets[: count + 1], 0, 0)
