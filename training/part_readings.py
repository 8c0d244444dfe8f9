"""What the parts of a mixture say of a text, each having read it once."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import TokenIds
from models.mixture import find_context_matcher
from models.protocol import ContextMatcher, LanguageModel, feature_size
from models.scoring import pad_sequences, prefill_sequences
from models.vocabulary import BOS
from training.caching import CacheGrid, CacheGridScores, score_with_caches
from training.corpora.encoded import EncodedCorpus
from training.evaluating.scoring import CHUNK_TOKENS, CorpusScores, running_text, score_corpus
from training.progress import Progress

MixtureContext = Literal["sentence", "stream"]
_BATCH_SENTENCES = 256


class PartScores(NamedTuple):
    """What M models say of a text's N predicted tokens.

    Attributes:
        corpus: the text.
        targets: of each model.
        context_lengths: how many tokens the first n-gram model took into account for each [N]; None
            where that was not asked for.
        caches: what caches say that look at the features of one part; None likewise.
    """

    corpus: EncodedCorpus
    targets: Sequence[CorpusScores]
    context_lengths: npt.NDArray[np.int64] | None
    caches: CacheGridScores | None


def first_featured_part(models: Sequence[LanguageModel[Any]]) -> int | None:
    """The place of the first model that has features; None if none has."""
    return next((number for number, model in enumerate(models) if feature_size(model)), None)


def score_parts(
    models: Sequence[LanguageModel[Any]],
    corpus: EncodedCorpus,
    *,
    context: MixtureContext,
    by_context: bool,
    window: int | None,
    grid: CacheGrid | None = None,
    progress: Progress,
) -> PartScores:
    """Have each model read a text.

    Args:
        models: of one vocabulary.
        corpus: in its tokens.
        context: `stream` if there is a cache.
        by_context: also tell how much context the first n-gram model takes into account.
        window: of caches that look on; None for none.
        grid: the caches; None: those among which one is to be chosen.
        progress: told of each reading.
    """
    looked_at = None if window is None else first_featured_part(models) or 0
    caches, targets = None, []
    for number, model in enumerate(models):
        if window is not None and number == looked_at:
            caches = score_with_caches(model, corpus, window=window, grid=grid, progress=progress)
            targets.append(caches.targets)
        else:
            targets.append(score_corpus(model, corpus, context=context, progress=progress))
    place = find_context_matcher(models) if by_context else None
    lengths = None if place is None else corpus_context_lengths(models[place], corpus, context=context)
    return PartScores(corpus, targets, lengths, caches)


def corpus_context_lengths(model: Any, corpus: EncodedCorpus, *, context: MixtureContext) -> TokenIds:
    """How much of the history a `ContextMatcher` takes into account for each of a text's predicted tokens [N]."""
    matcher: ContextMatcher[Any] = model
    found: list[TokenIds] = []
    if context == "sentence":
        for start in range(0, corpus.num_sentences, _BATCH_SENTENCES):
            last = min(start + _BATCH_SENTENCES, corpus.num_sentences)
            tokens, lengths = pad_sequences([corpus.sentence(index).tolist() for index in range(start, last)])
            tokens = np.pad(tokens, ((0, 0), (0, 1)))  # room for </s>, after which nothing is looked at
            along = matcher.context_lengths_per_token(model.initial_state(len(tokens)), tokens, lengths + 1)
            found.append(along[np.arange(tokens.shape[1]) <= lengths[:, None]])
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
    before, text = running_text(corpus)
    state = model.advance(model.empty_state(1), np.asarray([before]))
    for start in range(0, len(text), CHUNK_TOKENS):
        chunk = text[None, start : start + CHUNK_TOKENS]
        lengths = np.asarray([chunk.shape[1]])
        found.append(matcher.context_lengths_per_token(state, chunk, lengths)[chunk != BOS])
        state = prefill_sequences(model, state, chunk, lengths)
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
