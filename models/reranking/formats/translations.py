r"""Output of translators: Moses, fairseq, CTranslate2, OpenNMT-tf and Sockeye.

Moses: `id ||| hypothesis ||| name= value value … ||| total`. Values are natural logarithms,
larger is better. A feature of several values becomes `name_0`, `name_1`, …, as in MERT's
feature map. The total becomes the feature `score`, or `total` if there is a `score`. Ids are
indices of the input sentences, from 0, but may be any string without white space. Escapes such
as `&quot;` are kept.

Reading is lenient: spaces around `|||` and the total may be missing; labels may be `name=`, `name:`
(old versions) or `name=value` (Joshua, Marian), or missing (`-labeled-n-best-list false`:
`feature_0`, …). Alignments, after the total in Moses and before the features in Marian, are dropped,
as are Marian's `WordScores=` and Moses' source positions after phrases, such as `|0-1|`. New
features are appended to the field, as Marian's scorer does.

The scores of the others are means over the tokens of a hypothesis, unless the length penalty is not 1:
the feature `score`, a natural logarithm.

fairseq prints a line per source, reference and hypothesis, with the sentence's number from 0:

    S-7 <tab> source
    T-7 <tab> reference
    H-7 <tab> score <tab> hypothesis, as the model wrote it
    D-7 <tab> score <tab> hypothesis, detokenised

Other lines (`P-`, `A-`, the log) are dropped, and `H-` lines too if the sentence has `D-` lines. Scores
have base 2. `fairseq-generate` sorts sentences by length.

CTranslate2 and OpenNMT-tf write `score ||| hypothesis`, the same number of lines per input; further
fields, such as scores of tokens, are dropped. Tokens are as in the file: detokenise them first.

Sockeye's JSON has an object per line, with the sentence's number from 1 as `sentence_id`:

    {"sentence_id": 1, "translation": "…", "score": 0.3, "translations": ["…", …], "scores": [[0.3], …]}

Its scores are negative logarithms; those of target factors, after the first, are dropped. A list of
one hypothesis has no `translations`.

Sources: statmt.org/moses/?n=Advanced.Search, "Generating n-Best Lists"; mosesdecoder/mert/Data.cpp
(`loadNBest`, `InitFeatureMap`); marian-dev/src/translator/output_printer.h; fairseq
fairseq_cli/generate.py, interactive.py (0.12); CTranslate2 include/ctranslate2/translator.h
(`translate_raw_text_file`); OpenNMT-tf opennmt/utils/misc.py (`format_translation_output`); Sockeye
sockeye/inference.py (`TranslatorOutput.json`, 3.1).
"""

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from models.errors import InputError
from models.files import ASCII_WHITESPACE, collapse_spaces, split_words
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats.format import (
    MAX_LIST_BYTES,
    CandidateRow,
    Format,
    TextLine,
    candidate_or_error,
    format_number,
    group_candidates,
    has_whitespace,
    is_decimal_number,
    named_lists,
    parse_lines,
    parse_number,
    read_beams,
    shorten,
)
from models.reranking.formats.json_stream import (
    id_value,
    list_value,
    number_value,
    parse_candidates,
    parse_json_object,
    read_elements,
    stripped_value,
)

_BAR = "|||"
_WORD_SCORES = "WordScores"
_UNNAMED = "feature"

# such as |0-1|
_SOURCE_MARK = re.compile(r"(?:^|\s)\|[0-9]+-[0-9]+(?:,[^|]*)?\|(?=\s|$)", re.ASCII)
_ENDS_IN_MARK = re.compile(r"(?:^|\s)\|[0-9]+-[0-9]+(?:,[^|]*)?\|$", re.ASCII)
_SCORE, _TOTAL = "score", "total"

_FAIRSEQ_KINDS = "THD"
_TARGET, _HYPOTHESIS, _DETOKENISED = range(3)
_FAIRSEQ_LINE = re.compile(r"([THD])-([0-9]+)\t(.*)", re.DOTALL)
FAIRSEQ_HYPOTHESIS = re.compile(r"^[HD]-[0-9]+\t\S+\t", re.MULTILINE)


