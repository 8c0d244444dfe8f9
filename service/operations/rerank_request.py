"""Requests of POST /v1/rerank: settings and lists, in one body or as a stream.

With a stream of lists as body, the settings are in the query string, written as on the command
line.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import Annotated, Any, NamedTuple, Self

from pydantic import ConfigDict, Field, JsonValue, model_validator, with_config
from pydantic_core import PydanticCustomError

from models.errors import InputError, check_range
from models.normaliser import Writing
from models.phrases import DEFAULT_WEIGHT, MAX_PHRASES, NO_PHRASES, Phrase, PhraseList
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.corrections import (
    MAX_CORRECTIONS,
    MAX_LOG_ODDS,
    CorrectedPhrase,
    CorrectionTable,
    PhraseCorrection,
)
from models.reranking.features import CONSENSUS, LM, NUM_UNKNOWN, feature_name
from models.reranking.formats.format import BadLine, ListOrBadLine
from models.reranking.formats.reader import read_bytes
from models.reranking.mbr import Utility
from models.reranking.proposals import (
    CORRECTION,
    DISTANCE,
    DOUBT,
    FORM_FEATURES,
    UNKNOWN_WEIGHT,
    Proposer,
)
from models.reranking.proposals import (
    DEFAULT_WEIGHTS as DEFAULT_PROPOSER_WEIGHTS,
)
from models.reranking.ranking import MAX_POSTERIOR_SCALE, LogLinearModel, Profile
from models.scoring.candidate_features import MAX_MODELS, ScoreMode, ScoringModels, scoring_models
from models.scoring.proposed_candidates import make_proposers
from models.text_model import Limits
from service.hosting.loaded_model import LoadedModel
from service.operations.score import Detail, DetailName
from service.schemas import with_examples
from service.schemas.wire import (
    FlagOrModel,
    Forms,
    LengthExponent,
    MixtureWeight,
    ModelAddress,
    ModelName,
    ModelRequest,
    Name,
    Probability,
    TextOrObject,
    TimedRequest,
    Weight,
    WireModel,
    between,
    parse_json,
    parse_lines,
    schema_only,
    text_or_object,
)
from service.schemas.word_lists import PhraseEntry, StoredPhrases

_MAX_SESSION = 2048
"""Maximum characters of a session, which consists of one handle per model."""


_CANDIDATES: JsonValue = [
    {"text": "return a knew list", "features": {"am": -12.1}},
    {"text": "return a new list", "features": {"am": -12.6}},
]
_ONE_LIST: JsonValue = {"id": "utt-1", "candidates": _CANDIDATES}
_ANOTHER_LIST: JsonValue = {
    "id": "utt-2",
    "candidates": [
        {"text": "raise an hour", "features": {"am": -8.3}},
        {"text": "raise an error", "features": {"am": -8.4}},
    ],
}

_EXAMPLE: JsonValue = {
    "lists": [{"id": "utt-1", "context": "how do I", "candidates": _CANDIDATES}],
    "models": [{"model": "ngram", "name": "old", "weight": -0.2}],
    "weights": {"lm": 0.7, "am": 1.0, "words": 0.3, "unk": -2.0, "phrases:type": 0.5},
    "phrases": [{"text": "new list", "weight": 2.0, "class": "type"}],
    "mbr": "wer",
    "confidences": True,
}

_MAX_PROBLEMS = 20
"""Maximum problems in a list's line; further ones have own lines, to bound a step's work and memory."""


class Turn(NamedTuple):
    """Session parameters of a list.

    Attributes:
        session: handle from the previous list's reply; None begins a session.
        commit: text chosen from the previous list, to read first; None for nothing.
    """

    session: str | None
    commit: str | None


class RerankItem(NamedTuple):
    """A list to re-rank.

    Attributes:
        given: the list; its context is empty in a session.
        turn: its session parameters; None without a session.
    """

    given: CandidateList
    turn: Turn | None = None


@with_config(WireModel.model_config)
@dataclass(frozen=True, slots=True)
class CandidateIn(Candidate):
    """A hypothesis: its text, and features such as an acoustic score."""

    text: str
    """Text of the candidate, a complete sentence."""
    features: dict[str, float] = field(default_factory=dict)
    """Values by feature name: natural logarithms, or other scores with suitable weights; larger is better."""
    confidences: tuple[Probability, ...] = ()
    """Probability that each word, between white space, is right, as a recogniser tells it; empty if unknown. Words of
    which it is sure are replaced by proposals less readily: the feature `doubt`."""


class CandidateListIn(WireModel):
    """The hypotheses for one input, in first-pass order."""

    model_config = with_examples(_ONE_LIST, _ANOTHER_LIST)

    candidates: list[CandidateIn] = Field(min_length=1)
    """Candidates, each a complete sentence; a space separates context and candidate."""
    context: str = ""
    """Context before each candidate; read but not scored."""
    continuation: str | None = None
    """Text to score after each candidate instead of the candidate, which becomes context: query likelihood."""
    session: Annotated[str, Field(max_length=_MAX_SESSION)] | None = None
    """Session handle from the reply to the previous list, instead of a context."""
    commit: str | None = None
    """Text chosen from the previous list, read before the candidates; begins or continues a session."""
    id: str | None = None
    """Client's id of the list, echoed in the reply."""

    @model_validator(mode="after")
    def _either(self) -> Self:
        if self._has_turn and (self.context or self.continuation is not None):
            raise PydanticCustomError(
                "either",
                "a list with session or commit accepts neither context nor continuation; send the context as a commit",
            )
        return self

    @property
    def _has_turn(self) -> bool:
        return self.session is not None or self.commit is not None

    def item(self) -> RerankItem:
        """Convert the list to an item of the operation."""
        given = CandidateList(self.id, self.context, tuple(self.candidates), continuation=self.continuation)
        return RerankItem(given, Turn(self.session, self.commit) if self._has_turn else None)


