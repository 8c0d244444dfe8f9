"""What is asked of completions, and the parts that their choices are told in."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from models.arrays import TokenIds
from models.decoding.parameters import DecodingParameters
from models.vocabulary import BOS, EOS
from service.engine.hosted import LoadedModel
from service.use_cases.choices import Continuation, TokenEvent
from service.use_cases.token_entries import EntryBuilder, TokenEntries, generated_entries
from service.use_cases.tokens import TextOrIds


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionCommand:
    """A valid request for completions.

    Attributes:
        prompts: each with its name in the request, for messages.
        parameters: how to continue them; None for prompts that are only said again.
        n: choices a prompt.
        echo: whether a choice begins with its prompt.
        logprobs: how many of the most probable tokens to report in the place of each token; None for no
            log-probabilities at all.
        as_ids: whether tokens are called `token_id:7`.
        model: address; None for the default.
    """

    prompts: tuple[tuple[str, TextOrIds], ...]
    parameters: DecodingParameters | None
    n: int
    echo: bool
    logprobs: int | None
    as_ids: bool
    model: str | None


class ChoiceChunk(NamedTuple):
    """A choice, or as an event the next part of it.

    Attributes:
        choice: its number, prompt by prompt.
        text: what it adds.
        entries: the tokens of it, where log-probabilities are asked for.
        finish_reason: `stop` or `length`; None if the choice goes on.
        num_generated: tokens generated for it, `</s>` among them.
    """

    choice: int
    text: str
    entries: TokenEntries | None
    finish_reason: str | None
    num_generated: int


@dataclass(slots=True)
class EncodedPrompt:
    """A prompt that is read: tokenised or checked.

    Attributes:
        text: as it is said again.
        ids: as they are shown [T], possibly none.
        after_bos: whether the model stands after `<s>` before them.
        continues: whether a text stands before the continuation, whose first space is then real.
        entries: of its tokens, once they are scored.
    """

    text: str
    ids: TokenIds
    after_bos: bool
    continues: bool
    entries: TokenEntries = field(default_factory=TokenEntries)

    @property
    def starts_with_bos(self) -> bool:
        """Whether the first id is the `<s>` that the model starts after."""
        return not self.after_bos and len(self.ids) > 0 and self.ids[0] == BOS


class ChunkBuilder:
    """Makes parts of a request's choices.

    Args:
        loaded: whose tokens.
        command: what is asked.
        prompts: of the request.
    """

    def __init__(
        self, loaded: LoadedModel, command: CompletionCommand, prompts: Sequence[EncodedPrompt]
    ) -> None:
        self._loaded = loaded
        self._command = command
        self._prompts = prompts
        self._spellers: dict[int, EntryBuilder] = {}

    def echo(self, choice: int, finish_reason: str | None) -> ChoiceChunk:
        """The prompt of a choice."""
        prompt = self._prompt_of(choice)
        return ChoiceChunk(choice, prompt.text, self._if_wanted(prompt.entries), finish_reason, 0)

    def token(self, piece: TokenEvent) -> ChoiceChunk:
        """One token."""
        return ChoiceChunk(piece.choice, piece.text, self._entries_of(piece), None, 1)

    def last(self, piece: TokenEvent | None, done: Continuation) -> ChoiceChunk:
        """A choice's last token, if it was not told yet, and its end."""
        entries = self._entries_of(piece) if piece is not None else self._if_wanted(TokenEntries())
        if entries is not None:
            self._add_end(entries, done)
        text = (piece.text if piece is not None else "") + done.rest
        count = (piece is not None) + done.ended_by_eos
        return ChoiceChunk(done.choice, text, entries, done.finish_reason, count)

    def complete_choice(self, done: Continuation) -> ChoiceChunk:
        """A choice, with its prompt if that was asked for."""
        prompt = self._prompt_of(done.choice)
        text, entries = done.text, None
        if self._command.logprobs is not None:
            speller = self._speller(done.choice)
            entries = generated_entries(speller, done.token_ids, done.logprobs, done.tops)
            self._add_end(entries, done)
        if self._command.echo:
            text = prompt.text + text
            entries = prompt.entries + entries if entries is not None else None
        return ChoiceChunk(done.choice, text, entries, done.finish_reason, num_generated(done))

    def _prompt_of(self, choice: int) -> EncodedPrompt:
        return self._prompts[choice // self._command.n]

    def _if_wanted(self, entries: TokenEntries) -> TokenEntries | None:
        return entries if self._command.logprobs is not None else None

    def _entries_of(self, piece: TokenEvent) -> TokenEntries | None:
        if self._command.logprobs is None:
            return None
        tops = [piece.top] if piece.top is not None else []
        return generated_entries(self._speller(piece.choice), [piece.token_id], [piece.logprob], tops)

    def _add_end(self, entries: TokenEntries, done: Continuation) -> None:
        """The entry of the `</s>` that ended a choice: it was predicted like any other token."""
        if done.eos_logprob is not None:
            self._speller(done.choice).add(entries, EOS, done.eos_logprob, done.eos_top)

    def _speller(self, choice: int) -> EntryBuilder:
        speller = self._spellers.get(choice)
        if speller is None:
            prompt = self._prompt_of(choice)
            offset = len(prompt.text) if self._command.echo else 0
            speller = self._spellers[choice] = EntryBuilder(
                self._loaded, continues=prompt.continues, offset=offset, as_ids=self._command.as_ids
            )
        return speller


def num_generated(done: Continuation) -> int:
    """Tokens chosen for a choice, `</s>` included."""
    return len(done.token_ids) + done.ended_by_eos
