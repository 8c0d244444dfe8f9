"""Output of speech recognisers: NeMo, Vosk, Whisper, Azure, Google Cloud and Amazon Transcribe.

NeMo's beams are `text <tab> score`, a fixed number of lines per input (the beam size); no ids. The
score is the recogniser's log-probability (natural logarithm): the feature `score`. References are in a
manifest, a JSON object with the key `text` per input, in the same order.

`transcribe_speech.py` with `return_best_hypothesis=false` writes the beams into the manifest
itself:

    {"audio_filepath": "a/utt-1.wav", "text": "reference", "beams": [["best hypothesis", -7.2], …], …}

The id of a list is `id`, or else the name of the audio file without folder and suffix.

The others are replies in JSON, one after another, on one or several lines each, or in an array. Every
utterance or segment with alternatives is a list, in reply order; its id is its number in the
file, from 0; an unreadable segment has a number too. Interim results are skipped.

- `vosk`: `{"alternatives": [{"text": …, "confidence": …}, …]}`, the result after
  `SetMaxAlternatives`. Its confidence is a log-likelihood, graph and acoustic: the feature `score`. Or
  `{"result": [{"word": …, "conf": …}, …], "text": …}`, the single text without them.
- `whisper`: `{"segments": [{"text": …, "words": [{"word": …, "probability": …}, …]}, …]}`, one text per segment. A
  `word` without a space before it continues the one before; their probabilities are multiplied.
- `azure`: `{"NBest": [{"Lexical": …, "Confidence": …}, …]}`, the detailed format, or
  `{"recognizedPhrases": [{"nBest": [{"lexical": …, "confidence": …}, …]}, …]}`, the file of a batch
  transcription. The text is the lexical form, without digits and punctuation. The logarithm of the
  confidence, from 0 to 1, is the feature `log_confidence`.
- `google`: `{"results": [{"alternatives": [{"transcript": …}, …]}, …]}`, also in the `response` of a
  long-running operation. Only the first alternative has a confidence, so it is dropped. Google
  omits an empty `transcript`.
- `aws`: `{"results": {"segments": [{"alternatives": [{"transcript": …, "items": […]}, …]}, …]}}`, the
  file of a job with `ShowAlternatives`. Only words have confidences: `log_confidence` is the sum of
  their logarithms.

Confidences of words, where the recogniser was asked for them, are kept if there is one for each word between white
space. Confidences may be strings, as Amazon's are. Those below 0.0001, Amazon's last digit, count as 0.0001 in
logarithms.

Sources: NeMo scripts/asr_language_modeling/neural_rescorer/eval_neural_rescorer.py
(`BeamScoresDataset`), ngram_lm/eval_beamsearch_ngram_ctc.py, which writes the file;
nemo/collections/asr/parts/utils/transcribe_utils.py (`write_transcription`, NeMo 3.0); vosk-api
src/recognizer.cc (`NbestResult`, `MbrResult`); openai-whisper whisper/timing.py
(`add_word_timestamps`); Azure AI Speech, "Speech to text REST API for short audio", "Get batch
transcription results"; google.cloud.speech.v1 `RecognizeResponse`, `StreamingRecognitionResult`;
Amazon Transcribe, "Alternative transcriptions".
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import Any, NamedTuple

from models.errors import InputError
from models.files import ASCII_WHITESPACE, collapse_spaces, count_words
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats.format import (
    MAX_DOC_LINE_BYTES,
    MAX_LIST_BYTES,
    BadLine,
    Format,
    ListOrBadLine,
    SourceLines,
    TextLine,
    format_number,
    parse_number,
    read_beams,
)
from models.reranking.formats.json_stream import (
    JsonObject,
    id_value,
    list_value,
    number_value,
    object_value,
    parse_candidates,
    parse_json_object,
    parse_list,
    read_elements,
    split_elements,
    string_value,
    stripped_value,
)

_SMALLEST_CONFIDENCE = 1e-4

_Features = Mapping[str, float]


def _scored_line(line: str) -> Candidate:
    text, tab, score = line.rpartition("\t")
    if not tab:
        raise InputError("no tab in the line; a line is a text, a tab and a score")
    return Candidate(
        text.strip(ASCII_WHITESPACE), {"score": parse_number(score.strip(ASCII_WHITESPACE), "the score")}
    )


def _write_nemo(lists: Iterable[CandidateList]) -> Iterator[str]:
    """Write one line per candidate; a missing score is written as 0.

    Raises:
        InputError: lists differ in their numbers of candidates, so a reader could not separate them.
    """
    size = None
    for index, one in enumerate(lists):
        size = size or len(one.candidates)
        if len(one.candidates) != size:
            raise InputError(
                f"lists[{index}] has {len(one.candidates)} candidates, the lists before it have {size}; "
                "in format nemo all lists have the same number"
            )
        for candidate in one.candidates:
            yield f"{collapse_spaces(candidate.text)}\t{format_number(candidate.features.get('score', 0.0))}\n"


NEMO = Format(
    name="nemo",
    read=partial(read_beams, parse=_scored_line),
    write=_write_nemo,
    features=frozenset({"score"}),
    carried_fields=frozenset(),
    needs_beam_size=True,
    reference_layout="manifest",
)


def manifest_id(entry: JsonObject) -> tuple[str | None, bool]:
    """Return a manifest entry's id, and True if it is its `id`, not its file name.

    Raises:
        InputError: `id` or `audio_filepath` has another type.
    """
    name = id_value(entry.get("id"), "id")
    if name is not None or "audio_filepath" not in entry:
        return name, name is not None
    return PurePath(string_value(entry["audio_filepath"], "audio_filepath")).stem, False


def _manifest_list(line: TextLine, problems: list[str]) -> CandidateList:
    value = parse_json_object(line.text)
    reference = value.get("text")
    return CandidateList(
        manifest_id(value)[0],
        "",
        parse_candidates(value.get("beams"), "beams", _beam, problems),
        () if reference is None else (stripped_value(reference, "text"),),
    )


def _beam(value: Any, field: str) -> Candidate:
    if len(pair := list_value(value, field)) != 2:
        raise InputError(f"{field} has {len(pair)} members, but must have a text and a score")
    return Candidate(stripped_value(pair[0], f"{field}[0]"), {"score": number_value(pair[1], f"{field}[1]")})


NEMO_MANIFEST = Format(
    name="nemo-manifest",
    read=partial(read_elements, parse=_manifest_list),
    first_key=re.compile(r'"beams"\s*:\s*\['),
    max_line_bytes=MAX_LIST_BYTES,
    reference_layout="manifest",
    media_types=("application/x-nemo-manifest+json",),
    example='{"audio_filepath": "utt-1.wav", "beams": [["the cat sat", -4.5], ["the cat sad", -5.25]]}\n',
)


def _vosk_score(candidate: JsonObject, field: str) -> _Features:
    return {"score": number_value(candidate.get("confidence"), f"{field}.confidence")}


def _confidence(candidate: JsonObject, field: str, key: str) -> _Features:
    return {"log_confidence": _log_confidence(candidate.get(key), f"{field}.{key}")}


def _sum_of_words(candidate: JsonObject, field: str) -> _Features:
    """Sum the log-confidences of words."""
    return {"log_confidence": sum(map(_log, _AWS_WORDS.confidences(candidate, field)), 0.0)}


class _Words(NamedTuple):
    """Place of the confidences of a candidate's words.

    Attributes:
        key: key of the array of words.
        confidence: key of a word's confidence.
        are_needed: whether each word must have one, not only may.
        are_split: whether a word without a space before it continues the one before.
    """

    key: str
    confidence: str
    are_needed: bool = False
    are_split: bool = False

    def confidences(self, candidate: JsonObject, field: str) -> tuple[float, ...]:
        """Return the confidences of words, without those of punctuation."""
        found = list[float]()
        given, field = candidate.get(self.key), _join(field, self.key)
        for index, item in enumerate(list_value(given, field) if given or self.are_needed else ()):
            place = f"{field}[{index}]"
            if object_value(item, place).get("type", "pronunciation") != "pronunciation":
                continue
            if self.are_needed or item.get(self.confidence) is not None:
                value = _probability(item.get(self.confidence), f"{place}.{self.confidence}")
                if self.are_split and found and not str(item.get("word", " ")).startswith(" "):
                    value *= found.pop()
                found.append(value)
        return tuple(found)


_AWS_WORDS = _Words("items", "confidence", are_needed=True)


def _join(field: str, key: str) -> str:
    return f"{field}.{key}" if field else key


def _log_confidence(value: Any, field: str) -> float:
    return _log(_probability(value, field))


def _log(probability: float) -> float:
    return math.log(max(probability, _SMALLEST_CONFIDENCE))


def _probability(value: Any, field: str) -> float:
    number = parse_number(value, field) if isinstance(value, str) else number_value(value, field)
    if not 0 <= number <= 1:
        raise InputError(f"{field} is {number:g}, but must be from 0 to 1")
    return number


class _Layout(NamedTuple):
    """Place of lists in a reply.

    Attributes:
        path: keys of the array of segments; empty if the reply is one segment.
        candidates: key of a segment's candidates; None if the segment is the only one.
        text: key of a candidate's text.
        words: place of the confidences of a candidate's words.
        features: returns a candidate's features; the string is its field, for messages.
        interim: key of a segment that is an interim result.
        omits_empty: True if a missing text is an empty one, as in the JSON of protocol buffers.
    """

    path: tuple[str, ...]
    candidates: str | None
    text: str
    words: _Words
    features: Callable[[JsonObject, str], _Features] = lambda *_: {}
    interim: str | None = None
    omits_empty: bool = False


def _read(lines: SourceLines, layouts: Sequence[_Layout]) -> Iterator[ListOrBadLine]:
    numbers = itertools.count()
    for element in split_elements(lines):
        if isinstance(element, BadLine):
            if element.loses_list:
                next(numbers)
            yield element
            continue
        try:
            value = parse_json_object(element.text)
            layout = next(
                (one for one in layouts if (*one.path, one.candidates or one.text)[0] in value),
                layouts[0],
            )
            segments = list(_follow(value, layout.path))
        except InputError as error:
            next(numbers)
            yield lines.bad(element.number, str(error), loses_list=True)
            continue
        for field, segment in segments:
            if not isinstance(segment, dict) or layout.interim not in segment:
                parse = partial(_segment_list, str(next(numbers)), segment, field, layout)
                yield from parse_list(lines, element.number, parse)


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


def _segment_list(name: str, segment: Any, field: str, layout: _Layout, problems: list[str]) -> CandidateList:
    def parse(value: Any, place: str) -> Candidate:
        candidate = object_value(value, place)
        given = candidate.get(layout.text, "" if layout.omits_empty else None)
        text = stripped_value(given, _join(place, layout.text))
        confidences = layout.words.confidences(candidate, place)
        is_complete = len(confidences) == count_words(text)
        return Candidate(text, layout.features(candidate, place), confidences if is_complete else ())

    if layout.candidates is None:
        return CandidateList(name, "", (parse(segment, field),))
    given = object_value(segment, field).get(layout.candidates)
    return CandidateList(name, "", parse_candidates(given, _join(field, layout.candidates), parse, problems))


def _format(name: str, first_key: str, example: str, *layouts: _Layout) -> Format:
    """Create a format from its layouts; replies that fit none are read as the first."""
    return Format(
        name=name,
        read=partial(_read, layouts=layouts),
        first_key=re.compile(first_key),
        max_line_bytes=MAX_DOC_LINE_BYTES,
        numbered=True,
        media_types=(f"application/x-{name}+json",),
        example=example,
    )


_GOOGLE = _Layout(
    ("results",),
    "alternatives",
    "transcript",
    _Words("words", "confidence"),
    interim="stability",
    omits_empty=True,
)

FORMATS = (
    NEMO,
    NEMO_MANIFEST,
    _format(
        "vosk",
        r'"((alternatives|result)"\s*:\s*\[|partial"\s*:)',
        '{"alternatives": [{"text": "a new list", "confidence": 231}, {"text": "anew list", "confidence": 230}]}',
        _Layout((), "alternatives", "text", _Words("result", "conf"), _vosk_score, interim="partial"),
        _Layout((), None, "text", _Words("result", "conf"), interim="partial"),
    ),
    _format(
        "whisper",
        r'"segments"\s*:\s*\[|^\s*\{\s*"text"\s*:\s*" ',  # a long text may come first, with a space before it
        '{"segments": [{"text": " a knew list", "words": [{"word": " a", "probability": 0.9}, '
        '{"word": " knew", "probability": 0.3}, {"word": " list", "probability": 0.8}]}]}',
        _Layout(("segments",), None, "text", _Words("words", "probability", are_split=True)),
    ),
    _format(
        "azure",
        r'"(RecognitionStatus|NBest|recognizedPhrases)"\s*:',
        '{"NBest": [{"Lexical": "a new list", "Confidence": 0.9}, {"Lexical": "anew list", "Confidence": 0.8}]}',
        _Layout(
            (), "NBest", "Lexical", _Words("Words", "Confidence"), partial(_confidence, key="Confidence")
        ),
        _Layout(
            ("recognizedPhrases",),
            "nBest",
            "lexical",
            _Words("words", "confidence"),
            partial(_confidence, key="confidence"),
        ),
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
        _Layout(("results", "segments"), "alternatives", "transcript", _AWS_WORDS, _sum_of_words),
    ),
)
