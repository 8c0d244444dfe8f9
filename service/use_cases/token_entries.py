"""Tokens one by one as OpenAI's replies list them: what each is called, where it begins, how probable it was.

A token is called by what it adds to a text, its space included, so that names joined give the text
but for the space that a tokenizer puts before the first word. A byte of a character is called
`<0xE2>`, and control tokens `<s>`, `</s>` and `<unk>`: every token of a vocabulary has a name of its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from models.detokenizer import Detokenizer
from models.protocol import TopTokens
from models.scoring import finite_logprob
from models.vocabulary import CONTROL_TOKENS
from service.engine.hosted import LoadedModel


@dataclass(slots=True)
class TokenEntries:
    """Tokens of a text, in four lists of one length.

    Attributes:
        names: what each is called.
        logprobs: the model's own, natural and finite; None where nothing stands before the token.
        tops: by name, the most probable tokens in its place and the token itself; None likewise.
        offsets: where it begins, in characters of the text.
    """

    names: list[str] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    tops: list[dict[str, float] | None] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.names)

    def __add__(self, after: "TokenEntries") -> "TokenEntries":
        """These, then those."""
        return TokenEntries(
            self.names + after.names,
            self.logprobs + after.logprobs,
            self.tops + after.tops,
            self.offsets + after.offsets,
        )


class EntryBuilder:
    """Makes entries of one text's tokens as they come.

    Args:
        loaded: whose tokens.
        continues: whether text stands before the first token, so that its leading space is real.
        offset: where the first token begins.
        as_ids: whether tokens are called `token_id:7` instead.
    """

    def __init__(
        self, loaded: LoadedModel, *, continues: bool, offset: int = 0, as_ids: bool = False
    ) -> None:
        self._loaded = loaded
        self._detokenizer = Detokenizer(loaded.tokenizer, continues=continues)
        self._offset = offset
        self._as_ids = as_ids

    def add(
        self, entries: TokenEntries, token: int, logprob: float | None, top: TopTokens | None = None
    ) -> None:
        """Append the next token.

        Args:
            entries: which grow.
            token: its id.
            logprob: its own; None where nothing stands before it.
            top: the most probable tokens in its place.
        """
        name = self.name(token)
        entries.names.append(name)
        entries.offsets.append(self._offset)
        self._offset += len(self._detokenizer.push(token))
        if logprob is None:
            entries.logprobs.append(None)
            entries.tops.append(None)
            return
        logprob = finite_logprob(logprob)
        entries.logprobs.append(logprob)
        entries.tops.append(self._by_name(top) | {name: logprob})  # the very same number in both

    def name(self, token: int) -> str:
        """What a token is called."""
        if self._as_ids:
            return f"token_id:{token}"
        surface = self._loaded.token_texts[token]
        if token < len(CONTROL_TOKENS):
            return surface
        added = f" {surface}"
        return added if self._loaded.tokenizer.token_bytes[token] == added.encode() else surface

    def _by_name(self, top: TopTokens | None) -> dict[str, float]:
        if top is None:
            return {}
        pairs = zip(top.ids.tolist(), top.log_probs.tolist(), strict=True)
        return {self.name(token): finite_logprob(logprob) for token, logprob in pairs}


def generated_entries(
    speller: EntryBuilder,
    token_ids: Iterable[int],
    logprobs: Iterable[float],
    tops: Sequence[TopTokens],
) -> TokenEntries:
    """Entries of generated tokens; `tops` is empty if none were asked for."""
    entries = TokenEntries()
    for place, (token, logprob) in enumerate(zip(token_ids, logprobs, strict=True)):
        speller.add(entries, token, logprob, tops[place] if tops else None)
    return entries
