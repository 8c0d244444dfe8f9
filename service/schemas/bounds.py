"""Bounds of values that a command checks with a message of its own: the document of the interface states them.

They come from where they are checked, so that both say the same.
"""

from typing import Annotated, Any

from pydantic import Field

from models.checkpoint.versions import MAX_NAME_LENGTH
from models.decoding import parameters as decoding
from models.reranking.log_linear import MAX_LENGTH_EXPONENT, MAX_WEIGHT


def schema_only(**keywords: Any) -> Any:
    """Keywords of JSON Schema that are stated; what they say is checked elsewhere."""
    return Field(json_schema_extra=keywords)


TokenId = Annotated[int, schema_only(minimum=0)]
NonNegative = Annotated[int, schema_only(minimum=0)]
Positive = Annotated[int, schema_only(minimum=1)]
Temperature = Annotated[float, schema_only(minimum=0, maximum=decoding.MAX_TEMPERATURE)]
Share = Annotated[float, schema_only(exclusiveMinimum=0, maximum=1)]
Probability = Annotated[float, schema_only(minimum=0, maximum=1)]
RepetitionPenalty = Annotated[float, schema_only(exclusiveMinimum=0, maximum=decoding.MAX_REPETITION_PENALTY)]
Penalty = Annotated[float, schema_only(minimum=-decoding.MAX_PENALTY, maximum=decoding.MAX_PENALTY)]
LengthPenalty = Annotated[
    float, schema_only(minimum=-decoding.MAX_LENGTH_PENALTY, maximum=decoding.MAX_LENGTH_PENALTY)
]
DiversityPenalty = Annotated[float, schema_only(minimum=0, maximum=decoding.MAX_DIVERSITY_PENALTY)]
Biases = Annotated[
    dict[str, Annotated[float, schema_only(minimum=-decoding.MAX_BIAS, maximum=decoding.MAX_BIAS)]],
    schema_only(maxProperties=decoding.MAX_BIASES),
]
BadWords = Annotated[
    list[Annotated[str, schema_only(minLength=1, maxLength=decoding.MAX_BAD_WORD_LENGTH)]],
    schema_only(maxItems=decoding.MAX_BAD_WORDS),
]
NumChoices = Annotated[int, schema_only(minimum=1, maximum=decoding.MAX_CHOICES)]
NumBeams = Annotated[int, schema_only(minimum=1, maximum=decoding.MAX_BEAMS)]
Seed = Annotated[int, schema_only(minimum=0, maximum=2**64 - 1)]
StopText = Annotated[str, schema_only(minLength=1, maxLength=decoding.MAX_STOP_LENGTH)]
Stops = StopText | Annotated[list[StopText], schema_only(maxItems=decoding.MAX_STOPS)]

Weight = Annotated[float, schema_only(minimum=-MAX_WEIGHT, maximum=MAX_WEIGHT)]
LengthExponent = Annotated[float, schema_only(minimum=0, maximum=MAX_LENGTH_EXPONENT)]
MixtureWeight = Annotated[float, schema_only(exclusiveMinimum=0, maximum=1)]
Name = Annotated[str, schema_only(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", maxLength=MAX_NAME_LENGTH)]
ModelName = Annotated[str, schema_only(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
