"""What a model card says of a fitted cache: its shape, and what the others that were tried would have reached."""

from collections.abc import Mapping
from typing import Any

from training.card_pictures import format_figure


def cache_section(metrics: Mapping[str, Any]) -> list[str]:
    """The lines of the section, from metrics.json; none for a model without a cache.

    Perplexities stand in a table of θ by half-life.
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
