r"""HTK's standard lattice format (SLF): one lattice per file.

Words and acoustic scores are on links, or on a link's end node (start node, if `dir=b`). Scores are
logarithms to `base` (default e; 0: probabilities) and become natural ones; `acscale`, `lmscale` and
`wdpenalty` are stored with them. A pronunciation score `r=`, scaled by `prscale`, is added to the
acoustic score; an n-gram score `n=` is used if `l=` is missing. Other fields are ignored.
Sub-lattices are refused.

Values may be quoted, and a backslash escapes a character; an octal escape such as `\303\251` gives
bytes. Because other programs write words unescaped, an apostrophe opens a quotation only if another
apostrophe closes it before white space.

Sources: the HTK Book 3.4, section 4.6 (strings) and chapter 20 (lattices); SRILM's lattice-tool.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import TextIO

import numpy as np

from models.errors import InvalidInputError
from models.lattices.lattice import (
    NO_VARIANT,
    NON_WORD_LABELS,
    Arc,
    Lattice,
    Scales,
    build_lattice,
    check_size,
    decode_line,
    word_of_label,
)
from models.reranking.formats.format import BadLine

_FIELD = re.compile(
    r"""\s*([^\s=]+)=("(?:\\.|[^"\\])*"(?=\s|$)|'(?:\\.|[^'\\])*'(?=\s|$)|(?:\\.|[^\s\\])*\\?)(?=\s|$)"""
)
_TO_ESCAPE = re.compile(r"[\\\s]")
_ESCAPED = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)


def parse_fields(line: str) -> dict[str, str]:
    """Parse the fields of a line, by name.

    Raises:
        InvalidInputError: a part of the line is not a field.
    """
    if "\\" in line or "='" in line or '="' in line:
        return _quoted_fields(line)
    fields: dict[str, str] = {}
    for field in line.split():
        name, equals, value = field.partition("=")
        if not equals or not name:
            raise _field_error(field)
        fields[name] = value
    return fields


def escape_value(word: str) -> str:
    """Escape a word as a value that `parse_fields` reads back."""
    # line breaks are octal because they would end the line
    word = _TO_ESCAPE.sub(r"\\\g<0>", word).replace("\n", "012")
    return "\\" + word if word[:1] in {"'", '"'} else word


