"""The texts of one training run: to learn from, to decide by, to report on."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from models.errors import InvalidInputError
from models.tokenizers import Tokenizer
from training.corpora.default import read_default_corpus
from training.corpora.encoded import EncodedCorpus
from training.corpora.reading import Corpus, StreamedCorpus, read_corpus
from training.progress import Progress
from training.tokenizing import encode_corpus

_HELD_OUT_DIVISOR = 20
_MAX_HELD_OUT = 5_000
_EMPTY_CORPUS = Corpus([], "", [])


class Texts(NamedTuple):
    """Sentences; no sentence of one part is meant to be in another. Where nothing is trained, `train` has none."""

    train: Corpus | StreamedCorpus
    valid: Corpus
    test: Corpus | None


class EncodedTexts(NamedTuple):
    """The same as ids of one tokenizer."""

    train: EncodedCorpus
    valid: EncodedCorpus
    test: EncodedCorpus | None


def read_texts(
    train: Sequence[Path], valid: Sequence[Path], test: Sequence[Path], *, unit: str, progress: Progress
) -> Texts:
    """Read a run's files; without any, the default corpus.

    Without validation files the end of the training text is held out: a twentieth of its
    sentences, at most 5,000, all from one place, so that neighbours do not leak.

    Raises:
        FormatError: a file cannot be read as text.
        InvalidInputError: validation or test files without training files, or too little text.
    """
    if not train:
        if valid or test:
            raise InvalidInputError("--valid and --test need --corpus", parameter="corpus")
        return Texts(*read_default_corpus(progress))
    corpus = read_corpus(train, unit=unit, progress=progress)
    if valid:
        held_out = read_corpus(valid, unit=unit, progress=progress)
    else:
        corpus, held_out = _hold_out(corpus)
    return Texts(corpus, held_out, read_corpus(test, unit=unit, progress=progress) if test else None)


def read_fitting_text(
    corpus: Sequence[Path], valid: Sequence[Path], test: Sequence[Path], *, unit: str, progress: Progress
) -> Texts:
    """Read the files of a run that trains nothing and only fits weights: all of one text is for that.

    Without any file it is the validation part of the default corpus.

    Raises:
        FormatError: a file cannot be read as text.
        InvalidInputError: there are two texts to fit on, or a test text alone.
    """
    if corpus and valid:
        raise InvalidInputError(
            "nothing is trained, and weights are fitted on one text: give --corpus or --valid, not both",
            parameter="valid",
        )
    if not corpus and not valid:
        if test:
            raise InvalidInputError("--test needs --corpus or --valid", parameter="corpus")
        return Texts(_EMPTY_CORPUS, *read_default_corpus(progress)[1:])
    fitted_on = read_corpus(corpus or valid, unit=unit, progress=progress)
    return Texts(_EMPTY_CORPUS, fitted_on, read_corpus(test, unit=unit, progress=progress) if test else None)


def encode_texts(tokenizer: Tokenizer, texts: Texts, *, progress: Progress) -> EncodedTexts:
    """Encode every part."""
    train, valid = (encode_corpus(tokenizer, c.sentences, progress=progress) for c in texts[:2])
    test = None if texts.test is None else encode_corpus(tokenizer, texts.test.sentences, progress=progress)
    return EncodedTexts(train, valid, test)


def num_held_out(num_sentences: int) -> int:
    """How many sentences at the end of a text are held out of it.

    Raises:
        InvalidInputError: there is one only.
    """
    if num_sentences < 2:
        raise InvalidInputError(
            f"the corpus has {num_sentences} sentence, at least 2 are needed to hold one out; or give --valid",
            parameter="corpus",
        )
    return min(max(num_sentences // _HELD_OUT_DIVISOR, 1), _MAX_HELD_OUT)


def _hold_out(corpus: Corpus) -> tuple[Corpus, Corpus]:
    count = num_held_out(len(corpus.sentences))
    return (
        corpus._replace(sentences=corpus.sentences[:-count]),
        corpus._replace(
            sentences=corpus.sentences[-count:], sources=[f"the end of {', '.join(corpus.sources)}"]
        ),
    )
