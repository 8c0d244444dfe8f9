"""Tokenizers: text to ids and back, for words, characters and SentencePiece pieces.

A tokenizer is defined by its ids *and* by the bytes that each id adds to a text (`token_bytes`).
Decoding is the same for all kinds, whole or token by token: join the bytes, read them as UTF-8,
drop the one leading space of words and pieces. `Detokenizer` decodes incrementally: a character may
span several byte-fallback tokens, so text is held back until its last character is complete.

SentencePiece keeps every text but one character: U+2581 (▁), its own mark for a space, comes back
as a space.
"""

import codecs
import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import sentencepiece

from models.errors import InvalidInputError, ManifestError
from models.files import read_config, write_config
from models.vocabulary import BOS, CONTROL_TOKENS, EOS, UNK, Vocabulary
from models.word_index import RaggedIds, WordIndex

TOKENIZER_FILE = "tokenizer.json"
SPM_FILE = "tokenizer.model"
MARKED_UNKNOWN = ("word", "unknown")
_UNK_TEXT = CONTROL_TOKENS[UNK]
_NOT_SPACE = re.compile(r"\S+")
_SPACE_MARK = "\u2581"
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


class Tokenizer(ABC):
    """Converts text to ids of a vocabulary and back.

    Control ids are never made from text: "<s>" and "</s>" in a text are spellings like
    any other, and so is "<unk>", except with `marked_unknown` of a word tokenizer.
    """

    kind: ClassVar[str]
    leading_space: ClassVar[bool]
    """Whether the first token's leading space is the tokenizer's own and not the text's."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of a text; no `<s>` or `</s>` is added."""

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        return [self.encode(text) for text in texts]

    def encode_ragged(self, texts: Sequence[str]) -> RaggedIds:
        """The ids of each text in one array: the same as `encode_all`, for millions of texts."""
        rows = self.encode_all(texts)
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return RaggedIds(np.fromiter(chain.from_iterable(rows), np.int32, int(offsets[-1])), offsets)

    def encode_after(self, context: str, text: str) -> tuple[list[int], int]:
        """The ids of a context and the text after it, tokenised as one, and how many end in the context.

        A token that begins in the context and ends in the text belongs to the text.
        """
        ids = self.encode(context + text)
        return ids, self._num_ending_in(context, text, ids) if context else 0

    @abstractmethod
    def _num_ending_in(self, context: str, text: str, ids: list[int]) -> int:
        """The number of the joint text's ids that end within a non-empty context."""

    def surface(self, token_id: int) -> str:
        """A token as users see it: its spelling in the vocabulary."""
        return self.vocabulary[token_id]

    @cached_property
    @abstractmethod
    def token_bytes(self) -> tuple[bytes, ...]:
        """The bytes that each id adds to a text, in UTF-8 [V]; none for `<s>` and `</s>`."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Settings from which it is rebuilt, as JSON, without SentencePiece's learnt model."""

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of everything that the result of `encode` depends on."""
        text = json.dumps({"kind": self.kind, **self.settings()}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def decode(self, ids: Iterable[int]) -> str:
        """The text that ids spell; bytes that are not UTF-8 become U+FFFD."""
        raw = b"".join(self.token_bytes[i] for i in ids)
        if self.leading_space and raw.startswith(b" "):
            raw = raw[1:]
        return raw.decode("utf-8", errors="replace")

    def save(self, directory: Path) -> None:
        """Write the tokenizer's files into an existing directory."""
        write_config(directory / TOKENIZER_FILE, {"kind": self.kind, **self.settings()})


