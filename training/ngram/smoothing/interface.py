"""What every smoothing is given, and what it gives."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from models.errors import InvalidInputError
from models.ngram.build import NGrams, NGramWeights
from training.corpora.encoded import EncodedCorpus
from training.ngram.observations import Observations
from training.ngram.smoothing.discounts import Discounts


class Smoothed(NamedTuple):
    """A back-off model by order, and how it came about.

    Attributes:
        orders: n-grams and weights of the orders 1, 2, …, for `build_automaton`.
        facts: what was found, for the model card; numbers, words, and lists of them.
        discounts: by order from 1; empty for a smoothing that has none of this kind.
        fallback_orders: the orders whose parameters are constants, as their counts allow no estimate.
    """

    orders: Sequence[tuple[NGrams, NGramWeights]]
    facts: Mapping[str, Any]
    discounts: tuple[Discounts, ...] = ()
    fallback_orders: tuple[int, ...] = ()


class Smoothing(Protocol):
    """A way to estimate probabilities from counts. All of them are normalised."""

    def estimate(self, observations: Observations, held_out: EncodedCorpus | None) -> Smoothed:
        """Estimate a model.

        Args:
            observations: the counted text.
            held_out: other text over the same vocabulary, for parameters that are fitted on it.

        Raises:
            InvalidInputError: held-out text is needed and there is none.
        """
        ...


def require_held_out(held_out: EncodedCorpus | None, *, key: str, what: str) -> EncodedCorpus:
    """Held-out text that a smoothing cannot do without.

    Raises:
        InvalidInputError: there is none; the message names the recipe's key.
    """
    if held_out is None or held_out.num_sentences == 0:
        raise InvalidInputError(
            f"{key}: {what} are fitted on held-out text, and there is none (give --valid)", parameter=key
        )
    return held_out
