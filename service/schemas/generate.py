"""POST /v1/generate."""

from pydantic import Field

from models.decoding.parameters import SAMPLE, DecodingParameters
from models.errors import InvalidInputError, UnsupportedParameterError
from service.engine.host import LoadedModel
from service.schemas.replies import Choice, GenerateReply, Usage
from service.schemas.wire import OneContext, WireModel, text_or_ids
from service.use_cases.generate import Completion, GenerateCommand, GeneratedToken
from service.use_cases.limits import Limits


class GenerateRequest(WireModel):
    """Continue a text."""

    prompt: OneContext = ""
    """A text or token ids; empty for the start of a sentence."""
    model: str | None = None
    """`name`, `name@7` or `name@champion`; the service's default if it is left out."""
    strategy: str = SAMPLE
    """`greedy` takes the most probable token, `sample` draws one."""
    max_tokens: int = 64
    """At most so many tokens."""
    temperature: float = 1.0
    """0 means greedy."""
    top_k: int | None = None
    """Draw among the k most probable tokens."""
    top_p: float = 1.0
    """Draw among the fewest tokens that together have this probability, after temperature and top_k."""
    seed: int | None = None
    """The same seed gives the same text."""
    stop: str | list[str] = Field(default_factory=list)
    """The text ends before the first of these."""
    n: int = 1
    """How many continuations; only 1 for now."""
    logprobs: bool = False
    """Whether to report the model's own log-probability of each token."""
    stream: bool = False
    """Whether to send tokens as server-sent events."""

    def command(self, limits: Limits) -> GenerateCommand:
        """The request as its use case takes it.

        Raises:
            InvalidInputError: a value is outside its limits.
            UnsupportedParameterError: it is valid, but not served.
        """
        if self.strategy == "beam":
            raise UnsupportedParameterError(
                "strategy is 'beam'; only 'greedy' and 'sample' are served", parameter="strategy"
            )
        if self.n != 1:
            raise UnsupportedParameterError(f"n is {self.n}; only 1 is served", parameter="n")
        if self.max_tokens > limits.max_new_tokens:
            raise InvalidInputError(
                f"max_tokens is {self.max_tokens}; this service generates at most {limits.max_new_tokens}",
                parameter="max_tokens",
            )
        parameters = DecodingParameters(
            max_tokens=self.max_tokens,
            strategy=self.strategy,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop),
        )
        return GenerateCommand(text_or_ids(self.prompt), parameters, self.model)


def generate_reply(loaded: LoadedModel, done: Completion, *, logprobs: bool) -> GenerateReply:
    """The whole continuation as it goes over the wire."""
    choice = Choice(0, done.text, done.token_ids, done.logprobs if logprobs else None, done.finish_reason)
    return GenerateReply(loaded.address, [choice], _usage(done))


def generate_event(
    loaded: LoadedModel, item: GeneratedToken | Completion, *, logprobs: bool
) -> GenerateReply:
    """A token, or the end, as an event of a stream."""
    if isinstance(item, Completion):
        end = Choice(0, item.rest, [], [] if logprobs else None, item.finish_reason)
        return GenerateReply(loaded.address, [end], _usage(item))
    piece = Choice(0, item.text, [item.token_id], [item.logprob] if logprobs else None, None)
    return GenerateReply(loaded.address, [piece], None)


def _usage(done: Completion) -> Usage:
    generated = len(done.token_ids)
    return Usage(done.num_prompt_tokens, generated, done.num_prompt_tokens + generated)
