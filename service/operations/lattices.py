"""Rescoring of lattices: networks of a recogniser's alternatives, searched with a language model.

The search is that of `gramophone lattice`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

from pydantic import Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import override

from models.arrays import runs_by_cost
from models.calls import Work
from models.errors import DomainError, InputError, check_range
from models.language_model import is_lookup
from models.phrases import MAX_PHRASES, NO_PHRASES, PhraseList
from models.reranking.formats.format import BadLine
from models.reranking.proposals import PROPOSERS, Proposer
from models.reranking.ranking import MAX_POSTERIOR_SCALE, Profile
from models.scoring.candidate_features import ScoringModels
from service.operations.operation import Call, Cost, LinesOperation
from service.operations.rerank_request import ProposingSettings, parse_entries
from service.schemas import with_examples
from service.schemas.replies import (
    LatticeAlternative,
    LatticePathResult,
    LatticeResult,
    LatticesReply,
    LatticeWord,
    ProposedWords,
    to_json,
)
from service.schemas.wire import (
    ModelRequest,
    Name,
    Weight,
    WireModel,
    between,
    parse_json,
    parse_lines,
    parse_object,
    schema_only,
)
from service.schemas.word_lists import NAME_PATTERN, PhraseEntry, StoredPhrases

if TYPE_CHECKING:
    from models.lattices.graph import PathWeights
    from models.lattices.lattice import Lattice, Scales
    from models.lattices.rescoring import RescoredLattice
    from models.lattices.token_passing import LatticeSearch

MAX_ARCS = 50_000
"""Maximum arcs of a lattice in a JSON body."""

_MAX_LINE_ARCS, _MAX_LINE_BYTES = 10_000, 1 << 20
"""Maximum arcs and bytes of a line, whose parsing delays other requests."""

_MAX_EDGES = 1 << 22
"""Maximum arcs of a lattice times tokens per node: each takes 40 bytes during the search."""

_MAX_WORD_CHARS = 200

_MAX_TOKENS_PER_NODE = 256
MAX_NBEST, _MAX_ALTERNATIVES = 100, 20
_ARCS_AT_ONCE, _MIN_ARCS = 1 << 12, 1 << 6
"""Arcs that are searched together, and that the smallest lattices count as."""

_PREDICTIONS = 8
"""Predictions of networks above which a request is bulk."""

_ARCS: JsonValue = [
    {"start": 0, "end": 1, "word": "return", "am": -5.0},
    {"start": 1, "end": 2, "word": "a", "am": -2.0},
    {"start": 1, "end": 2, "word": "the", "am": -2.5},
    {"start": 2, "end": 3, "word": "knew", "am": -4.0},
    {"start": 2, "end": 3, "word": "new", "am": -4.2},
    {"start": 3, "end": 4, "word": "list", "am": -6.0},
]
_CONFUSIONS: JsonValue = [
    [{"text": "raise"}],
    [{"text": "an", "logprob": -0.4}, {"text": "", "logprob": -1.1}],
    [{"text": "hour", "logprob": -0.6}, {"text": "error", "logprob": -0.8}],
]


class LatticeArc(WireModel):
    """An arc of a lattice."""

    start: Annotated[int, Field(ge=0)]
    """Node before the arc; the first node is 0."""
    end: Annotated[int, Field(ge=0)]
    """Node after the arc; the highest number is the last node."""
    word: str = ""
    """Word of the arc, without white space; empty for none."""
    am: float = 0.0
    """Acoustic score, or that of another recogniser, a natural logarithm."""
    old_lm: float = 0.0
    """Score by the language model of the first pass, a natural logarithm."""


class Confusion(WireModel):
    """One of several alternatives at a place."""

    text: str
    """Words, separated by spaces; empty for no word."""
    logprob: Annotated[float, Field(le=0)] = 0.0
    """Natural logarithm of the probability, the feature `am`."""


class LatticeSearchSettings(WireModel):
    """Settings of the search of lattices."""

    max_tokens_per_node: Annotated[int, Field(ge=1, le=_MAX_TOKENS_PER_NODE)] = 64
    """Maximum hypotheses kept per node of a lattice."""
    beam: Annotated[float, Field(ge=0)] | None = None
    """Drop hypotheses that score lower by more than this; none by default."""
    recombination_order: Annotated[int, Field(ge=0, le=1000)] = 4
    """Networks: hypotheses with this many equal last words are merged; 0 compares all words."""

    def lattice_search(self) -> "LatticeSearch":
        """Return the settings of the search."""
        from models.lattices.token_passing import LatticeSearch

        return LatticeSearch(
            max_tokens_per_node=self.max_tokens_per_node,
            beam=self.beam,
            recombination_order=self.recombination_order or None,
        )


class LatticeIn(WireModel):
    """A lattice in one of four forms: `arcs`, `confusions`, `slf` or `kaldi`."""

    model_config = with_examples({"id": "utt-1", "arcs": _ARCS}, {"id": "utt-2", "confusions": _CONFUSIONS})

    id: str | None = None
    """Client's id of the lattice, echoed in the reply."""
    arcs: Annotated[list[LatticeArc], schema_only(minItems=1, maxItems=MAX_ARCS)] | None = None
    """Arcs between numbered nodes, in any order."""
    times: list[Annotated[float, Field(ge=0)]] | None = None
    """Time of each node of `arcs`, in seconds."""
    confusions: Annotated[list[list[Confusion]], schema_only(minItems=1)] | None = None
    """Confusion network: the alternatives at each place, at least one."""
    slf: str | None = None
    """Content of a file in HTK's lattice format, SLF."""
    kaldi: str | None = None
    """Lattice in Kaldi's text format, with words, not numbers."""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        given = [name for name in ("arcs", "confusions", "slf", "kaldi") if getattr(self, name) is not None]
        if len(given) != 1:
            problem = f"give one of arcs, confusions, slf and kaldi, not {len(given)}"
            raise PydanticCustomError("one_of", problem)
        if self.times is not None and self.arcs is None:
            raise PydanticCustomError("one_of", "times are those of the nodes of arcs")
        return self

    def lattice(self, search: LatticeSearchSettings, name: str = "", *, most: int = MAX_ARCS) -> "Lattice":
        """Return the lattice; fields in messages begin with `name`, such as `lattices[2].`.

        Raises:
            InputError: it is no lattice: without a path, with a cycle, too large, not readable.
        """
        form, found = self._lattice(name, most)
        if (longest := max(map(len, found.words))) > _MAX_WORD_CHARS:
            problem = f"has a word of {longest} characters; at most {_MAX_WORD_CHARS} are accepted"
            raise InputError.of(name + form, problem)
        if found.num_arcs * (count := search.max_tokens_per_node) > _MAX_EDGES:
            limit = _MAX_EDGES // found.num_arcs
            raise InputError.of(
                "max_tokens_per_node",
                f"is {count}; it must be at most {limit} for a lattice of {found.num_arcs} arcs",
            )
        return found

    def _lattice(self, name: str, most: int) -> "tuple[str, Lattice]":
        """Return the form and the lattice."""
        from models.lattices.formats import read_kaldi, read_slf  # compiled code
        from models.lattices.lattice import lattice_of_arcs, lattice_of_confusions

        form = next(one for one in ("arcs", "confusions", "slf", "kaldi") if getattr(self, one) is not None)
        try:
            if self.arcs is not None:
                columns = [(one.start, one.end, one.word, one.am, one.old_lm) for one in self.arcs]
                return form, lattice_of_arcs(columns, times=self.times, most=most)
            if self.confusions is not None:
                places = [[(one.text, one.logprob) for one in place] for place in self.confusions]
                return form, lattice_of_confusions(places, most=most)
            read: Callable[..., Any] = read_slf if self.slf is not None else read_kaldi
            return form, _read_file(self.slf or self.kaldi or "", read, most)
        except InputError as error:
            param = name + form
            raise InputError(f"{param}: {error}", param=param) from None


