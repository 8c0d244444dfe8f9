"""Replies of speech recognisers in JSON: Vosk, Azure, Google Cloud and Amazon Transcribe.

A file has replies one after another, each on one line or several, or in an array. Every utterance or
segment with alternatives is a list, in the order of the reply; its id is its number in the file, from
0, and a segment that cannot be read has a number too. Interim results are skipped.

- `vosk`: `{"alternatives": [{"text": …, "confidence": …}, …]}`, the result after
  `SetMaxAlternatives`. Its confidence is a log-likelihood, graph and acoustic: the feature `score`.
- `azure`: `{"NBest": [{"Lexical": …, "Confidence": …}, …]}`, the detailed format, or
  `{"recognizedPhrases": [{"nBest": [{"lexical": …, "confidence": …}, …]}, …]}`, the file of a batch
  transcription. The text is the lexical form, without digits and punctuation. The logarithm of the
  confidence, from 0 to 1, is the feature `log_confidence`.
- `google`: `{"results": [{"alternatives": [{"transcript": …}, …]}, …]}`, also in the `response` of a
  long-running operation. Only the first alternative has a confidence, so it is dropped.
- `aws`: `{"results": {"segments": [{"alternatives": [{"transcript": …, "items": […]}, …]}, …]}}`, the
  file of a job with `ShowAlternatives`. Only words have confidences: `log_confidence` is the sum of
  their logarithms.

Confidences may be strings, as Amazon's are. Those below 0.0001, the last digit that Amazon writes,
count as 0.0001.

Sources: vosk-api src/recognizer.cc (`NbestResult`); Azure AI Speech, "Speech to text REST API for short
audio", "Get batch transcription results"; google.cloud.speech.v1 `RecognizeResponse`,
`StreamingRecognitionResult`; Amazon Transcribe, "Alternative transcriptions".
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from models.errors import InvalidInputError
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats.format import (
    MAX_DOCUMENT_LINE_BYTES,
    MAX_LIST_CANDIDATES,
    BadLine,
    Format,
    ListOrBadLine,
    SourceLines,
    parse_number,
)
from models.reranking.formats.json_stream import (
    JsonObject,
    list_value,
    number_value,
    object_value,
    parse_json_object,
    split_elements,
    stripped_value,
)

_SMALLEST_CONFIDENCE = 1e-4

_Features = Mapping[str, float]


def _no_features(_candidate: JsonObject, _field: str) -> _Features:
    return {}


def _vosk_score(candidate: JsonObject, field: str) -> _Features:
    return {"score": number_value(candidate.get("confidence"), f"{field}.confidence")}


def _confidence(candidate: JsonObject, field: str, key: str) -> _Features:
    return {"log_confidence": _log_confidence(candidate.get(key), f"{field}.{key}")}


def _word_confidences(candidate: JsonObject, field: str) -> _Features:
    """Sum the log-confidences of words; punctuation has none."""
    total = 0.0
    for index, item in enumerate(list_value(candidate.get("items"), f"{field}.items")):
        place = f"{field}.items[{index}]"
        if object_value(item, place).get("type") == "pronunciation":
            total += _log_confidence(item.get("confidence"), f"{place}.confidence")
    return {"log_confidence": total}


def _log_confidence(value: Any, field: str) -> float:
    number = parse_number(value, field) if isinstance(value, str) else number_value(value, field)
    if not 0 <= number <= 1:
        raise InvalidInputError(f"{field} is {number:g}, but must be from 0 to 1")
    return math.log(max(number, _SMALLEST_CONFIDENCE))


class _Layout(NamedTuple):
    """Place of lists in a reply.

    Attributes:
        path: keys of the array of segments; empty if the reply is one segment.
        candidates: key of a segment's candidates.
        text: key of a candidate's text.
        features: returns the features of a candidate; the string is its field, for messages.
        interim: key of a segment that is an interim result.
    """

    path: tuple[str, ...]
    candidates: str
    text: str
    features: Callable[[JsonObject, str], _Features]
    interim: str | None = None


def _read(lines: SourceLines, layouts: Sequence[_Layout]) -> Iterator[ListOrBadLine]:
    numbers = itertools.count()
    for element in split_elements(lines):
        if isinstance(element, BadLine):
            if element.loses_list:
                next(numbers)
            yield element
            continue
        for found in _segments(element.text, layouts):
            number = next(numbers)
            if isinstance(found, InvalidInputError):
                yield lines.bad(element.number, str(found), loses_list=True)
            else:
                yield CandidateList(str(number), "", found)


def _segments(reply: str, layouts: Sequence[_Layout]) -> Iterator[tuple[Candidate, ...] | InvalidInputError]:
    """Yield the candidates of each segment, or its error."""
    try:
        value = parse_json_object(reply)
        layout = next((one for one in layouts if (one.path or (one.candidates,))[0] in value), layouts[0])
        segments = list(_follow(value, layout.path))
    except InvalidInputError as error:
        yield error
        return
    for field, segment in segments:
        try:
            if layout.interim not in object_value(segment, field):
                yield _candidates(
                    segment, f"{field}.{layout.candidates}" if field else layout.candidates, layout
                )
        except InvalidInputError as error:
            yield error


def _follow(reply: JsonObject, path: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the segments of a reply, each with its field."""
    if not path:
        yield "", reply
        return
    value = reply
    for depth, key in enumerate(path[:-1], start=1):
        value = object_value(value.get(key), ".".join(path[:depth]))
    field = ".".join(path)
    for index, segment in enumerate(list_value(value.get(path[-1]), field)):
        yield f"{field}[{index}]", segment


