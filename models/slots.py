"""Slots: classes in a text, such as `$city`, and their members.

A model is trained on text in which a class's mark stands for each member. Members come from a list
in training or from a request.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import numpy as np

from models.arrays import Int64s
from models.errors import InputError
from models.words import continues_word

Slots: TypeAlias = Mapping[str, Mapping[str, float]]
"""Weights of the members of each class, by the class's name and the member's text."""

CLASS_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
MARK = re.compile(rf"\${CLASS_NAME.pattern}")
MAX_MEMBERS = 10_000
"""Maximum members of all classes together."""

MAX_MEMBER_WORDS = 16
MAX_MEMBER_CHARS = 200
_MIN_WEIGHT, _MAX_WEIGHT = 1e-100, 1e100  # the logarithm of each share is finite

_BETWEEN = "\0"
"""Separator of the words of a member, for tokenizers of words."""

_WORD_OR_SIGN = re.compile(r"\w+|[^\w\s\u2581]")  # U+2581: SentencePiece's space mark


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the start and end of each word and other character, without white space."""
    return [match.span() for match in _WORD_OR_SIGN.finditer(text)]


def class_mark(name: str) -> str:
    """Return the token of a class."""
    return f"${name}"


def check_slots(
    slots: Mapping[str, Sequence[str] | Mapping[str, float]], *, known: Collection[str], param: str
) -> dict[str, dict[str, float]]:
    """Check and return the members of each class and their weights, 1 for members of a list.

    Args:
        slots: members of each class; one listed twice has twice the weight.
        known: names of the model's classes.
        param: name of the argument, for messages.

    Raises:
        InputError: a class is unknown or empty, there are too many members, a member is blank, too long or
            has a class's mark, or a weight is not positive.
    """
    checked: dict[str, dict[str, float]] = {}
    total = sum(map(len, slots.values()))
    if total > MAX_MEMBERS:
        raise InputError.of(param, f"has {total} members; at most {MAX_MEMBERS} are accepted")
    for name, members in slots.items():
        path = f"{param}.{name:.40}"
        if name not in known:
            classes = ", ".join(map(class_mark, sorted(known))) or "none"
            raise InputError(
                f"{path}: the model has no class {class_mark(name)!r:.40}; its classes: {classes:.200}",
                param=path,
            )
        if not members:
            raise InputError.of(path, "is empty; give at least one member")
        weights = members.items() if isinstance(members, Mapping) else Counter(members).items()
        for text, weight in weights:
            problem = _member_problem(text, weight)
            if problem is not None:
                raise InputError(f"{path}: the member {text!r:.80} {problem}", param=path)
        checked[name] = {text: float(weight) for text, weight in weights}
    return checked


def _member_problem(text: str, weight: float) -> str | None:
    """Return why a member is not accepted; None if it is."""
    if not (words := len(text.split())):
        return "is blank"
    if len(text) > MAX_MEMBER_CHARS:
        return f"has {len(text)} characters; at most {MAX_MEMBER_CHARS} are accepted"
    if words > MAX_MEMBER_WORDS:
        return f"has {words} words; at most {MAX_MEMBER_WORDS} are accepted"
    if MARK.search(text):
        return "contains the mark of a class; members cannot contain classes"
    if not _MIN_WEIGHT <= weight <= _MAX_WEIGHT:
        return f"has the weight {weight}; weights must be above 0, from {_MIN_WEIGHT} to {_MAX_WEIGHT}"
    return None


class MarkedText(NamedTuple):
    """Text with marks of classes in place of their members.

    Attributes:
        text: the text.
        members: values of the replaced members, in order.
        edits: start and end of each replaced part of the original text, and its length now.
    """

    text: str
    members: list[int]
    edits: list[tuple[int, int, int]]

    def offset(self, original: int) -> int:
        """Return the offset of an original character; a mark's start if inside a member."""
        moved = original
        for start, end, length in self.edits:
            if end <= original:
                moved += length - (end - start)
            elif start < original:
                moved -= original - start
        return moved

    def original_spans(self, spans: Int64s) -> Int64s:
        """Return the part of the original text that each part stands for, from and to [N, 2]."""
        starts, ends = spans.T
        lefts, rights, lengths = np.array([(-1, -1, 0), *self.edits], np.int64).T
        moved = np.cumsum(lengths - (rights - lefts))
        past = rights + moved  # ends of the replacements in this text
        first = np.searchsorted(past - lengths, starts, side="right") - 1
        last = np.searchsorted(past - lengths, ends) - 1
        begins = np.where(starts < past[first], lefts[first], starts - moved[first])
        stops = np.where(ends < past[last], rights[last], ends - moved[last])
        return np.stack([begins, stops], axis=1)


