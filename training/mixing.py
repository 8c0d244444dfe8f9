"""Mixtures of models: what their parts must have in common."""

from collections.abc import Sequence
from pathlib import Path

from models.checkpoint.load import Checkpoint
from models.errors import InvalidInputError
from models.ngram.model import NGramModel
from models.tokenizers import Tokenizer
from models.vocabulary import Vocabulary
from training.corpora.encoded import EncodedCorpus
from training.data import EncodedTexts
from training.ngram.vocabularies import id_translation, union_tokenizer
from training.recipe import MixtureSettings


def mixture_tokenizer(settings: MixtureSettings, published: Sequence[Checkpoint]) -> Tokenizer | None:
    """The tokenizer that a mixture's published parts bring; None if it has none and one must be learnt.

    Raises:
        InvalidInputError: there are fewer than two parts, one reads backward, a static mixture has one
            that is no n-gram model, or the parts' tokenizers differ, or cannot be joined for a static mixture.
    """
    fewest = 1 if settings.cache else 2
    if len(settings.recipes) + len(published) < fewest:
        raise InvalidInputError(
            f"a mixture needs at least {'1 part and a cache' if settings.cache else '2 parts'}, given "
            f"{len(settings.recipes)} recipes and {len(published)} models (mixture.recipes, mixture.models)",
            parameter="mixture",
        )
    if not published:
        return None
    first = published[0]
    for part in published:
        if part.manifest.direction == "backward":
            raise InvalidInputError(
                f"{version_address(part.path)} reads from right to left; a mixture's parts read forward",
                parameter="mixture.models",
            )
    if settings.kind == "static":
        for part in published:
            if not isinstance(part.model, NGramModel):
                raise InvalidInputError(
                    f"mixture.kind is 'static', which mixes n-gram models only; {version_address(part.path)} is of the "
                    f"family {part.model.family}",
                    parameter="mixture.models",
                )
        return union_tokenizer([(version_address(part.path), part.tokenizer) for part in published])
    for part in published:
        if part.tokenizer.fingerprint != first.tokenizer.fingerprint:
            raise InvalidInputError(
                f"{version_address(part.path)} has another tokenizer ({_tokenizer_label(part.tokenizer)}) than "
                f"{version_address(first.path)} ({_tokenizer_label(first.tokenizer)}); a dynamic mixture needs "
                "one tokenizer: use mixture.kind=static, or train the parts with one tokenizer",
                parameter="mixture.models",
            )
    return first.tokenizer


def translate_texts(part: Vocabulary, texts: EncodedTexts, vocabulary: Vocabulary) -> EncodedTexts:
    """Texts in a mixture's vocabulary as a part with fewer words reads them."""
    if part.fingerprint == vocabulary.fingerprint:
        return texts
    ids = id_translation(vocabulary, part)

    def read(corpus: EncodedCorpus) -> EncodedCorpus:
        return corpus._replace(tokens=ids[corpus.tokens])

    test = None if texts.test is None else read(texts.test)
    return EncodedTexts(read(texts.train), read(texts.valid), test)


def _tokenizer_label(tokenizer: Tokenizer) -> str:
    return f"{tokenizer.kind}, {len(tokenizer.vocabulary):,} tokens"


def version_address(path: Path) -> str:
    """The `name@version` of a version's directory."""
    return f"{path.parents[1].name}@{path.name}"
