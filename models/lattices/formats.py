r"""Formats of lattices: HTK's standard lattice format (SLF), and Kaldi's text.

SLF has one lattice per file. Words and acoustic scores are on links, or on a link's end node (start node,
if `dir=b`). Scores are logarithms to `base` (default e; 0: probabilities) and become natural ones;
`acscale`, `lmscale` and `wdpenalty` are stored with them. A pronunciation score `r=`, scaled by
`prscale`, is added to the acoustic score; an n-gram score `n=` is used if `l=` is missing. Other fields
are ignored. Sub-lattices are refused.

Values may be quoted, and a backslash escapes a character; an octal escape such as `\303\251` gives
bytes. Other programs write words unescaped, so an apostrophe opens a quotation only if another closes
it before white space.

Kaldi's text has `utterance`, then one arc or final state per line, then an empty line. Both
types are read. CompactLattice: `source target word graph,acoustic,ids`, final states `state
graph,acoustic,ids`. Lattice: `source target transition-id word graph,acoustic`, final states
`state graph,acoustic`. Omitted costs are 0. Costs are negative natural logarithms; acoustic
costs are unscaled. Graph costs become `old_lm`; besides the language model they include
transitions and pronunciations.

Sources: the HTK Book 3.4, section 4.6 (strings) and chapter 20 (lattices); SRILM's lattice-tool; Kaldi's
lat/kaldi-lattice.cc and "Lattices in Kaldi".
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from models.errors import InputError
from models.files import ASCII_WHITESPACE, count_words, split_words
from models.lattices.lattice import (
    NO_VARIANT,
    NO_WORD,
    NON_WORD_LABELS,
    Arc,
    Lattice,
    Scales,
    SymbolTable,
    build_lattice,
    check_size,
    decode_line,
    group_by_level,
    is_whole_number,
    node_depths,
    word_of_label,
)
from models.reranking.formats.format import BadLine

_FIELD = re.compile(
    r"""\s*([^\s=]+)=("(?:\\.|[^"\\])*"(?=\s|$)|'(?:\\.|[^'\\])*'(?=\s|$)|(?:\\.|[^\s\\])*\\?)(?=\s|$)""",
    re.ASCII,
)
_TO_ESCAPE = re.compile(r"[\\\s]", re.ASCII)
_ESCAPED = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)

_FIELD_ALIASES = {
    "UTTERANCE": "U", "NODES": "N", "LINKS": "L", "time": "t", "WORD": "W", "var": "v",
    "START": "S", "END": "E", "acoustic": "a", "ngram": "n", "language": "l",
}  # fmt: skip
_NULL = "!NULL"
_MAX_VARIANT = 1 << 31
"""Maximum pronunciation number; a word has few."""

SlfFields = Mapping[str, str]

_FRAME_S = 0.01
"""Default frame interval in Kaldi; each frame has a transition-id."""

_EPSILON = "<eps>"
_NEEDS_SYMBOLS = "the words are numbers; give Kaldi's words.txt"
_FINAL = -1
"""Target of final states."""


def parse_fields(line: str) -> dict[str, str]:
    """Parse the fields of a line, by name.

    Raises:
        InputError: a part of the line is not a field.
    """
    if "\\" in line or "='" in line or '="' in line:
        return _quoted_fields(line)
    fields: dict[str, str] = {}
    for field in split_words(line):
        name, equals, value = field.partition("=")
        if not equals or not name:
            raise _field_error(field)
        fields[name] = value
    return fields


def escape_value(word: str) -> str:
    """Escape a word as a value for `parse_fields`."""
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
        raise InputError(f"{value!r} is not UTF-8 after its escapes are decoded") from None


def _character(escape: bytes) -> bytes:
    code = int(escape, 8) if len(escape) == 3 else 256
    return bytes([code]) if code < 256 else escape


def _field_error(text: str) -> InputError:
    return InputError(f"{text[:40]!r} is not a field of the form name=value")


class _SlfFile:
    """Lines of a file by kind, with line numbers, and nodes by number.

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
    """Read a lattice, or return a `BadLine`, with line 1 for an error of the whole file.

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
        return _slf_lattice(file, no_words)
    except InputError as error:
        return BadLine(source, file.line, str(error), loses_list=True)


