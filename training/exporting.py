"""Published models to ARPA files."""

from pathlib import Path
from typing import NamedTuple

from models.checkpoint.load import load_checkpoint
from models.checkpoint.registry import Registry
from models.errors import UnsupportedParameterError
from models.ngram.arpa.writing import ArpaWriteReport, write_arpa
from models.ngram.build import list_ngrams
from models.ngram.model import NGramModel
from models.tokenizers import Tokenizer, WordTokenizer
from training.progress import Progress


class ArpaExport(NamedTuple):
    """A file that was written.

    Attributes:
        address: of the model, with its version.
        written: what is in the file.
        splits_at_spaces: whether the words of the file are what stands between white space in a text.
    """

    address: str
    written: ArpaWriteReport
    splits_at_spaces: bool


def export_arpa(address: str, path: Path, *, registry: Registry, progress: Progress) -> ArpaExport:
    """Write a published n-gram model as an ARPA file.

    Args:
        address: of the model.
        path: of the file; packed if it ends in .gz, .xz or .zst.
        registry: where the model is.
        progress: told of n-grams.

    Raises:
        UnsupportedParameterError: it is a model of another family.
        FormatError: the file cannot be written.
        CheckpointError: the model is damaged.
    """
    version = registry.resolve(address)
    checkpoint = load_checkpoint(registry.fetch(version))
    model = checkpoint.model
    if not isinstance(model, NGramModel):
        raise UnsupportedParameterError(
            f"{version.address} is of the family {model.family!r}; only n-gram models, static mixtures among them, "
            "can be written as ARPA files",
            parameter="model",
        )
    orders = list_ngrams(model.automaton)
    progress.start(f"writing {path.name}", model.automaton.num_arcs)
    backward = checkpoint.manifest.direction == "backward"
    written = write_arpa(path, model.vocabulary, orders, backward=backward, on_write=progress.advance)
    progress.finish()
    return ArpaExport(version.address, written, _splits_at_spaces(checkpoint.tokenizer))


def _splits_at_spaces(tokenizer: Tokenizer) -> bool:
    return isinstance(tokenizer, WordTokenizer) and tokenizer.pattern is None and not tokenizer.lowercase
