"""Restoration of capitals and punctuation in texts that lack them, such as the output of a recogniser.

Each word stands for its forms in the model's training text, and after it may follow a mark, or a
mark and the end of a sentence. These alternatives are a lattice, whose best path under the model is
the restored text: exact for n-gram models, by beam search for networks. Sources: Stolcke and
Shriberg (1996), "Automatic linguistic segmentation of conversational speech", on words and hidden
events; Lita et al. (2003), "tRuEcasIng", on forms.

A text is read in windows, which overlap: the last words of one are decided in the next.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from models.calls import Work
from models.errors import UnsupportedError
from models.language_model import EOS, UNK, LanguageModel, is_lookup, pad_sequences
from models.lattices.graph import LabelTokenizer, LabelTokens, PathWeights
from models.lattices.lattice import Arc, Lattice, build_lattice
from models.lattices.posteriors import EdgePosteriors
from models.lattices.rescoring import RescoredLattice, rescore_in_steps
from models.lattices.token_passing import LatticeSearch
from models.text_model import TextModel
from models.tokenizers import Tokenizer
from models.word_forms import FINAL_MARKS, MARKS, RestoredWord, WordForms

_END = "\n"
"""Last character of a label after which a sentence ends."""

_MAX_LETTERS = 64
"""Maximum letters of a word that are read; longer ones are no words."""

_MAX_LABELS = 1 << 15
"""Maximum labels whose tokens are kept."""

_WINDOW, _LOOK_AHEAD, _LOOK_BACK = 48, 12, 24
"""Words of a window that are new, of these words that the next window decides, and words before it."""

_LINES, _CHUNKS = re.compile(r"[^\n]+"), re.compile(r"\S+")
_CORE = re.compile(r"[^\W_](?:\S*[^\W_])?")

_EXACT = LatticeSearch(max_tokens_per_node=1024)
_NETWORK_SEARCH = LatticeSearch(max_tokens_per_node=16, beam=8.0)


@dataclass(frozen=True, eq=False)
class Restorer:
    """A model, with what it knows of capitals and marks.

    Attributes:
        model: an n-gram model, or a network.
        written: forms of words, and marks.
        labels: converter of forms with marks to tokens.
    """

    model: LanguageModel
    written: WordForms
    labels: LabelTokenizer

    @classmethod
    def of(cls, loaded: TextModel) -> "Restorer":
        """Return the restorer of a model.

        Raises:
            UnsupportedError: the model's text has neither capitals nor marks, or the model cannot search lattices.
        """
        LabelTokenizer.of(loaded).label_tokens(["", "a.", "b"])  # refuses tokens that depend on other words
        labels, written = MarkedLabels(loaded.tokenizer), WordForms.of(loaded.tokenizer)
        if not (written.marks or written.has_capitals):
            raise UnsupportedError.of(
                "model",
                f"{loaded.address} was trained on text without capitals and punctuation; it cannot restore them",
            )
        return cls(loaded.model, written, labels)

    def choices(self, word: "_Word", *, ends: bool | None) -> list[str]:
        """Return the labels of a word: forms, with marks and ends of sentences.

        Args:
            word: a word of a text.
            ends: whether a sentence ends after it; None to leave that to the model.
        """
        core, marks = word.core[:_MAX_LETTERS], ["", *self.written.marks]
        if ends:
            marks = ["", *filter(FINAL_MARKS.__contains__, self.written.marks)]
        if word.mark or self.written.letters.isdisjoint(core.lower()):
            marks = [word.mark]
        forms = self.written.forms_of(core) if core == core.lower() else [core]
        return [form + mark + end for form in forms for mark in marks for end in _ends(mark, ends)]


def _ends(mark: str, ends: bool | None) -> Sequence[str]:
    """Return the possible ends of a label with this mark."""
    if ends is None:
        return ["", _END] if mark in FINAL_MARKS else [""]
    return [_END] if ends else [""]


class MarkedLabels(LabelTokenizer):
    """Converter of words with marks and ends of sentences to tokens.

    After the end of a sentence the model starts anew. The end of a lattice has no token: the
    last word has one where a text ends.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)

        @lru_cache(_MAX_LABELS)
        def token_ids(label: str) -> tuple[int, ...]:
            return (*tokenizer.encode(label.removesuffix(_END)), *(EOS,) * label.endswith(_END))

        self._token_ids = token_ids

    @override
    def label_tokens(self, words: Sequence[str]) -> LabelTokens:
        ids = [*map(self._token_ids, words), ()]
        tokens, lengths = pad_sequences(ids)
        return LabelTokens(
            tokens,
            lengths,
            np.array([0, *[1] * (len(words) - 1), 0]),
            np.array([own.count(UNK) for own in ids]),
            np.arange(len(ids)),
            np.array([*(word.endswith(_END) for word in words), False]),
        )