class MixturePart(WireModel):
    """A part of a mixture: its probabilities are mixed with the other parts' at every token."""

    model: str
    """Model: `name`, `name@7` or `name@champion`; all parts must have the same tokenizer."""
    weight: MixtureWeight
    """Weight of the part, positive; the weights of all parts sum to 1."""


Mixture = Annotated[list[MixturePart], Field(min_length=1, max_length=MAX_MODELS)]


def main_models(model: str | None, mixture: Sequence[MixturePart] | None) -> list[tuple[str | None, float]]:
    """Return addresses and weights of the models of `lm`; None for the default model.

    Raises:
        InputError: both a mixture and a model are given.
    """
    if mixture is None:
        return [(model, 1.0)]
    if model is not None:
        raise InputError("give either model or mixture", param="mixture")
    return [(part.model, part.weight) for part in mixture]


class TunedModel(WireModel):
    """A model with its own features, `lm:NAME` and `unk:NAME`."""

    model: str
    """Model: `name`, `name@7` or `name@champion`."""
    name: ModelName
    """Name of the model in features."""


class FurtherModel(TunedModel):
    """A model with its own features, `lm:NAME`, `tokens:NAME` and `unk:NAME`."""

    weight: Weight | None = None
    """Weight of `lm:NAME`; negative to subtract the model's scores."""


class GivenCorrection(WireModel):
    """A replacement that a request proposes."""

    heard: CorrectedPhrase
    """Words to replace, 1 to 4."""
    written: CorrectedPhrase
    """Words instead, up to 4; may be empty."""
    logprob: Annotated[float, between(-MAX_LOG_ODDS, MAX_LOG_ODDS)] = 0.0
    """Natural logarithm of how much more probable the replacement is than the words, before any model."""


