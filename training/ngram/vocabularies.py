"""Models over different words brought under one vocabulary, so that they can be mixed."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError
from models.ngram.build import NGrams, NGramWeights
from models.tokenizers import Tokenizer, WordTokenizer
from models.vocabulary import CONTROL_TOKENS, Vocabulary
from training.ngram.rows import Orders

IntArray: TypeAlias = npt.NDArray[np.int32]


def union_tokenizer(tokenizers: Sequence[tuple[str, Tokenizer]]) -> Tokenizer:
    """The tokenizer of a static mixture: the one that all parts share, or one that knows all their words.

    Args:
        tokenizers: at least one, each after the name of its part, for messages.

    Returns:
        A tokenizer whose words are the first part's, then what the others add, in their order.

    Raises:
        InvalidInputError: the parts differ in more than their words; both are named.
    """
    (first_name, first), *others = tokenizers
    for name, other in others:
        if other.fingerprint == first.fingerprint:
            continue
        if not (isinstance(first, WordTokenizer) and isinstance(other, WordTokenizer)):
            raise InvalidInputError(
                f"{name} has another tokenizer ({other.kind}) than {first_name} ({first.kind}); "
                "only word tokenizers can be joined: train the parts with one tokenizer",
                parameter="mixture.models",
            )
        for key, value in _splitting_rules(other).items():
            if value != _splitting_rules(first)[key]:
                raise InvalidInputError(
                    f"the tokenizers of {first_name} ({first.kind}) and {name} ({other.kind}) cannot be joined: "
                    f"{key} is {_splitting_rules(first)[key]!r} in one and {value!r} in the other; "
                    "train the parts with one tokenizer",
                    parameter="mixture.models",
                )
    words = dict.fromkeys(w for _, t in tokenizers for w in t.vocabulary.tokens[len(CONTROL_TOKENS) :])
    if not isinstance(first, WordTokenizer) or len(words) + len(CONTROL_TOKENS) == len(first.vocabulary):
        return first
    return WordTokenizer(Vocabulary(words), **_splitting_rules(first))


def _splitting_rules(tokenizer: WordTokenizer) -> dict[str, Any]:
    """Everything but the words."""
    return {key: value for key, value in tokenizer.settings().items() if key != "tokens"}


def id_translation(source: Vocabulary, target: Vocabulary) -> IntArray:
    """The target's id of each id of the source [V of the source], int32; `<unk>` for words it does not have."""
    ordinary = (target.id_of(token) for token in source.tokens[len(CONTROL_TOKENS) :])
    control = range(len(CONTROL_TOKENS))
    return np.fromiter((*control, *ordinary), np.int32, len(source))


def remap(orders: Orders, ids: IntArray, vocab_size: int) -> list[tuple[NGrams, NGramWeights]]:
    """A back-off model over a larger vocabulary, whose further words have the probability 0 and no n-grams.

    After such a word the context is empty.

    Args:
        orders: the model's n-grams and weights, by order from 1.
        ids: the new id of each word, all different [V].
        vocab_size: of the larger vocabulary.
    """
    weights = orders[0][1]
    probs = np.full(vocab_size, -np.inf, dtype=np.float32)
    probs[ids] = weights.log10_probs
    backoffs = np.zeros(vocab_size, dtype=np.float32)
    if len(orders) > 1:
        backoffs[ids] = weights.log10_backoffs
    nowhere = np.zeros(vocab_size, dtype=np.int32)
    answer = [
        (NGrams(np.arange(vocab_size, dtype=np.int32), nowhere, nowhere), NGramWeights(probs, backoffs)),
    ]
    places = ids  # of the order before: where each of its n-grams is now
    for ngrams, weights in orders[1:]:
        shorter = places
        words, prefixes = ids[ngrams.words], shorter[ngrams.prefixes]
        rank = np.argsort(prefixes.astype(np.int64) * vocab_size + words, kind="stable")
        places = np.empty_like(rank, dtype=np.int32)
        places[rank] = np.arange(len(rank), dtype=np.int32)
        suffixes = np.where(ngrams.suffixes >= 0, shorter[ngrams.suffixes], np.int32(-1))
        moved = NGrams(words[rank], prefixes[rank], suffixes[rank])
        log10_backoffs = weights.log10_backoffs
        if len(log10_backoffs):
            log10_backoffs = log10_backoffs[rank]
        answer.append((moved, NGramWeights(weights.log10_probs[rank], log10_backoffs)))
    return answer
