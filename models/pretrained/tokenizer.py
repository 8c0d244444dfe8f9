"""Tokenizers of pretrained models, from `tokenizer.json` of Hugging Face's library tokenizers.

The library computes; this module maps its numbers to ids after the control tokens, and finds each
token's bytes. The tokens for the start, the end and the unknown are those of the folder's
configuration.
"""

import contextlib
import hashlib
import itertools
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from typing_extensions import override

from models.arrays import Int64s, TokenIds
from models.errors import ManifestError
from models.files import CONFIG_FILE, read_config
from models.language_model import BOS, CONTROL_TOKENS, EOS, UNK, Vocabulary
from models.tokenizers import BYTE_PIECE, SPACE_MARK, SUBWORDS, Tokenizer

PRETRAINED_FOLDER = "pretrained"
"""Folder of the model's own files in a checkpoint."""

_FILE, _NAMES_FILE = "tokenizer.json", "tokenizer_config.json"
_CONTROL_NAMES = {UNK: "unk_token", BOS: "bos_token", EOS: "eos_token"}

# Reading `_PROBE_LENGTH` characters takes about 40 ms; in quadratic time, from 2 s.
_PROBE_LENGTH, _PROBE_LOAD_S, _PROBE_S, _PROBE_BYTES = 65_536, 60.0, 0.5, 4 << 30
_PROBE_GROWTH, _PROBE_STRINGS = 32, 128
_PROBE_LETTERS = "aA0 \t\n.'_-é日\u0301\u2581😀"


_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
_OTHERS = (byte for byte in range(256) if byte not in _PRINTABLE)
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + n): byte for n, byte in enumerate(_OTHERS)}
"""Byte of each character of byte-level tokens: printable bytes stand for themselves."""


class PretrainedVocabulary(Vocabulary):
    """Vocabulary of a pretrained model.

    Args:
        tokens: the ordinary tokens, as in `Vocabulary`.
        numbers: the model's number of each id [V]; −1 without one.
    """

    def __init__(self, tokens: Iterable[str], numbers: TokenIds) -> None:
        super().__init__(tokens)
        self.numbers = numbers


class PretrainedTokenizer(Tokenizer):
    """Tokenizer of a pretrained model.

    Control tokens that a text spells out are ordinary characters.

    Args:
        folder: folder with `tokenizer.json`, `config.json`, perhaps `tokenizer_config.json`.

    Attributes:
        numbers: the library's number of each id [V]; −1 without one.

    Raises:
        ManifestError: a file is damaged, or tokens are neither byte-level nor SentencePiece's.
    """

    kind = SUBWORDS
    leading_space = False
    vocabulary: PretrainedVocabulary

    def __init__(self, folder: Path) -> None:
        self._folder, path = folder, folder / _FILE
        content = read_config(path)
        try:
            self._library: Any = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - the library raises Exception itself
            raise ManifestError(f"{path}: not a tokenizer: {error!s:.300}") from None
        self._library.encode_special_tokens = True
        self._library.no_truncation()
        self._library.no_padding()
        self._digest = hashlib.sha256(path.read_bytes()).hexdigest()
        steps = {*_strings([content.get("pre_tokenizer"), content.get("decoder")])}
        self._is_byte_level = ("type", "ByteLevel") in steps
        if (
            not self._is_byte_level
            and ("type", "Metaspace") not in steps
            and SPACE_MARK not in str(content.get("normalizer"))
        ):
            raise ManifestError(f"{path}: tokens are neither byte-level nor SentencePiece's")
        numbers: dict[str, int] = self._library.get_vocab(with_added_tokens=True)
        tokens = {number: token for token, number in numbers.items()}
        self._controls = _control_numbers(folder, numbers, content.get("model"))
        self._library.add_special_tokens([tokens[number] for number in self._controls.values()])
        self._added = {
            number: str(added.content) for number, added in self._library.get_added_tokens_decoder().items()
        }
        ordinary = [number for number in sorted(tokens) if number not in self._controls.values()]
        controls = [self._controls.get(i, -1) for i in range(len(CONTROL_TOKENS))]
        self.numbers: TokenIds = np.array([*controls, *ordinary], np.int64)
        super().__init__(
            PretrainedVocabulary((tokens[number] for number in ordinary), self.numbers),
            normalise="nfc" if content.get("normalizer") == {"type": "NFC"} else "none",
        )
        self._ids = {number: i for i, number in enumerate(ordinary, len(CONTROL_TOKENS))}
        self.leading_space = b"".join(self.token_bytes[i] for i in self._encode("a")).startswith(b" ")

    @override
    def _encode(self, text: str) -> list[int]:
        return self.encode_all([text])[0]

    @override
    def _spans(self, text: str) -> Int64s:
        offsets = self._library.encode(text, add_special_tokens=False).offsets
        return np.array(offsets, np.int64).reshape(-1, 2)

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, in one native call."""
        rows = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [[self._ids.get(number, UNK) for number in row.ids] for row in rows]

    def normalise_word(self, word: str) -> str:
        """Return a word, begun or whole, in the tokenizer's own form."""
        own = self._library.normalizer
        return word if own is None else own.normalize_str(word).replace(SPACE_MARK, " ").strip()

    def surface(self, token_id: int) -> str:
        """Return a token's characters; bytes that are not UTF-8 alone become U+FFFD."""
        if token_id < len(CONTROL_TOKENS):
            return self.vocabulary[token_id]
        return self.token_bytes[token_id].decode("utf-8", errors="replace")

    @cached_property
    def token_bytes(self) -> tuple[bytes, ...]:
        """Bytes of the token's characters, by the tokenizer's kind."""
        found = [b"<unk>", b"", b""]
        for number, token in zip(
            self.numbers[len(CONTROL_TOKENS) :].tolist(), self.vocabulary.ids, strict=True
        ):
            byte = None if self._is_byte_level else BYTE_PIECE.fullmatch(token)
            if byte is not None:
                found.append(bytes.fromhex(byte[1]))
            elif number in self._added:
                found.append(self._added[number].encode())
            elif self._is_byte_level and not set(token) <= _BYTES.keys():
                raise ManifestError(f"{self._folder / _FILE}: the token {token!r:.80} is not byte-level")
            elif self._is_byte_level:
                found.append(bytes(_BYTES[character] for character in token))
            else:
                found.append(token.replace(SPACE_MARK, " ").encode())
        return tuple(found)

    @property
    def facts(self) -> dict[str, Any]:
        """The tokens at a text's start and end, and for the unknown, as the model spells them."""
        return {
            name: self._library.id_to_token(self._controls[i])
            for i, name in _CONTROL_NAMES.items()
            if i in self._controls
        }

    def settings(self) -> dict[str, Any]:
        """Return the hash of the tokenizer's file, and the control tokens."""
        return {**super().settings(), "file_sha256": self._digest, **self.facts}

    def save(self, directory: Path) -> None:
        """Write the settings, and copy the files of the folder."""
        super().save(directory)
        (directory / PRETRAINED_FOLDER).mkdir(exist_ok=True)
        for name in (_FILE, CONFIG_FILE, _NAMES_FILE):
            if (self._folder / name).exists():
                shutil.copyfile(self._folder / name, directory / PRETRAINED_FOLDER / name)