class ProposingSettings(WireModel):
    """Sources of proposals: other words than those that the first pass found."""

    propose: bool | None = None
    """True to propose phrases for words that are spelled nearly like them, split or joined in any way, with the
    feature `distance`. Default: as in the profile, or false."""
    forms: Forms | None = None
    """Language (`en`, `de`, `pt_BR`, …) in which to propose other forms of numbers, money, times, abbreviations and
    initials: written out, or in digits; in other languages than English, of whole numbers. The features are `spoken`,
    `written`, `spelling` and `letters`. Needs the extra `speech`. Default: as in the profile, or none."""
    corrections: Annotated[list[GivenCorrection], schema_only(maxItems=MAX_CORRECTIONS)] | None = None
    """Replacements to propose, with the feature `correction`. Default: those of the profile."""

    def proposals(self, profile: Profile | None, phrases: PhraseList) -> "ProposalSettings":
        """Return what is proposed: what the request says, else the profile.

        Raises:
            InputError: a correction is invalid.
        """
        table = None if profile is None else profile.correction_table
        if self.corrections is not None:
            for index, one in enumerate(self.corrections):
                check_range(f"corrections[{index}].logprob", one.logprob, -MAX_LOG_ODDS, MAX_LOG_ODDS)
            pairs = [(one.heard, one.written, one.logprob) for one in self.corrections]
            given = [PhraseCorrection(heard=h, written=w, log_odds=log_odds) for h, w, log_odds in pairs]
            table = CorrectionTable(given) if given else None
        propose, forms = (False, None) if profile is None else (profile.propose, profile.forms)
        proposes = propose if self.propose is None else self.propose
        return ProposalSettings(
            table, phrases if proposes else NO_PHRASES, forms if self.forms is None else self.forms
        )

    def untuned_weights(self, weights: Mapping[str, float], phrases: PhraseList) -> dict[str, float]:
        """Return weights, relative to that of `lm`, of requested sources that have none in `weights`."""
        requested = (
            (self.corrections, (CORRECTION,)),
            (self.propose and phrases, (DISTANCE, DOUBT)),
            (self.forms, FORM_FEATURES),
        )
        return {
            name: DEFAULT_PROPOSER_WEIGHTS[name]
            for is_requested, features in requested
            if is_requested and weights.keys().isdisjoint({*features} - {DOUBT})
            for name in features
            if name not in weights
        }


