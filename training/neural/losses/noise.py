"""Tokens that stand for the rest of the vocabulary, drawn without replacement by frequency."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.vocabulary import BOS

NoiseName = Literal["unigram", "log-uniform"]
NoiseWeights: TypeAlias = npt.NDArray[np.float64]

_POWER = 0.75
"""Flattens the frequencies (Mikolov et al. 2013)."""


class NoiseDraw(NamedTuple):
    """What was drawn.

    Attributes:
        ids: all different [S].
        log_expected: how often each was to be expected among them, as a logarithm [S], at most 0.
    """

    ids: Tensor
    log_expected: Tensor


class NoiseSampler:
    """Draws a number of tokens without replacement, each with a probability in proportion to its weight.

    Systematic sampling (Madow 1949): probabilities of being drawn, which add up to S, are laid end to
    end in a shuffled order, and a comb with a tooth at every whole number is laid over
    them at random. So one random number makes a draw, the probabilities are exact, and a token whose
    weight calls for more than 1 is drawn every time.

    Args:
        weights: how often tokens are to be drawn relative to each other [V], not all 0; `<s>` never is.
        samples: tokens in a draw, S; all of those with a weight if they are fewer.
        seed: of the draws.
        device: where draws are wanted.
    """

    def __init__(
        self, weights: NoiseWeights, *, samples: int, seed: int, device: torch.device | str = "cpu"
    ) -> None:
        expected = inclusion_probabilities(weights, samples)
        self.samples = round(float(expected.sum()))
        self._generator = np.random.default_rng(
            [seed, 0x6E6F697365]
        )  # not the stream's, which has the same seed
        drawable = np.flatnonzero(expected)
        self._order = np.random.default_rng(0).permutation(drawable)  # the same whatever the seed
        self._ends = np.cumsum(expected[self._order])
        self._device = torch.device(device)
        with np.errstate(divide="ignore"):
            self.log_expected = torch.as_tensor(np.log(expected), dtype=torch.float32, device=self._device)

    def draw(self) -> NoiseDraw:
        """The next draw."""
        teeth = self._generator.random() + np.arange(self.samples)
        places = np.searchsorted(self._ends, teeth, side="right")
        # rounding may put two teeth into one token, or the last past the end
        ids = torch.as_tensor(
            np.unique(self._order[np.minimum(places, len(self._order) - 1)]), device=self._device
        )
        return NoiseDraw(ids, self.log_expected[ids])

    def state(self) -> dict[str, Any]:
        """What it takes to go on drawing the same."""
        return dict(self._generator.bit_generator.state)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on as from when `state` was asked."""
        self._generator.bit_generator.state = dict(state)


def noise_weights(counts: npt.ArrayLike, kind: NoiseName) -> NoiseWeights:
    """How often tokens are drawn relative to each other [V].

    Args:
        counts: how often each token occurs in the training text [V].
        kind: `unigram`, the counts to the power of 3/4; `log-uniform`, log((r + 2) / (r + 1)) of the
            rank r by frequency, Zipf's law without the counts.
    """
    weights = np.array(counts, dtype=np.float64)
    if kind == "unigram":
        weights **= _POWER
    else:
        order = np.argsort(-weights, kind="stable")
        weights[order] = np.log1p(1 / (np.arange(len(weights)) + 1.0))
    weights[BOS] = 0
    return weights


def inclusion_probabilities(weights: NoiseWeights, samples: int) -> NoiseWeights:
    """Probabilities [V], at most 1, that add up to a number of samples, in proportion to weights where below 1.

    Args:
        weights: relative [V], not negative, not all 0.
        samples: their sum; lowered to the number of weights that are not 0.
    """
    samples = min(samples, int(np.count_nonzero(weights)))
    expected = np.zeros(len(weights))
    certain = np.zeros(len(weights), dtype=bool)
    while True:
        open_ = ~certain
        expected[open_] = weights[open_] * ((samples - certain.sum()) / max(weights[open_].sum(), 1e-300))
        over = open_ & (expected >= 1)
        expected[over] = 1
        certain |= over
        if not over.any():
            return expected
