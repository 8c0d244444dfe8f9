"""What pages are put together from: one HTML file each that needs nothing else, for light and dark screens."""

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources

from training.report.pictures import Picture


def document(heading: str, title: str, introduction: str, sections: Iterable[str]) -> bytes:
    """A whole page.

    Args:
        heading: plain text, above all.
        title: plain text, of the window.
        introduction: a sentence, plain text.
        sections: HTML.
    """
    style = (resources.files("training.report") / "page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<header>\n<h1>{escape(heading)}</h1>\n<p>{escape(introduction)}</p>\n</header>\n<main>\n"
        f"{''.join(sections)}</main>\n</body>\n</html>\n"
    ).encode()


def section(title: str, content: str) -> str:
    """A part of the page with its title, both HTML; nothing where there is no content."""
    return f"<section>\n<h2>{title}</h2>\n{content}</section>\n" if content else ""


def tiles(labelled: Iterable[tuple[str, str]]) -> str:
    """The figures to be seen first: label and value each, plain text."""
    shown = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span></div>\n'
        for label, value in labelled
    )
    return f'<div class="tiles">\n{shown}</div>\n' if shown else ""


def figure_grid(pictures: Sequence[Picture]) -> str:
    """Pictures with their captions, side by side where there is room."""
    shown = "".join(
        f"<figure>\n{picture.svg}\n<figcaption>{escape(picture.caption)}</figcaption>\n</figure>\n"
        for picture in pictures
    )
    return f'<div class="pictures">\n{shown}</div>\n' if shown else ""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of plain text; the first column holds names, the others numbers."""
    first, *others = (escape(head) for head in heads)
    head = f"<th>{first}</th>" + "".join(f'<th class="number">{other}</th>' for other in others)
    body = "".join(
        f"<tr><td>{escape(name)}</td>"
        + "".join(f'<td class="number">{escape(value)}</td>' for value in values)
        + "</tr>\n"
        for name, *values in rows
    )
    return f"<table>\n<tr>{head}</tr>\n{body}</table>\n"
