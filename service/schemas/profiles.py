"""/admin/profiles: what is stored and told."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ConfigDict, Field

from models.reranking.profiles import MAX_WEIGHTS, Profile, ProfileModel
from service.schemas.bounds import LengthExponent, Weight
from service.schemas.wire import WireModel


class ProfileBody(WireModel):
    """A profile as /v1/rerank/tune answers it: it has no name yet."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "weights": {"am": 1.0, "lm": 0.4, "words": 0.2},
                    "metric": "wer",
                    "models": [{"address": "mixture@1", "weight": 1.0}],
                    "created": "2026-01-01T00:00:00+00:00",
                }
            ]
        }
    )

    weights: dict[str, Weight] = Field(min_length=1, max_length=MAX_WEIGHTS)
    """Signed weights, by feature."""
    length_exponent: LengthExponent = 0.0
    """Of `lm`."""
    posterior_scale: float = Field(default=1.0, ge=0)
    """What totals are multiplied by."""
    metric: str = ""
    """What the weights were tuned for."""
    signature: str = ""
    """What exactly was counted."""
    models: list[ProfileModel] = Field(default_factory=list)
    """Models that score where a request names none."""
    decision: Literal["tuned", "first_pass"] = "tuned"
    """Whether they were better than the first pass."""
    figures: dict[str, Any] = Field(default_factory=dict)
    """And how much."""
    created: str = ""
    """ISO 8601, UTC."""

    def profile(self, name: str) -> Profile:
        """The profile under a name.

        Raises:
            InvalidInputError: a weight is outside its limits.
        """
        profile = Profile(name=name, **{field: getattr(self, field) for field in type(self).model_fields})
        profile.weighting()
        return profile


@dataclass(frozen=True, slots=True)
class ProfileList:
    """The names of all profiles, sorted."""

    profiles: list[str]


@dataclass(frozen=True, slots=True)
class NamedProfile:
    """The profile that was stored or removed."""

    profile: str
