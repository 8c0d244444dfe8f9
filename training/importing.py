"""ARPA files to published models."""

import datetime as dt
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models.checkpoint.manifest import Direction
from models.checkpoint.registry import Registry
from models.checkpoint.versions import Version, check_name
from models.checkpoint.write import CheckpointDescription, write_checkpoint
from models.ngram.arpa.reading import ArpaReport, read_arpa
from models.ngram.build import NGrams
from models.ngram.model import NGramModel
from models.tokenizers import WordTokenizer
from models.vocabulary import CONTROL_TOKENS
from training.card import CardData, model_card_files
from training.corpora.encoded import EncodedCorpus
from training.corpora.reading import Corpus, read_corpus
from training.evaluation import evaluate, evaluation_facts
from training.ngram.shrinking import NO_COMPRESSION, CompressionSettings, compress
from training.normalisation import measure_row_sums
from training.progress import Progress
from training.publishing import command_line, environment_facts
from training.tokenizing import encode_corpus

_GOLDEN_SEQUENCES = 4


def import_arpa(
    path: Path,
    *,
    name: str,
    registry: Registry,
    corpus: Sequence[Path] = (),
    lowercase: bool = False,
    shrinking: CompressionSettings = NO_COMPRESSION,
    progress: Progress,
) -> Version:
    """Publish the model of an ARPA file; texts are split at white space.

    Args:
        path: the file, packed or not.
        name: of the published model.
        registry: where.
        corpus: text to report figures on, a sentence a line; perhaps none.
        lowercase: whether texts are lower-cased first, as the text was that the model learnt from.
        shrinking: what to do to the model before it is published.
        progress: told of each stage.

    Raises:
        InvalidInputError: the name cannot be a model's, or the model cannot be shrunk so.
        FormatError: the file, or the text, is not what it should be; nothing is published.
    """
    check_name(name)
    began = time.monotonic()
    text = read_corpus(corpus, unit="line", progress=progress) if corpus else None
    progress.start(f"reading {path.name}", path.stat().st_size if path.is_file() else None)
    vocabulary, orders, report = read_arpa(path, on_read=progress.advance)
    progress.finish()
    model, listed, facts = compress(orders, vocabulary, shrinking, progress=progress)
    golden = _golden_sequences(listed)
    del orders, listed  # as large as the model
    progress.start("summing up probabilities", None)
    sums = measure_row_sums(model)
    model.normalised = sums.normalised
    progress.finish()
    tokenizer = WordTokenizer(vocabulary, lowercase=lowercase)
    facts |= {"context": "sentence", "normalisation": sums.as_facts(), "arpa": _file_facts(report)}
    if text is not None:
        encoded = encode_corpus(tokenizer, text.sentences, progress=progress)
        golden = [encoded.sentence(i).tolist() for i in range(min(_GOLDEN_SEQUENCES, encoded.num_sentences))]
        facts |= _held_out_figures(model, encoded, text, backward=report.backward, progress=progress)
    provenance = {
        "source": {"format": "ARPA", "file": path.name, "sha256": report.sha256},
        "argv": command_line(),
        "seconds": round(time.monotonic() - began, 3),
        "lowercase": lowercase,
        **environment_facts(),
    }
    created = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    direction: Direction = "backward" if report.backward else "forward"
    card = model_card_files(
        CardData(
            name=name,
            family=model.family,
            created=created,
            parameters=model.num_parameters,
            vocab_size=len(vocabulary),
            tokenizer=tokenizer.kind,
            metrics=facts,
            provenance=provenance,
            histories={},
            direction=direction,
        )
    )
    description = CheckpointDescription(created, facts, provenance, golden, card, direction)
    return registry.publish(
        name, lambda directory: write_checkpoint(directory, model, tokenizer, description)
    )


def _golden_sequences(orders: Sequence[NGrams]) -> list[list[int]]:
    """Some n-grams of the highest order that has any, to test the model by: no control tokens among them."""
    highest = max(order for order, ngrams in enumerate(orders, start=1) if len(ngrams.words))
    rows = np.linspace(0, len(orders[highest - 1].words) - 1, _GOLDEN_SEQUENCES).astype(np.int64)
    columns = []
    for ngrams in reversed(orders[:highest]):
        columns.append(ngrams.words[rows])
        rows = ngrams.prefixes[rows].astype(np.int64)
    return [
        [word for word in words if word >= len(CONTROL_TOKENS)]
        for words in np.stack(columns[::-1], axis=1).tolist()
    ]


def _held_out_figures(
    model: NGramModel, encoded: EncodedCorpus, text: Corpus, *, backward: bool, progress: Progress
) -> dict[str, Any]:
    """Held-out figures, and what text they are of."""
    result = evaluate(model, encoded.reversed() if backward else encoded, progress=progress)
    data = {"sha256": text.sha256, "sources": text.sources, "sentences": len(text.sentences)}
    return {"test": evaluation_facts(result), "data": {"test": data}}


def _file_facts(report: ArpaReport) -> dict[str, Any]:
    """What the file lacks or has too much of; the rest is told elsewhere."""
    return {key: value for key, value in report._asdict().items() if key not in {"sha256", "backward"}}
