"""POST /v1/quality, as one JSON object or as lines of them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StringConstraints, Tag, ValidationError

from models.errors import InvalidInputError
from models.scoring import bits_per_unit, perplexity
from service.engine.hosted import LoadedModel
from service.schemas.quality_replies import QualityReply, TextQualityResult
from service.schemas.wire import (
    TimedRequest,
    WireModel,
    body_lines,
    invalid_input,
    parse_json,
    text_or_object_tag,
)
from service.use_cases.limits import Limits
from service.use_cases.quality import QualityItem, TextQuality

_MAX_ID_CHARACTERS = 200


class QualityLine(WireModel):
    """One text."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"id": "1", "text": "Return a list."}, {"id": "2", "text": "zq zq zq"}]
        }
    )

    text: str
    """What to score."""
    id: Annotated[str, StringConstraints(max_length=_MAX_ID_CHARACTERS)] | None = None
    """Told again in the answer."""


_Text = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[QualityLine, Tag("<object>")],
    Discriminator(
        text_or_object_tag,
        custom_error_type="text",
        custom_error_message="input should be a text, or an object with text and id",
    ),
]


class QualityRequest(TimedRequest):
    """How good texts are, to filter corpora by."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"texts": ["Return a copy of the list.", "Click here to win a prize!!!"]},
                {"texts": [{"id": "a", "text": "Return a list."}], "model": "mixture", "against": "ngram"},
            ]
        }
    )

    texts: list[_Text] = Field(min_length=1)
    """What to score; each a text, or an object with `text` and `id`."""
    model: str | None = None
    """`name`, `name@7` or `name@champion`; the service's default if it is left out."""
    against: str | None = None
    """A second model: `difference` says which of the two a text is more like."""

    def items(self, limits: Limits) -> list[QualityItem]:
        """What to score.

        Raises:
            InvalidInputError: there are too many, or one is empty.
        """
        limits.check_count(len(self.texts), parameter="texts")
        return [_quality_item(f"texts[{place}]", given) for place, given in enumerate(self.texts)]


class QualityQuery(BaseModel):
    """The options of a stream of lines, in the query string."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str | None = None
    against: str | None = None


def read_quality_query(query: Mapping[str, str]) -> QualityQuery:
    """The options that a query string holds.

    Raises:
        InvalidInputError: one is unknown.
    """
    try:
        return QualityQuery.model_validate(query)
    except ValidationError as error:
        raise invalid_input(error) from None


def quality_items(body: bytes) -> Iterator[QualityItem | InvalidInputError]:
    """What each line asks, as it is needed; an error for a line that is wrong."""
    for line in body_lines(body):
        try:
            yield _quality_item("text", parse_json(QualityLine, line))
        except InvalidInputError as error:
            yield error


def quality_reply(
    loaded: LoadedModel, against: LoadedModel | None, found: Sequence[TextQuality]
) -> QualityReply:
    """The results as they go over the wire."""
    other = None if against is None else against.address
    return QualityReply(loaded.address, other, [quality_result(one) for one in found])


def quality_result(found: TextQuality) -> TextQualityResult:
    """One text's result as it goes over the wire."""
    score = found.score
    return TextQualityResult(
        found.name,
        found.num_words,
        score.num_oov,
        found.bits_per_word,
        bits_per_unit(score.logprob, score.num_bytes),
        perplexity(score.logprob, len(score.ids)),
        found.difference,
    )


def _quality_item(parameter: str, given: str | QualityLine) -> QualityItem:
    line = QualityLine(text=given) if isinstance(given, str) else given
    if not line.text:
        raise InvalidInputError(f"{parameter} is empty; there is nothing to score", parameter=parameter)
    return QualityItem(parameter, line.id, line.text)
