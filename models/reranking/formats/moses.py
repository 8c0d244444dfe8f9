"""Moses' n-best lists: `id ||| hypothesis ||| name= value value … ||| total`.

Values are natural logarithms; larger is better. A feature with several values becomes `name_0`,
`name_1`, …, as in MERT's feature map. The total becomes the feature `score`, or `total` if the file
already has a `score`.

Reading is lenient: spaces around `|||` and the total may be missing; labels may be `name=`, `name:`
(old versions) or `name=value` (Joshua, Marian), or missing (`-labeled-n-best-list false`:
`feature_0`, …). Alignments, after the total in Moses and before the features in Marian, are dropped,
and so is Marian's `WordScores=`. New features are appended to the field, as Marian's scorer does.
Ids are indices of the input sentences, from 0, but may be any string without white space. Escapes
such as `&quot;` are kept.

Sources: statmt.org/moses/?n=Advanced.Search, "Generating n-Best Lists"; mosesdecoder/mert/Data.cpp
(`loadNBest`, `InitFeatureMap`); marian-dev/src/translator/output_printer.h.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping

from models.errors import InvalidInputError
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats.format import (
    ASCII_WHITESPACE,
    CandidateRow,
    Format,
    ListOrBadLine,
    SourceLines,
    collapse_whitespace,
    format_number,
    group_candidates,
    has_whitespace,
    is_decimal_number,
    named_lists,
    parse_lines,
    parse_number,
    shorten,
    split_words,
)

_BAR = "|||"
_WORD_SCORES = "WordScores"
_UNNAMED = "feature"
_SCORE, _TOTAL = "score", "total"


def read(lines: SourceLines) -> Iterator[ListOrBadLine]:
    """Read lists of consecutive lines with the same id."""
    return group_candidates(parse_lines(lines, _row), lines)


def _row(line: str) -> CandidateRow:
    fields = [field.strip(ASCII_WHITESPACE) for field in line.split(_BAR)]
    if len(fields) < 2:
        raise InvalidInputError(
            f"no {_BAR} in the line; a line is 'id ||| hypothesis ||| name= value … ||| total'"
        )
    name, text, *scores = fields
    if has_whitespace(name):
        raise InvalidInputError(f"the id is {shorten(name)!r}; it must be one word")
    return name, 0, Candidate(text, _features(scores))


def _features(fields: list[str]) -> dict[str, float]:
    tokens = [split_words(field) for field in fields]
    start = next((index for index, token in enumerate(tokens) if _is_labelled(token)), 0)
    if len(fields) == 1 and len(tokens[0]) == 1 and not _is_labelled(tokens[0]):
        return {_SCORE: parse_number(fields[0], "the total")}
    features = _values(tokens[start]) if fields else {}
    if len(fields) > start + 1 and fields[start + 1]:
        total = parse_number(fields[start + 1], "the total")
        features[_TOTAL if _SCORE in features else _SCORE] = total
    return features


def _is_labelled(tokens: list[str]) -> bool:
    label = _label(tokens[0])[0] if tokens else None
    return label is not None and label != _WORD_SCORES


def _label(token: str) -> tuple[str | None, str]:
    """Split a label into its name and the value attached to it; the name is None if the token is not a label."""
    if len(token) > 1 and token[-1] in "=:":
        return token[:-1], ""
    name, _, value = token.rpartition("=")
    return (name, value) if name and not name[0].isdigit() and is_decimal_number(value) else (None, "")


def _values(tokens: list[str]) -> dict[str, float]:
    by_label: dict[str | None, list[float]] = {}
    current = None
    for token in tokens:
        label, value = _label(token)
        if label is not None:
            if label in by_label:
                raise InvalidInputError(f"feature {shorten(label)!r} occurs twice")
            current = label
            by_label[label] = [parse_number(value, label)] if value else []
        else:
            by_label.setdefault(current, []).append(parse_number(token, current or "a feature"))
    features: dict[str, float] = {}
    for label, values in by_label.items():
        if not values:
            raise InvalidInputError(f"feature {shorten(str(label))!r} has no value")
        one = label is not None and len(values) == 1
        names = [str(label)] if one else [f"{label or _UNNAMED}_{i}" for i in range(len(values))]
        features.update(zip(names, values, strict=True))
    if len(features) < sum(map(len, by_label.values())):
        raise InvalidInputError("two features have the same name")
    return features


def write(lists: Iterable[CandidateList]) -> Iterator[str]:
    """Write one line per candidate.

    Raises:
        InvalidInputError: an id, text or feature name would not be read back.
    """
    for name, one in named_lists(lists):
        if _BAR in name:
            raise InvalidInputError(f"list {name!r}: the id contains {_BAR}, which separates fields")
        for candidate in one.candidates:
            if _BAR in candidate.text:
                raise InvalidInputError(f"list {name!r}: a text contains {_BAR}, which separates fields")
            yield f"{name} ||| {collapse_whitespace(candidate.text)} ||| {_scores(candidate.features)}\n"


def _scores(features: Mapping[str, float]) -> str:
    total = _TOTAL if _TOTAL in features and _SCORE in features else _SCORE
    labelled = " ".join(
        f"{label}= {' '.join(format_number(value) for value in values)}"
        for label, values in _labels({name: v for name, v in features.items() if name != total}).items()
    )
    return f"{labelled} ||| {format_number(features[total])}" if total in features else labelled


def _labels(features: Mapping[str, float]) -> dict[str, list[float]]:
    """Group values by label: `d_0`, `d_1`, … get the one label `d`, as in Moses."""
    bases = {name.removesuffix("_0") for name in features if name.endswith("_0")} - features.keys() - {""}
    runs = {base: run for base in bases if len(run := _run(features, base)) > 1}
    covered = {f"{base}_{i}" for base, run in runs.items() for i in range(len(run))}
    labels: dict[str, list[float]] = {}
    for name, value in features.items():
        if name not in covered:
            labels[name] = [value]
        elif name.endswith("_0") and (base := name.removesuffix("_0")) in runs:
            labels[base] = runs[base]
    for label in labels:
        if has_whitespace(label) or _BAR in label or label == _WORD_SCORES:
            raise InvalidInputError(f"feature {shorten(label)!r} cannot be written in this format")
    return labels


def _run(features: Mapping[str, float], base: str) -> list[float]:
    names = (f"{base}_{i}" for i in itertools.count())
    return [features[name] for name in itertools.takewhile(features.__contains__, names)]


FORMAT = Format(
    name="moses",
    read=read,
    write=write,
    numbered=True,
    media_types=("text/x-moses-nbest",),
)