class RerankSettings(ModelRequest, ProposingSettings):
    """Settings of re-ranking."""

    mixture: Mixture | None = None
    """Models whose probabilities are mixed at every token, instead of `model`."""
    models: Annotated[list[FurtherModel], Field(max_length=MAX_MODELS)] = Field(default_factory=list)
    """Further models, each with its own features."""
    weights: dict[str, Weight] | None = None
    """Signed weights by feature: total = Σ weight · feature. `lm`, `words`, `tokens` and `unk` are computed; `rank`
    and others are derived; all other features come with the candidates. Features without a weight do not count.
    Default: `lm` with weight 1, and the features of phrases with weight 10."""
    phrases: Annotated[list[PhraseEntry], schema_only(maxItems=MAX_PHRASES)] | None = None
    """Phrases, such as names unknown to the model. The feature `phrases` is the sum of the weights of those in a
    candidate; phrases of a class have the feature `phrases:CLASS` instead. In a phrase, words unknown to a model share
    the probability of `<unk>` in proportion to the phrases' weights, and do not count in `unk`. An object with
    `wordlist` stands for the entries of a stored list, at most 10,000."""
    profile: Name | None = None
    """Name of stored tuned settings: weights, length exponent, posterior scale, models, phrases and corrections. Values
    in the request take precedence. If a version that it was tuned on is not served, the served version of that model
    scores, and `tuned_on` of the reply names the former."""
    length_exponent: LengthExponent | None = None
    """Exponent of the length normalisation: `lm` is the sum of the tokens' log-probabilities / tokens ** exponent, so
    0 (default) gives the sum and 1 the mean. If it is not 0, the feature `lm_sum` is the sum."""
    posterior_scale: Annotated[float, between(0, MAX_POSTERIOR_SCALE)] | None = None
    """Scale of the posteriors, exp(scale · total) normalised over the list; default 1, and 0 makes them equal."""
    mbr: Utility | None = None
    """Rank by the expected utility under the posteriors instead of the total: fewest word errors (`wer`), or highest
    sentence `chrf` or `bleu`."""
    confidences: bool = False
    """True to report a confidence for each word of the best candidate."""
    detail: DetailName = Detail.NONE
    """Level of detail of the main model's scores: `none`, `token` or `word`."""
    bos: bool = True
    """True to put `<s>` before each candidate, or before its context."""
    eos: bool = True
    """True to also score `</s>` after each candidate."""
    score_mode: ScoreMode = "normalised"
    """`unnormalised` makes `lm` the sum of the tokens' logits, for models trained for it: faster, because it skips
    the sum over the vocabulary, and close to log-probabilities."""
    form: Writing | None = None
    """Form in which pretrained models read candidates and contexts, if these are lower-cased and without punctuation:
    `asis` (default), `sentence-case` with a capital at the beginning, or `sentence` with a capital and a full stop."""
    drop_duplicates: bool = False
    """True to omit a candidate whose text equals an earlier candidate's."""
    top: Annotated[int, Field(ge=1)] | None = None
    """Number of candidates of each list to report, best first; all if omitted."""
    commit_eos: bool = False
    """True to read `</s>` after the committed text of a session, as models of running text expect between sentences."""
    restore: FlagOrModel = False
    """True to restore capitals and punctuation of each list's best text with the main model, or the model to restore
    them with, as in /v1/restore."""

    def job(
        self,
        profile: Profile | None,
        resolve: Callable[..., LoadedModel],
        find_phrases: Callable[[Sequence[Phrase | StoredPhrases]], PhraseList],
    ) -> "RerankJob":
        """Find the scoring models, and fill in omitted settings.

        Args:
            profile: profile named in the settings, if any; its models are the default.
            resolve: finds a model by address; with `any_version`, else the served version.
            find_phrases: returns phrases, with those of stored word lists.

        Raises:
            InputError: a weight, exponent or scale is outside its limits, a mixture is invalid or given
                with a model, there are too many models, or a phrase is invalid.
        """
        given = self.phrases if self.phrases is not None or profile is None else profile.phrases
        phrases = find_phrases(given) if given else NO_PHRASES
        defaults = LogLinearModel(weights={LM: 1.0, **dict.fromkeys(phrases.features, DEFAULT_WEIGHT)})
        if profile is not None:
            defaults = profile.weighting()
        weights = dict(defaults.weights if self.weights is None else self.weights)
        if self.forms and self.weights is None and profile is None:
            weights[NUM_UNKNOWN] = UNKNOWN_WEIGHT
        unit = abs(weights.get(LM, 0.0)) or 1.0
        untuned = self.untuned_weights(weights, phrases)
        weights |= {name: unit * weight for name, weight in untuned.items()}
        exponent = defaults.length_exponent if self.length_exponent is None else self.length_exponent
        scale = self.posterior_scale
        if scale is None:
            scale = 1.0 if profile is None else profile.posterior_scale
        check_range("posterior_scale", scale, 0, MAX_POSTERIOR_SCALE)
        weighting = LogLinearModel(weights={**weights, **self._model_weights()}, length_exponent=exponent)
        main, find = main_models(self.model, self.mixture), resolve
        extra = [(further.name, further.model) for further in self.models]
        if profile is not None and self.model is None and self.mixture is None and not self.models:
            main = [(entry.address, entry.weight) for entry in profile.models if not entry.name]
            extra = [(entry.name, entry.address) for entry in profile.models if entry.name]
            resolve = partial(resolve, any_version=True)
        form = self.form or ("asis" if profile is None else profile.form)
        models = scoring_models(main, extra, resolve, form)
        scoring = {loaded.address for loaded in models.all}
        tuned_on = [] if profile is None else profile.replaced_versions(scoring)
        proposals = self.proposals(profile, phrases)
        restoring = self._restoring(models, find)
        return RerankJob(models, weighting, scale, proposals, self, phrases, tuned_on, profile, restoring)

    def _restoring(
        self, models: ScoringModels[LoadedModel], resolve: Callable[[str], LoadedModel]
    ) -> LoadedModel | None:
        """Return the model that restores the best texts, if requested; refuse a main model that is missing."""
        if isinstance(self.restore, str):
            return resolve(self.restore)
        if self.restore and not models.parts:
            raise InputError.of("restore", "is true, but no model scores the candidates; name one instead")
        return models.parts[0] if self.restore else None

    def _model_weights(self) -> dict[str, float]:
        """Return further models' weights; reject those also in `weights`."""
        given = {feature_name(LM, m.name): m.weight for m in self.models if m.weight is not None}
        duplicate = next((name for name in given if name in (self.weights or {})), None)
        if duplicate is not None:
            raise InputError(
                f"the weight of {duplicate} is given twice, in models and in weights", param="models"
            )
        return given


