"""MODEL_CARD.md and its pictures, written from the metrics and provenance of a model."""

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from models.checkpoint.manifest import Direction
from training.ngram.estimate import SMOOTHING_OF_KEY
from training.overlap import is_suspicious, overlap_phrase
from training.progress import HistoryRecord
from training.report import REPORT_FILE, ReportData, report_page

FITTED = {
    "weights_fitted_on": "the weights",
    "discounts_fitted_on": "the discounts",
    "lambdas_fitted_on": "the interpolation weights",
}
"""Metrics keys with the files of `valid`, where a quantity was fitted on it, and the quantity's name."""


def card_notes(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Yield irregularities of an imported file, and the deviation of row sums from 1."""
    if arpa := metrics.get("arpa"):
        yield from _file_notes(arpa)
    sums = metrics.get("normalisation")
    if sums and not sums["normalised"]:
        yield (
            f"probabilities do not sum to 1: after {sums['contexts']:,} contexts, "
            f"they are off by up to {sums['largest_deviation']:.3g}"
        )


def all_parts(metrics: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a model's parts, each after its own parts."""
    for part in metrics.get("parts", ()):
        yield from all_parts(part)
        yield part


def overlap_notes(overlaps: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning for each text, by name, with a suspicious overlap with the training text."""
    for name, facts in overlaps.items():
        if is_suspicious(facts):
            yield f"figures on {name} are too good: {overlap_phrase(facts)}"


def _file_notes(arpa: Mapping[str, Any]) -> Iterator[str]:
    if not arpa["lists_unknown"]:
        yield "the file has no <unk>; unknown words have the log10 probability -100"
    if arpa["ignored_backoffs"]:
        yield f"{arpa['ignored_backoffs']:,} back-off weights of the highest order mean nothing"
    if arpa["ignored_starts"]:
        yield f"{arpa['ignored_starts']:,} n-grams end in <s>, which is never predicted here"
    if arpa["split_words"]:
        yield f"{arpa['split_words']:,} words have white space in them; texts are split there"


def fitted_note(metrics: Mapping[str, Any]) -> str:
    """Return a note if figures on `valid` are not held out, with the reason; empty if they are."""
    fitted = [key for key in FITTED if metrics.get(key)]
    if not fitted:
        return ""
    quantities = " and ".join(FITTED[key] for key in fitted)
    text = ", ".join(metrics[fitted[0]])
    tested = "; those on test are held out" if metrics.get("test") else ""
    return f"figures on valid are figures on the text that {quantities} were fitted on ({text}){tested}"


_MAX_PLOTTED = 1e9
_INK, _ACCENT, _QUIET = "#1f2933", "#2563a8", "#9aa5b1"


def learning_curve(title: str, history: Sequence[HistoryRecord]) -> bytes:
    """Draw training and validation perplexity over training time."""
    figure, axes = _figure()
    minutes = [r.seconds / 60 for r in history]
    axes.plot(minutes, [_exp(r.train_loss) for r in history], color=_QUIET, label="training (smoothed)")
    held_out = [(r.seconds / 60, r.valid_perplexity) for r in history if r.valid_perplexity is not None]
    if held_out:
        axes.plot(*zip(*held_out, strict=True), color=_ACCENT, marker="o", markersize=4, label="validation")
        best = min(held_out, key=lambda point: point[1])  # the point of the published weights
        axes.annotate(f"{best[1]:,.1f}", best, textcoords="offset points", xytext=(4, 6), color=_ACCENT)
    axes.set_yscale("log")
    _plain_log_ticks(axes)
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("perplexity per token (log scale)")
    axes.set_title(f"Learning curve of {title}", loc="left")
    axes.legend(frameon=False)
    return _png(figure)


def perplexity_bars(name: str, metrics: Mapping[str, Any]) -> bytes:
    """Draw the perplexity per word of a mixture and its parts, on the test or else the validation text."""
    split = "test" if metrics.get("test") else "valid"
    rows = [(p["name"], p[split]["word_perplexity"]) for p in all_parts(metrics)]
    rows.append((name, metrics[split]["word_perplexity"]))
    rows = [(label, value) for label, value in rows if value is not None]
    figure, axes = _figure(height=1.2 + 0.5 * len(rows))
    bars = axes.barh(
        range(len(rows)),  # two parts may have the same name
        [value for _, value in rows],
        color=[_QUIET] * (len(rows) - 1) + [_ACCENT],
    )
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.bar_label(bars, labels=[format_figure(value) for _, value in rows], padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(lambda value, _: format_figure(value, 0))
    axes.set_xlabel("perplexity per word (lower is better)")
    axes.set_title(f"Perplexity, {split} text", loc="left")
    return _png(figure)


def ngram_bars(counts: Sequence[int], hits: Sequence[Mapping[str, Any]] = (), *, text: str = "") -> bytes:
    """Draw distinct n-grams by order and, beside them, the share of a text's tokens found at each order.

    Args:
        counts: n-grams by order.
        hits: `HitRate` by order, as in metrics.json; empty: the left half alone.
        text: name of the text.
    """
    figure, axes = _figure(height=1.3 + 0.42 * len(counts), columns=2 if hits else 1)
    left, *right = axes if hits else [axes]
    _bars(left, counts, [f"{count:,}" for count in counts], label_margin=0.35)
    left.set_yticks(range(len(counts)), [f"order {n}" for n in range(1, len(counts) + 1)])
    left.set_title("Distinct n-grams", loc="left")
    for half in right:
        _bars(half, [hit["share"] for hit in hits], [_hit_label(hit) for hit in hits], label_margin=0.75)
        half.set_yticks([])
        half.set_title(f"Longest n-gram found in the {text} text", loc="left")
    return _png(figure)


def format_figure(value: float, digits: int = 1) -> str:
    """Format a figure with `digits` decimals; values from 10⁹, such as some perplexities, in exponent notation."""
    return f"{value:,.{digits}f}" if abs(value) < _MAX_PLOTTED else f"{value:.3g}"


def _hit_label(hit: Mapping[str, Any]) -> str:
    share = f"{hit['share']:.1%}"
    return share if hit["perplexity"] is None else f"{share}  (perplexity {format_figure(hit['perplexity'])})"


def _bars(axes: Any, values: Sequence[float], labels: Sequence[str], *, label_margin: float) -> None:
    """Draw labelled horizontal bars without a scale; labels get `label_margin` of the longest bar."""
    bars = axes.barh(range(len(values)), values, color=_ACCENT)
    axes.bar_label(bars, labels=labels, padding=3, color=_INK)
    axes.invert_yaxis()
    axes.margins(x=label_margin)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _exp(loss: float) -> float:
    return math.exp(min(loss, 30.0))


def _figure(height: float = 3.6, *, columns: int = 1) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # slow to import; no global state: not pyplot

    figure = Figure(figsize=(7.2 if columns == 1 else 9.0, height), layout="constrained")
    axes = figure.subplots(ncols=columns)
    for axis in axes if columns > 1 else [axes]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(colors=_INK)
    return figure, axes


def _plain_log_ticks(axes: Any) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()


def cache_section(metrics: Mapping[str, Any]) -> list[str]:
    """Return the lines of the cache section, from metrics.json; empty for a model without a cache.

    Perplexities are in a table of θ by half-life.
    """
    cache = metrics.get("cache")
    if not cache:
        return []
    half_lives = [_format_half_life(half_life) for half_life in cache["tried"]["half_lives"]]
    shape = (
        f"A {cache['kind']} cache of the last {cache['window']:,} tokens: θ = {cache['flatness']:g}, "
        f"half-life {_format_half_life(cache['half_life'])}, weight {cache['weight']:.3f}, prior {cache['prior']:.3g}."
    )
    return [
        "## Cache",
        "",
        shape,
        "Perplexities per token of the validation text with each that was tried:",
        "",
        f"| θ \\ half-life | {' | '.join(half_lives)} |",
        "|--:" * (len(half_lives) + 1) + "|",
        *(
            f"| {flatness} | {' | '.join(map(_format_perplexity, row))} |"
            for flatness, row in cache["tried"]["perplexities_by_flatness"].items()
        ),
        "",
    ]


def _format_half_life(half_life: float | None) -> str:
    return "none" if half_life is None else f"{half_life:,.4g}" if half_life < 1_000 else f"{half_life:,.0f}"


def _format_perplexity(value: float | None) -> str:
    return "infinite" if value is None else format_figure(value, 2)


_NO_HITS = {"tokens": 0, "share": 0.0, "logprob": None, "perplexity": None}
_DISCOUNTS = {1: ("D",), 3: ("D1", "D2", "D3+")}
_SHOWN_ELSEWHERE = frozenset(
    {
        "valid",
        "test",
        "ngrams",
        "discounts",
        "fallback_orders",
        "parts",
        "weights",
        "data",
        "context",
        "arpa",
        "normalisation",
        "overlap",
        *FITTED,
    }
)


def ngram_section(metrics: Mapping[str, Any]) -> list[str]:
    """Return the lines of the n-gram section, from metrics.json; empty for other families.

    Every fact of the estimation is shown: lists with an entry for each order as columns of the
    table, other facts below it.
    """
    if not metrics.get("ngrams"):
        return []
    orders = range(1, len(metrics["ngrams"]) + 1)
    facts = {key: value for key, value in metrics.items() if key not in _SHOWN_ELSEWHERE}
    columns = {"order": [str(order) for order in orders]}
    columns["n-grams"] = [f"{count:,}" for count in metrics["ngrams"]]
    text, hits = reported_hits(metrics)
    if hits:
        columns["tokens found"] = [f"{hit['share']:.1%}" for hit in hits]
        columns["perplexity of those"] = [_hit_perplexity(hit) for hit in hits]
    columns |= _discount_columns(metrics, orders)
    columns |= {_label(k): [_text(v) for v in facts[k]] for k in facts if _is_by_order(facts[k], orders)}
    other_facts = [f"- {_label(k)}: {_text(v)}" for k, v in facts.items() if not _is_by_order(v, orders)]
    other_facts += [f"- {note}" for note in card_notes(metrics)]
    lines = ["## N-grams", ""]
    if hits:
        lines += [
            f"A token of the {text} text is found by the longest n-gram of the model that ends in it.",
            "",
        ]
    return [*lines, *_table(columns), "", *other_facts, *([""] if other_facts else [])]


def reported_hits(metrics: Mapping[str, Any]) -> tuple[str, Sequence[Mapping[str, Any]]]:
    """Return the name of the text of the hit rates, test or else validation, and the rates by order, if any.

    Orders emptied by pruning have zero rates.
    """
    for split, text in (("test", "test"), ("valid", "validation")):
        figures = metrics.get(split) or {}
        hits = figures.get("hit_rates")
        if hits:
            left_out = range(len(hits) + 1, len(metrics.get("ngrams", ())) + 1)
            return text, [*hits, *({"order": k, **_NO_HITS} for k in left_out)]
    return "", ()


def _discount_columns(metrics: Mapping[str, Any], orders: range) -> dict[str, list[str]]:
    discounts = metrics.get("discounts") or []
    if all(len(set(row)) == 1 for row in discounts):  # the same for every count
        discounts = [row[:1] for row in discounts]
    names = _DISCOUNTS.get(max(map(len, discounts), default=0), ())
    columns = {name: [f"{row[i]:.4f}" for row in discounts] for i, name in enumerate(names)}
    fallback = metrics.get("fallback_orders")
    if fallback:
        columns["parameters"] = ["constants" if order in fallback else "estimated" for order in orders]
    return columns


def _is_by_order(value: Any, orders: range) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) == len(orders)


def _hit_perplexity(hit: Mapping[str, Any]) -> str:
    if hit["perplexity"] is None:
        return "infinite" if hit["tokens"] else ""
    return _text(hit["perplexity"])


def _label(key: str) -> str:
    return key.replace("_", " ").replace("ngrams", "n-grams")


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, (bool, str)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return format_figure(value) if abs(value) >= 100 else f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{_label(k)} {_text(v)}" for k, v in value.items())
    return ", ".join(map(_text, value)) or "none"


def _table(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a Markdown table with right-aligned columns."""
    return [
        f"| {' | '.join(columns)} |",
        f"|{'---:|' * len(columns)}",
        *(f"| {' | '.join(row)} |" for row in zip(*columns.values(), strict=True)),
    ]


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
    """Data of a model card.

    Attributes:
        name: the model's name.
        family: as in the manifest.
        created: ISO 8601.
        parameters: number of learnt values.
        vocab_size: V.
        tokenizer: kind of its tokenizer.
        metrics: as in metrics.json; missing values are not shown.
        provenance: as in provenance.json; an imported model has no `recipe`.
        histories: learning curves by part.
        direction: reading direction.
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
    """Write the card, its pictures and, for a network, a training report, by file name."""
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
    """Return the lines on the cost of int8 and its default."""
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
    """Return the lines on unnormalised scores, if the model has them."""
    sums = metrics.get("log_normalisers")
    if not sums:
        return []
    return [
        "For re-ranking it also gives unnormalised scores (`score_mode`), which spare the sum over the vocabulary.",
        f"Their log-normaliser on validation text: mean {sums['mean']:+.3f}, deviation {sums['deviation']:.3f} nats.\n",
    ]


def _caveat_lines(metrics: Mapping[str, Any]) -> list[str]:
    split = "test" if metrics.get("test") else "valid"
    warnings = [f"**{note[0].upper()}{note[1:]}.**" for note in overlap_notes(metrics.get("overlap", {}))]
    warnings = [*warnings, ""] if warnings else []
    if all(part[split]["oov"] == metrics[split]["oov"] for part in all_parts(metrics)):
        return warnings
    return [
        *warnings,
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
    """Describe the tokenizer's settings or, for a mixture, the published parts (listed last) that supply it."""
    published = len(recipe["mixture"]["models"]) if recipe["family"] == "mixture" else 0
    if not published:
        return _pairs(recipe["tokenizer"])
    return f"that of {', '.join(part['name'] for part in parts[-published:])}"


def _effective_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `[ngram]` table without the keys unused by its smoothing."""
    return {
        key: value
        for key, value in settings.items()
        if SMOOTHING_OF_KEY.get(key, settings.get("smoothing")) == settings.get("smoothing")
    }


def _pairs(table: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in table.items() if value not in (None, [], ()))
