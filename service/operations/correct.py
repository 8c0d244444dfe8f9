"""Correction of single texts: phrases, forms and given replacements are proposed, and the language model chooses.

A text is a list of one candidate for re-ranking, so profiles, weights and proposers are the same.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import override

from models.errors import InputError
from models.files import count_words
from models.phrases import MAX_PHRASES
from models.reranking.candidates import Candidate, CandidateList, check_confidences
from models.reranking.corrections import MAX_CORRECTIONS
from models.reranking.proposals import MAX_WORDS
from service.operations.operation import Call
from service.operations.rerank import RankedList, Rerank, corrected_spans, proposal_masses
from service.operations.rerank_request import (
    GivenCorrection,
    RerankItem,
    RerankSettings,
    parse_entries,
)
from service.schemas import with_examples
from service.schemas.replies import to_json
from service.schemas.wire import (
    FlagOrModel,
    Forms,
    ModelRequest,
    Name,
    Probability,
    Weight,
    WireModel,
    parse_json,
    parse_lines,
    parse_object,
    schema_only,
)
from service.schemas.word_lists import NAME_PATTERN, PhraseEntry, StoredPhrases


class CorrectSettings(ModelRequest):
    """Proposals for texts."""

    phrases: Annotated[list[PhraseEntry], schema_only(maxItems=MAX_PHRASES)] | None = None
    """Phrases, such as names and terms, to propose for words that are spelled nearly like them. An object with
    `wordlist` stands for the entries of a stored list."""
    wordlist: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """Stored word list of further phrases."""
    forms: Forms | None = None
    """Language (`en`, `de`, `pt_BR`, …) in which to propose other forms of numbers, money, times, abbreviations and
    initials, as in /v1/rerank. Needs the extra `speech`."""
    corrections: Annotated[list[GivenCorrection], schema_only(maxItems=MAX_CORRECTIONS)] | None = None
    """Replacements to propose."""
    profile: Name | None = None
    """Name of stored tuned settings, as in /v1/rerank."""
    weights: dict[str, Weight] | None = None
    """Weights by feature, as in /v1/rerank. Default: those of the profile, or ones that suit most models."""
    restore: FlagOrModel = False
    """True to restore capitals and punctuation of the corrected texts too, or the model to restore them with, as in
    /v1/rerank."""

    def reranking(self) -> RerankSettings:
        """Return the settings of re-ranking."""
        phrases = self.phrases
        if self.wordlist is not None:
            phrases = [*(phrases or []), StoredPhrases(wordlist=self.wordlist)]
        shared = CorrectSettings.model_fields.keys() & RerankSettings.model_fields.keys()
        fields = {name: getattr(self, name) for name in shared}
        return RerankSettings.model_construct(
            **{**fields, "phrases": phrases, "propose": phrases is not None or None}
        )


class CorrectRequest(CorrectSettings):
    """Correct texts by proposing other words."""

    model_config = with_examples(
        {
            "texts": ["call maria caravallo about the $3.50"],
            "phrases": [{"text": "Maria Carvalho"}],
            "corrections": [{"heard": "call", "written": "tell", "logprob": -2}],
            "confidences": [[0.9, 0.8, 0.4, 0.9, 0.9, 0.7]],
        }
    )

    texts: list[str] = Field(min_length=1)
    """Texts, each of at most 200 words."""
    confidences: list[tuple[Probability, ...]] | None = None
    """For each text, the probability that each word, between white space, is right, as a recogniser tells it; empty if
    unknown. Words of which it is sure are replaced less readily."""


class CorrectLine(WireModel):
    """A text."""

    model_config = with_examples(
        {"text": "return a knew list", "confidences": [0.9, 0.8, 0.3, 0.9]},
        {"id": "utt-2", "text": "for $3.50"},
    )

    text: str
    """A text of at most 200 words."""
    confidences: tuple[Probability, ...] = ()
    """Probability that each word, between white space, is right; empty if unknown."""
    id: str | None = None
    """Client's id of the text, echoed in the reply."""

    def item(self) -> RerankItem:
        """Convert the line to an item of the operation.

        Raises:
            InputError: the text is too long.
        """
        return _item(Candidate(self.text, confidences=self.confidences), "text", "confidences", self.id)