class ProposalSettings(NamedTuple):
    """Sources of proposals.

    Attributes:
        corrections: learnt or given corrections.
        phrases: proposed phrases.
        forms: language of forms; None for none.
    """

    corrections: CorrectionTable | None = None
    phrases: PhraseList = NO_PHRASES
    forms: str | None = None

    def proposers(self, models: ScoringModels[Any]) -> list[Proposer]:
        """Return the sources for some models; may take a tenth of a second, see `make_proposers`."""
        return make_proposers(models, **self._asdict())

    def path_weights(self, untuned: Mapping[str, float]) -> dict[str, float]:
        """Return default weights of paths of lattices, see `PathWeights.of`; 0 where `untuned` has none."""
        used = zip(self, ((CORRECTION,), (DISTANCE, DOUBT), FORM_FEATURES), strict=True)
        return dict.fromkeys(chain.from_iterable(names for source, names in used if source), 0.0) | {
            **untuned
        }


@dataclass(frozen=True)
class RerankJob:
    """Models and settings of re-ranking, completed from a profile and defaults.

    Attributes:
        models: scoring models.
        weighting: weights of features.
        posterior_scale: factor of the totals in the posteriors.
        proposals: what is proposed.
        settings: all other settings.
        phrases: phrases that candidates may contain.
        tuned_on: versions the profile was tuned on, of models that score with another.
        profile: the profile that the settings name, if any.
        restoring: the model that restores capitals and punctuation, if requested.
    """

    models: ScoringModels[LoadedModel]
    weighting: LogLinearModel
    posterior_scale: float
    proposals: ProposalSettings
    settings: RerankSettings
    phrases: PhraseList = NO_PHRASES
    tuned_on: Sequence[str] = ()
    profile: Profile | None = None
    restoring: LoadedModel | None = None

    @property
    def proposes(self) -> bool:
        """Return True if candidates are proposed."""
        return any(self.proposals)

    @cached_property
    def proposers(self) -> list[Proposer]:
        """Sources of proposals."""
        return self.proposals.proposers(self.models)

    @property
    def is_pairwise(self) -> bool:
        """Return True if all pairs of candidates of a list are compared."""
        consensus = (name for name in self.weighting.weights if name.startswith(CONSENSUS))
        return self.settings.mbr is not None or self.settings.confidences or any(consensus)


class RerankRequest(RerankSettings):
    """Order lists of candidates by a weighted sum of features."""

    model_config = with_examples(_EXAMPLE)

    lists: list[CandidateListIn] = Field(min_length=1)
    """Candidate lists, one or more."""


class DocumentIn(WireModel):
    """A document; other fields are ignored."""

    model_config = ConfigDict(extra="ignore")

    text: str
    """Text of the document."""


class DocumentsRequest(TimedRequest):
    """Order documents by the probability of a query after each, with the body of Jina's and Cohere's re-ranking."""

    model_config = with_examples(
        {
            "query": "return a new list",
            "documents": ["Sort the list in place.", "Copy the elements into a new list."],
            "top_n": 1,
        }
    )

    query: Annotated[str, Field(min_length=1)]
    """Text to score after each document; a space separates them."""
    documents: list[Annotated[TextOrObject[str, DocumentIn], text_or_object("text")]] = Field(min_length=1)
    """Documents: strings, or objects with `text`."""
    model: ModelAddress = None
    top_n: Annotated[int, Field(ge=1)] | None = None
    """Number of documents to report, best first; all if omitted."""
    return_documents: bool = True
    """False to omit the texts of the documents from the reply."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        """Drop null fields: Cohere's client sends options of other services as nulls."""
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}


