"""Model card, MODEL_CARD.md, and its pictures, built from the metrics and provenance of a model."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from models.checkpoint.precision import NEURAL_FAMILIES
from models.checkpoint.write import CheckpointDescription, StorableModel
from models.report import ACCENT, INK, QUIET, draw_png
from training.ngram.estimate import SMOOTHING_OF_KEY
from training.progress import HistoryRecord
from training.report import REPORT_FILE, format_number, plot_perplexity, report_page
from training.texts import is_suspicious, overlap_phrase

FITTED = {
    "weights_fitted_on": "the weights",
    "discounts_fitted_on": "the discounts",
    "lambdas_fitted_on": "the interpolation weights",
}
"""Quantities that may be fitted on `valid`, by metrics key that lists its files."""

_IRREGULARITIES = {
    "ignored_backoffs": "back-off weights of the highest order are ignored",
    "ignored_starts": "n-grams that end in <s> are ignored; <s> is never predicted",
    "missing_prefixes": "prefixes of n-grams are not listed; they are added with the back-off weight 0",
    "split_words": "words contain white space, at which texts are split",
    "unlisted_pieces": "pieces of the SentencePiece model are not in the file; they count as <unk>",
}


def card_notes(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Yield irregularities of an imported file, and the deviation of row sums from 1."""
    if arpa := metrics.get("arpa"):
        if not arpa["lists_unknown"]:
            yield "the file has no <unk>; unknown words have the log10 probability -100"
        for key, note in _IRREGULARITIES.items():
            if count := arpa.get(key):
                yield f"{count:,} {note}"
    sums = metrics.get("normalisation")
    if sums and not sums["normalised"]:
        yield (
            f"probabilities do not sum to 1: over {sums['contexts']:,} contexts, "
            f"the largest deviation is {sums['largest_deviation']:.3g}"
        )


