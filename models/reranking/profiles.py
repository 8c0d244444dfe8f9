"""A profile: tuned weights under a name, with what they were tuned for."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from models.errors import InvalidInputError
from models.reranking.log_linear import LogLinearModel

MAX_WEIGHTS = 1000


class ProfileModel(BaseModel):
    """A language model that a profile was tuned with.

    `name` is what features call it: none for the one of `lm`, `old` for that of `lm:old`. `address` is `name@version`.
    Where several have no name, they are mixed at every token, by their `weight`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    name: str = ""
    address: str
    weight: float = 1.0


class Profile(BaseModel):
    """Weights to re-rank with.

    `weights` are of raw features, derived ones by name; {"rank": 1} keeps the first pass's order. `length_exponent` is
    `LogLinearModel`'s. Totals times `posterior_scale` are the logarithms of posteriors, but for a constant.
    `metric` and `signature` say what was counted, `decision` whether the weights were found better than the first pass,
    and `figures` how much: as the reply of /v1/rerank/tune tells it. `created` is ISO 8601, UTC.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    schema_version: Literal[1] = 1
    name: str
    weights: Annotated[dict[str, float], Field(min_length=1, max_length=MAX_WEIGHTS)]
    length_exponent: float = 0.0
    posterior_scale: Annotated[float, Field(ge=0)] = 1.0
    metric: str
    signature: str
    models: list[ProfileModel]
    decision: Literal["tuned", "first_pass"]
    figures: dict[str, Any]
    created: str

    @field_validator("figures")
    @classmethod
    def _are_json(cls, figures: dict[str, Any]) -> dict[str, Any]:
        json.dumps(figures, allow_nan=False)  # a ValueError where one is no number, which no reply could hold
        return figures

    def weighting(self) -> LogLinearModel:
        """The weights as a model.

        Raises:
            InvalidInputError: one is outside its limits.
        """
        return LogLinearModel(weights=self.weights, length_exponent=self.length_exponent)


def parse_profile(content: bytes) -> Profile:
    """A profile from JSON.

    Raises:
        InvalidInputError: it is none; the message names the field and the value.
    """
    try:
        profile = Profile.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"])) or "the profile"
        shown = repr(first["input"])[:80]
        raise InvalidInputError(f"{field} is {shown}: {first['msg']}", parameter=field) from None
    profile.weighting()
    return profile
