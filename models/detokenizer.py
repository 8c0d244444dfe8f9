"""Token by token, the text that ids spell, as soon as it is certain.

A character may span several byte-fallback tokens, so text is held back until the bytes
of its last character are complete. The pieces joined equal `Tokenizer.decode` of the whole.
"""

import codecs

from models.tokenizers import Tokenizer


class Detokenizer:
    """Incremental decoding of one text.

    Args:
        tokenizer: what the ids mean.
        continues: whether text stands before the first token, so that its leading space is real.
    """

    def __init__(self, tokenizer: Tokenizer, *, continues: bool = False) -> None:
        self._bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip_space = tokenizer.leading_space and not continues

    def push(self, *tokens: int) -> str:
        """The text that has become certain with these tokens; may be empty."""
        raw = b"".join([self._bytes[token] for token in tokens])
        if self._strip_space and raw:
            self._strip_space = False
            raw = raw.removeprefix(b" ")
        return self._decoder.decode(raw)

    def flush(self) -> str:
        """The text still held back: U+FFFD if the last character never became complete."""
        return self._decoder.decode(b"", final=True)
