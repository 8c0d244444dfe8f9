"""Model card, MODEL_CARD.md, and its pictures, built from the metrics and provenance of a model."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from models.checkpoint.load import CheckpointDescription, StorableModel
from models.checkpoint.precision import NEURAL_FAMILIES
from models.report import Picture, draw_png, format_number, plot_bars, render
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

_NO_HITS = {"tokens": 0, "share": 0.0, "logprob": None, "perplexity": None}
_DISCOUNTS = {1: ("D",), 3: ("D1", "D2", "D3+")}
_IN_TABLES = {"valid", "test", "ngrams", "discounts", "fallback_orders", "parts", "weights", "context"}
_IN_NOTES = {"base", "data", "arpa", "misspellings", "normalisation", "overlap", "typing", *FITTED}

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


def card_notes(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Yield an imported file's irregularities, and row sums' deviation from 1."""
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
    """Warn of each named text that overlaps the training text suspiciously."""
    for name, facts in overlaps.items():
        if is_suspicious(facts):
            yield f"figures on {name} are too optimistic: {overlap_phrase(facts)}"


def fitted_note(metrics: Mapping[str, Any]) -> str:
    """Explain why figures on `valid` are not held out; empty if they are."""
    fitted = [key for key in FITTED if metrics.get(key)]
    if not fitted:
        return ""
    quantities = " and ".join(FITTED[key] for key in fitted)
    text = ", ".join(metrics[fitted[0]])
    tested = "; figures on test are held out" if metrics.get("test") else ""
    return f"figures on valid are not held out: {quantities} were fitted on this text ({text}){tested}"


def perplexity_bars(name: str, metrics: Mapping[str, Any]) -> Picture:
    """Draw a mixture's and its parts' perplexity per word on the test, else the validation text."""
    split = "test" if metrics.get("test") else "valid"
    models = [*all_parts(metrics), {**metrics, "name": name}]
    found = [(one["name"], v) for one in models if (v := one[split]["word_perplexity"]) is not None]
    names, values = [one for one, _ in found], [value for _, value in found]
    colours = ["quiet"] * (len(found) - 1) + ["accent"]
    return plot_bars(
        f"Perplexity, {split} text",
        "Perplexity per word of the mixture and its parts",
        names,
        [("", colours, values, [format_number(value) for value in values])],
        horizontal=True,
        xlabel="perplexity per word (lower is better)",
        xmargin=0.12,
    )


def ngram_bars(counts: Sequence[int], text: str, hits: Sequence[Mapping[str, Any]]) -> list[Picture]:
    """Draw the numbers of distinct n-grams, and the shares of a text's tokens found, by order.

    `text` is the text's name, `hits` its `hit_rates` of metrics.json; without them, only n-grams are drawn.
    """
    orders, texts = [f"order {n}" for n in range(1, len(counts) + 1)], [f"{count:,}" for count in counts]
    bars: dict[str, tuple[Sequence[str], Any, Sequence[str], float]]
    bars = {"Distinct n-grams": (orders, counts, texts, 0.35)}
    if hits:
        shares = [hit["share"] for hit in hits]
        texts = [
            f"{hit['share']:.1%}"
            + (f"  (perplexity {format_number(hit['perplexity'])})" if hit["perplexity"] else "")
            for hit in hits
        ]
        bars[f"Longest n-gram found in the {text} text"] = ([""] * len(hits), shares, texts, 0.75)
    caption = "Distinct n-grams by order" + (", and the share of tokens found at each" if hits else "")
    plain: dict[str, Any] = {"horizontal": True, "frame_on": False, "xticks": ()}
    return [
        plot_bars(title, caption, names, [("", "accent", values, texts)], xmargin=margin, **plain)
        for title, (names, values, texts, margin) in bars.items()
    ]


