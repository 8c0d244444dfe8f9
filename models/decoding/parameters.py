"""Decoding parameters of a request: a frozen, validated value.

A model's log-probabilities are changed in this order:

1. *mask*: `<unk>` and `<s>` are impossible, and so are `</s>` before `min_tokens` or with `ignore_eos`,
   and every token that would complete one of `bad_words`;
2. *bias*: `logit_bias` is added, and the weights of `phrases`, in equal parts to their tokens;
3. *penalties*: repetition, then frequency and presence;
4. *temperature*;
5. *top-k*; 6. *typical*; 7. *top-p*; 8. *min-p*: each is relative to the probability that remains
   after the steps before it.

Greedy and beam search end after the penalties. llama.cpp truncates in the same order; Hugging
Face's generation and vLLM also apply bias and penalties, then the temperature, before every
truncation.
"""

from dataclasses import dataclass

from models.errors import InputError, check_range
from models.phrases import Phrase, PhraseList

GREEDY, SAMPLE, BEAM = "greedy", "sample", "beam"
STRATEGIES = (GREEDY, SAMPLE, BEAM)
MAX_TEMPERATURE = 100.0
MAX_STOPS = 32
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
    """Decoding parameters of a request.

    Attributes:
        max_tokens: maximum tokens; at least 1.
        strategy: `greedy`, `sample` or `beam`.
        temperature: divisor of the log-probabilities before drawing; 0 means greedy.
        top_k: draw from the k most probable tokens; None for all.
        top_p: draw from the fewest tokens with this probability (nucleus sampling, Holtzman et al. 2020).
        min_p: draw from tokens with this share of the maximum probability (Nguyen et al. 2024).
        typical_p: draw from the fewest tokens with this probability whose surprisal is closest to the entropy
            (locally typical sampling, Meister et al. 2023).
        repetition_penalty: divisor of positive and factor of negative scores of tokens in the prompt or the text
            (CTRL, Keskar et al. 2019). Without a bias, scores are log-probabilities, so p becomes p ** penalty.
        presence_penalty: subtracted from the scores of tokens that were generated.
        frequency_penalty: subtracted once per occurrence of a generated token. Both as defined by OpenAI.
        logit_bias: pairs of a distinct id and the value added to its score.
        phrases: texts whose token sequences, at the start or in the middle of a word, are favoured.
        bad_words: texts whose token sequences, as above, are never generated.
        ignore_eos: never end with `</s>`, unless no other token is possible.
        min_tokens: minimum tokens before `</s>`.
        n: number of continuations.
        best_of: number of samples, of which the n with the highest mean log-probability are returned; None for n.
        num_beams: number of hypotheses in the search; None for 4, or `n` if larger.
        length_penalty: hypotheses are ranked by the sum of their scores over length ** length_penalty, both with
            `</s>`, as in Hugging Face's generation: 0 favours short ones, 1 takes the mean. (Wu et al. 2016 divide by
            ((5 + length) / 6) ** alpha.)
        early_stopping: end the search when `num_beams` hypotheses are finished, not only when no other can be
            better. A single beam always stops early: it is greedy search.
        num_beam_groups: number of groups of beams, extended in turn (Vijayakumar et al. 2016).
        diversity_penalty: subtracted from a token's score for each beam of an earlier group that chose it in the
            same step. It affects the choice of tokens only.
        seed: random seed of the request; None lets the caller choose one.
        stop: the text ends before the first of these strings.

    Raises:
        InputError: a value is out of range; the message names the limit and the value.
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
    phrases: tuple[Phrase, ...] = ()
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
        check_range("temperature", self.temperature, 0, MAX_TEMPERATURE)
        self._require(self.seed is None or 0 <= self.seed < 2**64, "seed", "must be from 0 to 2^64 - 1")
        self._check_texts("stop", MAX_STOPS, MAX_STOP_LENGTH)
        self._require(self.top_k is None or self.top_k >= 1, "top_k", "must be at least 1")
        self._require(0 < self.top_p <= 1, "top_p", "must be above 0 and at most 1")
        self._require(0 < self.typical_p <= 1, "typical_p", "must be above 0 and at most 1")
        check_range("min_p", self.min_p, 0, 1)
        self._check_penalties()
        limit = f"must be from 0 to max_tokens, which is {self.max_tokens}"
        self._require(0 <= self.min_tokens <= self.max_tokens, "min_tokens", limit)
        check_range("n", self.n, 1, MAX_CHOICES)
        if self.best_of is not None:
            limit = f"must be from n, which is {self.n}, to {MAX_CHOICES}"
            self._require(self.n <= self.best_of <= MAX_CHOICES, "best_of", limit)
            if self.strategy == BEAM:
                raise InputError.of(
                    "best_of", f"is {self.best_of}, but strategy 'beam' does not sample; use num_beams"
                )
        self._check_beams()

    def _check_penalties(self) -> None:
        limit = f"must be above 0 and at most {MAX_REPETITION_PENALTY:g}"
        self._require(0 < self.repetition_penalty <= MAX_REPETITION_PENALTY, "repetition_penalty", limit)
        check_range("presence_penalty", self.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
        check_range("frequency_penalty", self.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
        count = len(self.logit_bias)
        limit = f"must have at most {MAX_BIASES} entries"
        self._require(count <= MAX_BIASES, "logit_bias", limit, f"{count} entries long")
        for token_id, bias in self.logit_bias:
            check_range(f"logit_bias.{token_id}", bias, -MAX_BIAS, MAX_BIAS)
        if len({token_id for token_id, _ in self.logit_bias}) < count:
            raise InputError.of("logit_bias", "contains a token twice")
        PhraseList(self.phrases)
        self._check_texts("bad_words", MAX_BAD_WORDS, MAX_BAD_WORD_LENGTH)
        total = sum(map(len, self.bad_words))
        limit = f"must have at most {MAX_BAD_WORDS_LENGTH} characters in all"
        self._require(total <= MAX_BAD_WORDS_LENGTH, "bad_words", limit, f"{total} characters long")

    def _check_beams(self) -> None:
        check_range("length_penalty", self.length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
        check_range("diversity_penalty", self.diversity_penalty, 0, MAX_DIVERSITY_PENALTY)
        if self.strategy != BEAM:
            limit = f"needs strategy 'beam', but strategy is {self.strategy!r}"
            self._require(self.num_beams in {None, 1}, "num_beams", limit)
            self._require(self.num_beam_groups == 1, "num_beam_groups", limit)
            self._require(self.diversity_penalty == 0, "diversity_penalty", limit)
            return
        limit = f"must be from n, which is {self.n}, to {MAX_BEAMS}"
        self._require(self.num_beams is None or self.n <= self.num_beams <= MAX_BEAMS, "num_beams", limit)
        groups, limit = self.num_beam_groups, f"must divide num_beams, which is {self.beams}"
        self._require(1 <= groups <= self.beams and self.beams % groups == 0, "num_beam_groups", limit)

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
            raise InputError.of(name, f"is {value}; it {limit}")

    @property
    def greedy(self) -> bool:
        """True if every token is the most probable one, without random numbers."""
        return self.strategy == GREEDY or (self.strategy == SAMPLE and self.temperature == 0)

    @property
    def beams(self) -> int:
        """Number of hypotheses in the search; 1 unless the strategy is `beam`."""
        if self.strategy != BEAM:
            return 1
        return self.num_beams if self.num_beams is not None else max(DEFAULT_BEAMS, self.n)

    @property
    def num_samples(self) -> int:
        """Number of sampled continuations per prompt: `best_of`, or `n`."""
        return self.n if self.best_of is None else self.best_of

    @property
    def never_raises_scores(self) -> bool:
        """True if no score exceeds 0, or the model's own log-probability."""
        biases = (bias for _, bias in self.logit_bias)
        penalised = self.presence_penalty >= 0 and self.frequency_penalty >= 0
        return penalised and not self.phrases and all(bias <= 0 for bias in biases)
