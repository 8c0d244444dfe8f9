"""`gramophone evaluate --task autocomplete`: one model, or two over the same lines."""

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from models.checkpoint.load import Checkpoint
from models.errors import InvalidInputError
from models.vocabulary import UNK
from training.evaluating.completing.figures import (
    LIST_LENGTHS,
    Ranks,
    acceptance,
    ratios,
    recall_by_letters,
    saved_keys,
)
from training.evaluating.completing.intervals import (
    Ratio,
    bootstrap_counts,
    bootstrap_difference,
    bootstrap_interval,
)
from training.evaluating.completing.looks import TypingLine
from training.evaluating.completing.typist import Typist
from training.evaluating.completing.words import sample_lines, typing_line
from training.evaluating.scoring import Context
from training.progress import Progress

DEFAULT_WORDS = 2_000
"""Typed, at least: keystroke savings are then known to about one point of a hundred."""

_TIMED_KEYSTROKES = 400
_WARMUP_KEYSTROKES = 20  # the first ones find cold caches


class _ModelFigures(NamedTuple):
    """What one model's typist told: figures with intervals to come, and the rest as JSON can carry it."""

    ratios: dict[str, Ratio]
    facts: dict[str, Any]


def autocomplete_figures(
    checkpoint: Checkpoint,
    texts: Sequence[str],
    *,
    words: int,
    context: Context = "sentence",
    against: Checkpoint | None = None,
    progress: Progress,
) -> dict[str, Any]:
    """How much typing a model's completions spare on held-out lines, by name; see `figures` for what is counted.

    Args:
        checkpoint: the model.
        texts: lines.
        words: typed at least; fewer if the text has fewer.
        context: `sentence`: lines drawn at random, each from its start; `stream`: the first lines, as one text.
        against: a second model, of any tokenizer, for the same lines.
        progress: told of words.

    Raises:
        InvalidInputError: a model reads backward, or there is no word to type, or the context is another.
    """
    if context == "document":
        raise InvalidInputError(
            "--context is 'document', but lines are typed one by one: it can be 'sentence' or 'stream'",
            parameter="context",
        )
    for one in (checkpoint, against):
        if one is not None and one.manifest.direction == "backward":
            raise InvalidInputError(
                "--task autocomplete needs a model that reads left to right, this one reads right to left",
                parameter="task",
            )
    carries_state = context == "stream"
    drawn = sample_lines(texts, words, consecutive=carries_state)
    outcome = _model_figures(checkpoint, drawn, progress, carries_state=carries_state)
    draws = bootstrap_counts(len(drawn))
    told = {
        "context": context,
        **outcome.facts,
        "figures": {
            name: bootstrap_interval(ratio, draws)._asdict() for name, ratio in outcome.ratios.items()
        },
    }
    if against is not None:
        other = _model_figures(against, drawn, progress, carries_state=carries_state)
        told["against"] = {
            **other.facts,
            "figures": {
                name: bootstrap_interval(ratio, draws)._asdict() for name, ratio in other.ratios.items()
            },
            "difference": {
                name: bootstrap_difference(ratio, other.ratios[name], draws)._asdict()
                for name, ratio in outcome.ratios.items()
            },
        }
    return told


def _model_figures(
    checkpoint: Checkpoint, texts: Sequence[str], progress: Progress, *, carries_state: bool
) -> _ModelFigures:
    lines = [typing_line(checkpoint.tokenizer, text) for text in texts]
    spelled = [line.text[word.begin : word.end] for line in lines for word in line.words]
    if not spelled:
        raise InvalidInputError("the text has no word to type", parameter="corpus")
    typist = Typist(checkpoint.model, checkpoint.tokenizer, carries_state=carries_state)
    typed = typist.type_lines(lines, progress=progress)
    ranks = Ranks.of(typed)
    unknown = sum(UNK in ids for ids in checkpoint.tokenizer.encode_all(spelled))
    num_keys = int(ranks.num_keys.sum())
    facts = {
        "precision": checkpoint.precision,
        "lines": len(lines),
        "words": len(spelled),
        "unknown_words": unknown,
        "keys": num_keys,
        "keys_pressed": {f"top_{n}": num_keys - int(saved_keys(ranks, n).sum()) for n in LIST_LENGTHS},
        "recall_by_letters": recall_by_letters(ranks),
        "acceptance": {
            "next_word": acceptance(typed, first_only=True),
            "any_letter": acceptance(typed, first_only=False),
        },
        "keystroke_ms": _keystroke_ms(typist, lines, progress),
    }
    return _ModelFigures(ratios(ranks), facts)


def _keystroke_ms(typist: Typist, lines: Sequence[TypingLine], progress: Progress) -> dict[str, Any]:
    """What one key costs in this process, one text at a time: percentiles of wall-clock time in ms.

    The state before a word and its distribution are kept while the word is typed, as the service keeps them.
    """
    progress.start("timing keystrokes", _TIMED_KEYSTROKES)
    times_s = list(islice(_time_keystrokes(typist, lines), _WARMUP_KEYSTROKES + _TIMED_KEYSTROKES))
    told = times_s[_WARMUP_KEYSTROKES:] or times_s
    progress.advance(len(told))
    progress.finish()
    p50, p99 = (1e3 * float(np.percentile(told, q)) for q in (50, 99))
    return {"p50": p50, "p99": p99, "keystrokes": len(told)}


def _time_keystrokes(typist: Typist, lines: Sequence[TypingLine]) -> Iterator[float]:
    """Seconds that each look of each line took."""
    for line, start in zip(lines, typist.starts(lines), strict=True):
        looks = typist.type_line(line, start)
        began = time.perf_counter()
        for _ in looks:
            yield time.perf_counter() - began
            began = time.perf_counter()
