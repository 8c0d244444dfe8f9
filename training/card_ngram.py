"""What a model card says of an n-gram model: what it lists, what it finds, how it was smoothed."""

from collections.abc import Mapping, Sequence
from typing import Any

from training.card_pictures import format_figure
from training.notes import FITTED, card_notes

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
    """The lines of the section, from metrics.json; none for other families.

    Every fact of the estimation is shown: lists with an entry for each order as columns of the
    table, others below it.
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
    others = [f"- {_label(k)}: {_text(v)}" for k, v in facts.items() if not _is_by_order(v, orders)]
    others += [f"- {note}" for note in card_notes(metrics)]
    lines = ["## N-grams", ""]
    if hits:
        lines += [
            f"A token of the {text} text is found by the longest n-gram of the model that ends in it.",
            "",
        ]
    return [*lines, *_table(columns), "", *others, *([""] if others else [])]


def reported_hits(metrics: Mapping[str, Any]) -> tuple[str, Sequence[Mapping[str, Any]]]:
    """The text that hit rates are shown of, test or else validation, and these by order; maybe none.

    Orders that pruning left nothing of find nothing.
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
    if all(len(set(own)) == 1 for own in discounts):  # one for every count
        discounts = [own[:1] for own in discounts]
    names = _DISCOUNTS.get(max(map(len, discounts), default=0), ())
    columns = {name: [f"{own[i]:.4f}" for own in discounts] for i, name in enumerate(names)}
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
    """A Markdown table with right-aligned columns."""
    return [
        f"| {' | '.join(columns)} |",
        f"|{'---:|' * len(columns)}",
        *(f"| {' | '.join(row)} |" for row in zip(*columns.values(), strict=True)),
    ]
