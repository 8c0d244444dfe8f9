"""Static linear interpolation: several back-off models as one n-gram model.

The mixture lists the union of its parts' n-grams. Each n-gram has the probability
Σ_i λ_i p_i(w|h); a part that does not list it backs off. Back-off weights preserve
the sums of the parts' rows. So a static mixture has, for every listed word, the
probabilities of the dynamic one, which evaluates all parts at every step, and nearly
the same elsewhere. Parts with different words are first mapped to one vocabulary.

Source: Stolcke (2002), "SRILM: an extensible language modeling toolkit", the static interpolation of
`ngram -mix-lm`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from models.arrays import Float64s, Int32s
from models.errors import InputError
from models.language_model import CONTROL_TOKENS, Vocabulary
from models.ngram.build import NGrams, NGramWeights, build_automaton, list_ngrams
from models.ngram.model import NGramModel
from models.tokenizers import Tokenizer, WordTokenizer
from training.corpus import EncodedCorpus
from training.evaluation.evaluate import score_corpus
from training.mixture_fitting import fit_weights
from training.ngram.pruning import (
    MIN_LOWER_MASS,
    BackoffRows,
    Orders,
    compress,
    from_log10,
    link,
    suffixes_by_order,
)
from training.ngram.smoothing.interpolation import attach_backoffs
from training.progress import Progress
from training.recipe import NGramSettings


def interpolate_models(
    parts: Sequence[Orders], weights: Sequence[float]
) -> list[tuple[NGrams, NGramWeights]]:
    """Mix back-off models over one vocabulary into one.

    For a word that no part lists after h, Σ_i λ_i p_i(w|h) is Σ_i λ_i α_i(h) p_i(w|h'). All such words
    share a back-off weight: α(h) = Σ_i λ_i α_i(h) R_i(h) / Σ_i λ_i R_i(h), where R_i(h) is their
    total probability under part i after h'.

    Args:
        parts: n-grams and weights of each model, by order from 1; orders may differ.
        weights: λ of each part; positive, summing to 1.

    Returns:
        The mixture's n-grams and weights; the suffix of an unlisted n-gram is −1.
    """
    same_ids = parts[0][0][0].words
    ngrams_by_order, indices = _unite(parts, [same_ids for _ in parts], len(same_ids))
    trie = link(ngrams_by_order)
    rows = [BackoffRows(trie) for _ in parts]
    mixture = BackoffRows(trie)

    def mix() -> Iterator[tuple[NGrams, Float64s, Float64s]]:
        for length, (ngrams, suffixes) in enumerate(
            zip(ngrams_by_order, suffixes_by_order(trie), strict=True), start=1
        ):
            scores = (
                _score_part(part_rows, ngrams, length, part, part_indices)
                for part_rows, part, part_indices in zip(rows, parts, indices, strict=True)
            )
            probs, lower, lower_unlisted, unlisted = (
                sum(weight * value for weight, value in zip(weights, values, strict=True))
                for values in zip(*scores, strict=True)
            )
            backoffs = np.ones(1)
            if length > 1:
                own_lower = mixture.lower_probs(length)
                # lower differs from own_lower if the mixture backs off for a suffix that no part lists
                unlisted_mass = lower_unlisted + np.bincount(
                    ngrams.prefixes, lower - own_lower, minlength=len(lower_unlisted)
                )
                backoffs = unlisted / np.maximum(unlisted_mass, MIN_LOWER_MASS)
                mixture.set_backoffs(length - 1, backoffs)
            mixture.set_probs(length, probs)
            yield ngrams._replace(suffixes=suffixes), probs, backoffs

    return attach_backoffs(mix())


def _unite(
    parts: Sequence[Orders], ids: Sequence[Int32s], vocab_size: int
) -> tuple[list[NGrams], list[list[Int32s]]]:
    """Merge the parts' n-grams by order, keyed by the prefix's index in the union and word.

    Args:
        parts: n-grams of each model, by order from 1.
        ids: the union's id of each word, by part.
        vocab_size: vocabulary size of the union.

    Returns:
        The union by order, and the indices of each part's n-grams in it, by part and order.
    """
    nowhere = np.zeros(vocab_size, np.int32)
    ngrams = [NGrams(np.arange(vocab_size, dtype=np.int32), nowhere, nowhere)]
    indices = [[own] for own in ids]
    for length in range(2, max(map(len, parts)) + 1):
        longer = [
            (part[length - 1][0], own)
            for part, own in zip(parts, indices, strict=True)
            if len(part) >= length
        ]
        keys = [own[-1][n.prefixes].astype(np.int64) * vocab_size + own[0][n.words] for n, own in longer]
        # may be empty: pruning can remove an order
        merged = np.unique(np.concatenate(keys))
        suffixes = np.full(len(merged), -1, np.int32)
        for (part_ngrams, own), key in zip(longer, keys, strict=True):
            own.append(np.searchsorted(merged, key).astype(np.int32))
            listed = part_ngrams.suffixes >= 0
            suffixes[own[-1][listed]] = own[-2][part_ngrams.suffixes[listed]]
        # sorted by (prefix, word), as in an automaton
        prefixes, words = np.divmod(merged, vocab_size)
        ngrams.append(NGrams(words.astype(np.int32), prefixes.astype(np.int32), suffixes))
    return ngrams, indices


def _score_part(
    rows: BackoffRows, ngrams: NGrams, length: int, part: Orders, indices: Sequence[Int32s]
) -> tuple[Float64s, Float64s, Float64s, Float64s]:
    """Score the union's n-grams of one length with a part, adding them to its rows.

    Returns:
        Probabilities of the n-grams [n], and masses of their contexts; see `ContextMasses`.
    """
    context, backoffs = rows.contexts(ngrams, length), np.ones(len(ngrams.words))
    probs = rows.backoffs[rows.trie.nodes(length - 1)][ngrams.prefixes] * context.lower
    if length <= len(part):
        probs[indices[length - 1]] = from_log10(part[length - 1][1].log10_probs)
    if length < len(part):
        backoffs[indices[length - 1]] = from_log10(part[length - 1][1].log10_backoffs)
    rows.add_order(ngrams, length, probs, left=context.unlisted)
    rows.set_backoffs(length, backoffs)
    return probs, *context


def union_tokenizer(tokenizers: Sequence[tuple[str, Tokenizer]]) -> Tokenizer:
    """Build a static mixture's tokenizer: the parts' common one, or one with all words.

    Args:
        tokenizers: at least one pair of part name, for messages, and tokenizer.

    Returns:
        One with the first part's words, then the others' new words, in order.

    Raises:
        InputError: two parts differ not only in words; the message names them.
    """
    (first_name, first), *further = tokenizers
    for name, tokenizer in further:
        if tokenizer.fingerprint == first.fingerprint:
            continue
        if not (isinstance(first, WordTokenizer) and isinstance(tokenizer, WordTokenizer)):
            raise InputError(
                f"{name} has another tokenizer ({tokenizer.kind}) than {first_name} ({first.kind}); "
                "only word tokenizers can be joined: train the parts with one tokenizer",
                param="mixture.models",
            )
        for key, value in tokenizer.rules.items():
            if value != first.rules[key]:
                raise InputError(
                    f"the tokenizers of {first_name} ({first.kind}) and {name} ({tokenizer.kind}) cannot be joined: "
                    f"{key} is {first.rules[key]!r} in one and {value!r} in the other; "
                    "train the parts with one tokenizer",
                    param="mixture.models",
                )
    words = dict.fromkeys(w for _, t in tokenizers for w in t.vocabulary.tokens[len(CONTROL_TOKENS) :])
    if not isinstance(first, WordTokenizer) or len(words) + len(CONTROL_TOKENS) == len(first.vocabulary):
        return first
    return WordTokenizer(Vocabulary(words), **first.rules)


def id_translation(source: Vocabulary, target: Vocabulary) -> Int32s:
    """Map each source id to its target id [source V], int32; `<unk>` for missing words."""
    ordinary = (target.id_of(token) for token in source.tokens[len(CONTROL_TOKENS) :])
    control = range(len(CONTROL_TOKENS))
    return np.fromiter((*control, *ordinary), np.int32, len(source))


def remap(orders: Orders, ids: Int32s, vocab_size: int) -> list[tuple[NGrams, NGramWeights]]:
    """Move a back-off model to a larger vocabulary; added words have probability 0 and no n-grams.

    The context after an added word is empty.

    Args:
        orders: the model's n-grams and weights, by order from 1.
        ids: the new id of each word, all different [V].
        vocab_size: size of the larger vocabulary.
    """
    ngrams_by_order, (indices,) = _unite([orders], [ids], vocab_size)
    remapped = []
    for ngrams, rows, (_, weights) in zip(ngrams_by_order, indices, orders, strict=True):
        probs = np.full(len(ngrams.words), -np.inf, np.float32)
        probs[rows] = weights.log10_probs
        backoffs = weights.log10_backoffs
        if len(backoffs):  # the highest order has none
            backoffs = np.zeros(len(ngrams.words), np.float32)
            backoffs[rows] = weights.log10_backoffs
        remapped.append((ngrams, NGramWeights(probs, backoffs)))
    return remapped


def mix_statically(
    parts: Sequence[NGramModel],
    vocabulary: Vocabulary,
    held_out: EncodedCorpus,
    settings: NGramSettings,
    *,
    progress: Progress,
) -> tuple[NGramModel, dict[str, Any]]:
    """Mix n-gram models into one, with weights of maximum likelihood on held-out text.

    Args:
        parts: the models; their vocabularies are subsets of `vocabulary`.
        vocabulary: vocabulary of the mixture. Words that a part lacks have probability 0 in it.
        held_out: sentences in the mixture's vocabulary.
        settings: its entropy pruning and quantisation; see `compress`.
        progress: reports each stage.

    Returns:
        The merged model, and facts: `weights` of the parts, and numbers of n-grams by order from 1, also
        before pruning.

    Raises:
        InputError: no held-out token, or the model cannot be compressed as requested.
    """
    models = list(parts)
    for number, part in enumerate(parts):
        if part.vocabulary.fingerprint != vocabulary.fingerprint:
            ids = id_translation(part.vocabulary, vocabulary)
            orders = remap(list_ngrams(part.automaton), ids, len(vocabulary))
            models[number] = NGramModel(build_automaton(orders), vocabulary, normalised=part.normalised)
    scores = [score_corpus(model, held_out, progress=progress).log_probs for model in models]
    weights = fit_weights(np.stack(scores, axis=1)).tolist()
    with progress.stage("mixing n-grams"):
        orders = interpolate_models([list_ngrams(model.automaton) for model in models], weights)
    normalised = all(part.normalised for part in parts)
    model, _, facts = compress(
        orders,
        vocabulary,
        prune_entropy=settings.prune_entropy,
        quantise=settings.quantize_bits is not None,
        normalised=normalised,
        progress=progress,
    )
    return model, {"weights": weights, **facts}
