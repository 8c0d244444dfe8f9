"""MODEL_CARD.md and its pictures: what a person wants to know before using a model."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from training.neural.trainer import HistoryRecord

_TABLE_HEAD = "| model | weight | split | tokens | OOV | perplexity per token | per word | bits per byte |"
_FAMILIES = {"ngram": "An n-gram", "lstm": "An LSTM", "gru": "A GRU", "mixture": "A mixture"}
_INK, _ACCENT, _QUIET = "#1f2933", "#2563a8", "#9aa5b1"


class CardData(NamedTuple):
    """What the card is written from; `histories` are learning curves by part."""

    name: str
    family: str
    created: str
    parameters: int
    vocab_size: int
    tokenizer: str
    metrics: Mapping[str, Any]
    provenance: Mapping[str, Any]
    histories: Mapping[str, Sequence[HistoryRecord]]


def model_card(data: CardData) -> dict[str, bytes]:
    """The card and its pictures, by file name."""
    pictures: dict[str, tuple[str, bytes]] = {}
    for title, history in data.histories.items():
        pictures[f"learning-curve-{title}.png"] = (
            f"Learning curve of {title}",
            learning_curve(title, history),
        )
    if data.metrics.get("parts"):
        caption = "Held-out perplexity per word of the mixture and its parts"
        pictures["perplexities.png"] = (caption, perplexity_bars(data.name, data.metrics))
    if data.metrics.get("ngrams"):
        pictures["ngrams.png"] = ("Distinct n-grams by order", ngram_bars(data.metrics["ngrams"]))
    text = _markdown(data, {name: caption for name, (caption, _) in pictures.items()})
    return {"MODEL_CARD.md": text.encode(), **{name: png for name, (_, png) in pictures.items()}}


def _markdown(data: CardData, pictures: Mapping[str, str]) -> str:
    recipe = data.provenance["recipe"]
    lines = [
        f"# {data.name}",
        "",
        (
            f"{_FAMILIES[data.family]} language model with {data.parameters:,} parameters over {data.vocab_size:,} "
            f"{data.tokenizer} tokens, made on {data.created} in {data.provenance['seconds']:,.0f} s."
        ),
        "",
        "## Held-out figures",
        "",
        "Every sentence starts afresh after `<s>`; its end `</s>` is predicted and counted; unknown words are",
        "charged at p(`<unk>`). Words are what stands between white space, and each sentence's end.",
        "",
        _TABLE_HEAD,
        "|---|---|---|---|---|---|---|---|",
        *_rows(data.name, data.metrics, weight=None),
        *(row for part in data.metrics.get("parts", ()) for row in _rows(part["name"], part, part["weight"])),
        "",
        *(f"![{caption}]({name})\n" for name, caption in pictures.items()),
        "## Training",
        "",
        f"- text: {_sources(data.metrics['data'])}",
        f"- seed: {data.provenance['seed']}",
        f"- tokenizer: {_tokenizer(recipe)}",
    ]
    if data.family == "mixture":
        lines.append("- mixture weights: fitted by EM on the validation text")
    if data.metrics.get("discounts"):
        lines += ["", "| order | n-grams | D1 | D2 | D3+ | |", "|---|---|---|---|---|---|"]
        for order, discounts in enumerate(data.metrics["discounts"], start=1):
            fallback = "fallback" if order in data.metrics["fallback_orders"] else ""
            figures = " | ".join(f"{d:.4f}" for d in discounts)
            lines.append(f"| {order} | {data.metrics['ngrams'][order - 1]:,} | {figures} | {fallback} |")
    lines += [
        "",
        "## Limits",
        "",
        "The model says how likely text is under what it was trained on; it has no idea whether the text is true.",
        "Text of another domain, language or spelling convention scores badly, whatever its quality.",
        "",
    ]
    return "\n".join(lines)


def _rows(name: str, figures: Mapping[str, Any], weight: float | None) -> list[str]:
    shown = "" if weight is None else f"{weight:.3f}"
    return [
        f"| {name} | {shown} | {split} | {f['tokens']:,} | {f['oov']:,} | {_number(f['perplexity'])} "
        f"| {_number(f['word_perplexity'])} | {_number(f['bits_per_byte'], 3)} |"
        for split in ("valid", "test")
        if (f := figures.get(split)) is not None
    ]


def _number(value: float | None, digits: int = 2) -> str:
    return "infinite" if value is None else f"{value:,.{digits}f}"


def _sources(data: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{split}: {', '.join(d['sources'])} ({d['sentences']:,} sentences, SHA-256 {d['sha256'][:12]}…)"
        for split, d in data.items()
    )


def _tokenizer(recipe: Mapping[str, Any]) -> str:
    published = recipe["mixture"]["models"] if recipe["family"] == "mixture" else ()
    return f"that of {published[0]}" if published else _pairs(recipe["tokenizer"])


def _pairs(table: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in table.items() if value is not None)


def learning_curve(title: str, history: Sequence[HistoryRecord]) -> bytes:
    """Training and validation perplexity over training time, as a PNG."""
    figure, axes = _figure()
    minutes = [r.seconds / 60 for r in history]
    axes.plot(minutes, [_exp(r.train_loss) for r in history], color=_QUIET, label="training (smoothed)")
    held_out = [(r.seconds / 60, r.valid_perplexity) for r in history if r.valid_perplexity is not None]
    if held_out:
        axes.plot(*zip(*held_out, strict=True), color=_ACCENT, marker="o", markersize=4, label="validation")
        best = min(held_out, key=lambda point: point[1])  # the model has the weights it had there
        axes.annotate(f"{best[1]:,.1f}", best, textcoords="offset points", xytext=(4, 6), color=_ACCENT)
    axes.set_yscale("log")
    _plain_log_ticks(axes)
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("perplexity per token (log scale)")
    axes.set_title(f"Learning curve of {title}", loc="left")
    axes.legend(frameon=False)
    return _png(figure)


def perplexity_bars(name: str, metrics: Mapping[str, Any]) -> bytes:
    """Held-out perplexity per word of a mixture and its parts, as a PNG."""
    split = "test" if metrics.get("test") else "valid"
    rows = [(p["name"], p[split]["word_perplexity"]) for p in metrics["parts"]]
    rows.append((name, metrics[split]["word_perplexity"]))
    rows = [(label, value) for label, value in rows if value is not None]
    figure, axes = _figure(height=1.2 + 0.5 * len(rows))
    bars = axes.barh(
        [label for label, _ in rows],
        [value for _, value in rows],
        color=[_QUIET] * (len(rows) - 1) + [_ACCENT],
    )
    axes.bar_label(bars, fmt="{:,.1f}", padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("perplexity per word (lower is better)")
    axes.set_title(f"Held-out perplexity, {split} text", loc="left")
    return _png(figure)


def ngram_bars(counts: Sequence[int]) -> bytes:
    """Distinct n-grams by order, as a PNG."""
    figure, axes = _figure(height=1.2 + 0.4 * len(counts))
    bars = axes.barh([f"order {n}" for n in range(1, len(counts) + 1)], counts, color=_ACCENT)
    axes.bar_label(bars, labels=[f"{c:,}" for c in counts], padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.set_title("Distinct n-grams by order", loc="left")
    return _png(figure)


def _exp(loss: float) -> float:
    return math.exp(min(loss, 30.0))


def _figure(height: float = 3.6) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # slow to import; no global state: not pyplot

    figure = Figure(figsize=(7.2, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_INK)
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
