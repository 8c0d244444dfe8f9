"""Whether output has the shape of what the README shows: names, kinds and counts; figures and texts may differ."""

import json
import re

COUNT_VARIES = {
    "issues",
    "suggestions",
    "text_offset",
    "token_ids",
    "token_logprobs",
    "tokens",
    "top_logprobs",
}
"""Lists that are longer or shorter with another model, but hold the same kind of thing."""

KEYS_ARE_TEXTS = {"top_logprobs"}
"""Names of objects whose keys are tokens."""

NUMBER = r"[-+]?[\d.,]*\d(?:e[-+]?\d+)?|-(?=\s|$)"


def differences(shown, given, place="reply"):
    """Where JSON differs in shape from what is shown, each in a line."""
    if kind(shown) != kind(given):
        yield f"{place} is {kind(given)}, shown as {kind(shown)}"
    elif isinstance(shown, dict):
        yield from differences_of_objects(shown, given, place)
    elif isinstance(shown, list):
        yield from differences_of_lists(shown, given, place)


def kind(value):
    """What JSON calls a value; whole and broken numbers are told apart."""
    return type(value).__name__


def differences_of_objects(shown, given, place):
    name = place.rpartition(".")[2].partition("[")[0]
    if name in KEYS_ARE_TEXTS:
        shown, given = ({str(i): v for i, v in enumerate(one.values())} for one in (shown, given))
    if list(shown) != list(given):
        yield f"{place} has {list(given)}, shown are {list(shown)}"
    for key in shown.keys() & given.keys():
        yield from differences(shown[key], given[key], f"{place}.{key}")


def differences_of_lists(shown, given, place):
    varies = place.rpartition(".")[2] in COUNT_VARIES
    if varies and bool(shown) != bool(given):
        yield f"{place} has {len(given)} items, shown are {len(shown)}"
    if not varies and len(shown) != len(given):
        yield f"{place} has {len(given)} items, shown are {len(shown)}"
    for number, (one, other) in enumerate(zip(shown, given, strict=False)):
        yield from differences(one, other, f"{place}[{number}]")


def first_unlike_line(shown, given):
    """The first line shown that the output lacks at its place, or None; a line of … stands for any others."""
    lines, may_skip = iter([line for line in given.splitlines() if line.strip()]), False
    for wanted in filter(str.strip, shown.splitlines()):
        if wanted.strip() == "…":
            may_skip = True
            continue
        found = next((line for line in lines if not may_skip or alike(wanted, line)), None)
        if found is None or not alike(wanted, found):
            return f"shown: {wanted}\ngiven: {found}"
        may_skip = False
    return None


def alike(shown, given):
    """Whether a line has the shape of one shown: JSON by its shape, all else but for numbers and spaces."""
    start = "data: " * shown.startswith("data: ")
    try:
        wanted = json.loads(shown.removeprefix(start))
    except ValueError:
        return bool(re.fullmatch(pattern(shown), given.strip()))
    return not list(differences(wanted, json.loads(given.removeprefix(start))))


def pattern(line):
    """A regular expression for a line of text, in which any number stands for another and … for any text."""
    pieces = re.split(rf"({NUMBER}|…|\s+)", line.strip())
    meant = {"…": ".*"}
    return "".join(
        f"(?:{NUMBER})"
        if re.fullmatch(NUMBER, piece)
        else r"\s+"
        if piece.isspace()
        else meant.get(piece, re.escape(piece))
        for piece in pieces
    )
