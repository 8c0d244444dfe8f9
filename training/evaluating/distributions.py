"""Whole distributions at places sampled from a text, in bounded memory.

A row has V numbers, so all rows of a text are too many: a few thousand places, evenly spread,
say what there is to say. Rows come in small batches, in the same order for every model with the
same vocabulary, so that two models can be compared row by row.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from models.arrays import TokenIds, to_numpy
from models.protocol import LanguageModel
from models.vocabulary import BOS
from training.corpora.encoded import EncodedCorpus
from training.evaluating.scoring import Context, read_segments, running_text, windows
from training.progress import Progress

DEFAULT_SAMPLE = 4096
"""Places looked at: the mean of a few bits is then known to a few hundredths."""

_BATCH_ROWS = 64
_MAX_BATCH_VALUES = 1 << 20  # in a batch of rows

LogProbRows: TypeAlias = npt.NDArray[np.float64]


class _SampledText(NamedTuple):
    """A text that is read from its start, and where it is stopped at.

    Attributes:
        before: the tokens that stand before it, at least one.
        text: its tokens.
        stops: how many tokens are read when a row is wanted, ascending [n].
    """

    before: TokenIds
    text: TokenIds
    stops: TokenIds


def sample_positions(num_tokens: int, most: int) -> TokenIds:
    """Up to so many of a text's predicted tokens, evenly spread and ascending [n]."""
    count = min(num_tokens, most)
    return (2 * np.arange(count, dtype=np.int64) + 1) * num_tokens // (2 * max(count, 1))


def sampled_distributions(
    model: LanguageModel[Any],
    corpus: EncodedCorpus,
    places: TokenIds,
    *,
    context: Context,
    window: int,
    progress: Progress,
) -> Iterator[LogProbRows]:
    """The model's distributions over the token at each place, given the tokens before it.

    Args:
        model: any family.
        corpus: encoded with its tokenizer.
        places: numbers of predicted tokens, as `score_corpus` counts them, ascending.
        context: see `training.evaluating.scoring`.
        window: tokens in a window, for `document`.
        progress: told of rows.

    Yields:
        Natural-log probabilities [b, V] in batches, each row summing to 1; their order depends on
        the text, the places and V, not on the model.
    """
    walks = sorted(_sampled_texts(corpus, places, context, window), key=lambda walk: -len(walk.stops))
    most = max(1, min(_BATCH_ROWS, _MAX_BATCH_VALUES // len(model.vocabulary)))
    for start in range(0, len(walks), most):
        for state in _rebatch_states(_states_at_stops(model, walks[start : start + most]), most):
            progress.advance(len(state))
            yield renormalised(to_numpy(model.next_log_probs(state)))


def _sampled_texts(
    corpus: EncodedCorpus, places: TokenIds, context: Context, window: int
) -> list[_SampledText]:
    """The texts that places lie in."""
    if not len(places):
        return []
    if context == "stream":
        before, text = running_text(corpus)
        return [_SampledText(np.array([before]), text, np.flatnonzero(text != BOS)[places])]
    if context == "sentence":
        starts = corpus.offsets + np.arange(len(corpus.offsets))  # with one `</s>` each
        owners = np.searchsorted(starts, places, side="right") - 1
        numbers, first = np.unique(owners, return_index=True)
        groups = np.split(places, first[1:])
        return [
            _SampledText(np.array([BOS]), corpus.sentence(number).astype(np.int64), group - starts[number])
            for number, group in zip(numbers.tolist(), groups, strict=True)
        ]
    walks, begin = [], 0
    for preceding, text in windows(corpus, window):
        inside = places[np.searchsorted(places, begin) : np.searchsorted(places, begin + len(text))]
        if len(inside):
            walks.append(_SampledText(preceding, text, inside - begin))
        begin += len(text)
    return walks


def _states_at_stops(model: LanguageModel[Any], walks: Sequence[_SampledText]) -> Iterator[Any]:
    """The states at all first stops, at all second ones, …; walks with the most stops come first."""
    state = read_segments(model, [walk.before for walk in walks], model.empty_state(len(walks)))
    for number in range(len(walks[0].stops)):
        live = [walk for walk in walks if len(walk.stops) > number]
        if len(live) < len(state):
            state = state.select(np.arange(len(live)))
        stretches = [walk.text[walk.stops[number - 1] if number else 0 : walk.stops[number]] for walk in live]
        state = read_segments(model, stretches, state)
        yield state


def _rebatch_states(states: Iterator[Any], rows: int) -> Iterator[Any]:
    """The same rows in larger batches: an output layer is faster on many."""
    waiting: list[Any] = []
    for state in states:
        waiting.append(state)
        if sum(map(len, waiting)) >= rows:
            yield waiting[0].concatenate(waiting[1:])
            waiting = []
    if waiting:
        yield waiting[0].concatenate(waiting[1:])


def renormalised(log_probs: npt.NDArray[np.float32]) -> LogProbRows:
    """Rows of a model that is not quite normalised, as of one that is."""
    rows = log_probs.astype(np.float64)
    peak = rows.max(axis=1, keepdims=True)
    rows -= peak
    with np.errstate(divide="ignore"):
        rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return rows
