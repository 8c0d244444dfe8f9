"""Mixtures of models: what their parts must have in common, and how they become one model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from models.checkpoint.load import Checkpoint
from models.checkpoint.write import StorableModel
from models.errors import InvalidInputError
from models.mixture import MixtureModel, fit_weights
from models.ngram.model import NGramModel
from models.protocol import LanguageModel
from models.tokenizers import Tokenizer
from models.vocabulary import Vocabulary
from training.corpora.encoded import EncodedCorpus
from training.data import EncodedTexts
from training.evaluation import score_corpus
from training.ngram.shrinking import AS_IT_IS, Shrinking
from training.ngram.static_mixture import mix_statically
from training.ngram.vocabularies import translation, union_tokenizer
from training.progress import Progress
from training.recipe import MixtureSettings


class Mixed(NamedTuple):
    """A mixture and what is to be remembered of it: weights, and n-grams by order if it is static."""

    model: StorableModel[Any]
    facts: dict[str, Any]


def mixture_tokenizer(settings: MixtureSettings, published: Sequence[Checkpoint]) -> Tokenizer | None:
    """The tokenizer that a mixture's published parts bring; None if it has none and one must be learnt.

    Raises:
        InvalidInputError: there are fewer than two parts, one reads backward, a static mixture has one
            that is no n-gram model, or the parts' tokenizers differ, or cannot be joined for a static mixture.
    """
    if len(settings.recipes) + len(published) < 2:
        raise InvalidInputError(
            f"a mixture needs at least 2 parts, given {len(settings.recipes)} recipes and "
            f"{len(published)} models (mixture.recipes, mixture.models)",
            parameter="mixture",
        )
    if not published:
        return None
    first = published[0]
    for part in published:
        if part.manifest.direction == "backward":
            raise InvalidInputError(
                f"{address_of(part.path)} reads from right to left; a mixture's parts read forward",
                parameter="mixture.models",
            )
    if settings.kind == "static":
        for part in published:
            if not isinstance(part.model, NGramModel):
                raise InvalidInputError(
                    f"mixture.kind is 'static', which mixes n-gram models only; {address_of(part.path)} is of the "
                    f"family {part.model.family}",
                    parameter="mixture.models",
                )
        return union_tokenizer([(address_of(part.path), part.tokenizer) for part in published])
    for part in published:
        if part.tokenizer.fingerprint != first.tokenizer.fingerprint:
            raise InvalidInputError(
                f"{address_of(part.path)} has another tokenizer ({_described(part.tokenizer)}) than "
                f"{address_of(first.path)} ({_described(first.tokenizer)}); a dynamic mixture needs "
                "one tokenizer: use mixture.kind=static, or train the parts with one tokenizer",
                parameter="mixture.models",
            )
    return first.tokenizer


def mix(
    kind: str,
    models: Sequence[LanguageModel[Any]],
    vocabulary: Vocabulary,
    held_out: EncodedCorpus,
    *,
    shrinking: Shrinking = AS_IT_IS,
    progress: Progress,
) -> Mixed:
    """Mix models with the weights that make held-out text most probable.

    Args:
        kind: `dynamic` or `static`.
        models: the parts; for `static`, n-gram models, whose words may be some of the vocabulary's.
        vocabulary: of the mixture.
        held_out: sentences to fit the weights on.
        shrinking: what to do to a static mixture's one model.
        progress: told of each stage.

    Raises:
        InvalidInputError: there is no held-out token.
    """
    if kind == "static":
        ngram_models = [model for model in models if isinstance(model, NGramModel)]
        mixture = mix_statically(ngram_models, vocabulary, held_out, shrinking=shrinking, progress=progress)
        return Mixed(mixture.model, {"weights": list(mixture.weights), **mixture.facts})
    scores = [score_corpus(model, held_out, progress=progress).log_probs for model in models]
    weights = fit_weights(np.stack(scores, axis=1))
    return Mixed(MixtureModel(models, weights), {"weights": list(weights)})


def in_words_of(part: Vocabulary, texts: EncodedTexts, vocabulary: Vocabulary) -> EncodedTexts:
    """Texts in a mixture's vocabulary as a part with fewer words reads them."""
    if part.fingerprint == vocabulary.fingerprint:
        return texts
    ids = translation(vocabulary, part)

    def read(corpus: EncodedCorpus) -> EncodedCorpus:
        return corpus._replace(tokens=ids[corpus.tokens])

    test = None if texts.test is None else read(texts.test)
    return EncodedTexts(read(texts.train), read(texts.valid), test)


def _described(tokenizer: Tokenizer) -> str:
    return f"{tokenizer.kind}, {len(tokenizer.vocabulary):,} tokens"


def address_of(path: Path) -> str:
    """The `name@version` of a version's directory."""
    return f"{path.parents[1].name}@{path.name}"