def _candidates(segment: JsonObject, field: str, layout: _Layout) -> tuple[Candidate, ...]:
    given = list_value(segment.get(layout.candidates), field, max_members=MAX_LIST_CANDIDATES)
    candidates = []
    for index, value in enumerate(given):
        place = f"{field}[{index}]"
        candidate = object_value(value, place)
        text = stripped_value(candidate.get(layout.text), f"{place}.{layout.text}")
        candidates.append(Candidate(text, layout.features(candidate, place)))
    return tuple(candidates)


def _format(name: str, first_key: str, example: str, *layouts: _Layout) -> Format:
    """Create a format from its layouts; replies that fit none are read as the first."""
    return Format(
        name=name,
        read=partial(_read, layouts=layouts),
        first_key=re.compile(first_key),
        max_line_bytes=MAX_DOCUMENT_LINE_BYTES,
        yields_undecodable=True,
        numbered=True,
        media_types=(f"application/x-{name}+json",),
        example=example,
    )


_GOOGLE = _Layout(("results",), "alternatives", "transcript", _no_features, interim="stability")

FORMATS = (
    _format(
        "vosk",
        r'"(alternatives"\s*:\s*\[|partial"\s*:)',
        '{"alternatives": [{"text": "a new list", "confidence": 231}, {"text": "anew list", "confidence": 230}]}',
        _Layout((), "alternatives", "text", _vosk_score, interim="partial"),
    ),
    _format(
        "azure",
        r'"(RecognitionStatus|NBest|recognizedPhrases)"\s*:',
        '{"NBest": [{"Lexical": "a new list", "Confidence": 0.9}, {"Lexical": "anew list", "Confidence": 0.8}]}',
        _Layout((), "NBest", "Lexical", partial(_confidence, key="Confidence")),
        _Layout(("recognizedPhrases",), "nBest", "lexical", partial(_confidence, key="confidence")),
    ),
    _format(
        "google",
        r'"results"\s*:\s*\[',
        '{"results": [{"alternatives": [{"transcript": "a new list"}, {"transcript": "anew list"}]}]}',
        _GOOGLE,
        _GOOGLE._replace(path=("response", "results")),
    ),
    _format(
        "aws",
        r'"results"\s*:\s*\{',
        '{"results": {"segments": [{"alternatives": [{"transcript": "list", "items": ['
        '{"type": "pronunciation", "content": "list", "confidence": "0.9"}]}]}]}}',
        _Layout(("results", "segments"), "alternatives", "transcript", _word_confidences),
    ),
)
