"""The formats by their names, and which of them a file or a media type is."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from models.errors import FormatError, InvalidInputError
from models.reranking.formats import hyporadise, jsonl, kaldi, mlm_scoring, moses, nemo, srilm
from models.reranking.formats.fields import ASCII_WHITESPACE, is_decimal_number, shorten
from models.reranking.formats.interface import Format

FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        one.name: one
        for one in (
            jsonl.FORMAT,
            moses.FORMAT,
            srilm.FORMAT,
            srilm.DECIPHER_1,
            srilm.DECIPHER_2,
            kaldi.FORMAT,
            mlm_scoring.FORMAT,
            hyporadise.FORMAT,
            nemo.FORMAT,
        )
    }
)
FORMAT_NAMES = tuple(FORMATS)

_FORMAT_HINT = f"name it with --format: {', '.join(FORMAT_NAMES)}"
_JSONL = re.compile(r'"candidates"\s*:\s*\[')
_MLM_SCORING = re.compile(r'"hyp_[0-9]+"\s*:\s*\{')
_KALDI = re.compile(r"\S+-[0-9]+(?:[ \t].*)?")


def format_by_name(name: str) -> Format:
    """The format of a name.

    Raises:
        InvalidInputError: there is none.
    """
    if name not in FORMATS:
        raise InvalidInputError(
            f"format is {shorten(name)!r}, it can be {', '.join(FORMAT_NAMES)}", parameter="format"
        )
    return FORMATS[name]


def format_name_of_media_type(content_type: str) -> str | None:
    """The name of the format that a Content-Type says; None if it says none of them."""
    media_type = content_type.partition(";")[0].strip().lower()
    return next((name for name, one in FORMATS.items() if media_type in one.media_types), None)


def detect_format(head: bytes, source: str) -> Format:
    """The format that a file's first bytes look like.

    Args:
        head: unpacked; a few lines are enough.
        source: the file's name, for the message.

    Raises:
        FormatError: they look like none.
    """
    text = head.decode("utf-8", errors="replace").removeprefix("\ufeff").strip(ASCII_WHITESPACE)
    first = text.partition("\n")[0].strip(ASCII_WHITESPACE)
    if not first:
        raise FormatError(source, "is empty, so its format cannot be told", hint=_FORMAT_HINT)
    name = _json_format(text) if first[0] in "[{" else _line_format(first)
    if name is None:
        raise FormatError(
            source, f"is in no format that is known: it begins {shorten(first)!r}", hint=_FORMAT_HINT
        )
    return FORMATS[name]


def _json_format(text: str) -> str | None:
    if text[0] == "[":
        return "hyporadise"
    found = {"jsonl": _JSONL.search(text), "mlm-scoring": _MLM_SCORING.search(text)}
    places = {name: match.start() for name, match in found.items() if match}
    return min(places, key=places.__getitem__, default=None)


def _line_format(first: str) -> str | None:
    if "|||" in first:
        return "moses"
    if srilm.is_srilm_line(first):
        return "srilm"
    _, tab, last = first.rpartition("\t")
    if tab and is_decimal_number(last):
        return "nemo"
    return "kaldi" if _KALDI.fullmatch(first) else None


def detect_folder_format(folder: Path) -> Format:
    """The format of which a folder's files are: Kaldi's archives, or else SRILM's lists."""
    kaldis = any((folder / name).is_file() for name in kaldi.WORD_FILES)
    return kaldi.FORMAT if kaldis else srilm.FORMAT
