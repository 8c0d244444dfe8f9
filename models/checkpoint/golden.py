"""Golden test of a checkpoint, `golden.json`: sequences and their scores when it was written.

Its replay in loading proves that machine, device and libraries reproduce the published
scores, and warms up the model.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models.checkpoint.precision import BFLOAT16, FLOAT32, INT8, Precision, has_pretrained, to_int8
from models.errors import BAD_DATA_ERRORS, InputError, IntegrityError, ManifestError
from models.language_model import EOS, LanguageModel, finite_logprob, pad_sequences, score_sequences

GOLDEN_FILE = "golden.json"
GOLDEN_TOLERANCE: dict[str, dict[Precision, float]] = {
    "cpu": {FLOAT32: 1e-4, INT8: 1e-4},
    "cuda": {FLOAT32: 2e-3},
}
"""Maximum difference of one token's log-probability, by kind of device and precision, in nats."""

_LOW_TOLERANCE = 0.5
"""The same for bfloat16, and pretrained models in int8: rounding errors grow by layer."""

_LOG_PROB_FIELDS = {FLOAT32: "logprobs", INT8: "logprobs_int8", BFLOAT16: "logprobs"}
"""JSON fields of scores by precision; int8 only if there is a network to quantize."""

MAX_GOLDEN_TOKENS = 64


def golden_sequences(encoded: Sequence[Sequence[int]], vocab_size: int) -> list[list[int]]:
    """Choose sequences: those given, truncated, and one with ids across the vocabulary."""
    across = np.linspace(3, vocab_size - 1, num=min(24, vocab_size - 3)).astype(int).tolist()
    return [[*map(int, ids[: MAX_GOLDEN_TOKENS - 1]), EOS] for ids in encoded[:4]] + [[*across, 0, EOS]]


def write_golden(directory: Path, model: LanguageModel, sequences: Sequence[Sequence[int]]) -> None:
    """Score sequences after `<s>`, also in int8 if supported; write both."""
    rounded = to_int8(model)
    limits = {**GOLDEN_TOLERANCE}
    if has_pretrained(model):
        limits["cpu"] = {**limits["cpu"], INT8: _LOW_TOLERANCE}
    golden = {
        "tolerance": limits,
        "sequences": [list(map(int, s)) for s in sequences],
        _LOG_PROB_FIELDS[FLOAT32]: _finite_scores(model, sequences),
        **({} if rounded is model else {_LOG_PROB_FIELDS[INT8]: _finite_scores(rounded, sequences)}),
    }
    (directory / GOLDEN_FILE).write_text(json.dumps(golden) + "\n", encoding="utf-8")


def replay_golden(directory: Path, model: LanguageModel, *, device: str, precision: str = FLOAT32) -> float:
    """Score the sequences again.

    Returns:
        Largest difference of one token's log-probability, in nats.

    Raises:
        ManifestError: the file is not a golden test.
        IntegrityError: a score differs by more than the device's tolerance.
    """
    path = directory / GOLDEN_FILE
    try:
        golden = json.loads(path.read_text(encoding="utf-8"))
        tolerances = golden["tolerance"][device.partition(":")[0]] | {BFLOAT16: _LOW_TOLERANCE}
        tolerance = float(tolerances[precision])
        sequences = [model.vocabulary.check_ids(s, param="sequences") for s in golden["sequences"]]
        if max(map(len, sequences), default=0) > MAX_GOLDEN_TOKENS:
            raise ValueError(f"a sequence has more than {MAX_GOLDEN_TOKENS} tokens")
        expected = [np.asarray(row, np.float64) for row in golden[_LOG_PROB_FIELDS[precision]]]
    except (OSError, InputError, *BAD_DATA_ERRORS) as error:
        raise ManifestError(f"{path} is not a golden test: {error}") from None
    worst = 0.0
    for got, want in zip(_finite_scores(model, sequences), expected, strict=True):
        worst = float(np.maximum(worst, np.abs(np.subtract(got, want)).max(initial=0.0)))  # NaN stays NaN
    if not worst <= tolerance:
        raise IntegrityError(
            f"{path}: on {device} in {precision} the model's log-probs differ from the published ones by "
            f"{worst:.3g} nats, more than {tolerance:g}"
        )
    return worst


def has_int8(directory: Path) -> bool:
    """True if the checkpoint was published with int8 scores."""
    try:
        return _LOG_PROB_FIELDS[INT8] in json.loads((directory / GOLDEN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False  # the replay reports the error


def _finite_scores(model: LanguageModel, sequences: Sequence[Any]) -> list[list[float]]:
    tokens, lengths = pad_sequences(sequences)
    scores = score_sequences(model, model.initial_state(len(sequences)), tokens, lengths)
    return [[finite_logprob(x) for x in row[:size]] for row, size in zip(scores, lengths, strict=True)]