def _read_file(content: str, read: Callable[..., Any], most: int) -> "Lattice":
    """Read the only lattice of a file's content.

    Raises:
        InputError: it is unreadable or too large, or there are others.
    """
    from models.lattices.lattice import Lattice

    found = read(content.encode("utf-8", "surrogatepass").split(b"\n"), "lattice")
    found = [found] if isinstance(found, Lattice | BadLine) else [*found]
    if len(found) != 1:
        raise InputError(f"has {len(found)} lattices; send each by itself")
    if not isinstance(found[0], Lattice):
        raise InputError(f"line {found[0].number}: {found[0].problem}")
    if found[0].num_arcs > most:
        raise InputError(f"has {found[0].num_arcs} arcs; at most {most} are accepted")
    return found[0]


class LatticeSettings(ModelRequest, LatticeSearchSettings, ProposingSettings):
    """Settings of rescoring."""

    weights: dict[str, Weight] | None = None
    """Signed weights of the features `am`, `old_lm`, `lm`, `words`, `unk`, `phrases` and those of proposals. Default:
    those of the profile, else the scales in the lattice, 1 for `am` and `lm` without any, 10 for phrases, and for
    proposals those of /v1/rerank times that of `lm`."""
    profile: Name | None = None
    """Name of weights and phrases stored by `gramophone tune`; `weights` and `phrases` take precedence."""
    phrases: Annotated[list[PhraseEntry], schema_only(maxItems=MAX_PHRASES)] | None = None
    """Phrases, such as names unknown to the model, as in /v1/rerank."""
    wordlist: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """Stored word list of further phrases."""
    nbest: Annotated[int, Field(ge=1, le=MAX_NBEST)] = 1
    """Number of the best texts in the reply."""
    alternatives: Annotated[int, Field(ge=0, le=_MAX_ALTERNATIVES)] = 3
    """Maximum number of other words told beside each word of the best text."""
    posterior_scale: Annotated[float, between(0, MAX_POSTERIOR_SCALE)] = 1.0
    """Scale of posteriors: a path's is in proportion to exp(scale · total)."""


