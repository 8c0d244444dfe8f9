r"""References from files of their own.

A file is in one of four layouts:

- `lines`: one on every line, in the order of the lists (a blank line is an empty reference);
- `tab`: an id, a tab, the reference;
- `utterance`: an id, a space, the reference, as in Kaldi's `text` and SRILM's `-refs`;
- `manifest`: NeMo's, a JSON object with the key `text` on every line, in the order of the lists.

Several files give each list several references.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from models.errors import FormatError, InvalidInputError
from models.reranking.formats.fields import SPACE, shortened, words_of
from models.reranking.formats.interface import BadLine, Item, ReferenceLayout
from models.reranking.formats.json_values import load_object, text_of
from models.reranking.formats.lines import read_blocks
from models.reranking.lists import CandidateList

_MOST_DIGITS = 18


class References:
    """The references of one file.

    Args:
        path: plain, .gz, .xz or .zst.
        layout: None: a manifest or tabs are seen, or else `usual` is believed.
        usual: how files beside the lists' format usually look.
        numbered: whether a list's name is the number of its line, from 0.

    Raises:
        FormatError: the file cannot be read, or has another layout.
    """

    def __init__(
        self, path: Path, *, layout: ReferenceLayout | None, usual: ReferenceLayout, numbered: bool
    ) -> None:
        self._path, self._numbered = path, numbered
        lines = _lines(path)
        self._layout = layout or _seen_layout(lines, usual)
        self._by_name: dict[str, str] = {}
        self._in_order: list[str] = []
        if self._layout == "manifest":
            self._in_order = [
                _manifest_text(path, i, line) for i, line in enumerate(lines, 1) if line.strip(SPACE)
            ]
        elif self._layout == "lines":
            self._in_order = [line.strip(SPACE) for line in lines]
        else:
            self._by_name = dict(
                _named(path, i, line, self._layout) for i, line in enumerate(lines, 1) if line.strip(SPACE)
            )
        self._used = 0

    def of(self, one: CandidateList, place: int) -> str | None:
        """The reference of a list, by its name or its place in the file; None if its name is not there.

        Raises:
            FormatError: there are fewer references than lists.
        """
        if self._by_name:
            reference = self._by_name.get(one.name or "")
            self._used += reference is not None
            return reference
        if self._numbered and one.name is not None and one.name.isascii() and one.name.isdigit():
            place = int(one.name[:_MOST_DIGITS])  # more would be no line's number, either
        if place >= len(self._in_order):
            raise FormatError(
                self._path,
                f"has {len(self._in_order)} references, so there is none for list {place + 1} "
                f"({shortened(one.name or 'without an id')})",
                hint="one line for each list, in the same order",
            )
        self._used += 1
        return self._in_order[place]

    def check_all_used(self, num_lists: int) -> None:
        """See whether the file belongs to the lists, once there are no more of them.

        Raises:
            FormatError: it has other ids, or more references than there are lists.
        """
        if self._by_name and num_lists and not self._used:
            some = shortened(next(iter(self._by_name)))
            raise FormatError(self._path, f"has the id of none of the lists; its first is {some!r}")
        if self._in_order and not self._numbered and len(self._in_order) != num_lists:
            raise FormatError(
                self._path,
                f"has {len(self._in_order)} references, but there are {num_lists} lists",
                hint="one line for each list, in the same order",
            )


def with_references(items: Iterable[Item], files: Sequence[References]) -> Iterator[Item]:
    """Lists with the references of all files, in place of their own where there are any.

    Raises:
        FormatError: a file has fewer or more references than there are lists, or none of their ids.
    """
    place = 0
    for item in items:
        if isinstance(item, BadLine):
            place += item.loses_list
            yield item
            continue
        found = tuple(text for file in files if (text := file.of(item, place)) is not None)
        yield replace(item, references=found) if found else item
        place += 1
    for file in files:
        file.check_all_used(place)


def _lines(path: Path) -> list[str]:
    data = b"".join(read_blocks(path, str(path)))
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise FormatError(path, f"line {number}: is not UTF-8", hint="convert it first, with iconv") from None
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _seen_layout(lines: Sequence[str], usual: ReferenceLayout) -> ReferenceLayout:
    if lines and lines[0].lstrip(SPACE).startswith("{"):
        return "manifest"
    if usual == "lines" and lines and all("\t" in line for line in lines):
        return "tab"
    return "lines" if usual == "manifest" else usual


def _manifest_text(path: Path, number: int, line: str) -> str:
    try:
        return text_of(load_object(line).get("text"), "text").strip(SPACE)
    except InvalidInputError as error:
        raise FormatError(
            path, f"line {number}: {error}", hint="a manifest has an object with a text on each line"
        ) from None


def _named(path: Path, number: int, line: str, layout: ReferenceLayout) -> tuple[str, str]:
    if layout == "tab":
        name, _, text = line.partition("\t")
    else:
        name, *words = words_of(line)
        text = " ".join(words)
    if not name.strip(SPACE):
        raise FormatError(path, f"line {number}: there is no id before the reference")
    return name.strip(SPACE), text.strip(SPACE)
