"""The text as a table: a row of N words for every place that an n-gram of the highest order starts at.

Lower orders are sums over those rows, so no other place need be kept but where sentences begin.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.tokenizers import Tokenizer
from models.vocabulary import BOS, EOS
from training.corpora.encoded import EncodedCorpus
from training.corpora.reading import Sentences
from training.evaluating.breakdown import token_counts
from training.overlap import OverlapCounter
from training.progress import SILENT, Progress
from training.scale.plan import ABSENT
from training.tokenizing import batches, encoded_blocks

COUNTS_FILE = "token_counts.npy"


class WindowSettings(NamedTuple):
    """How the training text is read.

    Attributes:
        order: N.
        backward: whether each sentence is read from its last word to its first.
        held_out: other texts, by name, that are looked for in it.
    """

    order: int
    backward: bool
    held_out: Mapping[str, list[str]]


def write_windows(
    folder: Path, tokenizer: Tokenizer, sentences: Sentences, reading: WindowSettings, progress: Progress
) -> dict[str, Any]:
    """Encode a text and write its windows, in one pass and bounded memory.

    Beside the table lies `token_counts.npy`, how often each token occurs [V], int64.

    Args:
        folder: an empty folder.
        tokenizer: V words.
        sentences: the text.
        reading: how it is read.
        progress: told of sentences.

    Returns:
        `tokens`, with one `</s>` a sentence, and `overlap`, what of held-out texts was seen, by name.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    vocab_size = len(tokenizer.vocabulary)
    counts = np.zeros(vocab_size, np.int64)
    counters = {name: OverlapCounter(text) for name, text in reading.held_out.items()}
    schema = pa.schema([(f"w{i}", pa.int32()) for i in range(1, reading.order + 1)])
    progress.start("tokenising", len(sentences))
    with pq.ParquetWriter(folder / "part.parquet", schema, compression="zstd", compression_level=1) as file:
        for block in _count_overlaps(batches(sentences), counters, progress):
            (encoded,) = encoded_blocks(tokenizer, [block])
            counts += token_counts(encoded, vocab_size)
            windows = text_windows(encoded.reversed() if reading.backward else encoded, reading.order)
            file.write_table(pa.table(list(windows), schema=schema))
    progress.finish()
    np.save(folder / COUNTS_FILE, counts)
    seen = {name: counter.result().as_facts() for name, counter in counters.items()}
    return {"tokens": int(counts.sum()), "overlap": seen}


def write_vocabulary(folder: Path, vocab_size: int) -> None:
    """Write the ids of all words as a table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"w1": np.arange(vocab_size, dtype=np.int32)}), folder / "part.parquet")


def text_windows(encoded: EncodedCorpus, order: int) -> npt.NDArray[np.int32]:
    """The N words from every place on [N, rows], column by column.

    Places with fewer words before their sentence ends are there only if the sentence begins there.
    """
    text = np.append(encoded.with_boundaries(), np.full(order, ABSENT, np.int32))
    size = len(text) - order
    columns = np.empty((order, size), np.int32)
    ended = np.zeros(size, np.bool_)
    for column, begin in zip(columns, range(order), strict=True):
        column[:] = np.where(ended, np.int32(ABSENT), text[begin : begin + size])
        ended |= column == EOS
    wanted = (columns[-1] != ABSENT) | (columns[0] == BOS)
    return columns[:, wanted]


def _count_overlaps(
    blocks: Iterator[list[str]], counters: Mapping[str, OverlapCounter], progress: Progress
) -> Iterator[list[str]]:
    """The same blocks, in which held-out text was looked for."""
    for block in blocks:
        for counter in counters.values():
            counter.add(block, progress=SILENT)
        yield block
        progress.advance(len(block))