def check_tokenizer(folder: Path) -> None:
    """Check a foreign folder's tokenizer, by reading texts in a process that may die.

    An expression that backtracks, or replacements that grow, would stop or end any process that reads a client's
    text.

    Raises:
        ManifestError: a text takes too much time or memory, gives too many tokens, or ends the process.
    """
    command = [sys.executable, "-P", "-m", "models.pretrained.tokenizer", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)  # noqa: S603 - constant
    if done.returncode:
        text = ["the file", *done.stdout.splitlines()][-1]
        limits = f"it takes over {_PROBE_S} s of processor time, or {_PROBE_BYTES >> 30} GiB"
        said = done.stderr.splitlines() or [limits]
        # Python says it at the end, the library at the beginning
        reason = said[-1] if done.returncode > 0 else said[0]
        raise ManifestError(f"{folder / _FILE}: reading {text} fails: {reason:.200}")


def _probe(folder: Path) -> None:
    """Read texts that make expressions backtrack and replacements grow, within bounds.

    Texts consist of characters and strings of the tokenizer's patterns, and characters of each kind.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError):  # the limit is lower already
        resource.setrlimit(resource.RLIMIT_DATA, (_PROBE_BYTES, _PROBE_BYTES))
    signal.setitimer(signal.ITIMER_PROF, _PROBE_LOAD_S)
    content = read_config(folder / _FILE)
    steps = _strings([content.get("normalizer"), content.get("pre_tokenizer")])
    patterns = (value for name, value in steps if name not in {"type", "precompiled_charsmap"})
    strings = [*itertools.islice(patterns, _PROBE_STRINGS)]
    letters = [*dict.fromkeys(_PROBE_LETTERS + "".join(strings))][:_PROBE_STRINGS]
    repeated = [*letters, *filter(None, strings), *map("".join, itertools.pairwise(letters))]
    between = ["".join(f"{before}{letter * 48}" for before in letters) for letter in letters]
    tokenizer = PretrainedTokenizer(folder)
    for text in [*letters, *between, *(unit * (_PROBE_LENGTH // len(unit)) for unit in repeated)]:
        sys.stdout.write(f"a text of {len(text):,} characters, {text[:8]!r} …\n")
        sys.stdout.flush()
        signal.setitimer(signal.ITIMER_PROF, _PROBE_S)  # its signal ends the process
        if (count := len(tokenizer.encode(text))) > 64 + _PROBE_GROWTH * len(text):
            raise ManifestError(f"it gives {count:,} tokens, over {_PROBE_GROWTH} for each character")


def _strings(content: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield name and value of each string in the description of steps."""
    if isinstance(content, str):
        yield name, content
    for inner_name, inner in content.items() if isinstance(content, dict) else ():
        yield from _strings(inner, inner_name)
    for inner in content if isinstance(content, list) else ():
        yield from _strings(inner, name)


def _control_numbers(folder: Path, numbers: dict[str, int], algorithm: Any) -> dict[int, int]:
    """Return the numbers of the model's control tokens, by id, given each token's number."""
    configured = read_config(folder / CONFIG_FILE)
    path = folder / _NAMES_FILE
    named = read_config(path) if path.exists() else {}
    if isinstance(algorithm, dict) and algorithm.get("unk_token") is not None:
        named.setdefault("unk_token", algorithm["unk_token"])
    found = dict[int, int]()
    for i, name in _CONTROL_NAMES.items():
        given = named.get(name)
        token = given.get("content") if isinstance(given, dict) else given
        number = numbers.get(token) if isinstance(token, str) else configured.get(f"{name}_id")
        number = number[0] if isinstance(number, list) and number else number
        if isinstance(number, int) and number in numbers.values():
            found[i] = number
    if EOS not in found:
        raise ManifestError(
            f"{folder}: neither tokenizer_config.json nor config.json names a token for the end of a text (eos_token)"
        )
    found.setdefault(BOS, found[EOS])
    if found.get(UNK) in {found[BOS], found[EOS]}:  # GPT-2 names one token for all
        del found[UNK]
    return found


if __name__ == "__main__":
    _probe(Path(sys.argv[1]))