def format_slf(lattice: Lattice) -> str:
    """Return a lattice as text: words on links, natural logarithms, all digits."""
    scales, name = lattice.scales, lattice.name
    lines = ["VERSION=1.1", *([] if name is None else [f"UTTERANCE={escape_value(name)}"])]
    lines.append(f"acscale={scales.am!r} lmscale={scales.lm!r} wdpenalty={scales.words!r}")
    lines += [f"start=0 end={lattice.num_nodes - 1}", f"N={lattice.num_nodes} L={lattice.num_arcs}"]
    times = ("" if math.isnan(time_s) else f" t={time_s!r}" for time_s in lattice.times.tolist())
    lines += (f"I={node}{time}" for node, time in enumerate(times))
    words = [escape_value(word) or _NULL for word in lattice.words]
    columns = (lattice.sources, lattice.targets, lattice.labels, lattice.variants, lattice.am, lattice.old_lm)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for number, (begin, end, label, variant, am, old_lm) in enumerate(rows):
        which = "" if variant == NO_VARIANT else f" v={variant}"
        lines.append(f"J={number} S={begin} E={end} W={words[label]}{which} a={am!r} l={old_lm!r}")
    return "\n".join([*lines, ""])


def _add_line(file: _SlfFile, fields: SlfFields) -> None:
    """Store a line by its kind."""
    is_node, is_link = "I" in fields, "J" in fields
    is_header = not (is_node or is_link or file.links)
    if "SUBLAT" in fields or (is_node and "L" in fields) or (is_header and "S" in fields):
        raise InputError("sub-lattices are not supported; expand them first")
    if is_link:
        file.links.append((file.line, fields))
    elif is_node:
        node = _integer(fields, "I")
        if node in file.nodes:
            raise InputError(f"node {node} occurs twice")
        _number(fields, "t", 0.0)
        file.nodes[node] = file.line, fields
    elif file.links:
        raise InputError(f"{next(iter(fields))}= follows the links; a file holds one lattice")
    else:
        file.header.update(fields)


def _slf_lattice(file: _SlfFile, no_words: Collection[str]) -> Lattice:
    header = file.header
    count, links = _integer(header, "N"), _integer(header, "L")
    if links != len(file.links):
        raise InputError(f"L= is {links}, but the file has {len(file.links)} links")
    check_size(count, links)
    base, acoustic = _number(header, "base", math.e), _number(header, "acscale", 1.0)
    if base and base <= 1:
        raise InputError(f"base={base} must be 0 or greater than 1")
    log_base = math.log(base) if base else 0.0  # 0: scores are probabilities
    scale = _number(header, "prscale", 1.0) / acoustic if acoustic else 0.0
    arcs: list[Arc] = []
    for number, link in file.links:
        file.line = number
        arcs.append(_slf_arc(file, link, count, log_base, scale, no_words))
    times = np.full(count, math.nan)
    for node, (number, fields) in file.nodes.items():
        file.line = number
        if not 0 <= node < count:
            raise InputError(f"node {node} is out of range; N= allows 0 to {count - 1}")
        times[node] = _number(fields, "t", math.nan)
    file.line = 1
    start = _terminal(header, "start", {arc.target for arc in arcs}, count)
    end = _terminal(header, "end", {arc.source for arc in arcs}, count)
    _check_unused_word(file, start if _reads_forward(header) else end, no_words)
    penalty = _log_score(header, "wdpenalty", log_base)
    scales = Scales(acoustic, _number(header, "lmscale", 1.0), 0.0 if penalty is None else penalty)
    return build_lattice(arcs, name=header.get("U"), start=start, end=end, times=times, scales=scales)


def _slf_arc(
    file: _SlfFile,
    link: SlfFields,
    num_nodes: int,
    log_base: float,
    pronunciation: float,
    no_words: Collection[str],
) -> Arc:
    """Create a link's arc.

    `pronunciation` is the weight of its pronunciation score in the acoustic score.
    """
    ends = _node(link, "S", num_nodes), _node(link, "E", num_nodes)
    _, node = file.nodes.get(ends[_reads_forward(file.header)], (0, {}))
    label = link.get("W", _NULL)
    if label == _NULL:
        label = node.get("W", label)
    if "W" not in link and "W" not in node:
        raise InputError("no word: neither the link nor its node has W=")
    fields = {name: node[name] for name in ("a", "r", "v") if name in node} | {**link}
    scores = {name: _log_score(fields, name, log_base) for name in ("a", "r", "l", "n")}
    old_lm = scores["n"] if scores["l"] is None else scores["l"]
    variant = _number(fields, "v", NO_VARIANT)
    if abs(variant) > _MAX_VARIANT:
        raise InputError(f"v={variant:g} is not a pronunciation number; the maximum is {_MAX_VARIANT}")
    am = (scores["a"] or 0.0) + pronunciation * (scores["r"] or 0.0)
    return Arc(*ends, word_of_label(label, no_words), am, old_lm or 0.0, int(variant))


