"""Writing a checkpoint where it cannot be written."""

import numpy as np
import pytest

from models.checkpoint.registry import LocalRegistry
from models.checkpoint.write import CheckpointDescription, write_checkpoint
from models.errors import RegistryError
from models.ngram.automaton import Automaton
from models.tokenizers import WordTokenizer
from tests.fakes import FakeModel, fake_vocabulary


class OntoAFullDisk(FakeModel):
    """Saves through the safetensors library, whose file cannot be made."""

    def save(self, directory):
        arrays = {name: np.zeros(1, dtype=np.int32) for name in Automaton._fields}
        Automaton(**arrays).save(directory / "missing" / "ngram.bin")


def test_weights_that_cannot_be_written_publish_nothing(tmp_path):
    registry = LocalRegistry(tmp_path, create=True)
    tokenizer = WordTokenizer(fake_vocabulary())
    model = OntoAFullDisk(tokenizer.vocabulary)
    description = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[3]], {})
    with pytest.raises(RegistryError, match="cannot write"):
        registry.publish("m", lambda folder: write_checkpoint(folder, model, tokenizer, description))
    assert registry.models() == []
    assert list((tmp_path / "m" / "versions").iterdir()) == []