def rerank_items(
    body: bytes, format_name: str, limits: Limits, *, reserved: Callable[[str], bool]
) -> Iterator[RerankItem | InputError]:
    """Parse lists lazily; yield an error for an invalid line.

    Args:
        body: JSON lines, or lists in another program's format.
        format_name: one of `FORMAT_NAMES`.
        limits: of one list.
        reserved: true for names of computed features; another program's `lm` becomes `old_lm`.
    """
    items: Iterator[RerankItem | InputError]
    if format_name == "jsonl":
        items = parse_lines(body, lambda line: parse_json(CandidateListIn, line).item())
    else:
        items = _items_of(read_bytes(body, format_name, reserved=reserved))
    first = next(items, InputError("the body has no lists"))
    for item in chain([first], items):
        try:
            if isinstance(item, RerankItem):
                limits.check_count(len(item.given.candidates), "candidates")
            yield item
        except InputError as error:
            yield error


def _items_of(parsed: Iterable[ListOrBadLine]) -> Iterator[RerankItem | InputError]:
    """Yield an item per list, whose problems are its candidates' errors, which precede it."""
    problems: list[str] = []
    for one in parsed:
        if not isinstance(one, BadLine):
            yield RerankItem(replace(one, problems=tuple(problems)))
        elif one.loses_list:
            yield InputError(str(one))
        elif len(problems) < _MAX_PROBLEMS:
            problems.append(str(one))
            continue
        else:
            yield InputError(str(one))
            continue
        problems = []
    yield from map(InputError, problems)


def parse_models(query: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as in a body: the pairs of `weights`, `mixture` and `models` become objects.

    Raises:
        InputError: one of these is not pairs.
    """
    fields = dict(query)
    if "weights" in fields:
        fields["weights"] = parse_weights(fields["weights"], param="weights")
    if "mixture" in fields:
        parts = parse_weights(fields["mixture"], param="mixture")
        fields["mixture"] = [{"model": model, "weight": weight} for model, weight in parts.items()]
    if "models" in fields:
        named = parse_names(fields["models"], param="models")
        fields["models"] = [{"name": name, "model": model} for name, model in named.items()]
    return fields


class _EntriesIn(WireModel):
    """Lists that a query string has as JSON."""

    phrases: list[PhraseEntry] | None = None
    corrections: list[GivenCorrection] | None = None


def parse_entries(query: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as in a body: pairs become objects, see `parse_models`, and JSON arrays entries.

    Raises:
        InputError: one of these is not pairs, or not a JSON array of its entries.
    """
    fields = parse_models(query)
    for name in _EntriesIn.model_fields.keys() & fields.keys():
        text = fields[name]
        try:
            entries = parse_json(_EntriesIn, b'{"%b":%b}' % (name.encode(), text.encode()))
        except InputError as error:
            if error.param is not None:
                raise
            raise InputError.of(name, f"takes a JSON array of objects, given {text[:80]!r}") from None
        fields[name] = getattr(entries, name)
    return fields


def parse_weights(text: str, *, param: str) -> dict[str, float]:
    """Parse pairs like `lm=0.7,am=1`.

    Raises:
        InputError: a part is not NAME=NUMBER.
    """
    weights = {}
    for name, value in parse_names(text, param=param).items():
        try:
            weights[name] = float(value)
        except ValueError:
            raise InputError.of(param, f"takes NAME=NUMBER,…, given {f'{name}={value}'!r}") from None
    return weights


def parse_names(text: str, *, param: str) -> dict[str, str]:
    """Parse pairs like `old=small@3,new=lstm`.

    Raises:
        InputError: a part is not NAME=VALUE, or a name occurs twice.
    """
    values: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.rpartition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name or not value:
            raise InputError.of(param, f"takes NAME=VALUE,…, given {part.strip()[:80]!r}")
        if name in values:
            raise InputError.of(param, f"has {name[:80]!r} twice")
        values[name] = value
    return values