def _moses_row(line: str) -> CandidateRow:
    fields = [field.strip(ASCII_WHITESPACE) for field in line.split(_BAR)]
    if len(fields) < 2:
        raise InputError(f"no {_BAR} in the line; a line is 'id ||| hypothesis ||| name= value … ||| total'")
    name, text, *scores = fields
    if has_whitespace(name):
        raise InputError(f"the id is {shorten(name)!r}; it must be one word")
    if _ENDS_IN_MARK.search(text):  # else marks of source positions are words
        text = collapse_spaces(_SOURCE_MARK.sub("", text))
    return name, 0, candidate_or_error(lambda: Candidate(text, _features(scores)))


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
    """Split a label into its name and the attached value; the name is None if it is no label."""
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
                raise InputError(f"feature {shorten(label)!r} occurs twice")
            current = label
            by_label[label] = [parse_number(value, label)] if value else []
        else:
            by_label.setdefault(current, []).append(parse_number(token, current or "a feature"))
    features: dict[str, float] = {}
    for label, values in by_label.items():
        if not values:
            raise InputError(f"feature {shorten(str(label))!r} has no value")
        one = label is not None and len(values) == 1
        names = [str(label)] if one else [f"{label or _UNNAMED}_{i}" for i in range(len(values))]
        features.update(zip(names, values, strict=True))
    if len(features) < sum(map(len, by_label.values())):
        raise InputError("two features have the same name")
    return features


def _write_moses(lists: Iterable[CandidateList]) -> Iterator[str]:
    """Write one line per candidate.

    Raises:
        InputError: an id, text or feature name would not be read back.
    """
    for name, one in named_lists(lists):
        if _BAR in name:
            raise InputError(f"list {name!r}: the id contains {_BAR}, which separates fields")
        for candidate in one.candidates:
            if _BAR in candidate.text:
                raise InputError(f"list {name!r}: a text contains {_BAR}, which separates fields")
            yield f"{name} ||| {collapse_spaces(candidate.text)} ||| {_scores(candidate.features)}\n"


def _scores(features: Mapping[str, float]) -> str:
    total = _TOTAL if _TOTAL in features and _SCORE in features else _SCORE
    labelled = " ".join(
        f"{label}= {' '.join(format_number(value) for value in values)}"
        for label, values in _labels({name: v for name, v in features.items() if name != total}).items()
    )
    return f"{labelled} ||| {format_number(features[total])}" if total in features else labelled


def _labels(features: Mapping[str, float]) -> dict[str, list[float]]:
    """Group values by label: `d_0`, `d_1`, … become `d`, as in Moses."""
    bases = {name.removesuffix("_0") for name in features if name.endswith("_0")} - features.keys() - {""}
    runs = {base: run for base in bases if len(run := _run(features, base)) > 1}
    covered = {f"{base}_{i}" for base, run in runs.items() for i in range(len(run))}
    labels: dict[str, list[float]] = {}
    for name, value in features.items():
        if (base := name.removesuffix("_0")) in runs:
            labels[base] = runs[base]
        elif name not in covered:
            labels[name] = [value]
    for label in labels:
        if has_whitespace(label) or _BAR in label or label == _WORD_SCORES:
            raise InputError(f"feature {shorten(label)!r} cannot be written in this format")
    return labels


def _run(features: Mapping[str, float], base: str) -> list[float]:
    names = (f"{base}_{i}" for i in itertools.count())
    return [features[name] for name in itertools.takewhile(features.__contains__, names)]


MOSES = Format(
    name="moses",
    read=lambda lines: group_candidates(parse_lines(lines, _moses_row), lines),
    write=_write_moses,
    numbered=True,
    media_types=("text/x-moses-nbest",),
)


