"""Selection of a large text's lines that resemble a small, in-domain text, by cross-entropy difference.

The score of a line is its cross-entropy per token under an n-gram model of the in-domain text,
minus that under a model of as many tokens of the large text; the lowest are best (Moore and
Lewis 2010, "Intelligent selection of language model training data"). A model overrates its training
lines, so a second such model scores these. The large text is in memory as token ids, 4 bytes each.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from models.arrays import Bools, Float64s
from models.errors import FormatError, InputError
from models.files import atomic_writer
from models.language_model import UNK
from training.corpus import EncodedCorpus, read_sentences
from training.evaluation.evaluate import score_corpus
from training.progress import SILENT, Progress, console_progress
from training.recipe import Recipe, load_recipe
from training.single_model import Trained, TrainingInputs, train_single
from training.texts import encode_texts, read_texts
from training.tokenizer import batches, encode_block, learn_tokenizer

SHARES = tuple(2.0**-n for n in range(7, -1, -1))
"""Tried shares of the large text's lines, ascending."""

MIN_SENTENCES = 100
"""Minimum in-domain text without its held-out part."""

_SETTINGS = ("ngram.order=3", "tokenizer.min_count=2")


def run_select(
    large: Sequence[Path],
    *,
    in_domain: Sequence[Path],
    output: Path,
    share: float | None = None,
    assignments: Sequence[str] = (),
) -> dict[str, Any]:
    """Write a large text's lines that resemble an in-domain text to a file, in order.

    The in-domain text's words are the vocabulary; its end is held out. Without a share, the one of
    `SHARES` is selected with which an n-gram model predicts it best. See also `gramophone select`.

    Returns:
        The output, the selected share, and each model's share, lines, tokens and held-out perplexity.

    Raises:
        InputError: the output exists, the share is out of range, the recipe has no n-gram model that reads
            forward, a text is too small, or no word is in both.
        FormatError: a file cannot be read or written.
    """
    if output.exists() or not output.parent.is_dir():
        problem = "exists" if output.exists() else f"is in {output.parent}, which is no folder"
        raise InputError(f"--output {output} {problem}; name a new file", param="output")
    if share is not None and not 0 < share <= 1:
        raise InputError(f"--share is {share}; it must be above 0 and at most 1", param="share")
    progress, recipe = console_progress(), load_recipe("ngram", [*_SETTINGS, *assignments])
    if (recipe.family, recipe.reading_direction) != ("ngram", "forward"):
        problem = f"given family={recipe.family}, direction={recipe.reading_direction}"
        raise InputError(f"--set: n-gram models that read forward select, {problem}", param="set")
    texts = read_texts(in_domain, (), (), unit=recipe.corpus.unit, progress=progress)
    if (size := len(texts.train.sentences)) < MIN_SENTENCES:
        problem = f"has {size} sentences that are not held out; at least {MIN_SENTENCES} are needed"
        raise InputError(f"--in-domain {problem}", param="in_domain")
    tokenizer = learn_tokenizer(recipe.tokenizer, texts.train.sentences, progress=progress)
    inputs = TrainingInputs(tokenizer, encode_texts(tokenizer, texts, progress=progress), "cpu", SILENT)
    blocks = [encode_block(tokenizer, lines) for lines in _read(large, recipe, progress)]
    num_tokens, needed = sum(block.num_tokens for block in blocks), 2 * inputs.texts.train.num_tokens
    problem = f"{num_tokens:,} tokens, but needs {needed:,}, twice the number of the in-domain text"
    if num_tokens >= needed:
        problem = f"none of the {len(tokenizer.vocabulary.ids):,} words of the in-domain text"
    if num_tokens < needed or not any((block.tokens != UNK).any() for block in blocks):
        raise InputError(f"the large text has {problem}", param="large")
    ranks = np.argsort(np.argsort(_score_lines(blocks, recipe, inputs, progress), kind="stable"))
    trials = list[dict[str, Any]]()
    with progress.stage("comparing shares", len(SHARES) if share is None else 1):
        for tried in SHARES if share is None else (share,):
            lines = max(1, round(tried * len(ranks)))
            text = _subset(blocks, ranks < lines)
            found = _train(text, recipe, inputs).figures["valid"]["perplexity"]
            trials.append({"share": tried, "lines": lines, "tokens": len(text.tokens), "perplexity": found})
            progress.advance(note=f"{tried:.2%} of the lines: perplexity {found or math.inf:,.1f}")
    chosen = min(trials, key=lambda trial: math.inf if trial["perplexity"] is None else trial["perplexity"])
    kept = ranks < chosen["lines"]
    with atomic_writer(output) as write:
        position = 0
        for batch in _read(large, recipe, progress):
            flags = kept[position : position + len(batch)].tolist()
            write("".join(f"{line}\n" for line, keep in zip(batch, flags, strict=False) if keep).encode())
            position += len(batch)
        if position != len(kept):
            raise FormatError(large[0], f"had {len(kept):,} lines at first, and now has {position:,}")
    return {"output": str(output), "share": chosen["share"], "trials": trials}


def _read(paths: Sequence[Path], recipe: Recipe, progress: Progress) -> Iterator[list[str]]:
    """Yield the sentences of files in batches."""
    size = sum(path.stat().st_size for path in paths if path.is_file())
    with progress.stage("reading the large text", size):
        read = (read_sentences(path, unit=recipe.corpus.unit, progress=progress) for path in paths)
        yield from batches(chain.from_iterable(read))


def _score_lines(
    blocks: Sequence[EncodedCorpus], recipe: Recipe, inputs: TrainingInputs, progress: Progress
) -> Float64s:
    """Return each line's cross-entropy difference [S], in nats per token."""
    sizes = np.concatenate([np.diff(block.offsets) + 1 for block in blocks])
    order = np.random.default_rng(recipe.seed).permutation(len(sizes))
    sample = np.empty(len(sizes), np.int64)  # each line's random sample
    sample[order] = (np.cumsum(sizes[order]) - sizes[order]) // inputs.texts.train.num_tokens
    trained_on = [inputs.texts.train, *(_subset(blocks, sample == n) for n in range(2))]
    with progress.stage("scoring lines", len(trained_on) * len(sizes)):
        scores = []
        for text in trained_on:
            model = _train(text, recipe, inputs).model
            sums = []
            for block in blocks:
                log_probs = score_corpus(model, block, progress=SILENT).log_probs
                starts = block.offsets[:-1] + np.arange(block.num_sentences)
                sums.append(np.add.reduceat(log_probs, starts, dtype=np.float64))
                progress.advance(block.num_sentences)
            scores.append(np.concatenate(sums) / sizes)
    return np.asarray(np.where(sample == 0, scores[2], scores[1]) - scores[0])


def _subset(blocks: Sequence[EncodedCorpus], chosen: Bools) -> EncodedCorpus:
    """Return the lines chosen by a mask [S]."""
    masks = np.split(chosen, np.cumsum([block.num_sentences for block in blocks])[:-1])
    lengths = [np.diff(block.offsets) for block in blocks]
    rows = zip(blocks, masks, lengths, strict=True)
    tokens = np.concatenate([block.tokens[np.repeat(mask, length)] for block, mask, length in rows])
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths)[chosen])])
    return EncodedCorpus(tokens, offsets, 0, 0)


def _train(text: EncodedCorpus, recipe: Recipe, inputs: TrainingInputs) -> Trained:
    return train_single("selection", recipe, inputs._replace(texts=inputs.texts._replace(train=text)))
