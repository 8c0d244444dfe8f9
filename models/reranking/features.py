"""Features of candidates: given, derived and computed ones, as columns over all candidates.

Given with the candidates: an acoustic score, for example. Computed with models: `lm`, the natural-log
probability; `tokens` and `unk`, the numbers of tokens and of unknown ones; and `words`, runs
between white space. A further model named `old` has `lm:old`, `tokens:old`, `unk:old`. With a length
exponent, `lm` is divided by `tokens` to that power; `lm_sum` is the sum itself. `phrases` and
`phrases:CLASS` are the total weights of given phrases in the text.

Derived from a list's texts, order and given features:

    rank                  −r: number of other texts before this one in the list
    rank:log              −ln(r + 1)
    NAME*words            a given feature times the text's number of words
    NAME*characters       … times its number of characters
    NAME*tokens           … times its number of tokens for the language model
    consensus:UTILITY     mean utility (`chrf`, `bleu`, `wer`) against all candidates of the list
    correction, distance  sums over the proposals that made the text, 0 without any; so are `spoken`, `written`,
                          `spelling`, `letters` and `doubt`, see `proposals`

A text made of another has the rank and the given features of the text that it was made from.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias, cast

import numpy as np

from models.arrays import Float64s, Int64s
from models.calls import Steps
from models.errors import InputError, check_range
from models.files import count_words
from models.phrases import is_phrase_feature
from models.reranking.candidates import Candidate, CandidateList, check_confidences
from models.reranking.mbr import UTILITIES, Utility, expected_utilities
from models.reranking.proposals import PROPOSED_FEATURES, ProposedCandidate, origins_of, sum_of

RANK, RANK_LOG = "rank", "rank:log"
CONSENSUS = "consensus"
LENGTHS = ("words", "characters", "tokens")

CANDIDATES_PER_STEP = 256
"""Candidates whose features are computed per step."""

_LENGTH_MARK = "*"

LM, LM_SUM, NUM_TOKENS, NUM_UNKNOWN, NUM_WORDS = "lm", "lm_sum", "tokens", "unk", "words"
MODEL_FEATURES = (LM, NUM_TOKENS, NUM_UNKNOWN)
"""Features computed with each model."""

COMPUTED_FEATURES = frozenset({*MODEL_FEATURES, LM_SUM, NUM_WORDS})
MAX_FEATURE = 1e12
"""Maximum magnitude of a feature; beyond it, totals become inexact, then infinite."""

_MODEL_SEPARATOR = ":"
_MODEL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

Place: TypeAlias = Callable[[int], str]
"""Return the prefix of `candidates` in messages, by list index."""


def is_derived(name: str) -> bool:
    """True if a name has the form of a derived feature."""
    return name.partition(":")[0] in {RANK, CONSENSUS, *PROPOSED_FEATURES} or base_feature(name) is not None


def base_feature(name: str) -> str | None:
    """Return the given feature that a derived one needs: `am` for `am*words`, or None."""
    base, _, length = name.rpartition(_LENGTH_MARK)
    return base if base and length in LENGTHS else None


def needs_tokens(name: str) -> bool:
    """True if a derived feature needs the language model's token counts."""
    return base_feature(name) is not None and name.endswith(_LENGTH_MARK + "tokens")


def length_scaled_name(name: str, length: str) -> str:
    """Return the name of a given feature times a text length."""
    return name + _LENGTH_MARK + length


def check_derived(name: str) -> None:
    """Check a name that has the form of a derived feature.

    Raises:
        InputError: there is no such feature; the message lists the choices.
    """
    kind, colon, which = name.partition(":")
    if base_feature(name) is not None:
        return
    choices = {RANK: ("", "log"), CONSENSUS: UTILITIES}.get(kind, ("",))
    if which not in choices or (colon and not which):
        known = ", ".join(f"{kind}:{choice}" if choice else kind for choice in choices)
        raise InputError(f"there is no feature {name!r}; features: {known}", param="weights")


