"""Schemas of the model list, model files, model administration and stored profiles.

GET /v1/models is compatible with OpenAI's, with additional fields.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from models.checkpoint.manifest import Version
from models.normaliser import Writing
from models.phrases import MAX_PHRASES, Phrase, PhraseList
from models.reranking.corrections import MAX_CORRECTIONS, PhraseCorrection
from models.reranking.ranking import MAX_WEIGHTS, Profile, ProfileModel
from service.hosting.loaded_model import HostedModel
from service.hosting.model_host import ModelHost
from service.schemas import with_examples
from service.schemas.replies import ModelCard
from service.schemas.wire import Forms, LengthExponent, Weight, WireModel, schema_only

Address = Annotated[str, Field(min_length=1, max_length=201)]
"""Address of a model in a request."""


def model_card(host: ModelHost, hosted: HostedModel) -> ModelCard:
    """Return the description of one model."""
    checkpoint = hosted.loaded.checkpoint if hosted.loaded is not None else None
    manifest = checkpoint.manifest if checkpoint is not None else None
    facts = ("family", "vocab_size", "parameters", "normalised")
    return ModelCard(
        id=hosted.address,
        object="model",
        created=int(datetime.fromisoformat(manifest.created).timestamp()) if manifest else None,
        owned_by="gramophone",
        state=hosted.state.value,
        reason=hosted.failure,
        is_default=hosted.address == host.default.address,
        aliases=list(hosted.aliases),
        **{name: getattr(manifest, name, None) for name in facts},
        precision=checkpoint.precision if checkpoint is not None else None,
        metrics=_figures(checkpoint.metrics) if checkpoint is not None else {},
    )


def _figures(metrics: dict[str, Any]) -> dict[str, float]:
    """Return the held-out metrics of metrics.json, of the test or else the validation text."""
    figures = metrics.get("test", metrics.get("valid"))
    if not isinstance(figures, dict):
        return {}
    return {
        name: float(value)
        for name, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    }


@dataclass(slots=True)
class ModelFile:
    """A published file of a version."""

    name: str
    """path of the file in the version."""
    bytes: int
    """size in bytes."""
    sha256: str
    """SHA-256 in hex."""


@dataclass(slots=True)
class ModelFileList:
    """Downloadable files of a version, such as its model card."""

    object: str
    """always `list`."""
    model: str
    """address of the model version, such as `lstm@3`."""
    data: list[ModelFile]
    """the files, sorted by name."""


@dataclass(slots=True)
class ModelMemory:
    """Memory of a model."""

    own_bytes: int
    """bytes of process memory."""
    mapped_bytes: int
    """bytes of memory-mapped files."""
    device_bytes: int
    """bytes of device memory, such as a GPU's."""


@dataclass(slots=True)
class AdminModel:
    """A version and its state."""

    id: str
    """address of the version, `name@version`."""
    state: str
    """`published` (not hosted), `loading`, `loaded`, `failed`, or `draining` (unloaded, but still used by requests)."""
    reason: str | None = None
    """error of a failed version, or of the successor of a loaded one; null otherwise."""
    is_default: bool = False
    """true for the model of requests that name none."""
    aliases: list[str] = field(default_factory=list)
    """aliases of the version in the registry."""
    serves: list[str] = field(default_factory=list)
    """configured or requested addresses that this version serves."""
    memory: ModelMemory | None = None
    """memory of the loaded model; null if not loaded."""
    requests_in_flight: int = 0
    """number of requests that use the model."""
    last_used: float | None = None
    """start of the latest request, in seconds since 1970; null before the first."""
    load_seconds: float | None = None
    """loading time in seconds, including warm-up."""
    warm_up_seconds: float | None = None
    """warm-up time in seconds."""
    precision: str | None = None
    """number format of the computation, such as `int8`."""


@dataclass(slots=True)
class MemoryUse:
    """Host memory of all models."""

    in_use_bytes: int
    """bytes in use by models."""
    budget_bytes: int | None
    """maximum bytes of all models; null means no limit."""


@dataclass(slots=True)
class AdminModels:
    """All published and hosted versions."""

    object: str
    """always `list`."""
    data: list[AdminModel]
    """the versions."""
    queued: list[str]
    """addresses that are queued for loading or being loaded."""
    memory: MemoryUse
    """memory of all models."""


@dataclass(slots=True)
class AliasReply:
    """An alias after a change."""

    model: str
    """name of the model."""
    alias: str
    """name of the alias."""
    version: int | None
    """version of the alias in the registry; null once removed."""
    previous: int | None
    """previous version of the alias; null if it is new."""
    serving: str | None
    """address of the version that serves the alias now; null if none does."""