def _item(given: Candidate, text: str, confidences: str, name: str | None = None) -> RerankItem:
    """Return a text as a list of one candidate.

    Raises:
        InputError: it has too many words, or confidences that do not fit them; `text` and `confidences` are the fields.
    """
    if (num_words := count_words(given.text)) > MAX_WORDS:
        raise InputError.of(
            text, f"has {num_words} words; at most {MAX_WORDS} are accepted: send its sentences as texts"
        )
    check_confidences(given, confidences)
    return RerankItem(CandidateList(name, "", (given,)))


class Correct(Rerank):
    """Correct texts: propose phrases, forms of numbers and replacements, and let the language model choose.

    For recognisers that write one text. A profile of `gramophone tune` has weights for a recogniser's errors. With
    `Content-Type: application/x-ndjson`, each line of the body is an object with `text` and optionally `id`; options
    are in the query string, with `phrases` and `corrections` as JSON arrays. The reply has one line per text, in
    order: a result, or `{"error": …}`. If the service fails midway, the last line is an error.
    """

    request, settings = CorrectRequest, CorrectSettings

    def __init__(self, call: Call, given: CorrectSettings) -> None:
        super().__init__(call, given.reranking())
        self.items = []
        if not isinstance(given, CorrectRequest):
            return
        call.limits.check_count(len(given.texts), "texts")
        confidences = given.confidences or [()] * len(given.texts)
        if len(confidences) != len(given.texts):
            raise InputError.of(
                "confidences", f"has {len(confidences)} entries, but there are {len(given.texts)} texts"
            )
        for number, (text, own) in enumerate(zip(given.texts, confidences, strict=True)):
            given_text = Candidate(text, confidences=own)
            self.items.append(_item(given_text, f"texts[{number}]", f"confidences[{number}]"))

    @override
    @classmethod
    def parse(cls, body: bytes) -> Any:
        return parse_json(CorrectRequest, body)

    @override
    @classmethod
    def of(cls, call: Call, given: Any) -> "Correct":
        return cls(call, given)

    @override
    @classmethod
    def parse_settings(cls, query: Mapping[str, str]) -> Any:
        return parse_object(CorrectSettings, parse_entries(query), strict=False)

    @override
    def parse_lines(self, body: bytes, form: str) -> Iterator[RerankItem | InputError]:
        return parse_lines(body, lambda line: parse_json(CorrectLine, line).item())

    @override
    def best_text(self, ranked: RankedList) -> str:
        return str(_corrected(ranked)["text"])

    @override
    def reply(self, result: Any) -> Iterator[bytes]:
        head = {"model": self.job.models.main_address, "weights": dict(self.job.weighting.weights)}
        yield to_json(head)[:-1] + b',"results":['
        for number, ranked in enumerate(result):
            yield (b"," if number else b"") + to_json(_corrected(ranked))
        yield b"]}"

    @override
    def line(self, result: RankedList) -> Iterable[bytes]:
        return [to_json(_corrected(result))]


def _corrected(ranked: RankedList) -> dict[str, Any]:
    """Return a text's best candidate; words that are not replaced keep the white space around them."""
    candidates, best = ranked.given.candidates, int(ranked.order[0])
    given = candidates[0].text
    spans = corrected_spans(candidates, best, proposal_masses(ranked))
    text, at = "", 0
    for span in spans:
        text += given[at : span["start"]] + span["written"]
        at = span["end"]
    posterior = float(ranked.posteriors[best])
    told = {"id": ranked.given.name, "text": text + given[at:], "posterior": posterior, "corrections": spans}
    return told if ranked.restored is None else {**told, "restored": ranked.restored}
