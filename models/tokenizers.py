"""Tokenizers: text to ids and back, for words, characters and SentencePiece pieces.

A tokenizer is defined by its ids *and* the bytes that each adds to a text (`token_bytes`).
All kinds decode alike, at once or token by token: join the bytes, decode them as UTF-8,
remove the leading space of words and pieces. `Detokenizer` decodes incrementally: a character may
span several byte-fallback tokens, so text waits until its last character is complete.

SentencePiece preserves every character but U+2581 (▁), its mark for a space, which is decoded
as a space.

Each tokenizer has a `Normaliser`, applied to every text before anything else.
"""

import codecs
import copy
import hashlib
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain, compress, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
import sentencepiece
from rapidfuzz.distance import Prefix
from typing_extensions import override

from models.arrays import Int64s
from models.errors import InputError, ManifestError
from models.files import write_config
from models.language_model import BOS, CONTROL_TOKENS, EOS, UNK, Vocabulary
from models.misspellings import Misspellings
from models.normaliser import Normaliser
from models.slots import MARK, MemberMatcher, Slots, class_mark, word_spans
from models.word_index import RaggedIds, WordIndex, WordSplitter

T = TypeVar("T")

TOKENIZER_FILE = "tokenizer.json"
SPM_FILE = "tokenizer.model"
LEXICON_FILE = "lexicon.txt"
MISSPELLINGS_FILE = "misspellings.txt"
SLOTS_FILE = "slots.json"
SUBWORDS = "subword"
"""Kind of the tokenizers of pretrained models."""

MARKED_UNKNOWN = ("word", "unknown")
_UNK_TEXT = CONTROL_TOKENS[UNK]
SPACE_MARK = "\u2581"
BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")

_PART_LENGTH = 1 << 13
"""Characters of a long text that are encoded together."""

_BETWEEN_WORDS = re.compile("(?<=[0-9A-Za-z]) (?=[0-9A-Za-z])")
"""A single space that no normalisation changes."""


class Members(NamedTuple):
    """Members of classes as tokens of an extended tokenizer.

    Attributes:
        plain: tokenizer without members.
        matcher: finds the members that are not tokens of `plain` in a text.
        shares: probability of each member in its class, by the member's id and the class's id.
        classes: ids of the classes that have members.
    """

    plain: "Tokenizer"
    matcher: MemberMatcher
    shares: Mapping[tuple[int, int], float]
    classes: frozenset[int]


