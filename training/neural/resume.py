"""What an interrupted run needs to go on as if nothing had happened: one file that is always whole.

It is a SHA-256, then torch's format of tensors, numbers and text, read back with `weights_only`, so that
reading it runs no code.
"""

import hashlib
import io
import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from models.errors import FormatError, InvalidInputError, RegistryError
from models.neural.config import NetworkConfig
from models.vocabulary import Vocabulary
from training.corpora.encoded import EncodedCorpus
from training.neural.settings import BOUNDS, TrainSettings

FORMAT = 1
"""Of the state; one of another format is refused."""

_DIGEST_BYTES = 32
_DISTRIBUTION = "gramophone-lm"
_BEGIN_ANEW = "without --resume the training begins anew"


class StateFile:
    """The training state of one run.

    Args:
        path: of the file; its folder is made when it is needed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, state: Mapping[str, Any]) -> None:
        """Replace the file; whenever the process or the machine dies, the old one or the new one is there.

        Raises:
            RegistryError: the file system refused; the old file is as it was.
        """
        temporary = self.path.with_name(f"{self.path.name}.tmp")
        whole = {"format": FORMAT, "version": library_version(), **state}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            content = io.BytesIO()
            torch.save(whole, content)
            with temporary.open("wb") as file:
                file.write(hashlib.sha256(content.getbuffer()).digest())
                file.write(content.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
            _flush(self.path.parent)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise RegistryError(f"cannot save the training state in {self.path}: {error}") from error

    def read(self) -> dict[str, Any] | None:
        """What was written last, on the CPU; None if nothing was.

        Raises:
            FormatError: the file is no training state, or one of another format.
        """
        content = self.content()
        return None if content is None else self.parse(content)

    def content(self) -> bytes | None:
        """The file's bytes; None if there is none.

        Raises:
            FormatError: it cannot be read.
        """
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FormatError(self.path, error.strerror or str(error), hint=_BEGIN_ANEW) from None

    def parse(self, content: bytes) -> dict[str, Any]:
        """The state that a file's bytes are, on the CPU.

        Raises:
            FormatError: they are no training state, or one of another format.
        """
        digest, written = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(written).digest() != digest:
            raise FormatError(self.path, "is no training state, or a damaged one", hint=_BEGIN_ANEW)
        state: dict[str, Any] = torch.load(io.BytesIO(written), map_location="cpu", weights_only=True)
        if state["format"] != FORMAT:
            raise FormatError(self.path, f"has format {state['format']}, this is {FORMAT}", hint=_BEGIN_ANEW)
        return state


def identity_of(
    train: EncodedCorpus,
    valid: EncodedCorpus,
    vocabulary: Vocabulary,
    *,
    network: NetworkConfig,
    settings: TrainSettings,
    seed: int,
) -> dict[str, Any]:
    """What makes a run this run, by the name to tell a difference under: hashes, and the recipe's keys."""
    return {
        "the tokenizer": vocabulary.fingerprint,
        "the training text": text_hash(train),
        "the validation text": text_hash(valid),
        "seed": seed,
        **{f"neural.{key}": value for key, value in network.model_dump(mode="json").items()},
        **{f"train.{key}": value for key, value in settings.model_dump(mode="json").items()},
    }


def changed_bounds(state: Mapping[str, Any], identity: Mapping[str, Any], *, place: Path) -> list[str]:
    """How the bounds of a run that is to be resumed differ from what they were, each in words.

    Raises:
        InvalidInputError: anything else differs; the message says what.
    """
    before: Mapping[str, Any] = state["identity"]
    names = [name for name in {**identity, **before} if before.get(name) != identity.get(name)]
    bounds = [name for name in names if name.removeprefix("train.") in BOUNDS]
    told = {name: _difference(name, before.get(name), identity.get(name)) for name in names}
    others = [told[name] for name in names if name not in bounds]
    if others:
        raise InvalidInputError(
            f"cannot resume the training in {place}: {'; '.join(others)}; {_BEGIN_ANEW}", parameter="resume"
        )
    return [told[name] for name in bounds]


def text_hash(corpus: EncodedCorpus) -> str:
    """SHA-256 (hex) of a text's tokens and where its sentences end."""
    digest = hashlib.sha256(corpus.tokens.tobytes())
    digest.update(corpus.offsets.tobytes())
    return digest.hexdigest()


def library_version() -> str:
    """The version of this library and of torch."""
    return f"{own_version()}, torch {torch.__version__}"


def own_version() -> str:
    """The version of this library."""
    try:
        return metadata.version(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"


def _difference(name: str, before: Any, now: Any) -> str:
    if name.startswith("the "):
        return f"{name} is another one (sha256 {str(before)[:12]} then, {str(now)[:12]} now)"
    return f"{name} was {before} and is {now}"


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
