"""The tree of domain errors.

Every layer raises from this tree and none returns error objects. One table in the service maps
classes to HTTP; one handler on the command line maps them to exit codes.
"""

from pathlib import Path


class LanguageModelError(Exception):
    """Base of every error this project raises on purpose.

    `code` is a stable, machine-readable name for the kind of error.
    """

    code = "error"


class InvalidInputError(LanguageModelError):
    """A value given by the caller is wrong; the message names the limit and the value.

    `parameter` is the field's path as the caller spelled it, such as `top_k` or `texts[3]`.
    """

    code = "invalid_value"

    def __init__(self, message: str, *, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class ContextLengthError(InvalidInputError):
    """More tokens than the service accepts in one sequence."""

    code = "context_length_exceeded"


class UnsupportedParameterError(InvalidInputError):
    """The value is valid as such, but the addressed model cannot honour it."""

    code = "unsupported_parameter"


class UnknownStateError(InvalidInputError):
    """A handle of no state: it was freed, expired, belongs to another client, or never existed."""

    code = "unknown_state"


class UnknownUserError(InvalidInputError):
    """No stored text of a user: nothing was accepted, it was deleted, or the user belongs to another client."""

    code = "unknown_user"


class StateElsewhereError(InvalidInputError):
    """A handle of a state in another process; the message names the process."""

    code = "state_elsewhere"


class ModelNotFoundError(LanguageModelError):
    """No model, version or alias of that address."""

    code = "model_not_found"


class RegistryError(LanguageModelError):
    """The registry is missing, is no registry, or cannot be written."""

    code = "registry_unavailable"


class CheckpointError(LanguageModelError):
    """A published version cannot be used."""

    code = "checkpoint_unusable"


class ManifestError(CheckpointError):
    """A manifest is missing, is not JSON, or breaks its schema."""

    code = "checkpoint_manifest"


class IncompatibleVersionError(CheckpointError):
    """A checkpoint was written for a newer reader; the message says which."""

    code = "checkpoint_incompatible"


class IntegrityError(CheckpointError):
    """A checkpoint's bytes differ from its manifest, or its answers from its golden test."""

    code = "checkpoint_integrity"


class VocabularyMismatchError(CheckpointError):
    """Models that must share a tokenizer do not."""

    code = "vocabulary_mismatch"


class FormatError(LanguageModelError):
    """A file is not in the format it should be in.

    The message starts with the path and the position in the file, and ends with what to do.
    """

    code = "bad_format"

    def __init__(self, path: str | Path, problem: str, *, hint: str = "") -> None:
        super().__init__(f"{path}: {problem}" + (f" ({hint})" if hint else ""))
        self.path = str(path)
        self.hint = hint


class ProcessLostError(LanguageModelError):
    """A process of a distributed training is gone, so the training ends; the message names it."""

    code = "process_lost"


class EngineError(LanguageModelError):
    """The service cannot answer now, whatever the request."""

    code = "engine_error"


class OverloadedError(EngineError):
    """Too much work is queued; try again after `retry_after_s` seconds."""

    code = "overloaded"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StatesFullError(OverloadedError):
    """The limit on the number or the size of stored states is reached."""

    code = "states_full"


class DrainingError(EngineError):
    """The service is shutting down and takes no new work."""

    code = "draining"


class NotReadyError(EngineError):
    """The addressed model is not loaded: not yet, or because loading it failed."""

    code = "not_ready"


class MemoryBudgetError(EngineError):
    """Loading a model would take more memory than models may; the message says what could be unloaded."""

    code = "memory_budget"


class DeadlineExceededError(EngineError):
    """The request's time ran out before its work was done."""

    code = "deadline_exceeded"


class SupersededError(EngineError):
    """A newer request of the same session replaces this one."""

    code = "superseded"


class EngineFailedError(EngineError):
    """The model raised an exception that the caller did not cause."""

    code = "internal_error"
