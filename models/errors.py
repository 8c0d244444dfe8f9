"""Hierarchy of domain errors.

Every layer raises these errors and none returns error objects. One table in the service maps the
classes to HTTP statuses; one handler in the command line maps them to exit codes.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Self

EXTRAS = {
    "duckdb": "scale",
    "httpx": "lsp",
    "hunspell": "dictionary",
    "matplotlib": "train",
    "pyarrow": "scale",
    "pygls": "lsp",
    "pyspark": "spark",
    "s3fs": "s3",
    "tensorboard": "tensorboard",
    "torch": "neural",
    "transformers": "pretrained",
}
"""Extra of the distribution that installs an optional package."""

BAD_DATA_ERRORS = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""Exceptions raised while data is parsed that is not in the expected format."""


class DomainError(Exception):
    """Base class of this project's errors.

    `code` is a stable, machine-readable name of the kind of error.
    """

    code = "error"


class InputError(DomainError):
    """Invalid value from the caller; the message names the limit and the value.

    `param` is the path of the field as the caller spells it, such as `top_k` or `texts[3]`.
    """

    code = "invalid_value"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param

    @property
    def problem(self) -> str:
        """The message without the path of the field."""
        return str(self).removeprefix(f"{self.param} ")

    @classmethod
    def of(cls, param: str, problem: str) -> Self:
        """Create the error of a field; the message begins with its path."""
        return cls(f"{param} {problem}", param=param)


def require_package(package: str, purpose: str, *, param: str | None = None) -> None:
    """Check that an optional package is installed, without importing it.

    Raises:
        InputError: it is missing; the message has the command that installs it.
    """
    if find_spec(package) is None:
        raise InputError(
            f"{purpose} needs the package {package}: pip install 'gramophone-lm[{EXTRAS[package]}]'",
            param=param,
        )


def check_range(param: str, value: float, least: float, most: float) -> None:
    """Check that a number is within limits.

    Raises:
        InputError: it is not, or is NaN.
    """
    if not least <= value <= most:
        ends = (least, most)
        limits = " to ".join(f"{end:g}" if isinstance(end, float) else str(end) for end in ends)
        raise InputError.of(param, f"is {value}; it must be from {limits}")


class ContextLengthError(InputError):
    """More tokens than the service accepts in one sequence."""

    code = "context_length_exceeded"


class UnsupportedError(InputError):
    """The value is valid, but the requested model does not support it."""

    code = "unsupported_parameter"


class UnknownStateError(InputError):
    """Unknown state handle: freed, expired, owned by another client, or never issued."""

    code = "unknown_state"


class UnknownUserError(InputError):
    """No stored text for a user: none was accepted, it was deleted, or the user belongs to another client."""

    code = "unknown_user"


class UnknownWordError(InputError):
    """A user's words do not include the word: it was not accepted, was dropped as the rarest, or deleted."""

    code = "unknown_word"


class UserStoreError(DomainError):
    """The file of users' words is locked, damaged or full."""

    code = "users_unavailable"


class UnknownWordListError(InputError):
    """No stored word list of this name: none was stored, it was deleted, or it belongs to another client."""

    code = "unknown_word_list"


class WordListStoreError(DomainError):
    """The file of a word list is damaged, or cannot be read or written."""

    code = "word_list_unavailable"


class StateElsewhereError(InputError):
    """Handle of a state in another process; the message names the process."""

    code = "state_elsewhere"


class ModelNotFoundError(DomainError):
    """No model, version or alias at the given address."""

    code = "model_not_found"


class RegistryError(DomainError):
    """The registry is missing, invalid or not writable."""

    code = "registry_unavailable"


class RegistryAccessError(RegistryError):
    """This process may not write to the registry; trying again does not help."""

    code = "registry_read_only"


class CheckpointError(DomainError):
    """A published version is unusable."""

    code = "checkpoint_unusable"


class ManifestError(CheckpointError):
    """A manifest is missing, is not JSON, or violates its schema."""

    code = "checkpoint_manifest"


class IncompatibleVersionError(CheckpointError):
    """A checkpoint requires a newer reader; the message names the version."""

    code = "checkpoint_incompatible"


class IntegrityError(CheckpointError):
    """A checkpoint's bytes do not match its manifest, or its outputs do not match its golden test."""

    code = "checkpoint_integrity"


class VocabularyMismatchError(CheckpointError):
    """Models that must share a vocabulary or tokenizer have different ones."""

    code = "vocabulary_mismatch"


class FormatError(DomainError):
    """A file is not in the expected format.

    The message starts with the path and the position in the file, and ends with a hint.
    """

    code = "bad_format"

    def __init__(self, path: str | Path, problem: str, *, hint: str = "") -> None:
        super().__init__(f"{path}: {problem}" + (f" ({hint})" if hint else ""))
        self.path = str(path)
        self.hint = hint


class DocumentError(FormatError):
    """A stored profile, calibration or table of errors is damaged, or is that of another name."""

    code = "document_damaged"


class ProcessLostError(DomainError):
    """A process of a distributed training run died, which ends the run; the message names the process."""

    code = "process_lost"


class EngineError(DomainError):
    """The service cannot answer a valid request now."""

    code = "engine_error"


class OverloadedError(EngineError):
    """Too much work is queued; try again after `retry_after_s` seconds."""

    code = "overloaded"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ShareExceededError(OverloadedError):
    """Too much work of this client is queued; others need the capacity."""

    code = "share_exceeded"


class StatesFullError(OverloadedError):
    """The limit on the number or the size of stored states is reached, and the client has its share."""

    code = "states_full"


class DrainingError(EngineError):
    """The service is shutting down and accepts no new work."""

    code = "draining"


class NotReadyError(EngineError):
    """The requested model is not loaded yet, or loading it failed."""

    code = "not_ready"


class MemoryBudgetError(EngineError):
    """Loading a model would exceed the memory budget; the message lists models that can be unloaded."""

    code = "memory_budget"


class DeadlineExceededError(EngineError):
    """The deadline of the request passed before its work was done."""

    code = "deadline_exceeded"


class SupersededError(EngineError):
    """A newer request of the same session replaces this one."""

    code = "superseded"


class EngineFailedError(EngineError):
    """The model raised an exception that the caller did not cause."""

    code = "internal_error"