class LoadRequest(WireModel):
    """Body of POST /admin/models/load."""

    model_config = with_examples({"model": "lstm@1", "wait": True})

    model: Address
    """Address to load and serve: `name`, `name@7` or `name@champion`."""

    wait: bool = False
    """True to delay the response until the model is loaded."""


class UnloadRequest(WireModel):
    """Body of POST /admin/models/unload."""

    model_config = with_examples({"model": "lstm@1"})

    model: Address
    """Address to stop serving."""


class AliasRequest(WireModel):
    """Body of PUT /admin/models/{name}/aliases/{alias}."""

    model_config = with_examples({"version": 1, "wait": True})

    version: Annotated[int, Field(ge=1, le=999_999_999)]
    """Version to point the alias at."""

    wait: bool = False
    """True to delay the response until that version serves requests or has failed to load."""


def admin_models(host: ModelHost, published: Sequence[Version], queued: Sequence[str]) -> AdminModels:
    """List all versions: published, hosted and being unloaded."""
    hosted = dict(host.models)
    rows = [admin_model(host, hosted.pop(one.address, None), one.address) for one in published]
    rows += [admin_model(host, model, address) for address, model in hosted.items()]
    rows += [
        AdminModel(
            id=unloading.address,
            state="draining",
            memory=ModelMemory(*unloading.size),
            requests_in_flight=unloading.use.in_flight,
            last_used=unloading.use.last_s,
        )
        for unloading in host.unloading
    ]
    return AdminModels("list", rows, list(queued), MemoryUse(host.bytes_in_use, host.budget))


def admin_model(host: ModelHost, model: HostedModel | None, address: str) -> AdminModel:
    """Return the state of one version."""
    if model is None:
        return AdminModel(id=address, state="published")
    row = AdminModel(
        id=model.address,
        state=model.state.value,
        reason=model.failure,
        is_default=model.address == host.default.address,
        aliases=list(model.aliases),
        serves=host.followed_addresses(model),
        memory=ModelMemory(*model.size) if model.size is not None else None,
        load_seconds=model.load_s,
        warm_up_seconds=model.warm_up_s,
    )
    if model.loaded is None:
        return row
    use, precision = model.loaded.use, model.loaded.checkpoint.precision
    return replace(row, requests_in_flight=use.in_flight, last_used=use.last_s, precision=precision)


class ProfileBody(WireModel):
    """A profile without a name, as returned by /v1/rerank/tune."""

    model_config = with_examples(
        {
            "weights": {"am": 1.0, "lm": 0.4, "words": 0.2},
            "metric": "wer",
            "models": [{"address": "mixture@1", "weight": 1.0}],
            "corrections": [{"heard": "a knew", "written": "a new", "log_odds": 2.5, "lists": 4}],
            "created": "2026-01-01T00:00:00+00:00",
        }
    )

    weights: dict[str, Weight] = Field(min_length=1, max_length=MAX_WEIGHTS)
    """Signed weights by feature."""
    length_exponent: LengthExponent = 0.0
    """Length exponent of `lm`."""
    posterior_scale: float = Field(1.0, ge=0)
    """Factor of the totals in the posteriors."""
    metric: str = ""
    """Metric that the weights were tuned for, such as `wer`."""
    signature: str = ""
    """Signature of the metric: its exact variant and settings."""
    models: list[ProfileModel] = Field(default_factory=list)
    """Models of requests that name the profile but no model."""
    form: Writing = "asis"
    """Form in which pretrained models read the texts of requests that name the profile but no form."""
    phrases: list[Phrase] = Field(default_factory=list, max_length=MAX_PHRASES)
    """Phrases of requests that name the profile but have no phrases."""
    corrections: Annotated[list[PhraseCorrection], schema_only(maxItems=MAX_CORRECTIONS)] = Field(
        default_factory=list
    )
    """Corrections of systematic errors, which add corrected candidates to each list."""
    propose: bool = False
    """Whether to propose the phrases for words that are spelled nearly like them."""
    forms: Forms | None = None
    """Language in which to propose forms of numbers and abbreviations; null for none."""
    decision: Literal["tuned", "first_pass"] = "tuned"
    """`tuned` if the weights improve on the first pass on held-out lists, else `first_pass`."""
    figures: dict[str, Any] = Field(default_factory=dict)
    """Metric values of the tuning."""
    created: str = ""
    """Creation time, ISO 8601 in UTC."""

    def profile(self, name: str) -> Profile:
        """Return the profile with a name.

        Raises:
            InputError: a weight, a phrase or a correction is outside its limits.
        """
        PhraseList(self.phrases)
        return Profile(name=name, **{field: getattr(self, field) for field in type(self).model_fields})


@dataclass(slots=True)
class ProfileList:
    """Names of all profiles."""

    profiles: list[str]
    """names, sorted."""


@dataclass(slots=True)
class NamedProfile:
    """Name of the stored or deleted profile."""

    profile: str
    """name of the profile."""
