"""GET /v1/models, in the shape of OpenAI's with more fields."""

import sys
from datetime import datetime
from typing import Any

from service.engine.host import ModelHost
from service.engine.hosted import HostedModel
from service.schemas.replies import ModelCard, ModelList


def model_list(host: ModelHost) -> ModelList:
    """All models of the service, those not loaded included."""
    return ModelList("list", [model_card(host, hosted) for hosted in host.models.values()])


def model_card(host: ModelHost, hosted: HostedModel) -> ModelCard:
    """One model."""
    checkpoint = hosted.loaded.checkpoint if hosted.loaded is not None else None
    manifest = checkpoint.manifest if checkpoint is not None else None
    return ModelCard(
        id=hosted.address,
        object="model",
        created=int(datetime.fromisoformat(manifest.created).timestamp()) if manifest else None,
        owned_by="gramophone",
        state=hosted.state.value,
        reason=hosted.failure,
        is_default=hosted.address == host.default.address,
        aliases=list(hosted.aliases),
        family=manifest.family if manifest else None,
        vocab_size=manifest.vocab_size if manifest else None,
        parameters=manifest.parameters if manifest else None,
        normalised=manifest.normalised if manifest else None,
        precision=checkpoint.precision if checkpoint is not None else None,
        metrics=_figures(checkpoint.metrics) if checkpoint is not None else {},
    )


def _figures(metrics: dict[str, Any]) -> dict[str, float]:
    """The held-out figures of metrics.json: those on the test text if there was one, else the validation's."""
    figures = metrics.get("test", metrics.get("valid"))
    if not isinstance(figures, dict):
        return {}
    return {
        name: float(value)
        for name, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    }