def derive(
    name: str,
    candidates: Sequence[Candidate],
    given: Callable[[str], Float64s],
    tokens: Float64s | None = None,
) -> Steps[Float64s]:
    """Compute a derived feature of one list's candidates [C], in bounded steps.

    Comparing all pairs of texts takes many steps.

    Args:
        name: name of the feature.
        candidates: all candidates of the list, in first-pass order.
        given: returns the values [C] of a given feature.
        tokens: the language model's token counts [C]; None without a model.

    Raises:
        InputError: the feature is unknown, or needs a model and there is none.
    """
    check_derived(name)
    texts = [one.text for one in candidates]
    base = base_feature(name)
    if base is not None:
        if not needs_tokens(name):
            count = count_words if name.endswith("words") else len
            return given(base) * np.array([count(text) for text in texts], np.float64)
        if tokens is None:
            raise InputError(f"{name} needs a language model, but none is used", param="weights")
        return given(base) * tokens
    if name in PROPOSED_FEATURES:
        values = np.zeros(len(candidates))
        for index, one in enumerate(candidates):
            if isinstance(one, ProposedCandidate):
                values[index] = sum_of(name, one.replacements)
        return values
    if name in {RANK, RANK_LOG}:
        ranks = text_ranks(texts)[origins_of(candidates)]
        return 0.0 - (ranks if name == RANK else np.log1p(ranks))  # 0, not −0, for the first
    uniform = np.full(len(texts), 1 / len(texts))
    utility = cast("Utility", name.partition(":")[2])
    return (yield from expected_utilities(texts, uniform, utility))


def text_ranks(texts: Sequence[str]) -> Float64s:
    """Count the other texts before each [C]; equal texts have the rank of the first."""
    seen: dict[str, int] = {}
    return np.array([seen.setdefault(text, len(seen)) for text in texts], np.float64)


def feature_name(kind: str, model: str) -> str:
    """Return the name of a model's feature, such as `lm`; `model` is empty for the main one."""
    return kind + _MODEL_SEPARATOR + model if model else kind


def feature_model(feature: str) -> str | None:
    """Return the further model that a feature is computed with, or None."""
    kind, colon, name = feature.partition(_MODEL_SEPARATOR)
    return name if colon and kind in {*MODEL_FEATURES, LM_SUM} else None


def is_reserved(feature: str, models: Collection[str]) -> bool:
    """True if a feature is computed or derived, so never given."""
    is_computed = feature in COMPUTED_FEATURES or feature_model(feature) in models
    return is_computed or is_phrase_feature(feature) or is_derived(feature)


def needs_main_model(feature: str) -> bool:
    """True if a feature is computed with the main model, or derived from one."""
    return not {feature, base_feature(feature)}.isdisjoint({*MODEL_FEATURES, LM_SUM}) or needs_tokens(feature)


def check_model_names(names: Sequence[str], *, param: str) -> None:
    """Check that further models' names can be part of feature names.

    Raises:
        InputError: a name has characters besides letters, digits and `_.-`, is too long or not unique.
    """
    for index, name in enumerate(names):
        where = f"{param}[{index}].name"
        if _MODEL_NAME.fullmatch(name) is None:
            raise InputError.of(
                where, f"is {name[:80]!r}; a name has 1 to 64 letters, digits, '_', '.' or '-'"
            )
        if name in names[:index]:
            raise InputError.of(where, f"is {name!r}, the name of an earlier model")


class ListFeatures(NamedTuple):
    """Computed features of L lists' candidates: N rows, joined.

    Attributes:
        names: names of the columns; `lm` is the sum of the tokens' log-probabilities, whatever the exponent.
        values: float64 [N, F].
        offsets: first row of each list, and N at the end [L + 1].
    """

    names: tuple[str, ...]
    values: Float64s
    offsets: Int64s

    def column(self, name: str) -> Float64s:
        """Return one feature of all candidates [N]."""
        return self.values[:, self.names.index(name)]

    def matrix(self, names: Sequence[str], given: Mapping[str, Float64s]) -> Float64s:
        """Collect features by name, computed or given, for all candidates [N, len(names)]."""
        columns = [self.column(name) if name in self.names else given[name] for name in names]
        return np.column_stack(columns) if columns else np.zeros((len(self.values), 0), np.float64)

    def of_lists(self, begin: int, end: int) -> "ListFeatures":
        """Slice the features of consecutive lists."""
        offsets = self.offsets[begin : end + 1]
        return ListFeatures(self.names, self.values[offsets[0] : offsets[-1]], offsets - offsets[0])

    def without_absent(self) -> "ListFeatures":
        """Omit the features of phrases and proposals that no candidate has."""
        kept = tuple(
            one
            for one in self.names
            if not (is_phrase_feature(one) or one in PROPOSED_FEATURES) or self.column(one).any()
        )
        return ListFeatures(kept, self.matrix(kept, {}), self.offsets)

    def normalised(self, length_exponent: float) -> "ListFeatures":
        """Divide each model's sum by a power of its tokens; append the undivided sums."""
        if not length_exponent:
            return self
        parts = (name.partition(_MODEL_SEPARATOR) for name in self.names)
        models = [model for kind, _, model in parts if kind == LM]
        values, sums = self.values.copy(), []
        for model in models:
            index = self.names.index(feature_name(LM, model))
            tokens = np.maximum(self.column(feature_name(NUM_TOKENS, model)), 1.0)
            sums.append(self.values[:, index])
            values[:, index] /= tokens**length_exponent
        names = (*self.names, *(feature_name(LM_SUM, model) for model in models))
        return ListFeatures(names, np.column_stack([values, *sums]), self.offsets)


