"""What computing in integers of eight bits costs a model."""

from typing import Any

import numpy as np

from models.checkpoint.precision import MAX_INT8_COST, int8_problems, to_int8
from models.protocol import LanguageModel
from training.corpora.encoded import EncodedCorpus
from training.evaluating.scoring import Context
from training.evaluation import evaluate
from training.progress import Progress

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