def ngram_columns(
    metrics: Mapping[str, Any], hits: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the columns of a table with a row per order, by title, and the other facts."""
    orders, facts = range(1, len(metrics["ngrams"]) + 1), []
    columns = {"order": [f"{n}" for n in orders], "n-grams": [f"{count:,}" for count in metrics["ngrams"]]}
    if hits:
        columns["tokens found"] = [f"{hit['share']:.1%}" for hit in hits]
        columns["their perplexity"] = [
            ("infinite" if hit["tokens"] else "") if hit["perplexity"] is None else _text(hit["perplexity"])
            for hit in hits
        ]
    discounts = metrics.get("discounts") or []
    if all(len(set(row)) == 1 for row in discounts):  # one discount for all counts
        discounts = [row[:1] for row in discounts]
    for index, name in enumerate(_DISCOUNTS.get(max(map(len, discounts), default=0), ())):
        columns[name] = [f"{row[index]:.4f}" for row in discounts]
    if fallback := metrics.get("fallback_orders"):
        columns["parameters"] = ["constants" if order in fallback else "estimated" for order in orders]
    for key, value in metrics.items():
        label = key.replace("_", " ").replace("ngrams", "n-grams")
        if key in _IN_TABLES | _IN_NOTES:
            continue
        if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == len(orders):
            columns[label] = [_text(v) for v in value]
        else:
            facts.append(f"{label}: {_text(value)}")
    return columns, [*facts, *card_notes(metrics)]


def reported_hits(metrics: Mapping[str, Any]) -> tuple[str, Sequence[Mapping[str, Any]]]:
    """Return the name of a text with hit rates, preferably the test text, and these by order.

    Both are empty without any. Orders emptied by pruning have zero rates.
    """
    for split, text in (("test", "test"), ("valid", "validation")):
        if hits := (metrics.get(split) or {}).get("hit_rates"):
            left_out = range(len(hits) + 1, len(metrics.get("ngrams", ())) + 1)
            return text, [*hits, *({"order": k, **_NO_HITS} for k in left_out)]
    return "", ()


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
        return ", ".join(f"{key.replace('_', ' ')} {_text(v)}" for key, v in value.items())
    return ", ".join(map(_text, value)) or "none"


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
        description: description of its checkpoint, without missing metrics.
        histories: learning curves by part.
    """
    metrics, provenance = description.metrics, description.provenance
    introduction = _introduction(model, tokenizer, description)
    text, hits = reported_hits(metrics)
    pictures = {
        f"learning-curve-{title}.png": [
            perplexity_picture(f"Perplexity of {title}", f"Learning curve of {title}", history)
        ]
        for title, history in histories.items()
    }
    if metrics.get("parts"):
        pictures["perplexities.png"] = [perplexity_bars(name, metrics)]
    if counts := metrics.get("ngrams"):
        pictures["ngrams.png"] = ngram_bars(counts, text, hits)
    files = {file: draw_png(*drawn) for file, drawn in pictures.items()}
    if model.family in NEURAL_FAMILIES and histories:
        history = next(iter(histories.values()))
        files[REPORT_FILE] = report_page(name, introduction, metrics, provenance, history)
    parts = list(all_parts(metrics))
    models = [{**metrics, "name": name, "weight": None}, *parts]
    split = "test" if metrics.get("test") else "valid"
    columns, ngram_facts = ngram_columns(metrics, hits) if counts else ({}, [])
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
        metrics=metrics,
        int8=metrics.get("int8", {}),
        pictures=pictures,
        report=REPORT_FILE if REPORT_FILE in files else "",
        columns=columns,
        rows=list(zip(*columns.values(), strict=True)),
        ngram_facts=ngram_facts,
        text=text,
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
    for network in (metrics, *all_parts(metrics)):
        title = f" of {network['name']}" if network is not metrics else ""
        if loss := network.get("loss"):
            facts[f"loss{title}"] = loss
        if own := network.get("throughput"):
            reached, expected = own["tokens_per_second"], own["expected"]
            facts[f"throughput{title}"] = (
                f"{reached:,.0f} tokens/s in updates on {own['cores']:.2g} cores; "
                f"about {expected:,.0f} expected of {own['threads']:g} idle cores"
            )
    if metrics.get("parts"):
        text = metrics.get("weights_fitted_on")
        facts["mixture weights"] = f"fitted by EM on {', '.join(text) if text else 'the validation text'}"
    return facts


def _pairs(table: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in table.items() if value not in (None, [], ()))