def offsets_of(lists: Sequence[CandidateList]) -> Int64s:
    """Start of each list's joined candidates, and their number [L + 1]."""
    return np.cumsum([0, *(len(one.candidates) for one in lists)], dtype=np.int64)


def with_derived(
    lists: Sequence[CandidateList], computed: ListFeatures, names: Iterable[str], *, place: Place
) -> Steps[ListFeatures]:
    """Add those named features that derive from each list's texts, order and given features.

    Raises:
        InputError: a feature is unknown, or a feature that it needs is missing.
    """
    made = tuple(name for name in names if is_derived(name))
    if not made:
        return computed
    has_tokens = NUM_TOKENS in computed.names
    parts = [np.zeros((0, len(made)))]
    count = 0
    for number, one in enumerate(lists):
        given = partial(given_column, [one], place=[place(number)].__getitem__)
        tokens = computed.of_lists(number, number + 1).column(NUM_TOKENS) if has_tokens else None
        columns = []
        for name in made:
            columns.append((yield from derive(name, one.candidates, given, tokens)))  # noqa: PERF401 - it yields
        parts.append(np.column_stack(columns))
        count += len(one.candidates)
        if count > CANDIDATES_PER_STEP:
            count = 0
            yield
    values = np.column_stack([computed.values, np.concatenate(parts)])
    return ListFeatures((*computed.names, *made), values, computed.offsets)


def given_column(
    lists: Sequence[CandidateList], name: str, *, place: Place, least: float = -MAX_FEATURE
) -> Float64s:
    """Collect a given feature of all candidates [N], at least `least`.

    Raises:
        InputError: a candidate lacks it, or it is out of range.
    """
    try:
        values = np.array([c.features[name] for one in lists for c in one.candidates], np.float64)
    except KeyError:
        where = next(w for w, features in _feature_locations(lists, place) if name not in features)
        raise InputError.of(where, f"has no {name!r}, which has a weight") from None
    if not ((values >= least) & (values <= MAX_FEATURE)).all():
        for where, features in _feature_locations(lists, place):
            check_range(f"{where}.{name}", features[name], least, MAX_FEATURE)
    return values


def check_given(
    lists: Sequence[CandidateList], *, models: Collection[str], place: Place = "lists[{}].".format
) -> None:
    """Refuse given features with the name of a computed one, and confidences that do not fit the words.

    Raises:
        InputError: a given feature has a reserved name, the number of confidences differs from that of words, or one
            is not from 0 to 1.
    """
    for i, one in enumerate(lists):
        for j, candidate in enumerate(one.candidates):
            if candidate.confidences:  # most have none, and a place would be written for each
                check_confidences(candidate, f"{place(i)}candidates[{j}].confidences")
    names: set[str] = set().union(*(c.features for one in lists for c in one.candidates))
    for name in sorted(names):
        if is_reserved(name, models):
            where = next(w for w, features in _feature_locations(lists, place) if name in features)
            raise InputError.of(f"{where}.{name}", f"is given, but {name} is computed by the service")


def _feature_locations(
    lists: Sequence[CandidateList], place: Place
) -> Iterator[tuple[str, Mapping[str, float]]]:
    """Yield the request field and the features of each candidate."""
    for i, one in enumerate(lists):
        for j, candidate in enumerate(one.candidates):
            yield f"{place(i)}candidates[{j}].features", candidate.features
