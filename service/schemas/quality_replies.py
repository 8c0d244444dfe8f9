"""What /v1/quality answers: the names on the wire, for the server that writes them and the client."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextQualityResult:
    """One text, between `<s>` and `</s>`.

    `num_words` counts what stands between white space, `num_oov` tokens that are unknown. `bits_per_word` divides by
    the words and one end of text, `perplexity` is per token as in /v1/score. All are null where a probability is zero.
    `difference` is `bits_per_word` less that of the model it is compared with (Moore and Lewis 2010): the lower, the
    more the text is like those of the first model. It is null without such a model.
    """

    id: str | None
    num_words: int
    num_oov: int
    bits_per_word: float | None
    bits_per_byte: float | None
    perplexity: float | None
    difference: float | None


@dataclass(frozen=True, slots=True)
class QualityReply:
    """One result a text, in order; `against` is the model of the differences."""

    model: str
    against: str | None
    results: list[TextQualityResult]