def _quoted_fields(line: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    offset, end = 0, len(line.rstrip())
    while offset < end:
        match = _FIELD.match(line, offset)
        if match is None:
            raise _field_error(line[offset:].split(maxsplit=1)[0])
        fields[match[1]] = _unescape(match[2])
        offset = match.end()
    return fields


def _unescape(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in {"'", '"'}:
        value = value[1:-1]
    if "\\" not in value:
        return value
    raw = _ESCAPED.sub(lambda match: _character(match[1]), value.encode())
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidInputError(f"{value!r} is not UTF-8 after its escapes are decoded") from None


def _character(escape: bytes) -> bytes:
    code = int(escape, 8) if len(escape) == 3 else 256
    return bytes([code]) if code < 256 else escape


def _field_error(text: str) -> InvalidInputError:
    return InvalidInputError(f"{text[:40]!r} is not a field of the form name=value")


_FIELD_ALIASES = {
    "UTTERANCE": "U", "NODES": "N", "LINKS": "L", "time": "t", "WORD": "W", "var": "v",
    "START": "S", "END": "E", "acoustic": "a", "ngram": "n", "language": "l",
}  # fmt: skip
_NULL = "!NULL"
_MAX_VARIANT = 1 << 31
"""Maximum pronunciation number; a word has only a few pronunciations."""

SlfFields = Mapping[str, str]


class _SlfFile:
    """Lines of a file by kind, with line numbers, and nodes by their number.

    Attributes:
        line: current line number, for error messages.
    """

    def __init__(self) -> None:
        self.line = 0
        self.header: dict[str, str] = {}
        self.nodes: dict[int, tuple[int, SlfFields]] = {}
        self.links: list[tuple[int, SlfFields]] = []


def read_slf(
    lines: Iterable[bytes], source: str, *, no_words: Collection[str] = NON_WORD_LABELS
) -> Lattice | BadLine:
    """Read a lattice, or return a `BadLine`, with line 1 if the error concerns the entire file.

    Args:
        lines: lines of the file.
        source: file name, for messages.
        no_words: labels that are not words.
    """
    file = _SlfFile()
    try:
        for number, line in enumerate(lines, start=1):
            file.line = number
            if line.strip() and not line.startswith(b"#"):
                fields = parse_fields(decode_line(line))
                _add_line(file, {_FIELD_ALIASES.get(name, name): value for name, value in fields.items()})
        file.line = 1
        return _lattice(file, no_words)
    except InvalidInputError as error:
        return BadLine(source, file.line, str(error), loses_list=True)


def write_slf(lattice: Lattice, target: TextIO) -> None:
    """Write a lattice: words on links, natural logarithms, enough digits to read the same numbers back."""
    scales = lattice.scales
    target.write("VERSION=1.1\n")
    if lattice.name is not None:
        target.write(f"UTTERANCE={escape_value(lattice.name)}\n")
    target.write(f"acscale={scales.am!r} lmscale={scales.lm!r} wdpenalty={scales.words!r}\n")
    target.write(f"start=0 end={lattice.num_nodes - 1}\nN={lattice.num_nodes} L={lattice.num_arcs}\n")
    times = ("" if math.isnan(time_s) else f" t={time_s!r}" for time_s in lattice.times.tolist())
    target.writelines(f"I={node}{time}\n" for node, time in enumerate(times))
    words = [escape_value(word) or _NULL for word in lattice.words]
    variants = np.full(lattice.num_arcs, NO_VARIANT) if lattice.variants is None else lattice.variants
    columns = (lattice.sources, lattice.targets, lattice.labels, variants, lattice.am, lattice.old_lm)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for number, (begin, end, label, variant, am, old_lm) in enumerate(rows):
        which = "" if variant == NO_VARIANT else f" v={variant}"
        target.write(f"J={number} S={begin} E={end} W={words[label]}{which} a={am!r} l={old_lm!r}\n")


def _add_line(file: _SlfFile, fields: SlfFields) -> None:
    """Store a line by its kind."""
    if "SUBLAT" in fields or ("I" in fields and "L" in fields):
        raise _sub_lattice()
    if "J" in fields:
        file.links.append((file.line, fields))
    elif "I" in fields:
        node = _integer(fields, "I")
        if node in file.nodes:
            raise InvalidInputError(f"node {node} occurs twice")
        _number(fields, "t", 0.0)
        file.nodes[node] = file.line, fields
    elif file.links:
        raise InvalidInputError(f"{next(iter(fields))}= follows the links; a file holds one lattice")
    else:
        if "S" in fields:
            raise _sub_lattice()
        file.header.update(fields)


def _sub_lattice() -> InvalidInputError:
    return InvalidInputError("sub-lattices are not supported; expand them first")


def _lattice(file: _SlfFile, no_words: Collection[str]) -> Lattice:
    header = file.header
    num_nodes, num_links = _integer(header, "N"), _integer(header, "L")
    if num_links != len(file.links):
        raise InvalidInputError(f"L= is {num_links}, but the file has {len(file.links)} links")
    check_size(num_nodes, num_links)
    log_base, acoustic = _log_base(header), _number(header, "acscale", 1.0)
    pronunciation = _number(header, "prscale", 1.0) / acoustic if acoustic else 0.0
    arcs: list[Arc] = []
    for number, link in file.links:
        file.line = number
        arcs.append(_arc(file, link, num_nodes, log_base, pronunciation, no_words))
    times = np.full(num_nodes, math.nan)
    for node, (number, fields) in file.nodes.items():
        file.line = number
        if not 0 <= node < num_nodes:
            raise InvalidInputError(f"node {node} is out of range; N= allows 0 to {num_nodes - 1}")
        times[node] = _number(fields, "t", math.nan)
    file.line = 1
    start = _terminal(header, "start", {arc.target for arc in arcs}, num_nodes)
    end = _terminal(header, "end", {arc.source for arc in arcs}, num_nodes)
    _check_unused_word(file, start if _reads_forward(header) else end, no_words)
    penalty = _log_score(header, "wdpenalty", log_base)
    scales = Scales(acoustic, _number(header, "lmscale", 1.0), 0.0 if penalty is None else penalty)
    return build_lattice(arcs, name=header.get("U"), start=start, end=end, times=times, scales=scales)


def _arc(
    file: _SlfFile,
    link: SlfFields,
    num_nodes: int,
    log_base: float,
    pronunciation: float,
    no_words: Collection[str],
) -> Arc:
    """Create the arc of a link; `pronunciation` is the weight of its pronunciation score in the acoustic score."""
    ends = _node(link, "S", num_nodes), _node(link, "E", num_nodes)
    _, node = file.nodes.get(ends[_reads_forward(file.header)], (0, {}))
    label = link.get("W", _NULL)
    if label == _NULL:
        label = node.get("W", label)
    if "W" not in link and "W" not in node:
        raise InvalidInputError("no word: neither the link nor its node has W=")
    scores = {name: _log_score(link, name, log_base) for name in ("a", "r", "l", "n")}
    for name in ("a", "r"):
        if scores[name] is None:
            scores[name] = _log_score(node, name, log_base)
    old_lm = scores["n"] if scores["l"] is None else scores["l"]
    variant = _number(link, "v", _number(node, "v", NO_VARIANT))
    if abs(variant) > _MAX_VARIANT:
        raise InvalidInputError(f"v={variant:g} is not a pronunciation number; the maximum is {_MAX_VARIANT}")
    am = (scores["a"] or 0.0) + pronunciation * (scores["r"] or 0.0)
    return Arc(*ends, word_of_label(label, no_words), am, old_lm or 0.0, int(variant))


def _reads_forward(header: SlfFields) -> bool:
    """True if a node's word belongs to its incoming links, False if to its outgoing links."""
    return not header.get("dir", "f").startswith("b")


def _check_unused_word(file: _SlfFile, terminal: int, no_words: Collection[str]) -> None:
    """Refuse a word on the terminal node, which belongs to no link and would be lost."""
    line, node = file.nodes.get(terminal, (1, {}))
    label = node.get("W", _NULL)
    if label not in {_NULL, *no_words} and not any("W" in link for _, link in file.links):
        file.line = line
        raise InvalidInputError(f"the word {label!r} is on no path: no link uses it from node {terminal}")


def _terminal(header: SlfFields, name: str, touched: Collection[int], num_nodes: int) -> int:
    """Return the start or end node: from the header, else the only node that no link ends or starts in."""
    if name in header:
        return _node(header, name, num_nodes)
    free = [node for node in range(num_nodes) if node not in touched]
    if len(free) == 1:
        return free[0]
    examples = ", ".join(map(str, free[:3]))
    raise InvalidInputError(
        f"a lattice needs one {name} node, but {len(free)} nodes qualify ({examples}…); set {name}="
    )


def _log_base(header: SlfFields) -> float:
    """Return the natural logarithm of the base of scores, or 0 if scores are probabilities."""
    base = _number(header, "base", math.e)
    if base and base <= 1:
        raise InvalidInputError(f"base={base} must be 0 or greater than 1")
    return math.log(base) if base else 0.0


def _log_score(fields: SlfFields, name: str, log_base: float) -> float | None:
    """Return a score as a natural logarithm; None if it is missing."""
    if name not in fields:
        return None
    value = _number(fields, name, 0.0)
    if log_base:
        return value * log_base
    if value <= 0:
        raise InvalidInputError(
            f"{name}={fields[name]} must be positive; with base=0, scores are probabilities"
        )
    return math.log(value)


def _integer(fields: SlfFields, name: str) -> int:
    try:
        return int(fields[name])
    except KeyError:
        raise InvalidInputError(f"{name}= is missing") from None
    except ValueError:
        raise InvalidInputError(f"{name}={fields[name][:40]} is not an integer") from None


def _node(fields: SlfFields, name: str, num_nodes: int) -> int:
    node = _integer(fields, name)
    if not 0 <= node < num_nodes:
        raise InvalidInputError(f"{name}={node} is out of range; N= allows 0 to {num_nodes - 1}")
    return node


def _number(fields: SlfFields, name: str, default: float) -> float:
    if name not in fields:
        return default
    try:
        value = float(fields[name])
    except ValueError:
        raise InvalidInputError(f"{name}={fields[name][:40]} is not a number") from None
    if not math.isfinite(value):
        raise InvalidInputError(f"{name}={value} is not finite")
    return value
