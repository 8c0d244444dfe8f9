"""From the words of an ARPA file's unigrams, as bytes in the order of the file, to a vocabulary."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.errors import FormatError
from models.ngram.arpa.source import ArpaSource
from models.ngram.arpa.words import CONTROL_IDS, unescape_word
from models.vocabulary import BOS, CONTROL_TOKENS, EOS, UNK, Vocabulary
from models.word_table import WordTable


class ArpaLexicon(NamedTuple):
    """The words of a file.

    Attributes:
        vocabulary: ids from 3 on are in the order of the file.
        ids: the id of each word of the table [W], int32.
        lists_unknown: whether `<unk>` is among them, however it is spelled.
    """

    vocabulary: Vocabulary
    ids: npt.NDArray[np.int32]
    lists_unknown: bool


def read_lexicon(
    source: ArpaSource, words: WordTable, lines: npt.NDArray[np.int64], *, escaped: bool
) -> ArpaLexicon:
    """Give every word its id; `<unk>` and `<UNK>` are entered into the table if they are missing.

    Args:
        source: for messages.
        words: the unigrams' words as they are spelled in the file.
        lines: the line of each [W].
        escaped: whether they are escaped.

    Raises:
        FormatError: a word is not UTF-8 or not what escaping makes; `<s>` or `</s>` is missing.
    """
    ids = np.zeros(words.size, dtype=np.int32)
    ordinary: list[str] = []
    controls: dict[int, int] = {}  # the line of each id that was met
    for number, spelled in enumerate(words.all_words()):
        line = int(lines[number])
        word = _decode_word(source, spelled, line)
        control = CONTROL_IDS.get(word)
        if control is not None:
            if control in controls:
                source.fail(
                    f"{word!r} is {CONTROL_TOKENS[control]!r}, which is listed already, in line {controls[control]}",
                    line=line,
                )
            controls[control] = line
            ids[number] = control
            continue
        if escaped:
            plain = unescape_word(word)
            if plain is None:
                source.fail(f"{word!r} is not escaped as the file says its words are", line=line)
            word = plain
        ids[number] = len(CONTROL_TOKENS) + len(ordinary)
        ordinary.append(word)
    for control in (BOS, EOS):
        if control not in controls:
            raise FormatError(
                source.path,
                f"{CONTROL_TOKENS[control]!r} is not listed among the 1-grams",
                hint="sentences need both <s> and </s>: train the model on text with sentence boundaries",
            )
    for word, control in CONTROL_IDS.items():
        if control == UNK:
            words.add(word.encode())
    added = np.full(words.size - len(ids), UNK, dtype=np.int32)
    return ArpaLexicon(Vocabulary(ordinary), np.concatenate([ids, added]), UNK in controls)


def _decode_word(source: ArpaSource, spelled: bytes, line: int) -> str:
    if 0 in spelled:
        source.fail("the word has a NUL byte", line=line, hint="the file is damaged, or no text")
    try:
        return spelled.decode("utf-8")
    except UnicodeDecodeError as error:
        source.fail(
            f"the word {spelled[:80]!r} is not UTF-8 (byte 0x{spelled[error.start]:02x})",
            line=line,
            hint="convert the file first, for example with iconv -t utf-8",
        )