class Tokenizer(ABC):
    """Converter between text and ids of a vocabulary.

    Text never yields control ids: "<s>" and "</s>" in it are ordinary spellings, and so is
    "<unk>", except with `marked_unknown` of a word tokenizer.

    Args:
        vocabulary: the tokens.
        normalise: Unicode form of all texts, see `Normaliser`.
        lowercase: whether all texts are lower-cased.
    """

    kind: ClassVar[str]
    leading_space: bool
    """True if the tokenizer adds the leading space of the first token."""
    joins_spaces: ClassVar[bool] = True
    """True if a space and the word after it share a token."""
    lexicon: tuple[str, ...] = ()
    """Words of the training text, if tokens are not words, for completions. Empty if unknown."""
    misspellings: Misspellings = Misspellings()
    """Misspellings of the training text, which are scored but not offered. Empty if unknown."""
    slots: Slots = MappingProxyType({})
    """Members of classes in the training text, with their counts."""
    members: Members | None = None
    """Members that are tokens; None if there are none."""

    def __init__(self, vocabulary: Vocabulary, *, normalise: str = "none", lowercase: bool = False) -> None:
        self.vocabulary = vocabulary
        self.normaliser = Normaliser(normalise, lowercase=lowercase)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without `<s>` and `</s>`."""
        text = self.normaliser(text)
        if self.members is None:
            return self._encode(text)
        marked = self.members.matcher.mark(text)
        found, classes = iter(marked.members), self.members.classes
        return [next(found, UNK) if i in classes else i for i in self._encode(marked.text)]

    @abstractmethod
    def _encode(self, text: str) -> list[int]:
        """Return the ids of a normalised text."""

    @cached_property
    def classes(self) -> Mapping[str, int]:
        """Ids of the classes that the vocabulary has, by name."""
        return {}

    def member_matcher(self, names: Iterable[str]) -> MemberMatcher:
        """Return a matcher for members of the named classes in this tokenizer's texts."""
        return MemberMatcher(names, word_spans, words_only=False)

    def with_slots(self, slots: Slots) -> Self:
        """Return a tokenizer whose tokens include the members of classes.

        A member that is a token keeps its id. Others have new ids after the vocabulary's.

        Args:
            slots: the members of known classes, at least one of each.

        Raises:
            InputError: a member has no word, or has a class's mark once normalised.
        """
        other = copy.copy(self)
        for name in ("token_bytes", "fingerprint"):
            other.__dict__.pop(name, None)
        matcher = self.member_matcher(slots)
        shares: dict[tuple[int, int], float] = {}
        tokens: list[str] = []
        for name, members in slots.items():
            total = math.fsum(members.values())
            for text, weight in members.items():
                spelled = " ".join(self.normalise_word(text).split())
                matcher.words(spelled, name)  # raises
                ids = self._encode(spelled)
                member = (
                    ids[0] if len(ids) == 1 and ids[0] != UNK else self.vocabulary.id_of(self._token(spelled))
                )
                if member == UNK:
                    new = len(self.vocabulary) + len(tokens)
                    member = matcher.add(spelled, name, new)
                    tokens += [self._token(spelled)] if member == new else []
                key = member, self.classes[name]
                shares[key] = shares.get(key, 0.0) + weight / total
        matcher.sort()
        other.vocabulary = Vocabulary([*self.vocabulary.ids, *tokens])
        named = {word.lower() for members in slots.values() for text in members for word in text.split()}
        other.misspellings = self.misspellings.without(named)
        other.members = Members(self, matcher, shares, frozenset(self.classes[name] for name in slots))
        return other

    def _token(self, spelled: str) -> str:
        """Return the token that stands for a member."""
        return spelled

    @abstractmethod
    def _spans(self, text: str) -> Int64s:
        """Return each token's start and end in a normalised text, in characters [T, 2].

        They are equal for a token within a character.
        """

    def token_spans(self, text: str) -> Int64s:
        """Return the start and end of each token in a normalised text, in characters [T, 2]."""
        if self.members is None:
            return self._spans(text)
        marked = self.members.matcher.mark(text)
        return marked.original_spans(self._spans(marked.text))

    def token_starts(self, text: str) -> Int64s:
        """Return where each token begins in the given text, in characters [T]: after the previous one.

        White space that no token spells thus belongs to the next one. A token that begins within a character
        has the offset of this character.
        """
        begins, ends = self.normaliser.offsets(text)[self.token_spans(self.normaliser(text))].T
        starts: Int64s = np.minimum(begins, np.append(0, ends)[:-1])
        return starts

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text."""
        return [self.encode(text) for text in texts]

    def encode_ragged(self, texts: Sequence[str]) -> RaggedIds:
        """Return the ids of `encode_all` in one array, for millions of texts."""
        rows = self.encode_all(texts)
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return RaggedIds(np.fromiter(chain.from_iterable(rows), np.int32, int(offsets[-1])), offsets)

    def encode_after(self, context: str, text: str) -> tuple[list[int], int]:
        """Return the ids of a context and the text after, tokenised jointly, and how many end in the context.

        A token from the context into the text belongs to the text. So does a character of the
        context that is composed with one of the text.
        """
        alone, joint = self.normaliser(context), self.normaliser(context + text)
        ids = own = self.encode(joint)
        border = Prefix.similarity(alone, joint)
        if self.members is not None:
            marked = self.members.matcher.mark(joint)
            joint, border = marked.text, marked.offset(border)
            own = self._encode(joint)
        return ids, self._num_ending_in(joint, border, own) if border else 0

    def _num_ending_in(self, text: str, border: int, ids: list[int]) -> int:
        """Count the ids that end within a normalised text's first `border` characters, at least 1."""
        lengths = [len(self.token_bytes[i]) for i in ids]
        context = text[:border]
        if self.decode(ids) == text:
            own_space = sum(lengths) - len(text.encode())
            num_bytes = len(context.encode()) + own_space
        else:
            # the tokenizer normalises its input further: encoding the context alone may
            # drop its trailing space
            alone = b"".join(self.token_bytes[i] for i in self._encode(context))
            num_bytes = len(alone) + (context[-1].isspace() and not alone.endswith(b" "))
        return sum(1 for end in accumulate(lengths) if end <= num_bytes)

    def normalise_word(self, word: str) -> str:
        """Return a word, or the beginning of one, as the tokens spell it."""
        return self.normaliser(word)

    def surface(self, token_id: int) -> str:
        """Return a token as users see it: its spelling in the vocabulary."""
        return self.vocabulary[token_id]

    @cached_property
    @abstractmethod
    def token_bytes(self) -> tuple[bytes, ...]:
        """UTF-8 bytes that each id adds to a text [V]; empty for `<s>` and `</s>`."""

    def settings(self) -> dict[str, Any]:
        """Return settings to rebuild the tokenizer, for JSON, without SentencePiece's model."""
        # fingerprints of earlier versions, whose settings have no form, must not change
        return {} if self.normaliser.form == "none" else {"normalise": self.normaliser.form}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of all settings that affect `encode`."""
        text = json.dumps({"kind": self.kind, **self.settings()}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; bytes that are not UTF-8 become U+FFFD."""
        raw = b"".join(self.token_bytes[i] for i in ids)
        return raw.removeprefix(b" " * self.leading_space).decode(errors="replace")

    def save(self, directory: Path) -> None:
        """Write the tokenizer's files into an existing folder."""
        write_config(directory / TOKENIZER_FILE, {"kind": self.kind, **self.settings()})
        if self.lexicon:
            (directory / LEXICON_FILE).write_text("\n".join(self.lexicon) + "\n", encoding="utf-8")
        if lines := list(self.misspellings.lines()):
            (directory / MISSPELLINGS_FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")
        if self.slots:
            write_config(
                directory / SLOTS_FILE, {name: dict(members) for name, members in self.slots.items()}
            )


class WordTokenizer(Tokenizer):
    """Tokenizer for a fixed list of words; every other word is `<unk>`.

    Args:
        vocabulary: the words.
        pattern: a regular expression whose matches are the words; None splits at white space.
        lowercase: whether text is lower-cased first.
        marked_unknown: meaning of the word "<unk>" in a text. `word`: an ordinary word (default; text
            is never silently turned into control ids). `unknown`: the unknown word, for corpora whose
            rare words were replaced by that mark.
        normalise: Unicode form of all texts.
        unicode_spaces: True to split at all Unicode white space, as tokenizers of earlier versions do, not only
            ASCII's.

    Raises:
        InputError: the pattern is not a regular expression, or an option is unknown.
    """

    kind = "word"
    leading_space = True

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        pattern: str | None = None,
        lowercase: bool = False,
        marked_unknown: str = "word",
        normalise: str = "none",
        unicode_spaces: bool = False,
    ) -> None:
        super().__init__(vocabulary, normalise=normalise, lowercase=lowercase)
        if marked_unknown not in MARKED_UNKNOWN:
            raise InputError.of(
                "tokenizer.marked_unknown", f"is {marked_unknown!r}, it can be {' or '.join(MARKED_UNKNOWN)}"
            )
        self.pattern = pattern
        self.lowercase = lowercase
        self.marked_unknown = marked_unknown
        self.unicode_spaces = unicode_spaces and pattern is None
        self.split = WordSplitter(pattern, unicode_spaces=unicode_spaces)
        self._ids = dict(vocabulary.ids)
        if marked_unknown == "unknown":
            self._ids[_UNK_TEXT] = UNK

    @override
    def _encode(self, text: str) -> list[int]:
        get = self._ids.get
        return [get(word, UNK) for word in self.split(text)]

    @cached_property
    def classes(self) -> Mapping[str, int]:
        """Ids of the words that are marks of classes, by the class's name."""
        return {word[1:]: i for word, i in self._ids.items() if word.startswith("$") and MARK.fullmatch(word)}

    @override
    def member_matcher(self, names: Iterable[str]) -> MemberMatcher:
        return MemberMatcher(names, self.split.spans, words_only=True)

    @override
    def _spans(self, text: str) -> Int64s:
        return np.array(self.split.spans(text), np.int64).reshape(-1, 2)

    @override
    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        if self.pattern is not None or self.members is not None:
            return super().encode_all(texts)
        ids, offsets = self.encode_ragged(texts)
        flat = ids.tolist()
        return [flat[begin:end] for begin, end in pairwise(offsets.tolist())]

    def encode_ragged(self, texts: Sequence[str]) -> RaggedIds:
        """Return the ids of the texts' words in one array; compiled unless there is a pattern or member."""
        if self.pattern is not None or self.members is not None:
            return super().encode_ragged(texts)
        return self.index.encode(self.normaliser.all(texts))

    @property
    def tokens_are_words(self) -> bool:
        """True if any text's tokens are its white-space words; NFKC makes some spaces."""
        separates = self.pattern is not None or self.unicode_spaces or self.members is not None
        return not separates and self.normaliser.form in {"none", "nfc"}

    @cached_property
    def index(self) -> WordIndex:
        """Map from words to ids for compiled code."""
        return WordIndex(self._ids, unicode_spaces=self.unicode_spaces)

    def _num_ending_in(self, text: str, border: int, ids: list[int]) -> int:  # noqa: ARG002 - `<unk>` has no length
        return sum(1 for _, end in self.split.spans(text) if end <= border)

    @cached_property
    def token_bytes(self) -> tuple[bytes, ...]:
        """A space and the word."""
        words = [" " + token for token in self.vocabulary.tokens]
        words[BOS] = words[EOS] = ""
        return tuple(word.encode() for word in words)

    @property
    def rules(self) -> dict[str, Any]:
        """Arguments for a tokenizer of any vocabulary to split texts like this."""
        return {
            "pattern": self.pattern,
            "lowercase": self.lowercase,
            "marked_unknown": self.marked_unknown,
            "normalise": self.normaliser.form,
            "unicode_spaces": self.unicode_spaces,
        }

    def settings(self) -> dict[str, Any]:
        """Return words, pattern, case, meaning of a marked unknown, white space, and any Unicode form."""
        # fingerprints of earlier versions, which split at all Unicode white space, must not change
        spaces = {} if self.unicode_spaces or self.pattern is not None else {"unicode_spaces": False}
        return {
            **super().settings(),
            **spaces,
            "pattern": self.pattern,
            "lowercase": self.lowercase,
            "marked_unknown": self.marked_unknown,
            "tokens": list(self.vocabulary.ids),
        }


