"""Publication of ARPA files and pretrained models, and export of n-gram models as ARPA files.

Words of ARPA files can be SentencePiece pieces: spelled as such, or each as the
character of the code point piece id + 100, as NeMo's `train_kenlm.py` writes them.
"""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from models.checkpoint.load import load_checkpoint
from models.checkpoint.manifest import Direction, check_name
from models.checkpoint.registry import Address, open_registry
from models.checkpoint.write import StorableModel, write_checkpoint
from models.errors import InputError, ManifestError, UnsupportedParameterError, require_package
from models.ngram.arpa_reader import read_arpa
from models.ngram.arpa_writer import write_arpa
from models.ngram.build import NGrams, list_ngrams
from models.ngram.model import NGramModel
from models.tokenizers import ListedPieceTokenizer, Tokenizer, WordTokenizer, read_piece_model
from models.vocabulary import CONTROL_TOKENS, Vocabulary
from training.console import console_progress
from training.corpus import read_corpus
from training.evaluation.breakdown import int8_facts
from training.evaluation.evaluate import evaluate
from training.ngram.pruning import compress
from training.publish import (
    GOLDEN_SENTENCES,
    corpus_facts,
    describe_checkpoint,
    golden_sentences,
    published_result,
)
from training.single_model import row_sum_facts
from training.tokenizer import encode_corpus

ENCODINGS = ("pieces", "nemo")
"""Spellings of SentencePiece pieces in ARPA files."""

_NEMO_OFFSET = 100  # DEFAULT_TOKEN_OFFSET in NeMo's ctc_beam_decoding.py
_WRITTEN_SENTENCES = (
    "The first version of the report was published on Monday.",
    "It was raining, so they stayed at home.",
)
"""Golden sentences of models of written text."""


class _Import:
    """Import of a model into a registry, evaluated on held-out files, if any."""

    def __init__(self, name: str, registry: Address, corpus: Sequence[Path]) -> None:
        self._began, self._name = time.monotonic(), name
        self._store, self.progress = open_registry(registry, create=True), console_progress()
        check_name(name)
        self._text = read_corpus(corpus, unit="line", progress=self.progress) if corpus else None

    def publish(
        self,
        model: StorableModel[Any],
        tokenizer: Tokenizer,
        facts: dict[str, Any],
        golden: Sequence[Sequence[int]],
        source: Mapping[str, str],
        *,
        direction: Direction = "forward",
        **provenance: object,
    ) -> dict[str, Any]:
        """Evaluate and publish the model; the held-out text, if given, replaces the `golden` inputs."""
        if self._text is not None:
            encoded = encode_corpus(tokenizer, self._text.sentences, progress=self.progress)
            golden = golden_sentences(encoded)
            read = encoded.reversed() if direction == "backward" else encoded
            result = evaluate(model, read, progress=self.progress)
            facts |= {"test": result.facts(), "data": {"test": corpus_facts(self._text)}}
            facts |= int8_facts(model, encoded, context="sentence", progress=self.progress)
        seconds = round(time.monotonic() - self._began, 3)
        description = describe_checkpoint(
            self._name,
            model,
            tokenizer,
            metrics=facts,
            provenance={"source": source, "seconds": seconds, **provenance},
            golden=golden,
            direction=direction,
        )
        copying = self.progress.stage("copying the weights")
        with nullcontext() if isinstance(model, NGramModel) else copying:
            version = self._store.publish(
                self._name, lambda directory: write_checkpoint(directory, model, tokenizer, description)
            )
        return published_result(self._store, version, time.monotonic() - self._began)