class LatticesRequest(LatticeSettings):
    """Find the best texts of lattices."""

    model_config = with_examples(
        {
            "lattices": [{"id": "utt-1", "arcs": _ARCS}, {"id": "utt-2", "confusions": _CONFUSIONS}],
            "weights": {"am": 1.0, "lm": 0.7},
            "nbest": 2,
        }
    )

    lattices: list[LatticeIn] = Field(min_length=1)
    """Lattices."""


class LatticeItem(NamedTuple):
    """A lattice of a request, and the client's id of it."""

    name: str | None
    lattice: "Lattice"


class Lattices(LinesOperation[LatticeItem, LatticeResult]):
    """Find the best texts of word lattices and confusion networks with a language model.

    A lattice has all that a recogniser, a translator or an input method held possible, with far more alternatives
    than a list of texts. With `Content-Type: application/x-ndjson`, each line of the body is one of the `lattices`;
    options are in the query string, with pairs as in `weights=lm=0.5,am=1`, and `phrases` as a JSON array. The reply
    has one line per lattice, in order: a result, or `{"error": …}`. If the service fails midway, the last line is an
    error.
    """

    request, settings = LatticesRequest, LatticeSettings

    def __init__(self, call: Call, given: LatticeSettings) -> None:
        self.given, self.slots = given, given.slots
        self.items = []
        self._profile: Profile | None = None
        super().__init__(call)
        if given.profile is None:
            self._find_models()

    @override
    def prepare(self) -> Iterator[Callable[[], Any]]:
        if (name := self.given.profile) is not None:
            found = list[Profile]()
            # the registry may be remote
            yield lambda: found.append(self.call.resources.profiles.read(name))
            self._profile = found[0]
            self._find_models()
        yield from super().prepare()
        yield self._read

    def _find_models(self) -> None:
        address, profile = self.given.model, self._profile
        if address is None and profile is not None:
            main = [one.address for one in profile.models if not one.name]
            if len(main) > 1 or len(profile.models) > len(main):
                raise InputError.of(
                    "profile", "has several models; lattices are searched with one: give model"
                )
            address = next(iter(main), None)
        self.models = (
            self.call.resolve(address, any_version=profile is not None and self.given.model is None),
        )
        entries = self.given.phrases
        if entries is None and profile is not None:
            entries = [*profile.phrases]
        if self.given.wordlist is not None:
            entries = [*(entries or []), StoredPhrases(wordlist=self.given.wordlist)]
        self._phrases: PhraseList = self.call.phrases(entries) if entries else NO_PHRASES
        self._proposals = self.given.proposals(profile, self._phrases)

    def _read(self) -> None:
        """Read the lattices of a JSON body, and check what needs compiled code."""
        from models.lattices.graph import LabelTokenizer, PathWeights, tuned_weights
        from models.lattices.lattice import Scales

        given, profile = self.given, self._profile
        check_range("posterior_scale", given.posterior_scale, 0, MAX_POSTERIOR_SCALE)
        _ = self.models[0].derived(LabelTokenizer.of)  # refuses models that cannot search
        features = self._phrases.features
        if given.weights is None and profile is not None:
            proposals = self._proposals.path_weights(given.untuned_weights(profile.weights, self._phrases))
            self._weights = tuned_weights(profile.weights, profile.length_exponent, features, proposals)
        else:
            weights = given.weights or {}
            proposals = self._proposals.path_weights(given.untuned_weights(weights, self._phrases))
            self._weights = partial(PathWeights.of, weights, phrases=features, proposals=proposals)
        self._weights(Scales())  # refuses wrong ones
        self._proposers = self._proposals.proposers(ScoringModels((self.models[0],)))
        self._search = given.lattice_search()
        if isinstance(given, LatticesRequest):
            self.call.limits.check_count(len(given.lattices), "lattices")
            self.items = [
                LatticeItem(one.id, one.lattice(given, f"lattices[{number}]."))
                for number, one in enumerate(given.lattices)
            ]
            self._check_entries(self.items)

    def _check_entries(self, items: Sequence[LatticeItem]) -> None:
        given, nodes = self.given, sum(item.lattice.num_nodes for item in items)
        self.call.limits.check_entries(
            nodes * (1 + given.alternatives + given.nbest),
            "alternatives",
            description=f"{nodes} nodes with {given.alternatives} alternatives and {given.nbest} texts",
            instead="ask for fewer, or send several requests",
        )

    _weights: "Callable[[Scales], PathWeights]"
    _search: "LatticeSearch"
    _proposers: Sequence[Proposer]

    @override
    @classmethod
    def parse_settings(cls, query: Mapping[str, str]) -> Any:
        return parse_object(LatticeSettings, parse_entries(query), strict=False)

    @override
    def parse_lines(self, body: bytes, form: str) -> Iterator[LatticeItem | InputError]:
        def item(line: bytes) -> LatticeItem:
            if len(line) > _MAX_LINE_BYTES:
                raise InputError(
                    f"the line has {len(line)} bytes; at most {_MAX_LINE_BYTES} are accepted, and more in a JSON body"
                )
            given = parse_json(LatticeIn, line)
            item = LatticeItem(given.id, given.lattice(self.given, most=_MAX_LINE_ARCS))
            self._check_entries([item])
            return item

        return parse_lines(body, item)

    @override
    def cost(self) -> Cost:
        read = self.call.num_tokens
        predicted = 0 if is_lookup(self.models[0].model) else read
        return Cost(read, predicted=predicted, entries=read, bulk=True if predicted > _PREDICTIONS else None)

    @override
    def size(self, item: LatticeItem) -> int:
        return item.lattice.num_arcs

    @override
    def answer(self, items: Sequence[LatticeItem]) -> Work[Any, Sequence[LatticeResult | DomainError]]:
        from models.lattices.proposals import rescore_with_proposals

        loaded, results = self.models[0], list[LatticeResult | DomainError]()
        arcs = [max(item.lattice.num_arcs, _MIN_ARCS) for item in items]
        for run in runs_by_cost(arcs, _ARCS_AT_ONCE):
            some = items[run]
            rescored = yield from rescore_with_proposals(
                [one.lattice for one in some],
                loaded,
                weights=self._weights,
                search=self._search,
                phrases=self._phrases,
                proposers=self._proposers,
            )
            for item, one in zip(some, rescored, strict=True):
                self.call.count_scored(loaded, one.num_tokens)
                results.append((yield from self._result(item, one)))
        return results

    def _result(self, item: LatticeItem, rescored: "RescoredLattice") -> Work[Any, LatticeResult]:
        from models.lattices.posteriors import EdgePosteriors
        from models.lattices.rescoring import features_of, find_nbest

        paths = yield from find_nbest(rescored, self.given.nbest)
        posteriors = EdgePosteriors.of(rescored, scale=self.given.posterior_scale)
        words = yield from posteriors.words(paths[0], most=self.given.alternatives)
        own_id = rescored.lattice.name if item.name is None else item.name
        return LatticeResult(
            own_id,
            paths[0].text,
            [
                LatticeWord(
                    one.text,
                    one.start,
                    one.end,
                    one.posterior,
                    [LatticeAlternative(*other) for other in one.others],
                )
                for one in words
            ],
            [
                LatticePathResult(
                    path.text,
                    path.total,
                    posteriors.of_path(path),
                    features,
                    [
                        ProposedWords(one.heard, one.written, PROPOSERS[one.feature])
                        for one in rescored.proposals(path)
                    ],
                )
                for path, features in zip(paths, features_of(rescored, paths), strict=True)
            ],
        )

    @override
    def reply(self, result: Any) -> Iterator[bytes]:
        yield to_json(LatticesReply(self.address, []))[:-2]
        for number, one in enumerate(result):
            yield (b"," if number else b"") + to_json(one)
        yield b"]}"

    @override
    def line(self, result: LatticeResult) -> Iterable[bytes]:
        return [to_json(result)]
