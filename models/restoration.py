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
from models.word_forms import FINAL_MARKS, MARKS, WordForms

_END = "\n"
"""Last character of a label after which a sentence ends."""

_PASSAGES_AT_ONCE = 4
_MAX_LETTERS = 64
"""Maximum letters of a word that are read; longer ones are no words."""

_MAX_LABELS = 1 << 15
"""Maximum labels whose tokens are kept."""

_WINDOW, _LOOK_AHEAD, _LOOK_BACK = 48, 12, 24
"""Words of a window that are new, of these words that the next window decides, and words before it."""

_CHUNKS, _CORE = re.compile(r"\S+"), re.compile(r"[^\W_](?:\S*[^\W_])?")

_EXACT = LatticeSearch(max_tokens_per_node=1024)
_NETWORK_SEARCH = LatticeSearch(max_tokens_per_node=16, beam=8.0)


class RestoredWord(NamedTuple):
    """A word of a restored text.

    Attributes:
        start: start of the given word in the text.
        end: end of it.
        text: the word as it should be written, without the mark.
        mark: mark after it; empty for none.
        ends_sentence: true if a sentence ends here.
        posterior: posterior probability of form, mark and end together.
    """

    start: int
    end: int
    text: str
    mark: str
    ends_sentence: bool
    posterior: float


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
        return ["", _END] if mark and mark in FINAL_MARKS else [""]
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


class _Passage:
    """A text, or a line of one sentence, and how far it is restored."""

    def __init__(self, words: Sequence[_Word], *, is_sentence: bool) -> None:
        self.words, self.is_sentence = words, is_sentence
        self.done = list[RestoredWord]()
        self.before = list[str]()  # labels since the beginning of the sentence, at most _LOOK_BACK

    @property
    def window(self) -> Sequence[_Word]:
        """The next words."""
        return self.words[len(self.done) : len(self.done) + _WINDOW]

    def places(self, restorer: Restorer) -> list[list[str]]:
        """Return the labels at each place of a lattice: words already restored, then the window."""
        last = len(self.words) - len(self.done) - 1
        free = False if self.is_sentence else None
        return [[label] for label in self.before] + [
            restorer.choices(word, ends=True if at == last else free) for at, word in enumerate(self.window)
        ]

    def take(self, best: Sequence[tuple[str, float]], restorer: Restorer) -> None:
        """Keep the best labels of the window, up to those that the next window decides."""
        window, new = self.window, best[len(self.before) :]
        is_last = len(self.done) + len(window) == len(self.words)
        for word, (label, posterior) in zip(window, new if is_last else new[:-_LOOK_AHEAD], strict=False):
            self._add(word, label, posterior, restorer)
            self.before = [] if label.endswith(_END) else [*self.before, label][-_LOOK_BACK:]

    def _add(self, word: _Word, label: str, posterior: float, restorer: Restorer) -> None:
        form, given = label.removesuffix(_END), word.mark
        mark = form[-1] if form[-1] in MARKS else ""
        form = form.removesuffix(mark) if len(word.core) <= _MAX_LETTERS else word.core
        starts = self.done[-1].ends_sentence if self.done else True
        if starts and restorer.written.has_capitals and form == form.lower():
            form = form[:1].upper() + form[1:]
        ends = label.endswith(_END) and mark != "" and mark in FINAL_MARKS
        self.done.append(
            RestoredWord(
                word.start,
                word.end,
                word.before + form + word.after,
                "" if given else mark,
                ends,
                posterior,
            )
        )


def restore(
    restorer: Restorer, texts: Sequence[str], *, one_per_line: bool = False
) -> Work[object, list[list[RestoredWord]]]:
    """Restore capitals and punctuation, giving way to other computations between windows.

    Args:
        restorer: that of a model.
        texts: words between white space; capitals and marks that they have are kept.
        one_per_line: whether each line is one sentence; otherwise the model decides where sentences end.
    """
    passages = [
        [_Passage(words, is_sentence=one_per_line) for words in _split(text, lines=one_per_line)]
        for text in texts
    ]
    search = _EXACT if is_lookup(restorer.model) else _NETWORK_SEARCH
    waiting = [*itertools.chain.from_iterable(passages)]
    while waiting:
        some = waiting[:_PASSAGES_AT_ONCE]
        lattices = [_lattice(passage.places(restorer)) for passage in some]
        weights = [PathWeights(am=0.0)] * len(some)
        rescored = yield from rescore_in_steps(
            lattices, restorer.model, restorer.labels, weights=weights, search=search
        )
        for passage, one in zip(some, rescored, strict=True):
            passage.take(_best_labels(one), restorer)
            yield None
        waiting = [one for one in some if one.window] + waiting[_PASSAGES_AT_ONCE:]
    return [[*itertools.chain.from_iterable(one.done for one in own)] for own in passages]


def _split(text: str, *, lines: bool) -> Iterator[list[_Word]]:
    """Yield the words of a text, or of each line, where there are any."""
    words, at = list[_Word](), 0
    for match in _CHUNKS.finditer(text):
        if lines and words and "\n" in text[at : match.start()]:
            yield words
            words = []
        at = match.end()
        if (core := _CORE.search(match[0])) is not None:
            before, after = match[0][: core.start()], match[0][core.end() :]
            words.append(_Word(*match.span(), before, core[0], after))
    if words:
        yield words


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