def run_import_arpa(
    file: Path,
    *,
    name: str,
    registry: Address,
    corpus: Sequence[Path] = (),
    lowercase: bool = False,
    pieces_of: Path | None = None,
    encoding: str = "pieces",
    prune_entropy: float = 0.0,
    quantize_bits: int | None = None,
) -> dict[str, Any]:
    """Publish an ARPA file's model, with a tokenizer that splits at white space or into pieces.

    See `gramophone models import-arpa` for the arguments; `pieces_of` is its `--tokenizer`.

    Returns:
        The new version's address, directory, figures, and notes on the file.

    Raises:
        LanguageModelError: invalid input, or an unwritable registry; nothing is published.
    """
    _check_options(lowercase, encoding, prune_entropy, quantize_bits, has_pieces=pieces_of is not None)
    imported = _Import(name, registry, corpus)
    progress = imported.progress
    with progress.stage(f"reading {file.name}", file.stat().st_size if file.is_file() else None):
        vocabulary, orders, report = read_arpa(file, on_read=progress.advance)
    if lowercase and (capital := [word for word in vocabulary.ids if word != word.lower()]):
        raise InputError(
            f"--lowercase is for a model of lower-cased text, but {len(capital):,} of {len(vocabulary.ids):,} words of "
            f"{file.name}, such as {capital[0]!r:.80}, have capitals and would never be found: omit --lowercase, or "
            "lower-case the file first, for example with sed 's/.*/\\L&/'",
            param="lowercase",
        )
    tokenizer: Tokenizer
    irregularities = {k: v for k, v in report._asdict().items() if k not in {"sha256", "backward"}}
    if pieces_of is None:
        tokenizer = WordTokenizer(vocabulary, lowercase=lowercase)
    else:
        tokenizer = _piece_tokenizer(vocabulary, pieces_of, encoding=encoding)
        irregularities |= {"split_words": 0, "unlisted_pieces": tokenizer.num_unlisted}
        vocabulary = tokenizer.vocabulary
    model, listed, facts = compress(
        orders, vocabulary, prune_entropy=prune_entropy, quantise=quantize_bits is not None, progress=progress
    )
    golden = _golden_sequences(listed)
    del orders, listed  # as large as the model
    with progress.stage("summing probabilities"):
        sums = row_sum_facts(model)
        model.normalised = sums["normalised"]
    facts |= {"context": "sentence", "normalisation": sums, "arpa": irregularities}
    return imported.publish(
        model,
        tokenizer,
        facts,
        golden,
        {"format": "ARPA", "file": file.name, "sha256": report.sha256},
        direction="backward" if report.backward else "forward",
        lowercase=lowercase,
    )


def _check_options(
    lowercase: bool, encoding: str, prune_entropy: float, quantize_bits: int | None, *, has_pieces: bool
) -> None:
    if not 0 <= prune_entropy < math.inf:
        problem = f"--prune-entropy is {prune_entropy}; it must be at least 0 and finite"
        raise InputError(problem, param="prune_entropy")
    if quantize_bits not in {None, 8}:
        problem = f"--quantize-bits is {quantize_bits}; it must be 8"
        raise InputError(problem, param="quantize_bits")
    if encoding not in ENCODINGS or (encoding != "pieces" and not has_pieces):
        problem = f"--encoding is {encoding!r}; it can be {' or '.join(ENCODINGS)}, with --tokenizer"
        raise InputError(problem, param="encoding")
    if has_pieces and lowercase:
        problem = "--lowercase is for words; the SentencePiece model of --tokenizer normalises texts itself"
        raise InputError(problem, param="lowercase")


def _piece_tokenizer(words: Vocabulary, path: Path, *, encoding: str) -> ListedPieceTokenizer:
    """Return the tokenizer of an ARPA file of SentencePiece pieces."""
    try:
        model = path.read_bytes()
        if encoding == "nemo":
            pieces = read_piece_model(model)
            ids = [ord(word) - _NEMO_OFFSET if len(word) == 1 else -1 for word in words.ids]
            size = pieces.GetPieceSize()
            if wrong := [word for word, i in zip(words.ids, ids, strict=True) if not 0 <= i < size]:
                raise InputError(
                    f"--encoding is nemo, but {len(wrong):,} of the {len(ids):,} words of the ARPA file, such as "
                    f"{wrong[0]!r:.80}, are not one character from U+{_NEMO_OFFSET:04X} to "
                    f"U+{_NEMO_OFFSET + size - 1:04X}, the codes of the pieces in {path.name}",
                    param="encoding",
                )
            words = Vocabulary(map(pieces.IdToPiece, ids))
        return ListedPieceTokenizer(model, words)
    except (OSError, ManifestError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"--tokenizer {path}: {problem}", param="tokenizer") from None