class _Word(NamedTuple):
    """A word of a text: letters or digits, with the characters around it up to white space.

    Attributes:
        start: start of the characters before it.
        end: end of the characters after it.
        before: characters before it, such as a quotation mark.
        core: the word.
        after: characters after it, with any mark.
    """

    start: int
    end: int
    before: str
    core: str
    after: str

    @property
    def mark(self) -> str:
        """First mark after the word; empty for none."""
        return next((letter for letter in self.after if letter in MARKS), "")


def restore(restorer: Restorer, text: str, *, one_per_line: bool = False) -> Work[object, list[RestoredWord]]:
    """Restore capitals and punctuation, giving way to other computations between windows.

    Args:
        restorer: that of a model.
        text: words between white space; capitals and marks that they have are kept.
        one_per_line: whether each line is one sentence; otherwise the model decides where sentences end.
    """
    done, whole = list[RestoredWord](), (0, len(text))
    for begin, end in (line.span() for line in _LINES.finditer(text)) if one_per_line else [whole]:
        yield None
        yield from _restore_words(restorer, _words(text, begin, end), done, is_sentence=one_per_line)
    return done


def _restore_words(
    restorer: Restorer, words: Iterator[_Word], done: list[RestoredWord], *, is_sentence: bool
) -> Work[object, None]:
    """Restore the words of a text or a line, and append them to those done."""
    search = _EXACT if is_lookup(restorer.model) else _NETWORK_SEARCH
    before = list[str]()  # last labels since the beginning of the sentence
    starts = True
    waiting = [*itertools.islice(words, _WINDOW + 1)]  # one more, to know whether the window is the last
    while waiting:
        window, is_last = waiting[:_WINDOW], len(waiting) <= _WINDOW
        inner = [restorer.choices(word, ends=False if is_sentence else None) for word in window]
        if is_last:
            inner[-1] = restorer.choices(window[-1], ends=True)
        [rescored] = yield from rescore_in_steps(
            [_lattice([*([label] for label in before), *inner])],
            restorer.model,
            restorer.labels,
            weights=[PathWeights(am=0.0)],
            search=search,
        )
        kept = len(window) if is_last else len(window) - _LOOK_AHEAD
        for word, (label, posterior) in zip(
            window[:kept], _best_labels(rescored)[len(before) :], strict=False
        ):
            done.append(_restored(word, label, posterior, capital=starts and restorer.written.has_capitals))
            starts = done[-1].ends_sentence
            before = [] if label.endswith(_END) else [*before, label][-_LOOK_BACK:]
        waiting = [*waiting[kept:], *itertools.islice(words, kept)]
        yield None


def _restored(word: _Word, label: str, posterior: float, *, capital: bool) -> RestoredWord:
    """Return a word as written by a label, with a capital if it is the first of a sentence."""
    form = label.removesuffix(_END)
    mark = form[-1] if form[-1] in MARKS else ""
    form = form.removesuffix(mark) if len(word.core) <= _MAX_LETTERS else word.core
    if capital and form == form.lower():
        form = form[:1].upper() + form[1:]
    written, added = word.before + form + word.after, "" if word.mark else mark
    ends = label.endswith(_END) and mark in FINAL_MARKS
    return RestoredWord(word.start, word.end, written, added, ends, posterior)


def _words(text: str, begin: int, end: int) -> Iterator[_Word]:
    """Yield the words of a part of a text."""
    for match in _CHUNKS.finditer(text, begin, end):
        if (core := _CORE.search(match[0])) is not None:
            before, after = match[0][: core.start()], match[0][core.end() :]
            yield _Word(*match.span(), before, core[0], after)


def _best_labels(rescored: RescoredLattice) -> list[tuple[str, float]]:
    """Return the label of each place on the best path, with its posterior."""
    lattice, (_, forward, offsets, edges) = rescored.lattice, rescored.tokens
    masses = np.bincount(edges.arcs, EdgePosteriors.of(rescored, scale=1.0).edges)
    totals, bounds = forward[edges.parents] + edges.scores, offsets.tolist()
    found, token = list[tuple[str, float]](), len(bounds) - 2
    while token:
        begin = bounds[token]
        edge = begin + int(totals[begin : bounds[token + 1]].argmax())
        token, arc = int(edges.parents[edge]), int(edges.arcs[edge])
        if arc < lattice.num_arcs:  # not the end
            found.append((lattice.words[lattice.labels[arc]], min(float(masses[arc]), 1.0)))
    return found[::-1]


def _lattice(places: Sequence[Sequence[str]]) -> Lattice:
    """Return the lattice of a chain of places with alternative labels."""
    arcs = [Arc(at, at + 1, label, 0.0, 0.0) for at, labels in enumerate(places) for label in labels]
    times = np.arange(len(places) + 1, dtype=np.float64)
    return build_lattice(arcs, name=None, start=0, end=len(places), times=times)


def restored_text(text: str, words: Sequence[RestoredWord]) -> str:
    """Return a text with its restored words; white space stays as it is."""
    written, at = list[str](), 0
    for word in words:
        written += [text[at : word.start], word.text, word.mark]
        at = word.end
    return "".join([*written, text[at:]])