def _fairseq_list(name: str, members: Sequence[tuple[int, Candidate]]) -> CandidateList | None:
    """Make a list of the detokenised hypotheses, or else of the model's own."""
    found = defaultdict[int, list[Candidate]](list)
    for kind, candidate in members:
        found[kind].append(candidate)
    if not (candidates := found[_DETOKENISED] or found[_HYPOTHESIS]):
        return None
    references = tuple(reference.text for reference in found[_TARGET][:1])
    return CandidateList(name, "", tuple(candidates), references)


def _fairseq_line(line: str) -> CandidateRow | None:
    """Parse a line's sentence, kind, text and score; None for kinds other than T, H and D."""
    match = _FAIRSEQ_LINE.fullmatch(line)
    if match is None:
        return None
    kind, sentence, text = match.groups()
    candidate = candidate_or_error(partial(_fairseq_text, kind, sentence, text))
    return sentence, _FAIRSEQ_KINDS.index(kind), candidate


def _fairseq_text(kind: str, sentence: str, text: str) -> Candidate:
    if kind == "T":
        return Candidate(text.strip(ASCII_WHITESPACE))
    score, tab, text = text.partition("\t")
    if not tab:
        raise InputError(f"{kind}-{sentence} has no tab between score and hypothesis")
    log_prob = math.log(2) * parse_number(score, f"the score of {kind}-{sentence}")
    return Candidate(text.strip(ASCII_WHITESPACE), {"score": log_prob})


def is_scored_line(line: str) -> bool:
    """True if a line begins with a score and bars, not with a sentence's index as in Moses."""
    first, bar, _ = line.partition(_BAR)
    score = first.strip(ASCII_WHITESPACE)
    return bool(bar) and is_decimal_number(score) and not score.isdigit()


def _scored_candidate(line: str) -> Candidate:
    score, *fields = (field.strip(ASCII_WHITESPACE) for field in line.split(_BAR))
    if not fields:
        raise InputError(f"no {_BAR} in the line; a line is 'score {_BAR} hypothesis'")
    return Candidate(fields[0], {"score": parse_number(score, "the score")})


def _sockeye_list(line: TextLine, problems: list[str]) -> CandidateList:
    value = parse_json_object(line.text)
    texts, costs = [value.get("translation")], [value.get("score")]
    if "translations" in value:
        texts = list_value(value["translations"], "translations")
        costs = list_value(value.get("scores"), "scores")
    if len(costs) != len(texts):
        raise InputError(f"scores has {len(costs)} members, but translations has {len(texts)}")
    numbered = iter(enumerate(costs))

    def parse(text: Any, field: str) -> Candidate:
        index, cost = next(numbered)
        place = f"scores[{index}]"
        text = stripped_value(text, field)
        first = list_value(cost, place)[0] if isinstance(cost, list) else cost  # of several factors
        return Candidate(text, {"score": 0.0 - number_value(first, place)})

    candidates = parse_candidates(texts, "translations", parse, problems)
    return CandidateList(id_value(value.get("sentence_id"), "sentence_id"), "", candidates)


FORMATS = (
    Format(
        name="fairseq",
        read=lambda lines: group_candidates(parse_lines(lines, _fairseq_line), lines, _fairseq_list),
        numbered=True,
        media_types=("text/x-fairseq-nbest",),
        example="D-0\t-0.5\tThe cat sat.\nD-0\t-0.75\tThe cat was sitting.\n",
    ),
    Format(name="ctranslate2", read=partial(read_beams, parse=_scored_candidate), needs_beam_size=True),
    Format(
        name="sockeye",
        read=partial(read_elements, parse=_sockeye_list),
        first_key=re.compile(r'"sentence_id"\s*:'),
        max_line_bytes=MAX_LIST_BYTES,
        media_types=("application/x-sockeye+json",),
        example='{"sentence_id": 1, "translations": ["The cat sat.", "A cat sat."], "scores": [[0.5], [0.75]]}\n',
    ),
)