class WordTokenizer(Tokenizer):
    """Words of a fixed list; every other word is `<unk>`.

    Args:
        vocabulary: the words.
        pattern: a regular expression whose matches are the words; None splits at white space.
        lowercase: whether text is lower-cased first.
        marked_unknown: what the word "<unk>" in a text means. `word`: a word like any other
            (default; nothing is turned into control silently). `unknown`: the unknown word,
            for corpora whose rare words were replaced by that mark.

    Raises:
        InvalidInputError: the pattern is no regular expression, or an option is unknown.
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
    ) -> None:
        super().__init__(vocabulary)
        if marked_unknown not in MARKED_UNKNOWN:
            raise InvalidInputError(
                f"tokenizer.marked_unknown is {marked_unknown!r}, it can be {' or '.join(MARKED_UNKNOWN)}",
                parameter="tokenizer.marked_unknown",
            )
        self.pattern = pattern
        self.lowercase = lowercase
        self.marked_unknown = marked_unknown
        self._split = WordSplitter(pattern, lowercase=lowercase)
        self._ids = dict(vocabulary.ids)
        if marked_unknown == "unknown":
            self._ids[_UNK_TEXT] = UNK

    def encode(self, text: str) -> list[int]:
        """The ids of a text's words."""
        get = self._ids.get
        return [get(word, UNK) for word in self._split(text)]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text's words."""
        if self.pattern is not None:
            return super().encode_all(texts)
        ids, offsets = self.encode_ragged(texts)
        flat = ids.tolist()
        return [flat[begin:end] for begin, end in pairwise(offsets.tolist())]

    def encode_ragged(self, texts: Sequence[str]) -> RaggedIds:
        """The ids of each text's words in one array; compiled, unless there is a pattern."""
        if self.pattern is not None:
            return super().encode_ragged(texts)
        return self._index.encode([text.lower() for text in texts] if self.lowercase else texts)

    @cached_property
    def _index(self) -> WordIndex:
        return WordIndex(self._ids)

    def _num_ending_in(self, context: str, text: str, ids: list[int]) -> int:  # noqa: ARG002 - unknown words have lost their lengths
        border = self._split.length(context)
        return sum(1 for end in self._split.ends(context + text) if end <= border)

    @cached_property
    def token_bytes(self) -> tuple[bytes, ...]:
        """A space and the word."""
        words = [" " + token for token in self.vocabulary.tokens]
        words[BOS] = words[EOS] = ""
        return tuple(word.encode() for word in words)

    def settings(self) -> dict[str, Any]:
        """Words, pattern, lower-casing, meaning of a marked unknown."""
        return {
            "pattern": self.pattern,
            "lowercase": self.lowercase,
            "marked_unknown": self.marked_unknown,
            "tokens": list(self.vocabulary.ids),
        }


class WordSplitter:
    """Cuts a text into words, also to count them before there is a vocabulary.

    Args:
        pattern: a regular expression whose matches are the words; None splits at white space.
        lowercase: whether text is lower-cased first.

    Raises:
        InvalidInputError: the pattern is no regular expression.
    """

    def __init__(self, pattern: str | None, *, lowercase: bool) -> None:
        try:
            self._pattern = re.compile(pattern) if pattern is not None else None
        except (re.error, OverflowError, RecursionError) as error:
            raise InvalidInputError(
                f"tokenizer.pattern {pattern!r} is not a regular expression: {error}",
                parameter="tokenizer.pattern",
            ) from None
        self._lowercase = lowercase

    def __call__(self, text: str) -> list[str]:
        """The words of a text, in order."""
        if self._lowercase:
            text = text.lower()
        if self._pattern is None:
            return text.split()
        return [match.group() for match in self._pattern.finditer(text) if match.group()]

    def ends(self, text: str) -> list[int]:
        """End of each word, in characters of the text as it is split, lower-cased or not."""
        pattern = self._pattern or _NOT_SPACE
        return [m.end() for m in pattern.finditer(text.lower() if self._lowercase else text) if m.group()]

    def length(self, text: str) -> int:
        """Characters of the text as it is split: lower-casing can change their number."""
        return len(text.lower() if self._lowercase else text)