class MemberMatcher:
    """Finder of members in a text; of several at one position, the longest.

    A member consists of whole words. A class's mark in the text itself is read as `$` and its name.

    Args:
        names: names of all classes.
        spans: returns the start and end of each word of a text.
        words_only: True for word tokens: a member may begin at any word. False for pieces, of which no character
            may be lost: a member begins after white space, and has single spaces between its words.
    """

    def __init__(
        self, names: Iterable[str], spans: Callable[[str], list[tuple[int, int]]], *, words_only: bool
    ) -> None:
        self._spans, self._words_only = spans, words_only
        self._members: dict[str, tuple[str, int]] = {}
        self._sorted: list[str] = []
        self._beginnings: list[int] = []
        self._longest = 0
        marks = sorted(map(class_mark, names), key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, marks)))

    def words(self, member: str, name: str) -> tuple[str, ...]:
        """Return the words of a normalised member of a class.

        Raises:
            InputError: it has no word, or has the mark of a class.
        """
        words = tuple(member[start:end] for start, end in self._spans(member))
        if not words or self._marks.search(member):
            problem = "contains the mark of a class" if words else "has no word"
            raise InputError(f"the member {member!r:.80} of {class_mark(name)} {problem}", param="slots")
        return words

    def add(self, member: str, name: str, value: int) -> int:
        """Add a member of a class; the first class and value of a member count.

        Args:
            member: normalised text.
            name: the class.
            value: value to return for the member.

        Returns:
            The value of the member.

        Raises:
            InputError: see `words`.
        """
        words = self.words(member, name)
        key = _BETWEEN.join(words) if self._words_only else " ".join(member.split())
        return self._members.setdefault(key, (class_mark(name), value))[1]

    def sort(self) -> None:
        """Sort the members, before texts are marked."""
        # indices of the longest member that each begins with, or -1: all that begin a text begin the last member that
        # is not after the text
        self._sorted, self._beginnings = sorted(self._members), []
        self._longest = max(map(len, self._sorted), default=0)
        longest: list[int] = []
        for index, member in enumerate(self._sorted):
            while longest and not member.startswith(self._sorted[longest[-1]]):
                longest.pop()
            self._beginnings.append(longest[-1] if longest else -1)
            longest.append(index)

    def mark(self, text: str, *, keep_marks: bool = False) -> MarkedText:
        """Replace the members in a normalised text by the marks of their classes.

        Args:
            text: the text.
            keep_marks: leave marks that the text itself has as they are.
        """
        spans = self._spans(text)
        words = [text[start:end] for start, end in spans]
        starts = [m.start() for m in self._marks.finditer(text)]
        if self._words_only:
            starts = [at for (at, _), word in zip(spans, words, strict=True) if self._marks.fullmatch(word)]
        found = [] if keep_marks else [(at + 1, at + 1, " ", -1) for at in starts]
        if len(self._sorted) < len(self._members):
            self.sort()
        read = _BETWEEN.join(words) if self._words_only else text
        ends = list(accumulate(len(word) + 1 for word in words)) if self._words_only else []
        ends = [end - 1 for end in ends] or [end for _, end in spans]
        index = 0
        while index < len(words):
            start = spans[index][0]
            last, member = index, ""
            if self._words_only or not start or text[start - 1].isspace():
                last, member = self._match(text, read, spans, ends, index)
            if member:
                mark, value = self._members[member]
                end = spans[last][1]
                # a pattern may divide letters from digits
                space = " " if self._words_only and text[end : end + 1].isalnum() else ""
                found.append((start, end, mark + space, value))
            index = last + 1
        pieces: list[str] = []
        marked, last = MarkedText("", [], []), 0
        for start, end, new, value in sorted(found):
            if start >= last:
                pieces += [text[last:start], new]
                marked.edits.append((start, end, len(new)))
                marked.members.extend([value] if value >= 0 else [])
                last = end
        return marked._replace(text="".join([*pieces, text[last:]]))

    def _match(
        self, text: str, read: str, spans: Sequence[tuple[int, int]], ends: Sequence[int], index: int
    ) -> tuple[int, str]:
        """Return the last word of the longest member at a word, and the member, or ""."""
        begin = ends[index] - (spans[index][1] - spans[index][0])
        ahead = read[begin : begin + self._longest]
        which = bisect_right(self._sorted, ahead) - 1
        while which >= 0:
            member = self._sorted[which]
            last = bisect_left(ends, begin + len(member), index)
            is_whole = last < len(ends) and ends[last] == begin + len(member)
            if is_whole and ahead.startswith(member) and not continues_word(text, spans[last][1]):
                return last, member
            which = self._beginnings[which]
        return index, ""
