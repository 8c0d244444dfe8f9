"""What the administration of models answers."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Bytes of a model: of the process, of mapped files, of a device."""

    own_bytes: int
    mapped_bytes: int
    device_bytes: int


@dataclass(frozen=True, slots=True)
class AdminModel:
    """A version.

    `state` is `published` (and not hosted), `loading`, `loaded`, `failed`, or `draining` (unloaded, and still
    used by requests). `serves` are the addresses that it was told to be served by; `last_used` is in seconds
    since 1970; `reason` says what failed, beside a loaded model what failed of its successor.
    """

    id: str
    state: str
    reason: str | None = None
    is_default: bool = False
    aliases: list[str] = field(default_factory=list)
    serves: list[str] = field(default_factory=list)
    memory: ModelMemory | None = None
    requests_in_flight: int = 0
    last_used: float | None = None
    load_seconds: float | None = None
    warm_up_seconds: float | None = None
    precision: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of the host's memory that models take, and may take; null is no bound."""

    in_use_bytes: int
    budget_bytes: int | None


@dataclass(frozen=True, slots=True)
class AdminModels:
    """All published and hosted versions; `queued` are addresses that wait to be loaded, or are being loaded."""

    object: str
    data: list[AdminModel]
    queued: list[str]
    memory: MemoryUse


@dataclass(frozen=True, slots=True)
class AliasReply:
    """What an alias means in the registry, null once it is gone; and the model that answers for it now."""

    model: str
    alias: str
    version: int | None
    previous: int | None
    serving: str | None
