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
        self._require(self.strategy in STRATEGIES, "strategy", f"must be one of {', '.join(STRATEGIES)}")
        self._require(self.max_tokens >= 1, "max_tokens", "must be at least 1")
        self._check_within("temperature", 0, MAX_TEMPERATURE)
        self._require(self.seed is None or 0 <= self.seed < 2**64, "seed", "must be from 0 to 2^64 - 1")
        self._check_texts("stop", MAX_STOPS, MAX_STOP_LENGTH)
        self._require(self.top_k is None or self.top_k >= 1, "top_k", "must be at least 1")
        self._require(0 < self.top_p <= 1, "top_p", "must be above 0 and at most 1")
        self._require(0 < self.typical_p <= 1, "typical_p", "must be above 0 and at most 1")
        self._check_within("min_p", 0, 1)
        self._check_penalties()
        limit = f"must be from 0 to max_tokens, which is {self.max_tokens}"
        self._require(0 <= self.min_tokens <= self.max_tokens, "min_tokens", limit)
        self._check_choices()
        self._check_beams()

    def _check_penalties(self) -> None:
        limit = f"must be above 0 and at most {MAX_REPETITION_PENALTY:g}"
        self._require(0 < self.repetition_penalty <= MAX_REPETITION_PENALTY, "repetition_penalty", limit)
        self._check_within("presence_penalty", -MAX_PENALTY, MAX_PENALTY)
        self._check_within("frequency_penalty", -MAX_PENALTY, MAX_PENALTY)
        count = len(self.logit_bias)
        limit = f"must have at most {MAX_BIASES} entries"
        self._require(count <= MAX_BIASES, "logit_bias", limit, f"{count} entries long")
        for token_id, bias in self.logit_bias:
            limit = f"must be from {-MAX_BIAS:g} to {MAX_BIAS:g}"
            self._require(-MAX_BIAS <= bias <= MAX_BIAS, f"logit_bias.{token_id}", limit, bias)
        if len({token_id for token_id, _ in self.logit_bias}) < count:
            raise InvalidInputError("logit_bias names a token twice", parameter="logit_bias")
        self._check_texts("bad_words", MAX_BAD_WORDS, MAX_BAD_WORD_LENGTH)
        total = sum(map(len, self.bad_words))
        limit = f"must have at most {MAX_BAD_WORDS_LENGTH} characters in all"
        self._require(total <= MAX_BAD_WORDS_LENGTH, "bad_words", limit, f"{total} characters long")

    def _check_choices(self) -> None:
        self._check_within("n", 1, MAX_CHOICES)
        if self.best_of is None:
            return
        limit = f"must be from n, which is {self.n}, to {MAX_CHOICES}"
        self._require(self.n <= self.best_of <= MAX_CHOICES, "best_of", limit)
        if self.strategy == BEAM:
            raise InvalidInputError(
                f"best_of is {self.best_of}, but strategy 'beam' draws nothing; use num_beams",
                parameter="best_of",
            )

    def _check_beams(self) -> None:
        self._check_within("length_penalty", -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
        self._check_within("diversity_penalty", 0, MAX_DIVERSITY_PENALTY)
        if self.strategy != BEAM:
            limit = f"needs strategy 'beam', which is {self.strategy!r}"
            self._require(self.num_beams in {None, 1}, "num_beams", limit)
            self._require(self.num_beam_groups == 1, "num_beam_groups", limit)
            self._require(self.diversity_penalty == 0, "diversity_penalty", limit)
            return
        limit = f"must be from n, which is {self.n}, to {MAX_BEAMS}"
        self._require(self.num_beams is None or self.n <= self.num_beams <= MAX_BEAMS, "num_beams", limit)
        groups, limit = self.num_beam_groups, f"must divide num_beams, which is {self.beams}"
        self._require(1 <= groups <= self.beams and self.beams % groups == 0, "num_beam_groups", limit)

    def _check_within(self, name: str, least: float, most: float) -> None:
        self._require(least <= getattr(self, name) <= most, name, f"must be from {least:g} to {most:g}")

    def _check_texts(self, name: str, most: int, longest: int) -> None:
        texts = getattr(self, name)
        self._require(len(texts) <= most, name, f"must be at most {most} strings", f"{len(texts)} strings")
        limit = f"must have 1 to {longest} characters"
        for index, text in enumerate(texts):
            fits = 1 <= len(text) <= longest
            self._require(fits, f"{name}[{index}]", limit, f"{len(text)} characters long")

    def _require(self, fits: bool, name: str, limit: str, value: object = None) -> None:
        if not fits:
            value = getattr(self, name) if value is None else value
            raise InvalidInputError(f"{name} is {value}; it {limit}", parameter=name)

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