def _golden_sequences(orders: Sequence[NGrams]) -> list[list[int]]:
    """Return golden inputs: evenly spaced n-grams of the highest non-empty order, without control tokens."""
    highest = max(order for order, ngrams in enumerate(orders, start=1) if len(ngrams.words))
    rows = np.linspace(0, len(orders[highest - 1].words) - 1, GOLDEN_SENTENCES).astype(np.int64)
    columns = []
    for ngrams in reversed(orders[:highest]):
        columns.append(ngrams.words[rows])
        rows = ngrams.prefixes[rows].astype(np.int64)
    return [
        [word for word in words if word >= len(CONTROL_TOKENS)]
        for words in np.stack(columns[::-1], axis=1).tolist()
    ]


def run_export_arpa(address: str, file: Path, *, registry: Address) -> dict[str, Any]:
    """Write a published n-gram model as an ARPA file.

    See `gramophone models export-arpa` for the arguments.

    Returns:
        The model's address, the file, n-grams by order, and facts for its readers, such
        as `splits_at_spaces`, True if its words are exactly a text's white-space tokens.

    Raises:
        LanguageModelError: invalid input, another family, or a file that cannot be written; no partial file remains.
    """
    began = time.monotonic()
    store, progress = open_registry(registry), console_progress()
    version = store.resolve(address)
    checkpoint = load_checkpoint(store.fetch(version), members=False)
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    if not isinstance(model, NGramModel):
        raise UnsupportedParameterError(
            f"{version.address} is of the family {model.family!r}; only n-gram models, including static mixtures, "
            "can be written as ARPA files",
            param="model",
        )
    orders = list_ngrams(model.automaton)
    with progress.stage(f"writing {file.name}", model.automaton.num_arcs):
        backward = checkpoint.manifest.direction == "backward"
        written = write_arpa(file, model.vocabulary, orders, backward=backward, on_write=progress.advance)
    splits = isinstance(tokenizer, WordTokenizer) and tokenizer.pattern is None
    splits = splits and not tokenizer.normaliser.changes_text
    return {
        "model": version.address,
        "path": str(file),
        "seconds": time.monotonic() - began,
        "bytes": file.stat().st_size,
        "ngrams": list(written.counts),
        "escaped_words": written.escaped_words,
        "log_zero": None if written.log_zero is None else float(written.log_zero),
        "splits_at_spaces": splits,
    }


def run_import_hf(
    folder: Path, *, name: str, registry: Address, corpus: Sequence[Path] = ()
) -> dict[str, Any]:
    """Publish the model of a folder: config.json, weights in safetensors and tokenizer.json.

    See `gramophone models import-hf` for the arguments.

    Returns:
        The new version's address, directory and figures.

    Raises:
        LanguageModelError: invalid input, or an unwritable registry; nothing is published.
    """
    for package in ("torch", "transformers"):
        require_package(package, "a pretrained model")
    from models.pretrained.folder import check_folder
    from models.pretrained.model import PretrainedModel  # imports torch
    from models.pretrained.tokenizer import PretrainedTokenizer, check_tokenizer

    imported = _Import(name, registry, corpus)
    with imported.progress.stage(f"reading {folder.name}"):
        try:
            kind = check_folder(folder)["model_type"]
            check_tokenizer(folder)
            tokenizer = PretrainedTokenizer(folder)
            model = PretrainedModel(folder, tokenizer.vocabulary)
        except (ManifestError, RuntimeError) as error:
            raise InputError(str(error), param="folder") from None
    pretrained = {"type": kind, "window": model.window, **tokenizer.facts}
    golden, source = (
        tokenizer.encode_all(_WRITTEN_SENTENCES),
        {"format": "Hugging Face", "folder": folder.name},
    )
    facts = {"context": "sentence", "pretrained": pretrained}
    return imported.publish(model, tokenizer, facts, golden, source)