def all_parts(metrics: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a model's parts, each after its own parts."""
    for part in metrics.get("parts", ()):
        yield from all_parts(part)
        yield part


def overlap_notes(overlaps: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning for each named text that overlaps the training text suspiciously."""
    for name, facts in overlaps.items():
        if is_suspicious(facts):
            yield f"figures on {name} are too optimistic: {overlap_phrase(facts)}"


def fitted_note(metrics: Mapping[str, Any]) -> str:
    """Return a note, with the reason, if figures on `valid` are not held out; else an empty string."""
    fitted = [key for key in FITTED if metrics.get(key)]
    if not fitted:
        return ""
    quantities = " and ".join(FITTED[key] for key in fitted)
    text = ", ".join(metrics[fitted[0]])
    tested = "; figures on test are held out" if metrics.get("test") else ""
    return f"figures on valid are not held out: {quantities} were fitted on this text ({text}){tested}"


def learning_curve(title: str, history: Sequence[HistoryRecord]) -> bytes:
    """Draw training and validation perplexity over training time."""

    def draw(axes: Any) -> None:
        labels = {"xlabel": "minutes of training", "ylabel": "perplexity per token (log scale)"}
        plot_perplexity(axes, history, [record.seconds / 60 for record in history], **labels)
        axes.set_title(f"Learning curve of {title}")
        axes.legend()

    return draw_png(draw)


def perplexity_bars(name: str, metrics: Mapping[str, Any]) -> bytes:
    """Draw the perplexity per word of a mixture and its parts on the test text, else the validation text."""
    split = "test" if metrics.get("test") else "valid"
    models = [*all_parts(metrics), {**metrics, "name": name}]
    rows = [(m["name"], v) for m in models if (v := m[split]["word_perplexity"]) is not None]

    def draw(axes: Any) -> None:
        bars = axes.barh(
            range(len(rows)),  # two parts may have the same name
            [value for _, value in rows],
            color=[QUIET] * (len(rows) - 1) + [ACCENT],
        )
        axes.set_yticks(range(len(rows)), [label for label, _ in rows])
        axes.bar_label(bars, labels=[format_number(value) for _, value in rows], padding=3)
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.xaxis.set_major_formatter(lambda value, _: format_number(value, 0))
        axes.set(xlabel="perplexity per word (lower is better)", title=f"Perplexity, {split} text")

    return draw_png(draw, height=1.2 + 0.5 * len(rows))


def ngram_bars(counts: Sequence[int], hits: Sequence[Mapping[str, Any]] = (), *, text: str = "") -> bytes:
    """Draw the numbers of distinct n-grams, and the shares of a text's tokens found, by order.

    Args:
        counts: number of n-grams by order.
        hits: `hit_rates` of metrics.json, by order; empty draws only the n-grams.
        text: name of the text.
    """

    def draw(axes: Any) -> None:
        left, *right = axes if hits else [axes]
        _bars(left, counts, [f"{count:,}" for count in counts], label_margin=0.35)
        left.set_yticks(range(len(counts)), [f"order {n}" for n in range(1, len(counts) + 1)])
        left.set_title("Distinct n-grams")
        for half in right:
            _bars(half, [hit["share"] for hit in hits], [_hit_label(hit) for hit in hits], label_margin=0.75)
            half.set(yticks=[], title=f"Longest n-gram found in the {text} text")

    width, columns = (9.0, 2) if hits else (7.2, 1)
    return draw_png(draw, width=width, height=1.3 + 0.42 * len(counts), columns=columns)


def _hit_label(hit: Mapping[str, Any]) -> str:
    share = f"{hit['share']:.1%}"
    return share if hit["perplexity"] is None else f"{share}  (perplexity {format_number(hit['perplexity'])})"


def _bars(axes: Any, values: Sequence[float], labels: Sequence[str], *, label_margin: float) -> None:
    """Draw labelled horizontal bars without scale; `label_margin` is relative to the longest."""
    bars = axes.barh(range(len(values)), values, color=ACCENT)
    axes.bar_label(bars, labels=labels, padding=3, color=INK)
    axes.invert_yaxis()
    axes.margins(x=label_margin)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def cache_section(metrics: Mapping[str, Any]) -> list[str]:
    """Write the paragraphs of the cache section from metrics.json; none without a cache."""
    if not (cache := metrics.get("cache")):
        return []
    shape = (
        f"A {cache['kind']} cache of the last {cache['window']:,} tokens: θ = {cache['flatness']:g}, "
        f"half-life {_format_half_life(cache['half_life'])}, weight {cache['weight']:.3f}, prior {cache['prior']:.3g}."
    )
    gate = dict(zip(("c0", "c1", "c2"), cache.get("gate") or (), strict=False))
    for name, values in (
        ("Dynamic marginals", cache.get("marginals")),
        ("Gate instead of weight and prior", gate),
    ):
        if values:
            listed = ", ".join(f"{key} {value:.4g}" for key, value in values.items())
            shape += f" {name}: {listed}.".replace("_", "-")
    return ["## Cache", shape]


def _format_half_life(half_life: float | None) -> str:
    return "none" if half_life is None else f"{half_life:,.4g}" if half_life < 1_000 else f"{half_life:,.0f}"


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
        "base",
        "data",
        "context",
        "arpa",
        "normalisation",
        "overlap",
        *FITTED,
    }
)


def ngram_section(metrics: Mapping[str, Any]) -> list[str]:
    """Write the paragraphs of the n-gram section from metrics.json; none for other families.

    Lists with one entry per order become table columns; other facts are listed below.
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
        columns["their perplexity"] = [_hit_perplexity(hit) for hit in hits]
    columns |= _discount_columns(metrics, orders)
    other_facts = []
    for key, value in facts.items():
        if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == len(orders):
            columns[_label(key)] = [_text(v) for v in value]
        else:
            other_facts.append(f"- {_label(key)}: {_text(value)}")
    other_facts += [f"- {note}" for note in card_notes(metrics)]
    found = f"A token of the {text} text is found at the order of the longest n-gram that ends in it."
    table = _table(columns, zip(*columns.values(), strict=True), rule="---:")
    return ["## N-grams", found if hits else "", table, "\n".join(other_facts)]


def reported_hits(metrics: Mapping[str, Any]) -> tuple[str, Sequence[Mapping[str, Any]]]:
    """Return the name of a text with hit rates, preferably the test text, and its rates by order.

    Both are empty without any. Orders emptied by pruning have zero rates.
    """
    for split, text in (("test", "test"), ("valid", "validation")):
        if hits := (metrics.get(split) or {}).get("hit_rates"):
            left_out = range(len(hits) + 1, len(metrics.get("ngrams", ())) + 1)
            return text, [*hits, *({"order": k, **_NO_HITS} for k in left_out)]
    return "", ()


def _discount_columns(metrics: Mapping[str, Any], orders: range) -> dict[str, list[str]]:
    discounts = metrics.get("discounts") or []
    if all(len(set(row)) == 1 for row in discounts):  # one discount for all counts
        discounts = [row[:1] for row in discounts]
    names = _DISCOUNTS.get(max(map(len, discounts), default=0), ())
    columns = {name: [f"{row[i]:.4f}" for row in discounts] for i, name in enumerate(names)}
    if fallback := metrics.get("fallback_orders"):
        columns["parameters"] = ["constants" if order in fallback else "estimated" for order in orders]
    return columns


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
        return format_number(value) if abs(value) >= 100 else f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{_label(k)} {_text(v)}" for k, v in value.items())
    return ", ".join(map(_text, value)) or "none"


def _table(heads: Iterable[str], rows: Iterable[Sequence[str]], *, rule: str) -> str:
    """Return a Markdown table; `rule` below each head aligns its column."""
    heads = list(heads)
    head, *body = (f"| {' | '.join(row)} |" for row in (heads, *rows))
    return "\n".join([head, f"|{f'{rule}|' * len(heads)}", *body])


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
    "pretrained": "A pretrained",
}
_CONTEXTS = {
    "sentence": "Every sentence is scored alone, after `<s>`",
    "stream": "Every sentence is scored in the context of the sentences before it",
}
_COUNTED = """\
its end `</s>` is predicted and counted. Unknown words (OOV) have the probability p(`<unk>`) and are counted,
except in the column “without OOV”. Words are separated by white space, and each sentence end counts as
a word."""
_COSTS = """\
Time of one step of one text, where it was trained (the next distribution and the state after a token; a part
includes its own parts; networks in int8 if possible)"""
_LIMITS = """\
The model estimates how probable a text is, given its training text; it does not check if the text is true.
Text of another domain, language or spelling convention gets low scores regardless of its quality.
"""
_REPORT_LINK = f"[Training report]({REPORT_FILE}): learning curves, gradients, gates, throughput, recipe."


def model_card_files(
    name: str,
    model: StorableModel[Any],
    tokenizer: str,
    description: CheckpointDescription,
    histories: Mapping[str, Sequence[HistoryRecord]],
) -> dict[str, bytes]:
    """Render the card, its pictures and a network's training report, by file name.

    Args:
        name: name of the model.
        model: the model.
        tokenizer: kind of its tokenizer.
        description: description of its checkpoint; missing metrics are omitted.
        histories: learning curves by part.
    """
    metrics, provenance = description.metrics, description.provenance
    introduction = _introduction(model, tokenizer, description)
    files: dict[str, bytes] = {}
    links: list[str] = []

    def add(file: str, caption: str, picture: bytes) -> None:
        files[file] = picture
        links.append(f"![{caption}]({file})")

    for title, history in histories.items():
        caption = f"Learning curve of {title}"
        add(f"learning-curve-{title}.png", caption, learning_curve(title, history))
    if metrics.get("parts"):
        caption = "Perplexity per word of the mixture and its parts"
        add("perplexities.png", caption, perplexity_bars(name, metrics))
    if metrics.get("ngrams"):
        text, hits = reported_hits(metrics)
        caption = "Distinct n-grams by order" + (", and the share of tokens found at each" if hits else "")
        add("ngrams.png", caption, ngram_bars(metrics["ngrams"], hits, text=text))
    if model.family in NEURAL_FAMILIES and histories:
        history = next(iter(histories.values()))
        files[REPORT_FILE] = report_page(name, introduction, metrics, provenance, history)
        links.append(_REPORT_LINK)
    paragraphs = [
        f"# {name}",
        introduction,
        *_held_out(name, metrics),
        _int8_paragraph(metrics),
        _unnormalised_paragraph(metrics),
        *links,
        *ngram_section(metrics),
        *cache_section(metrics),
        *_provenance(metrics, provenance, len(model.vocabulary)),
        "## Limits",
        _LIMITS,
    ]
    return {"MODEL_CARD.md": "\n\n".join(filter(None, paragraphs)).encode(), **files}


def _introduction(model: StorableModel[Any], tokenizer: str, description: CheckpointDescription) -> str:
    seconds = description.provenance.get("seconds")
    took = "" if seconds is None else f" in {seconds:,.{0 if seconds >= 10 else 1}f} s"
    mixed = ""
    if model.family == "ngram" and description.metrics.get("parts"):
        mixed = " It is a static mixture: one table with the n-grams of all parts."
    if description.direction == "backward":
        mixed += (
            " It reads backward, from the last word to the first: it predicts a word from the words after it. "
            "It scores and re-ranks texts, but cannot continue them."
        )
    return (
        f"{_FAMILIES[model.family]} language model with {model.num_parameters:,} parameters over "
        f"{len(model.vocabulary):,} {tokenizer} tokens, created on {description.created}{took}.{mixed}"
    )


def _held_out(name: str, metrics: Mapping[str, Any]) -> list[str]:
    models = [{**metrics, "name": name, "weight": None}, *all_parts(metrics)]
    rows = [row for model in models for row in _figure_rows(model)]
    if not rows:
        return ["No held-out text was scored."]
    fitted = fitted_note(metrics)
    costs = [f"{part['name']} {part['step_ms']:g} ms" for part in all_parts(metrics) if "step_ms" in part]
    return [
        "## Figures" if fitted else "## Held-out figures",
        f"{fitted[0].upper()}{fitted[1:]}." if fitted else "",
        f"{_CONTEXTS[metrics.get('context', 'sentence')]};\n{_COUNTED}",
        _table(_COLUMNS, rows, rule="---"),
        f"{_COSTS}: {', '.join(costs)}." if costs else "",
        *_caveats(metrics),
    ]


def _int8_paragraph(metrics: Mapping[str, Any]) -> str:
    """Write the lines on int8's cost in perplexity and the default precision."""
    facts = metrics.get("int8", {})
    lines = [f"On a CPU, one network computes in float32 only: {why}." for why in facts.get("problems", ())]
    if facts.get("cost") is not None:
        used = "is" if facts["default"] else "is not"
        measured_on = "held-out" if "pretrained" in metrics else "validation"
        lines.append(
            f"On {facts['tokens']:,} tokens of the {measured_on} text, the perplexity per token in int8 is "
            f"{format_number(facts['perplexity'], 2)} instead of {format_number(facts['perplexity_float32'], 2)} "
            f"({facts['cost']:+.2%}): "
            f"int8 {used} the default on a CPU."
        )
    return "\n".join(lines)


def _unnormalised_paragraph(metrics: Mapping[str, Any]) -> str:
    if not (sums := metrics.get("log_normalisers")):
        return ""
    return (
        "For re-ranking, it also supports unnormalised scores (`score_mode`), which need no sum over the vocabulary.\n"
        f"Log-normaliser on validation text: mean {sums['mean']:+.3f}, deviation {sums['deviation']:.3f} nats."
    )


def _caveats(metrics: Mapping[str, Any]) -> list[str]:
    split = "test" if metrics.get("test") else "valid"
    warnings = [f"**{note[0].upper()}{note[1:]}.**" for note in overlap_notes(metrics.get("overlap", {}))]
    caveats = ["\n".join(warnings)]
    if any(part[split]["oov"] != metrics[split]["oov"] for part in all_parts(metrics)):
        caveats.append(
            "The models have different unknown words, so their perplexities are only roughly comparable."
        )
    return caveats


def _figure_rows(model: Mapping[str, Any]) -> list[list[str]]:
    perplexities = ("perplexity", "perplexity_without_oov", "word_perplexity")
    return [
        [
            model["name"],
            "" if model["weight"] is None else f"{model['weight']:.3f}",
            split,
            f"{f['tokens']:,}",
            f"{f['oov']:,} ({f['oov'] / max(f['tokens'], 1):.2%})",
            *(format_number(f[key], 2) for key in perplexities),
            format_number(f["bits_per_byte"], 3),
        ]
        for split in ("valid", "test")
        if (f := model.get(split)) is not None
    ]


def _provenance(metrics: Mapping[str, Any], provenance: Mapping[str, Any], vocab_size: int) -> list[str]:
    recipe, source, base = provenance.get("recipe"), provenance.get("source"), metrics.get("base", {})
    texts = (
        f"{split}: {', '.join(d['sources'])} ({d['sentences']:,} sentences, SHA-256 {d['sha256'][:12]}…)"
        for split, d in metrics.get("data", {}).items()
    )
    started = metrics.get("embeddings")
    facts = {
        "source": _pairs(source) if isinstance(source, Mapping) else source,
        "model": _pairs(metrics.get("pretrained", {})),
        "text": "; ".join(texts),
        "teachers": ", ".join(metrics.get("teachers", ())),
        "base": _pairs(base),
        "embeddings": started
        and f"{started['tokens']:,} of {vocab_size:,} tokens initialised from {started['source']}",
    }
    for split, overlap in metrics.get("overlap", {}).items():
        facts[f"overlap of the {split} text"] = overlap_phrase(overlap)
    if recipe:
        tokenizer = _pairs(recipe["tokenizer"])
        if recipe["family"] == "mixture" and (published := len(recipe["mixture"]["models"])):
            # published parts, which are listed last, supply the tokenizer
            tokenizer = f"from {', '.join(part['name'] for part in metrics.get('parts', ())[-published:])}"
        elif "@" in (supplier := base.get("model") or metrics.get("teachers", [""])[0]):  # it is published
            tokenizer = f"from {supplier}"
        facts |= {"seed": f"{provenance['seed']}", "tokenizer": tokenizer}
        if recipe["family"] == "ngram":
            smoothing = recipe["ngram"].get("smoothing")
            acting = {
                k: v for k, v in recipe["ngram"].items() if SMOOTHING_OF_KEY.get(k, smoothing) == smoothing
            }
            facts["n-grams"] = _pairs(acting)
    if metrics.get("parts"):
        text = metrics.get("weights_fitted_on")
        facts["mixture weights"] = f"fitted by EM on {', '.join(text) if text else 'the validation text'}"
    listed = "\n".join(f"- {name}: {fact}" for name, fact in facts.items() if fact)
    return ["## Training" if recipe else "## Origin", listed]


def _pairs(table: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in table.items() if value not in (None, [], ()))