class CharacterTokenizer(Tokenizer):
    """One token per Unicode code point of a fixed list; every other one is `<unk>`."""

    kind = "char"
    leading_space = False

    def encode(self, text: str) -> list[int]:
        """The ids of a text's code points."""
        get = self.vocabulary.ids.get
        return [get(character, UNK) for character in text]

    def _num_ending_in(self, context: str, text: str, ids: list[int]) -> int:  # noqa: ARG002 - one id a character
        return len(context)

    @cached_property
    def token_bytes(self) -> tuple[bytes, ...]:
        """The character; U+FFFD for `<unk>`."""
        ordinary = (token.encode() for token in self.vocabulary.ids)
        return ("\ufffd".encode(), b"", b"", *ordinary)

    def settings(self) -> dict[str, Any]:
        """The characters."""
        return {"tokens": list(self.vocabulary.ids)}


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model, BPE or unigram (Kudo and Richardson 2018).

    Args:
        model: the serialised model. Its first ids must be `<unk>`, `<s>`, `</s>`.

    Raises:
        ManifestError: the bytes are not such a model.
    """

    kind = "sentencepiece"
    leading_space = True

    def __init__(self, model: bytes) -> None:
        self._model = model
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise ManifestError(f"{SPM_FILE} is not a SentencePiece model: {error!s:.300}") from None
        size = self._processor.GetPieceSize()
        pieces = [self._processor.IdToPiece(i) for i in range(size)]
        if tuple(pieces[: len(CONTROL_TOKENS)]) != CONTROL_TOKENS:
            raise ManifestError(
                f"{SPM_FILE} starts with the pieces {pieces[:3]!s:.200}, it must start with {list(CONTROL_TOKENS)}"
            )
        malformed = next(
            (p for i, p in enumerate(pieces) if self._processor.IsByte(i) and not _BYTE_PIECE.fullmatch(p)),
            None,
        )
        if malformed is not None:
            raise ManifestError(
                f"{SPM_FILE} has the piece {malformed!r:.40} for a byte; such are spelled <0x00> to <0xFF>"
            )
        super().__init__(Vocabulary(pieces[len(CONTROL_TOKENS) :]))

    def encode(self, text: str) -> list[int]:
        """The ids of a text's best segmentation."""
        return list(self._processor.EncodeAsIds(text))

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, in one native call."""
        return [list(ids) for ids in self._processor.Encode(list(texts), out_type=int)]

    def _num_ending_in(self, context: str, text: str, ids: list[int]) -> int:
        lengths = [len(self.token_bytes[i]) for i in ids]
        if self.decode(ids) == context + text:
            own_space = sum(lengths) - len((context + text).encode())
            border = len(context.encode()) + own_space
        else:
            # the model normalises its input, also the context alone, where it may drop the
            # trailing space
            alone = b"".join(self.token_bytes[i] for i in self.encode(context))
            border = len(alone) + (context[-1].isspace() and not alone.endswith(b" "))
        return sum(1 for end in accumulate(lengths) if end <= border)

    def surface(self, token_id: int) -> str:
        """The piece with its mark for a space as a space."""
        return self.vocabulary[token_id].replace(_SPACE_MARK, " ")

    @cached_property
    def token_bytes(self) -> tuple[bytes, ...]:
        """The piece with its `▁` as a space; the byte, for byte-fallback pieces."""
        processor = self._processor
        answer = []
        for i, piece in enumerate(self.vocabulary.tokens):
            if i in {BOS, EOS}:
                answer.append(b"")
            elif processor.IsByte(i):
                answer.append(bytes.fromhex(piece[3:5]))  # spelled "<0xE2>"
            else:
                answer.append(piece.replace(_SPACE_MARK, " ").encode())
        return tuple(answer)

    def settings(self) -> dict[str, Any]:
        """The hash of the learnt model, which is in a separate file."""
        return {"model_sha256": hashlib.sha256(self._model).hexdigest()}

    def save(self, directory: Path) -> None:
        """Write the settings and the learnt model."""
        super().save(directory)
        (directory / SPM_FILE).write_bytes(self._model)


def _checked_token(token: Any) -> str:
    """A token from a file, checked to be text.

    Raises:
        ValueError: it contains half of a surrogate pair.
        TypeError: it is no text.
    """
    if not isinstance(token, str):
        raise TypeError(f"a token is {token!r:.40}, not text")
    token.encode()
    return token


def load_tokenizer(directory: Path) -> Tokenizer:
    """Rebuild the tokenizer that `save` wrote into a directory.

    Raises:
        ManifestError: a file is missing or is not what `save` writes.
    """
    path = directory / TOKENIZER_FILE
    config = read_config(path)
    try:
        kind = config.pop("kind")
        if kind == SentencePieceTokenizer.kind:
            return SentencePieceTokenizer((directory / SPM_FILE).read_bytes())
        vocabulary = Vocabulary(map(_checked_token, config.pop("tokens")))
        if kind == CharacterTokenizer.kind:
            return CharacterTokenizer(vocabulary)
        if kind == WordTokenizer.kind:
            return WordTokenizer(vocabulary, **config)
    except (OSError, ValueError, KeyError, TypeError, InvalidInputError) as error:
        raise ManifestError(f"{path}: not a tokenizer: {error!s:.300}") from None
    raise ManifestError(f"{path}: unknown tokenizer kind {kind!r}")


class Detokenizer:
    """Incremental decoding of one text.

    Args:
        tokenizer: of the ids.
        continues: whether there is text before the first token, so that its leading space is real.
    """

    def __init__(self, tokenizer: Tokenizer, *, continues: bool = False) -> None:
        self._bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip_space = tokenizer.leading_space and not continues

    def push(self, *tokens: int) -> str:
        """The text completed by these tokens; may be empty."""
        raw = b"".join([self._bytes[token] for token in tokens])
        if self._strip_space and raw:
            self._strip_space = False
            raw = raw.removeprefix(b" ")
        return self._decoder.decode(raw)

    def flush(self) -> str:
        """The text still held back: U+FFFD if the last character never became complete."""
        return self._decoder.decode(b"", final=True)
