"""MODEL_CARD.md and its pictures: what a person wants to know before using a model."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from models.checkpoint.manifest import Direction
from training.card_cache import cache_section
from training.card_ngram import ngram_section, reported_hits
from training.card_pictures import format_figure, learning_curve, ngram_bars, perplexity_bars
from training.neural.history import HistoryRecord
from training.ngram.smoothing.choice import SMOOTHING_OF_KEY
from training.notes import all_parts, fitted_note, overlap_notes
from training.overlap import overlap_phrase
from training.report.page import REPORT_FILE, ReportData, report_page

_COLUMNS = (
    "model",
    "weight",
    "split",
    "tokens",
    "OOV",
    "perplexity per token",
    "without OOV",
    "per word",
    "bits per byte",
)
_FAMILIES = {
    "ngram": "An n-gram",
    "feed-forward": "A feed-forward",
    "elman": "An Elman",
    "lstm": "An LSTM",
    "gru": "A GRU",
    "mingru": "A minGRU",
    "mixture": "A mixture",
    "cache": "A cache-augmented",
}
_CONTEXTS = {
    "sentence": "Every sentence starts afresh after `<s>`",
    "stream": "Every sentence follows the one before it, which the model remembers",
}
_NEURAL = frozenset({"feed-forward", "elman", "lstm", "gru", "mingru"})
_REPORT_LINK = (
    f"[Report of the training]({REPORT_FILE}): learning curves, gradients, gates, throughput, recipe."
)


class CardData(NamedTuple):
    """What the card is written from.

    Attributes:
        name: the model's name.
        family: as in the manifest.
        created: ISO 8601.
        parameters: how many numbers it has learnt.
        vocab_size: V.
        tokenizer: its kind.
        metrics: as in metrics.json; what is missing is not shown.
        provenance: as in provenance.json; a model that was not trained here has no `recipe`.
        histories: learning curves by part.
        direction: in which order it reads a text.
    """

    name: str
    family: str
    created: str
    parameters: int
    vocab_size: int
    tokenizer: str
    metrics: Mapping[str, Any]
    provenance: Mapping[str, Any]
    histories: Mapping[str, Sequence[HistoryRecord]]
    direction: Direction = "forward"


def model_card_files(data: CardData) -> dict[str, bytes]:
    """The card and its pictures, by file name; of a network, a report of its training too."""
    metrics = data.metrics
    pictures: dict[str, tuple[str, bytes]] = {}
    for title, history in data.histories.items():
        pictures[f"learning-curve-{title}.png"] = (
            f"Learning curve of {title}",
            learning_curve(title, history),
        )
    if metrics.get("parts"):
        caption = "Perplexity per word of the mixture and its parts"
        pictures["perplexities.png"] = (caption, perplexity_bars(data.name, metrics))
    if metrics.get("ngrams"):
        text, hits = reported_hits(metrics)
        caption = "Distinct n-grams by order" + (", and how much of the text each finds" if hits else "")
        pictures["ngrams.png"] = (caption, ngram_bars(metrics["ngrams"], hits, text=text))
    card = _markdown(data, {name: caption for name, (caption, _) in pictures.items()})
    files = {"MODEL_CARD.md": card.encode(), **{name: png for name, (_, png) in pictures.items()}}
    return {**files, REPORT_FILE: report_page(_report(data))} if _has_report(data) else files


def _has_report(data: CardData) -> bool:
    return data.family in _NEURAL and bool(data.histories)


def _report(data: CardData) -> ReportData:
    history = next(iter(data.histories.values()))
    return ReportData(data.name, _introduction(data), data.metrics, data.provenance, history)


def _markdown(data: CardData, pictures: Mapping[str, str]) -> str:
    lines = [
        f"# {data.name}",
        "",
        _introduction(data),
        "",
        *_held_out(data),
        *_int8_lines(data.metrics),
        *_unnormalised_lines(data.metrics),
        *(f"![{caption}]({name})\n" for name, caption in pictures.items()),
        *([_REPORT_LINK, ""] if _has_report(data) else []),
        *ngram_section(data.metrics),
        *cache_section(data.metrics),
        *_provenance_lines(data),
        "",
        "## Limits",
        "",
        "The model says how likely text is under what it was trained on; it has no idea whether the text is true.",
        "Text of another domain, language or spelling convention scores badly, whatever its quality.",
        "",
    ]
    return "\n".join(lines)


def _introduction(data: CardData) -> str:
    seconds = data.provenance.get("seconds")
    took = "" if seconds is None else f" in {seconds:,.{0 if seconds >= 10 else 1}f} s"
    mixed = ""
    if data.family == "ngram" and data.metrics.get("parts"):
        mixed = " It is a static mixture: what its parts list, in one table."
    if data.direction == "backward":
        mixed += (
            " It reads backward, from the last word to the first: it predicts a word from those after it, "
            "scores and re-ranks texts, and does not continue them."
        )
    return (
        f"{_FAMILIES[data.family]} language model with {data.parameters:,} parameters over {data.vocab_size:,} "
        f"{data.tokenizer} tokens, made on {data.created}{took}.{mixed}"
    )


def _held_out(data: CardData) -> list[str]:
    rows = [
        *_figure_rows(data.name, data.metrics, weight=None),
        *(
            row
            for part in all_parts(data.metrics)
            for row in _figure_rows(part["name"], part, part["weight"])
        ),
    ]
    if not rows:
        return ["No held-out text was scored.", ""]
    fitted = fitted_note(data.metrics)
    return [
        "## Figures" if fitted else "## Held-out figures",
        "",
        *([f"{fitted[0].upper()}{fitted[1:]}.", ""] if fitted else []),
        f"{_CONTEXTS[data.metrics.get('context', 'sentence')]};",
        "its end `</s>` is predicted and counted; unknown words (OOV) are",
        "charged at p(`<unk>`) and counted, save in the column without them. Words are what stands between white",
        "space, and each sentence's end.",
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        *_caveat_lines(data.metrics),
    ]


def _int8_lines(metrics: Mapping[str, Any]) -> list[str]:
    """What integers of eight bits cost, and whether they are the default."""
    facts = metrics.get("int8")
    if not facts:
        return []
    lines = [
        f"On a CPU, a network in it computes in float32 only: {why}." for why in facts.get("problems", ())
    ]
    if facts.get("cost") is not None:
        used = "is" if facts["default"] else "is not"
        lines.append(
            f"In int8, the perplexity per token of {facts['tokens']:,} tokens of the validation text is "
            f"{_number(facts['perplexity'])} instead of {_number(facts['perplexity_float32'])} ({facts['cost']:+.2%}): "
            f"int8 {used} the default on a CPU."
        )
    return [*lines, ""]


def _unnormalised_lines(metrics: Mapping[str, Any]) -> list[str]:
    """What unnormalised scores are off by, of a model that has them."""
    off = metrics.get("log_normalisers")
    if not off:
        return []
    return [
        "For re-ranking it also gives unnormalised scores (`score_mode`), which spare the sum over the vocabulary.",
        f"Their log-normaliser on validation text: mean {off['mean']:+.3f}, deviation {off['deviation']:.3f} nats.\n",
    ]


def _caveat_lines(metrics: Mapping[str, Any]) -> list[str]:
    split = "test" if metrics.get("test") else "valid"
    seen = [f"**{note[0].upper()}{note[1:]}.**" for note in overlap_notes(metrics.get("overlap", {}))]
    seen = [*seen, ""] if seen else []
    if all(part[split]["oov"] == metrics[split]["oov"] for part in all_parts(metrics)):
        return seen
    return [
        *seen,
        "Models that know different words are charged for different unknown ones: perplexities compare roughly.",
        "",
    ]


def _figure_rows(name: str, figures: Mapping[str, Any], weight: float | None) -> list[str]:
    shown = "" if weight is None else f"{weight:.3f}"
    return [
        f"| {name} | {shown} | {split} | {f['tokens']:,} | {_oov(f)} | {_number(f['perplexity'])} "
        f"| {_number(f['perplexity_without_oov'])} | {_number(f['word_perplexity'])} "
        f"| {_number(f['bits_per_byte'], 3)} |"
        for split in ("valid", "test")
        if (f := figures.get(split)) is not None
    ]


def _oov(figures: Mapping[str, Any]) -> str:
    return f"{figures['oov']:,} ({figures['oov'] / max(figures['tokens'], 1):.2%})"


def _number(value: float | None, digits: int = 2) -> str:
    return "infinite" if value is None else format_figure(value, digits)


def _provenance_lines(data: CardData) -> list[str]:
    recipe = data.provenance.get("recipe")
    lines = ["## Training" if recipe else "## Origin", ""]
    if source := data.provenance.get("source"):
        lines.append(f"- source: {source if isinstance(source, str) else _pairs(source)}")
    if texts := data.metrics.get("data"):
        lines.append(f"- text: {_sources(texts)}")
    if started := data.metrics.get("embeddings"):
        lines.append(
            f"- embeddings: {started['tokens']:,} of {data.vocab_size:,} tokens started from {started['source']}"
        )
    lines += [
        f"- overlap: of the {split} text, {overlap_phrase(facts)}"
        for split, facts in data.metrics.get("overlap", {}).items()
    ]
    if recipe:
        lines += [
            f"- seed: {data.provenance['seed']}",
            f"- tokenizer: {_tokenizer(recipe, data.metrics.get('parts', ()))}",
        ]
        if recipe["family"] == "ngram":
            lines.append(f"- n-grams: {_pairs(_effective_settings(recipe['ngram']))}")
    if data.metrics.get("parts"):
        text = data.metrics.get("weights_fitted_on")
        lines.append(
            f"- mixture weights: fitted by EM on {', '.join(text) if text else 'the validation text'}"
        )
    return lines


def _sources(data: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{split}: {', '.join(d['sources'])} ({d['sentences']:,} sentences, SHA-256 {d['sha256'][:12]}…)"
        for split, d in data.items()
    )


def _tokenizer(recipe: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> str:
    """How it was learnt, or of which parts it is; those that were published already come last."""
    published = len(recipe["mixture"]["models"]) if recipe["family"] == "mixture" else 0
    if not published:
        return _pairs(recipe["tokenizer"])
    return f"that of {', '.join(part['name'] for part in parts[-published:])}"


def _effective_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The `[ngram]` table without keys that its smoothing does not look at."""
    return {
        key: value
        for key, value in settings.items()
        if SMOOTHING_OF_KEY.get(key, settings.get("smoothing")) == settings.get("smoothing")
    }


def _pairs(table: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in table.items() if value not in (None, [], ()))