def _reads_forward(header: SlfFields) -> bool:
    """True if a node's word is that of incoming links, False if of outgoing ones."""
    return not header.get("dir", "f").startswith("b")


def _check_unused_word(file: _SlfFile, terminal: int, no_words: Collection[str]) -> None:
    """Refuse a word on the terminal node, which no link has."""
    line, node = file.nodes.get(terminal, (1, {}))
    label = node.get("W", _NULL)
    if label not in {_NULL, *no_words} and not any("W" in link for _, link in file.links):
        file.line = line
        raise InputError(f"the word {label!r} is on no path: no link uses it from node {terminal}")


def _terminal(header: SlfFields, name: str, touched: Collection[int], num_nodes: int) -> int:
    """Return the start or end node: the header's, else the only one without links in or out."""
    if name in header:
        return _node(header, name, num_nodes)
    free = [node for node in range(num_nodes) if node not in touched]
    if len(free) == 1:
        return free[0]
    examples = ", ".join(map(str, free[:3]))
    raise InputError(
        f"a lattice needs one {name} node, but {len(free)} nodes qualify ({examples}…); set {name}="
    )


def _log_score(fields: SlfFields, name: str, log_base: float) -> float | None:
    """Return a score as a natural logarithm, or None if missing."""
    if name not in fields:
        return None
    value = _number(fields, name, 0.0)
    if log_base:
        return value * log_base
    if value <= 0:
        raise InputError(f"{name}={fields[name]} must be positive; with base=0, scores are probabilities")
    return math.log(value)


def _integer(fields: SlfFields, name: str) -> int:
    try:
        return int(fields[name])
    except KeyError:
        raise InputError(f"{name}= is missing") from None
    except ValueError:
        raise InputError(f"{name}={fields[name][:40]} is not an integer") from None


def _node(fields: SlfFields, name: str, num_nodes: int) -> int:
    node = _integer(fields, name)
    if not 0 <= node < num_nodes:
        raise InputError(f"{name}={node} is out of range; N= allows 0 to {num_nodes - 1}")
    return node


def _number(fields: SlfFields, name: str, default: float) -> float:
    if name not in fields:
        return default
    try:
        value = float(fields[name])
    except ValueError:
        raise InputError(f"{name}={fields[name][:40]} is not a number") from None
    if not math.isfinite(value):
        raise InputError(f"{name}={value} is not finite")
    return value


def read_kaldi(
    lines: Iterable[bytes],
    source: str,
    *,
    symbols: SymbolTable | None = None,
    no_words: Collection[str] = NON_WORD_LABELS,
) -> Iterator[Lattice | BadLine]:
    """Yield a file's lattices; an invalid one becomes a `BadLine`, and reading goes on.

    Arguments are as in `read_slf`; without `symbols`, the words by number, the file has words.
    """
    for first, block in _blocks(lines):
        number = first
        try:
            name = _utterance(decode_line(block[0]))
            arcs: list[Arc] = []
            for number, line in enumerate(block[1:], start=first + 1):  # noqa: B007 - used in the BadLine
                arcs.append(_kaldi_arc(split_words(decode_line(line)), symbols, no_words))
            number = first
            lattice = _kaldi_lattice(name, arcs)
        except InputError as error:
            yield BadLine(source, number, str(error), loses_list=True)
        else:
            yield lattice


def format_kaldi(lattice: Lattice, symbols: SymbolTable | None = None) -> str:
    """Return a lattice as text, a CompactLattice, with all digits.

    Arcs without a word into the lattice's end become final states. Without symbols, words are
    unchanged.

    Raises:
        InputError: a word has no number, or the lattice's name has white space.
    """
    lines = [_utterance(lattice.name or "utterance")]
    labels = [word or _EPSILON for word in lattice.words]
    if symbols is not None:
        unknown = next((label for label in labels if label not in symbols.ids), None)
        if unknown is not None:
            raise InputError(f"words.txt has no {unknown!r}", param="words")
        labels = [str(symbols.ids[label]) for label in labels]
    end = lattice.num_nodes - 1
    final = (lattice.targets == end) & (lattice.labels == NO_WORD)
    one_each = len(np.unique(lattice.sources[final])) == np.count_nonzero(final)
    finals = bool(one_each and (final == (lattice.targets == end)).all())
    alignments = lattice.alignments or ("",) * lattice.num_arcs
    columns = (lattice.sources, lattice.targets, lattice.labels, 0.0 - lattice.old_lm, 0.0 - lattice.am)
    for begin, node, label, graph, acoustic, alignment in zip(
        *(column.tolist() for column in columns), alignments, strict=True
    ):
        arc = str(begin) if finals and node == end else f"{begin} {node} {labels[label]}"
        lines.append(f"{arc} {graph!r},{acoustic!r},{alignment}")
    return "\n".join([*lines, *([] if finals else [str(end)]), "", ""])