class CharacterTokenizer(Tokenizer):
    """Tokenizer with one token per Unicode code point of a fixed list; any other is `<unk>`."""

    kind = "char"
    leading_space = False
    joins_spaces = False

    @override
    def _encode(self, text: str) -> list[int]:
        get = self.vocabulary.ids.get
        return [get(character, UNK) for character in text]

    @override
    def _spans(self, text: str) -> Int64s:
        return np.arange(len(text))[:, None] + (0, 1)

    def _num_ending_in(self, text: str, border: int, ids: list[int]) -> int:  # noqa: ARG002 - one id per character
        return border

    @cached_property
    def token_bytes(self) -> tuple[bytes, ...]:
        """The character; U+FFFD for `<unk>`."""
        ordinary = (token.encode() for token in self.vocabulary.ids)
        return ("\ufffd".encode(), b"", b"", *ordinary)

    def settings(self) -> dict[str, Any]:
        """Return the characters, and the Unicode form, if any."""
        return {**super().settings(), "tokens": list(self.vocabulary.ids)}


def read_piece_model(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Read a serialised SentencePiece model.

    Raises:
        ManifestError: the bytes are not a valid model.
    """
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError as error:
        raise ManifestError(f"not a SentencePiece model: {error!s:.300}") from None
    return processor


class PieceTokenizer(Tokenizer):
    """SentencePiece tokenizer, BPE or unigram (Kudo and Richardson 2018).

    Args:
        model: the serialised model.
        vocabulary: the tokens, for a subclass; by default the model's pieces, which must begin with `<unk>`,
            `<s>`, `</s>`.
        normalise: Unicode form of all texts; the model's own normalisation follows.
        classes: names of classes; their marks are pieces, with the space before in their tokens.

    Attributes:
        pieces: the model's pieces, in its own order.
        unknown: id of a character that the model lacks.

    Raises:
        ManifestError: the bytes are no valid model, or a class's mark is not a piece.
    """

    kind = "sentencepiece"
    leading_space = True

    def __init__(
        self,
        model: bytes,
        vocabulary: Vocabulary | None = None,
        normalise: str = "none",
        classes: Sequence[str] = (),
    ) -> None:
        self._model = model
        self._processor = read_piece_model(model)
        self.pieces = tuple(map(self._processor.IdToPiece, range(self._processor.GetPieceSize())))
        self._bytes = frozenset(p for i, p in enumerate(self.pieces) if self._processor.IsByte(i))
        malformed = next((p for p in self._bytes if not BYTE_PIECE.fullmatch(p)), None)
        if malformed is not None:
            raise ManifestError(
                f"the SentencePiece model has the byte piece {malformed!r:.40}; "
                "byte pieces are spelled <0x00> to <0xFF>"
            )
        begin = len(CONTROL_TOKENS)
        if vocabulary is None and self.pieces[:begin] != CONTROL_TOKENS:
            raise ManifestError(
                f"the SentencePiece model starts with the pieces {list(self.pieces[:begin])!s:.200}, "
                f"it must start with {list(CONTROL_TOKENS)}"
            )
        super().__init__(vocabulary or Vocabulary(self.pieces[begin:]), normalise=normalise)
        self.unknown = self.vocabulary.id_of(self.pieces[self._processor.unk_id()])
        self._space = self.vocabulary.id_of(SPACE_MARK)
        self.classes = {name: self.vocabulary.id_of(class_mark(name)) for name in classes}
        if UNK in self.classes.values():
            raise ManifestError(
                f"the SentencePiece model lacks the mark of one of the classes {list(classes)}"
            )

    @cached_property
    def _divides_at_spaces(self) -> bool:
        """True if no piece continues over a space, and a word begins with its space's piece."""
        alone = [*self._processor.EncodeAsIds("a"), *self._processor.EncodeAsIds("b")]
        inner_spaces = any(SPACE_MARK in piece[1:] for piece in self.pieces)
        return self._space != UNK and not inner_spaces and self._processor.EncodeAsIds("a b") == alone

    @override
    def _encode(self, text: str) -> list[int]:
        ids = list(chain.from_iterable(map(self._processor.EncodeAsIds, self._parts(text))))
        return self._join_spaces(ids, ids)

    def _parts(self, text: str) -> Iterator[str]:
        """Divide a long text between words: the library's time grows faster than the text."""
        begin = 0
        while len(text) - begin > _PART_LENGTH and self._divides_at_spaces:
            border = _BETWEEN_WORDS.search(text, begin + _PART_LENGTH)
            if border is None:
                break
            yield text[begin : border.start()]
            begin = border.end()
        yield text[begin:]

    @cached_property
    def _sizes(self) -> Int64s:
        """Number of bytes that each piece spells."""
        return np.array([1 if piece in self._bytes else len(piece.encode()) for piece in self.pieces])

    @override
    def _spans(self, text: str) -> Int64s:
        read, offsets = self._processor.Normalize(text, with_offsets=True)
        parts = list(self._parts(text))
        ids = np.array(list(chain.from_iterable(map(self._processor.EncodeAsIds, parts))), np.int64)
        sizes = self._sizes[ids]
        if (unknown := np.flatnonzero(ids == self._processor.unk_id())).size:
            pieces = list(chain.from_iterable(map(self._processor.EncodeAsPieces, parts)))
            sizes[unknown] = [len(pieces[at].encode()) for at in unknown.tolist()]
        # the character of each byte
        firsts = np.cumsum(np.frombuffer(read.encode(), np.int8) >= -64) - 1
        of_bytes = np.array(offsets)[np.append(firsts, len(read))]
        ends = of_bytes[np.minimum(np.append(0, np.cumsum(sizes)), len(firsts))]
        spans = np.stack([ends[:-1], ends[1:]], axis=1)
        return spans[self._join_spaces(ids.tolist(), range(len(spans)))] if self.classes else spans

    def _join_spaces(self, ids: Iterable[int], of_each: Sequence[T]) -> list[T]:
        """Remove the pieces of spaces before classes, whose tokens have them."""
        if not self.classes:
            return list(of_each)
        classes = set(self.classes.values())
        kept = (i != self._space or after not in classes for i, after in pairwise([*ids, UNK]))
        return list(compress(of_each, kept))

    @override
    def _token(self, spelled: str) -> str:
        return (SPACE_MARK + spelled).replace(" ", SPACE_MARK)

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, in one native call unless there are members."""
        if self.members is not None or max(map(len, texts), default=0) > _PART_LENGTH:
            return super().encode_all(texts)
        rows = self._processor.Encode(list(self.normaliser.all(texts)), out_type=int)
        return [self._join_spaces(row, row) for row in rows]

    def normalise_word(self, word: str) -> str:
        """Return a word, begun or whole, in the model's own form too."""
        normalised: str = self._processor.Normalize(self.normaliser(word))
        return normalised.replace(SPACE_MARK, " ").strip()

    def surface(self, token_id: int) -> str:
        """Return the piece with the space mark replaced by a space."""
        return self.vocabulary[token_id].replace(SPACE_MARK, " ")

    @cached_property
    def token_bytes(self) -> tuple[bytes, ...]:
        """The piece with `▁` replaced by a space; the byte, for byte-fallback pieces."""
        added = [
            bytes.fromhex(piece[3:5]) if piece in self._bytes else piece.replace(SPACE_MARK, " ").encode()
            for piece in self.vocabulary.tokens  # a byte is spelled "<0xE2>"
        ]
        for i in self.classes.values():
            added[i] = b" " + added[i]
        added[BOS] = added[EOS] = b""
        return tuple(added)

    def settings(self) -> dict[str, Any]:
        """Return the hash of the learnt model, which has its own file, and any Unicode form and classes."""
        settings = {**super().settings(), "model_sha256": hashlib.sha256(self._model).hexdigest()}
        return {**settings, "classes": list(self.classes)} if self.classes else settings

    def save(self, directory: Path) -> None:
        """Write the settings and the learnt model."""
        super().save(directory)
        (directory / SPM_FILE).write_bytes(self._model)


class ListedPieces(PieceTokenizer):
    """SentencePiece tokenizer for a fixed list of pieces; every other piece is `<unk>`.

    For other programs' language models, with their own ids. The model may give control pieces any id.

    Args:
        model: the serialised model.
        vocabulary: the pieces, and unknown characters as the model writes them. A piece spelled `<unk>` stands
            for every other unknown character.

    Attributes:
        num_unlisted: number of the model's pieces that the vocabulary lacks.

    Raises:
        ManifestError: the bytes are no valid model, or the model never writes a token of the vocabulary.
    """

    def __init__(self, model: bytes, vocabulary: Vocabulary) -> None:
        super().__init__(model, vocabulary)
        processor = self._processor
        written = {
            p for i, p in enumerate(self.pieces) if not (processor.IsControl(i) or processor.IsUnused(i))
        }
        others = [token for token in vocabulary.ids if token not in written]
        # foreign characters stand alone, after a space mark
        rows = processor.Encode(others, out_type=str)
        wrong = [token for token, row in zip(others, rows, strict=True) if row[-1:] != [token]]
        if wrong:
            raise ManifestError(
                f"the SentencePiece model never writes {len(wrong):,} of the {len(vocabulary.ids):,} words, "
                f"such as {wrong[0]!r:.80}"
            )
        self.num_unlisted = len(written.difference(vocabulary.ids, CONTROL_TOKENS))
        self._ids = dict.fromkeys(written, UNK) | vocabulary.ids

    @override
    def _encode(self, text: str) -> list[int]:
        return self.encode_all([text])[0]

    @override
    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        get, unknown = self._ids.get, self.unknown
        rows = self._processor.Encode(list(texts), out_type=str)
        return [[get(piece, unknown) for piece in pieces] for pieces in rows]

    def settings(self) -> dict[str, Any]:
        """Return the hash of the learnt model and the listed pieces."""
        return {**super().settings(), "tokens": list(self.vocabulary.ids)}


class Detokenizer:
    """Incremental decoder of one text.

    Args:
        tokenizer: tokenizer of the ids.
        continues: True if text precedes the first token, whose leading space then is text.
        skip: number of bytes of the first tokens that are not part of the text.
    """

    def __init__(self, tokenizer: Tokenizer, *, continues: bool = False, skip: int = 0) -> None:
        self._bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip_space = tokenizer.leading_space and not continues
        self._skip = skip

    def push(self, *tokens: int) -> str:
        """Return the text that these tokens complete; it may be empty."""
        raw = b"".join([self._bytes[token] for token in tokens])
        if self._strip_space and raw:
            self._strip_space = False
            raw = raw.removeprefix(b" ")
        if self._skip:
            raw, self._skip = raw[self._skip :], max(0, self._skip - len(raw))
        return self._decoder.decode(raw)

    def flush(self) -> str:
        """Return the buffered text: U+FFFD if the last character is incomplete."""
        return self._decoder.decode(b"", final=True)
