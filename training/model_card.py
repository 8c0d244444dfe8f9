"""Model card, MODEL_CARD.md, and its pictures, built from the metrics and provenance of a model."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from models.checkpoint.precision import NEURAL_FAMILIES
from models.checkpoint.write import CheckpointDescription, StorableModel
from models.report import ACCENT, QUIET, Picture, draw_png, format_number, plot_bars, render
from training.ngram.estimate import SMOOTHING_OF_KEY
from training.progress import HistoryRecord
from training.report import REPORT_FILE, perplexity_picture, report_page
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


def perplexity_bars(name: str, metrics: Mapping[str, Any]) -> Picture:
    """Draw the perplexity per word of a mixture and its parts on the test text, else the validation text."""
    split = "test" if metrics.get("test") else "valid"
    models = [*all_parts(metrics), {**metrics, "name": name}]
    values = [(m["name"], v) for m in models if (v := m[split]["word_perplexity"]) is not None]
    colours = [QUIET] * (len(values) - 1) + [ACCENT]
    names, lengths = [name for name, _ in values], [value for _, value in values]
    bars = [("", colours, lengths, [format_number(value) for value in lengths])]
    labels = {"xlabel": "perplexity per word (lower is better)", "xmargin": 0.2}
    return plot_bars(f"Perplexity, {split} text", "", names, bars, horizontal=True, **labels)


def ngram_bars(counts: Sequence[int], hits: Sequence[Mapping[str, Any]], text: str) -> list[Picture]:
    """Draw the numbers of distinct n-grams, and the shares of a named text's tokens found, by order.

    `hits` are its `hit_rates` of metrics.json; without them, only the n-grams are drawn.
    """
    orders, unscaled = [f"order {n}" for n in range(1, len(counts) + 1)], {"frame_on": False, "xticks": ()}
    bars = [("", ACCENT, counts, [f"{count:,}" for count in counts])]
    pictures = [plot_bars("Distinct n-grams", "", orders, bars, horizontal=True, xmargin=0.35, **unscaled)]
    if hits:
        title = f"Longest n-gram found in the {text} text"
        bars = [("", ACCENT, [hit["share"] for hit in hits], [_hit_label(hit) for hit in hits])]
        names = [""] * len(hits)
        pictures.append(plot_bars(title, "", names, bars, horizontal=True, xmargin=0.75, **unscaled))
    return pictures


def _hit_label(hit: Mapping[str, Any]) -> str:
    share = f"{hit['share']:.1%}"
    return share if hit["perplexity"] is None else f"{share}  (perplexity {format_number(hit['perplexity'])})"


def _cache_facts(cache: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cache's facts with its half-life and its optional parameters as texts."""
    half_life, more = cache["half_life"], ""
    gate = dict(zip(("c0", "c1", "c2"), cache.get("gate") or (), strict=False))
    for name, values in (
        ("Dynamic marginals", cache.get("marginals")),
        ("Gate instead of weight and prior", gate),
    ):
        if values:
            listed = ", ".join(f"{key} {value:.4g}" for key, value in values.items())
            more += f" {name}: {listed}.".replace("_", "-")
    if half_life is not None:
        half_life = f"{half_life:,.4g}" if half_life < 1_000 else f"{half_life:,.0f}"
    return {**cache, "half_life": half_life or "none", "more": more}


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


def _ngram_table(metrics: Mapping[str, Any]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the columns of the table by order, by title, and the other facts, one a line.

    Lists with one entry per order become columns.
    """
    orders = range(1, len(metrics.get("ngrams", ())) + 1)
    columns = {"order": [str(order) for order in orders]}
    columns["n-grams"] = [f"{count:,}" for count in metrics["ngrams"]]
    if hits := reported_hits(metrics)[1]:
        columns["tokens found"] = [f"{hit['share']:.1%}" for hit in hits]
        columns["their perplexity"] = [_hit_perplexity(hit) for hit in hits]
    columns |= _discount_columns(metrics, orders)
    facts = []
    for key, value in metrics.items():
        if key in _SHOWN_ELSEWHERE:
            continue
        if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == len(orders):
            columns[_label(key)] = [_text(v) for v in value]
        else:
            facts.append(f"{_label(key)}: {_text(value)}")
    return columns, [*facts, *card_notes(metrics)]


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
_CONTEXTS = {"sentence": "alone, after `<s>`", "stream": "in the context of the sentences before it"}


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
    text, hits = reported_hits(metrics)
    pictures: dict[str, tuple[str, list[Picture]]] = {
        f"learning-curve-{title}.png": (
            f"Learning curve of {title}",
            [perplexity_picture(f"Perplexity of {title}", "", history)],
        )
        for title, history in histories.items()
    }
    if metrics.get("parts"):
        caption = "Perplexity per word of the mixture and its parts"
        pictures["perplexities.png"] = caption, [perplexity_bars(name, metrics)]
    if counts := metrics.get("ngrams"):
        caption = "Distinct n-grams by order" + (", and the share of tokens found at each" if hits else "")
        pictures["ngrams.png"] = caption, ngram_bars(counts, hits, text)
    files = {file: draw_png(*drawn) for file, (_, drawn) in pictures.items()}
    if model.family in NEURAL_FAMILIES and histories:
        history = next(iter(histories.values()))
        files[REPORT_FILE] = report_page(name, introduction, metrics, provenance, history)
    parts = list(all_parts(metrics))
    models = [{**metrics, "name": name, "weight": None}, *parts]
    split = "test" if metrics.get("test") else "valid"
    ngrams, ngram_facts = _ngram_table(metrics) if counts else ({}, [])
    card = render(
        Path(__file__).with_name("model_card.md.jinja"),
        name=name,
        introduction=introduction,
        figures=[(one, s, one[s]) for one in models for s in ("valid", "test") if one.get(s)],
        fitted=fitted_note(metrics),
        context=_CONTEXTS[metrics.get("context", "sentence")],
        costs=[f"{part['name']} {part['step_ms']:g} ms" for part in parts if "step_ms" in part],
        warnings=list(overlap_notes(metrics.get("overlap", {}))),
        differ=any(part[split]["oov"] != metrics[split]["oov"] for part in parts),
        int8={"problems": (), "cost": None, **metrics.get("int8", {})},
        int8_text="held-out" if "pretrained" in metrics else "validation",
        sums=metrics.get("log_normalisers"),
        pictures={file: caption for file, (caption, _) in pictures.items()},
        report=REPORT_FILE if REPORT_FILE in files else "",
        ngrams=ngrams,
        ngram_rows=list(zip(*ngrams.values(), strict=True)),
        ngram_facts=ngram_facts,
        scored=text,
        cache=metrics.get("cache") and _cache_facts(metrics["cache"]),
        recipe=provenance.get("recipe"),
        facts=_provenance(metrics, provenance, len(model.vocabulary)),
    )
    return {"MODEL_CARD.md": re.sub(rb"\n{3,}", b"\n\n", card), **files}


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


def _provenance(metrics: Mapping[str, Any], provenance: Mapping[str, Any], vocab_size: int) -> dict[str, Any]:
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
    return facts


def _pairs(table: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in table.items() if value not in (None, [], ()))