def _blocks(lines: Iterable[bytes]) -> Iterator[tuple[int, tuple[bytes, ...]]]:
    """Yield runs of non-blank lines, each with its first line number."""
    for is_blank, run in groupby(enumerate(lines, start=1), key=lambda line: not line[1].strip()):
        if not is_blank:
            numbers, block = zip(*run, strict=True)
            yield numbers[0], block


def _utterance(line: str) -> str:
    name = line.strip(ASCII_WHITESPACE)
    if count_words(name) > 1:
        raise InputError(f"the utterance id {name[:40]!r} contains white space")
    return name


def _kaldi_arc(fields: Sequence[str], symbols: SymbolTable | None, no_words: Collection[str]) -> Arc:
    """Parse an arc or final state; an input label besides the word marks a Lattice."""
    costs = fields[-1] if len(fields) in {2, 4, 5} and "," in fields[-1] else ""
    states = fields[: len(fields) - 1] if costs else fields
    if len(states) not in {1, 3, 4}:
        raise InputError(f"the line has {len(fields)} fields; it is not an arc or a final state")
    graph, acoustic, alignment = _costs(costs)
    source = _state(states[0])
    if len(states) == 1:
        return Arc(source, _FINAL, "", 0.0 - acoustic, 0.0 - graph, alignment=alignment)  # not −0
    if not (math.isfinite(graph) and math.isfinite(acoustic)):
        raise InputError(f"the cost of an arc is {costs[:40]}; it must be finite")
    if len(states) == 4:
        alignment = "" if states[2] == "0" else states[2]
    word = _word(states[-1], symbols, no_words)
    return Arc(source, _state(states[1]), word, 0.0 - acoustic, 0.0 - graph, alignment=alignment)


def _costs(text: str) -> tuple[float, float, str]:
    """Parse graph cost, acoustic cost and transition-ids."""
    if not text:
        return 0.0, 0.0, ""
    parts = text.split(",")
    try:
        graph, acoustic = (float(part or 0) for part in parts[:2])
    except ValueError:
        graph = acoustic = math.nan
    if len(parts) > 3 or math.isnan(graph + acoustic):
        raise InputError(f"the cost {text[:40]} is not of the form graph,acoustic,ids")
    return graph, acoustic, parts[2] if len(parts) == 3 else ""


def _state(text: str) -> int:
    if not is_whole_number(text):
        raise InputError(f"the state {text[:40]!r} is not a number")
    return int(text)


def _word(label: str, symbols: SymbolTable | None, no_words: Collection[str]) -> str:
    if symbols is None:
        if label.isdecimal() and label != "0":
            raise InputError(_NEEDS_SYMBOLS)
        return "" if label == "0" else word_of_label(label, no_words)
    if not is_whole_number(label) or int(label) not in symbols.words:
        raise InputError(f"the word {label[:40]!r} is not a number in words.txt")
    return word_of_label(symbols.words[int(label)], no_words)


def _kaldi_lattice(name: str, arcs: Sequence[Arc]) -> Lattice:
    """Build the lattice of an utterance; its final states lead to an added end node."""
    if not arcs:
        raise InputError("the lattice has no arcs")
    if all(arc.target != _FINAL for arc in arcs):
        raise InputError("no state is final")
    states = {node for arc in arcs for node in arc[:2]} - {_FINAL}
    number_of = {state: number for number, state in enumerate(sorted(states))}
    start = number_of[arcs[0].source]
    end = number_of[_FINAL] = len(states)
    # a state with an infinite cost is not final
    arcs = [
        arc._replace(source=number_of[arc.source], target=number_of[arc.target])
        for arc in arcs
        if math.isfinite(arc.am) and math.isfinite(arc.old_lm)
    ]
    lattice = build_lattice(arcs, name=name, start=start, end=end, times=np.full(end + 1, math.nan))
    if not lattice.alignments:
        return lattice
    # all paths to a node have equally many transitions, one per frame
    counts = np.array([text.count("_") + 1 if text else 0 for text in lattice.alignments])
    depth = node_depths(lattice.sources, lattice.targets, lattice.num_nodes)
    frames = np.zeros(lattice.num_nodes, np.int64)
    for level in group_by_level(depth[lattice.sources], int(depth.max())):
        np.maximum.at(frames, lattice.targets[level], frames[lattice.sources[level]] + counts[level])
    return replace(lattice, times=frames.astype(np.float64) * _FRAME_S)
