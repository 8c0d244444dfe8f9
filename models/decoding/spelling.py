"""The sequences of tokens that spell a text by themselves."""

from models.tokenizers import Tokenizer
from models.vocabulary import UNK

_PRECEDING = ("a", "e", "s", ".")
"""Characters after which a text is tokenised, for the tokens that spell it in the middle of a word."""


def spellings(tokenizer: Tokenizer, text: str) -> list[tuple[int, ...]]:
    """The tokens that spell a text at the start of a word and those that do in the middle of one, each once.

    A tokenizer may know other ways to spell it, and in the middle of a word its tokens may be joined
    with what is before them. What has an unknown word is no spelling.
    """
    raw, token_bytes = text.encode(), tokenizer.token_bytes
    found = [tuple(tokenizer.encode(text))]
    if (piece := tokenizer.vocabulary.ids.get(text)) is not None:
        found.append((piece,))
    for before in _PRECEDING:
        ids, num_before = tokenizer.encode_after(before, text)
        found.append(tuple(ids[num_before:]))
    apart = [ids for ids in found[1:] if b"".join(token_bytes[i] for i in ids) == raw]
    return [ids for ids in dict.fromkeys([found[0], *apart]) if ids and UNK not in ids]
