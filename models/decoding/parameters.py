"""Decoding parameters of a request: a frozen, validated value.

A model's log-probabilities are changed in this order:

1. *mask*: `<unk>` and `<s>` are impossible; so is `</s>` before `min_tokens` and with `ignore_eos`,
   and so is every token that would complete one of `bad_words`;
2. *bias*: `logit_bias` is added;
3. *penalties*: repetition, then frequency and presence;
4. *temperature*;
5. *top-k*; 6. *typical*; 7. *top-p*; 8. *min-p*: each counts the probability left by the ones
   before it.

Greedy and beam search stop after the penalties. llama.cpp truncates in the same order; Hugging
Face's generation and vLLM, too, apply bias and penalties before the temperature and the temperature
before every truncation. Reported log-probabilities are always the model's own, before any of this.
"""

from dataclasses import dataclass

from models.errors import InvalidInputError

GREEDY, SAMPLE, BEAM = "greedy", "sample", "beam"
STRATEGIES = (GREEDY, SAMPLE, BEAM)
MAX_TEMPERATURE = 100.0
MAX_STOPS = 16
MAX_STOP_LENGTH = 256
MAX_CHOICES = 64
MAX_BEAMS = 64
MAX_BIASES = 1024
MAX_BIAS = 100.0
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_LENGTH = 256
MAX_BAD_WORDS_LENGTH = 32_768
MAX_PENALTY = 2.0
MAX_REPETITION_PENALTY = 100.0
MAX_LENGTH_PENALTY = 10.0
MAX_DIVERSITY_PENALTY = 100.0
DEFAULT_BEAMS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingParameters:
    """The choices a request makes about its continuation.

    Attributes:
        max_tokens: at most so many tokens; at least 1.
        strategy: `greedy` takes the most probable token, `sample` draws one, `beam` searches for the most
            probable continuations as wholes.
        temperature: log-probabilities are divided by it before drawing; 0 means greedy.
        top_k: draw among the k most probable tokens; None for all.
        top_p: draw among the fewest tokens that together have this probability; 1 for all (nucleus sampling,
            Holtzman et al. 2020).
        min_p: draw among tokens that have at least this share of the greatest probability; 0 for all (Nguyen
            et al. 2024).
        typical_p: draw among the fewest tokens with this probability whose surprisal is nearest to the entropy; 1
            for all (locally typical sampling, Meister et al. 2023).
        repetition_penalty: the scores of tokens seen in the prompt or generated are divided by it where positive and
            multiplied where negative (CTRL, Keskar et al. 2019). The scores are log-probabilities here and not
            logits, hence negative but for a bias: the probability p of a seen token becomes p ** penalty, before
            all are scaled to sum to 1. 1 for none.
        presence_penalty: subtracted from the scores of tokens that were generated.
        frequency_penalty: subtracted as often as the token was generated. Both as OpenAI defines them.
        logit_bias: pairs of an id, each once, and what is added to its score.
        bad_words: texts of which no tokens that spell them by themselves, at the start or in the middle of a word,
            are ever generated one after the other.
        ignore_eos: never end with `</s>`, unless nothing else is possible.
        min_tokens: not before so many tokens either.
        n: how many continuations.
        best_of: of how many that are drawn the n with the highest mean log-probability are kept; None for n.
        num_beams: continuations kept while searching; None for 4, or `n` if that is more.
        length_penalty: finished continuations are ranked by the sum of their scores over length ** length_penalty,
            `</s>` counted in both: 0 prefers short ones, 1 takes the mean. (Wu et al. 2016 divide by
            ((5 + length) / 6) ** alpha; this is what Hugging Face's generation does.)
        early_stopping: end the search once `num_beams` continuations are finished; else only when no other can
            be better. A single beam always stops early: it is greedy search.
        num_beam_groups: beams are searched in so many groups, one after the other, each shunning the tokens that
            the groups before it have just taken (diverse beam search, Vijayakumar et al. 2016).
        diversity_penalty: by how much a token is less for each beam of an earlier group that took it in the same
            step. It decides between tokens and is no part of a continuation's score.
        seed: of the request's own random numbers; None lets the caller choose one.
        stop: the text ends before the first of these strings.

    Raises:
        InvalidInputError: a value is outside its limits; the message names both.
    """

    max_tokens: int
    strategy: str = SAMPLE
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[str, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    n: int = 1
    best_of: int | None = None
    num_beams: int | None = None
    length_penalty: float = 1.0
    early_stopping: bool = False
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise _invalid("strategy", self.strategy, f"must be one of {', '.join(STRATEGIES)}")
        _at_least("max_tokens", self.max_tokens, 1)
        _within("temperature", self.temperature, 0, MAX_TEMPERATURE)
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise _invalid("seed", self.seed, "must be from 0 to 2^64 - 1")
        _check_texts("stop", self.stop, MAX_STOPS, MAX_STOP_LENGTH)
        self._check_truncation()
        self._check_penalties()
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise _invalid(
                "min_tokens", self.min_tokens, f"must be from 0 to max_tokens, which is {self.max_tokens}"
            )
        self._check_choices()
        self._check_beams()

    def _check_truncation(self) -> None:
        if self.top_k is not None:
            _at_least("top_k", self.top_k, 1)
        for name, share in (("top_p", self.top_p), ("typical_p", self.typical_p)):
            if not 0 < share <= 1:
                raise _invalid(name, share, "must be above 0 and at most 1")
        if not 0 <= self.min_p <= 1:
            raise _invalid("min_p", self.min_p, "must be from 0 to 1")

    def _check_penalties(self) -> None:
        if not 0 < self.repetition_penalty <= MAX_REPETITION_PENALTY:
            limit = f"must be above 0 and at most {MAX_REPETITION_PENALTY:g}"
            raise _invalid("repetition_penalty", self.repetition_penalty, limit)
        _within("presence_penalty", self.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
        _within("frequency_penalty", self.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
        if len(self.logit_bias) > MAX_BIASES:
            limit = f"must have at most {MAX_BIASES} entries"
            raise _invalid("logit_bias", f"{len(self.logit_bias)} entries long", limit)
        for token_id, bias in self.logit_bias:
            _within(f"logit_bias.{token_id}", bias, -MAX_BIAS, MAX_BIAS)
        if len({token_id for token_id, _ in self.logit_bias}) < len(self.logit_bias):
            raise InvalidInputError("logit_bias names a token twice", parameter="logit_bias")
        _check_texts("bad_words", self.bad_words, MAX_BAD_WORDS, MAX_BAD_WORD_LENGTH)
        total = sum(map(len, self.bad_words))
        if total > MAX_BAD_WORDS_LENGTH:
            limit = f"must have at most {MAX_BAD_WORDS_LENGTH} characters in all"
            raise _invalid("bad_words", f"{total} characters long", limit)

    def _check_choices(self) -> None:
        if not 1 <= self.n <= MAX_CHOICES:
            raise _invalid("n", self.n, f"must be from 1 to {MAX_CHOICES}")
        if self.best_of is None:
            return
        if not self.n <= self.best_of <= MAX_CHOICES:
            raise _invalid("best_of", self.best_of, f"must be from n, which is {self.n}, to {MAX_CHOICES}")
        if self.strategy == BEAM:
            raise InvalidInputError(
                f"best_of is {self.best_of}, but strategy 'beam' draws nothing; use num_beams",
                parameter="best_of",
            )

    def _check_beams(self) -> None:
        _within("length_penalty", self.length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
        _within("diversity_penalty", self.diversity_penalty, 0, MAX_DIVERSITY_PENALTY)
        if self.strategy != BEAM:
            for name, differs in (
                ("num_beams", self.num_beams not in {None, 1}),
                ("num_beam_groups", self.num_beam_groups != 1),
                ("diversity_penalty", self.diversity_penalty != 0),
            ):
                if differs:
                    raise _invalid(
                        name, getattr(self, name), f"needs strategy 'beam', which is {self.strategy!r}"
                    )
            return
        if self.num_beams is not None and not self.n <= self.num_beams <= MAX_BEAMS:
            raise _invalid("num_beams", self.num_beams, f"must be from n, which is {self.n}, to {MAX_BEAMS}")
        if not 1 <= self.num_beam_groups <= self.beams or self.beams % self.num_beam_groups:
            limit = f"must divide num_beams, which is {self.beams}"
            raise _invalid("num_beam_groups", self.num_beam_groups, limit)

    @property
    def greedy(self) -> bool:
        """Whether each token is the most probable, without random numbers."""
        return self.strategy == GREEDY or (self.strategy == SAMPLE and self.temperature == 0)

    @property
    def beams(self) -> int:
        """Continuations kept while searching; 1 unless the strategy is `beam`."""
        if self.strategy != BEAM:
            return 1
        return self.num_beams if self.num_beams is not None else max(DEFAULT_BEAMS, self.n)

    @property
    def num_samples(self) -> int:
        """Continuations of each prompt that are drawn: `best_of`, or `n`."""
        return self.n if self.best_of is None else self.best_of

    @property
    def has_penalties(self) -> bool:
        """Whether scores depend on the tokens before."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def never_raises_scores(self) -> bool:
        """Whether no score is ever above the model's own log-probability, or at least never above 0."""
        biases = (bias for _, bias in self.logit_bias)
        return (
            self.presence_penalty >= 0 and self.frequency_penalty >= 0 and all(bias <= 0 for bias in biases)
        )


def _at_least(parameter: str, value: int, least: int) -> None:
    if value < least:
        raise _invalid(parameter, value, f"must be at least {least}")


def _within(parameter: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise _invalid(parameter, value, f"must be from {least:g} to {most:g}")


def _check_texts(parameter: str, texts: tuple[str, ...], most: int, longest: int) -> None:
    if len(texts) > most:
        raise _invalid(parameter, f"{len(texts)} strings", f"must be at most {most} strings")
    for index, text in enumerate(texts):
        if not 1 <= len(text) <= longest:
            limit = f"must have 1 to {longest} characters"
            raise _invalid(f"{parameter}[{index}]", f"{len(text)} characters long", limit)


def _invalid(parameter: str, value: object, limit: str) -> InvalidInputError:
    return InvalidInputError(f"{parameter} is {value}; it {limit}", parameter=parameter)
