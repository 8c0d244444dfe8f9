"""The page of `gramophone evaluate --task autocomplete`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from training.report.drawing import ACCENT, SECOND, THIRD, draw_svg
from training.report.html import document, figure_grid, section, table, tiles
from training.report.pictures import Picture

_LISTS = {"top_1": "first of the list", "top_3": "first three"}
_POSITIONS = {"next_word": "before a word", "any_letter": "before any letter"}
_PHRASES = "phrase_match_"
_NAMES = {
    "keystroke_savings_top_1": "keystroke savings, one completion shown",
    "keystroke_savings_top_3": "keystroke savings, three shown",
    "next_word_recall_top_1": "next word is the first completion",
    "next_word_recall_top_3": "next word is among the first three",
    "next_word_mrr": "MRR, next word",
    "mrr": "MRR, all keystrokes",
    "mean_recoverable_length_top_1": "mean recoverable length, one shown",
    "mean_recoverable_length_top_3": "mean recoverable length, three shown",
}


def autocomplete_page(result: Mapping[str, Any]) -> bytes:
    """The page's bytes.

    Args:
        result: what `training.commands.run_evaluate_autocomplete` tells.
    """
    introduction = (
        f"A simulated typist and the completions of {result['model']}: {result['words']:,} words on "
        f"{result['lines']:,} held-out lines; intervals hold a figure with 95 % probability."
    )
    sections = [
        tiles(_autocomplete_summary(result)),
        section("Figures", _autocomplete_figures(result)),
        section("Pictures", figure_grid(_pictures(result))),
        section("Acceptance", _acceptance(result["acceptance"])),
    ]
    heading = f"{result['model']}: autocomplete"
    return document(heading, heading, introduction, sections)


def _figure_names(figures_told: Mapping[str, Any]) -> dict[str, str]:
    """What each figure is called, in order; that of phrases of one word is told by another name already."""
    lengths = {name: name.removeprefix(_PHRASES) for name in figures_told if name.startswith(_PHRASES)}
    phrases = {name: f"the next {words} words are right" for name, words in lengths.items() if words != "1"}
    return {**_NAMES, **phrases}


def _format_figure(name: str, value: float | None, *, signed: bool = False) -> str:
    """A figure as people read it: shares in per cent, others with three digits."""
    if value is None:
        return "none"
    sign = "+" if signed else ""
    plain = "mrr" in name or "length" in name
    return f"{value:{sign}.3f}" if plain else f"{100 * value:{sign}.1f} %"


def _autocomplete_summary(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    told = result["figures"]
    for name in ("keystroke_savings_top_3", "keystroke_savings_top_1", "next_word_recall_top_3"):
        yield _NAMES[name], _format_figure(name, told[name]["value"])
    yield "one keystroke, median", f"{result['keystroke_ms']['p50']:.2f} ms"


def _autocomplete_figures(result: Mapping[str, Any]) -> str:
    against = result.get("against")
    heads = ["", result["model"], "95 %"]
    if against:
        heads += [against["model"], "difference", "95 %"]
    rows = []
    for name, label in _figure_names(result["figures"]).items():
        own = result["figures"][name]
        row = [label, _format_figure(name, own["value"]), _span(name, own)]
        if against:
            gap = against["difference"][name]
            other = _format_figure(name, against["figures"][name]["value"])
            row += [other, _format_figure(name, gap["value"], signed=True), _span(name, gap, signed=True)]
        rows.append(row)
    return table(heads, rows)


def _span(name: str, figure: Mapping[str, Any], *, signed: bool = False) -> str:
    return " to ".join(_format_figure(name, figure[end], signed=signed) for end in ("low", "high"))


def _acceptance(told: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    heads = ["share of places where it is shown"]
    heads += [f"{what}, {where}" for where in _POSITIONS.values() for what in ("least probable", "right")]
    rows = []
    for rows_of_places in zip(*(told[key] for key in _POSITIONS), strict=True):
        row = [f"{100 * rows_of_places[0]['coverage']:.0f} %"]
        for own in rows_of_places:
            row += [f"{own['threshold']:.3f}", f"{100 * own['precision']:.1f} %"]
        rows.append(row)
    return table(heads, rows)


def _pictures(result: Mapping[str, Any]) -> list[Picture]:
    models = [result, *([result["against"]] if "against" in result else [])]
    return [_recall(models), _precision(models), _phrases(models)]


def _recall(models: Sequence[Mapping[str, Any]]) -> Picture:
    """Recall by letters typed; the second model is drawn thin."""

    def draw(axes: Any) -> None:
        for number, model in enumerate(models):
            told = model["recall_by_letters"]
            for (key, name), colour in zip(_LISTS.items(), (ACCENT, SECOND), strict=True):
                axes.plot(
                    [row["letters"] for row in told],
                    [100 * row[key] for row in told],
                    color=colour,
                    label=None if number else name,
                    **_line_style(number),
                )
        axes.set_ylim(0, 103)
        axes.set_xlabel("letters typed")
        axes.set_ylabel("per cent of words")

    return Picture(
        draw_svg("Words found by letters typed", draw),
        "Of the words that are longer: the share that the list holds after so many letters."
        + _dashed_note(models),
    )


def _precision(models: Sequence[Mapping[str, Any]]) -> Picture:
    """Precision of a first completion that is shown at so many of the places."""

    def draw(axes: Any) -> None:
        for number, model in enumerate(models):
            for (key, name), colour in zip(_POSITIONS.items(), (ACCENT, SECOND), strict=True):
                told = model["acceptance"][key]
                axes.plot(
                    [100 * row["coverage"] for row in told],
                    [100 * row["precision"] for row in told],
                    color=colour,
                    label=None if number else name,
                    **_line_style(number),
                )
        axes.set_xlim(0, 100)
        axes.set_ylim(0, 103)
        axes.set_xlabel("shown at so many per cent of the places")
        axes.set_ylabel("per cent right")

    return Picture(
        draw_svg("Right where it is shown", draw),
        "A service that shows its first completion only above some probability shows it at fewer places and "
        "is right more often; min_probability sets where." + _dashed_note(models),
    )


def _phrases(models: Sequence[Mapping[str, Any]]) -> Picture:
    """Exact match of phrases by their length."""

    def draw(axes: Any) -> None:
        for number, (model, colour) in enumerate(zip(models, (ACCENT, THIRD), strict=False)):
            names = [name for name in model["figures"] if name.startswith(_PHRASES)]
            known = [(n, model["figures"][name]["value"]) for n, name in enumerate(names, start=1)]
            points = [(n, 100 * value) for n, value in known if value is not None]
            axes.plot(*zip(*points, strict=True), color=colour, **_line_style(number))
        axes.set_xticks(range(1, 6))
        axes.set_ylim(bottom=0)
        axes.set_xlabel("words of the phrase")
        axes.set_ylabel("per cent right")

    return Picture(
        draw_svg("Phrases written ahead", draw),
        "The most probable word, then the most probable after it, and so on: how often all of them are what the "
        "text says next." + _dashed_note(models),
    )


def _dashed_note(models: Sequence[Mapping[str, Any]]) -> str:
    """Which model is drawn in broken lines, if there is a second one."""
    return f" Dashed: {models[1]['model']}." if len(models) > 1 else ""


def _line_style(number: int) -> dict[str, Any]:
    """How the first model's curves are drawn, and the second's."""
    style: dict[str, Any] = {"marker": "o", "markersize": 3.0}
    return style | ({"linewidth": 1.6} if number == 0 else {"linewidth": 1.0, "linestyle": "--"})
