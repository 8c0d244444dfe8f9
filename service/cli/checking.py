"""`gramophone check`: words of a text that are probably wrong, without a server."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from models.errors import InvalidInputError
from service.cli.options import (
    DEFAULT_REGISTRY,
    DeviceOption,
    JsonOption,
    ModelArgument,
    PrecisionOption,
    RegistryOption,
    print_json,
)
from service.cli.words import read_dictionary, read_text

check_app = typer.Typer()


@check_app.command()
def check(
    model: ModelArgument,
    source: Annotated[
        str,
        typer.Argument(
            metavar="TEXT|FILE|-",
            help="A text; a file, if there is one of that name; or - for standard input.",
        ),
    ] = "-",
    threshold: Annotated[
        float | None, typer.Option(help="How probably wrong a word must be to be told [default: 0.5].")
    ] = None,
    min_precision: Annotated[
        float | None,
        typer.Option(help="Or else: how many of the words told are to be wrong, as `evaluate` measured it."),
    ] = None,
    max_suggestions: Annotated[int, typer.Option(help="How many suggestions for each.")] = 5,
    dictionary: Annotated[
        Path | None,
        typer.Option(help="File of words that are right, a line each; weights after a tab do not count."),
    ] = None,
    error_rate: Annotated[
        float, typer.Option(help="The share of words that is believed to be wrong beforehand.")
    ] = 0.01,
    max_edits: Annotated[int, typer.Option(help="How many letters of a word may be wrong: 1 or 2.")] = 2,
    registry: RegistryOption = DEFAULT_REGISTRY,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Find words that are probably wrong, by the text on both sides of them; each line is a sentence."""
    from service.console.checking import show_check
    from service.local import asking

    if threshold is not None and min_precision is not None:
        raise InvalidInputError("give either --threshold or --min-precision, not both", parameter="threshold")
    text = _read_source(source)
    request: dict[str, Any] = {
        "text": text,
        "threshold": threshold,
        "precision": min_precision,
        "max_suggestions": max_suggestions,
        "dictionary": [] if dictionary is None else [one.text for one in read_dictionary(dictionary)],
        "error_rate": error_rate,
        "max_edits": max_edits,
    }
    reply = asking.check(asking.load_published(registry, model, device, precision), registry, request)
    print_json(reply) if as_json else show_check(text, reply)


def _read_source(source: str) -> str:
    """What to check: standard input, a file if there is one of that name, else the argument itself.

    Raises:
        FormatError: the argument names a file that cannot be read, or looks as if it named one.
        InvalidInputError: there is nothing to check.
    """
    if source == "-":
        text = sys.stdin.read() if sys.stdin else ""
    elif _file_exists(source) or _looks_like_filename(source):
        text = read_text(Path(source))
    else:
        text = source
    if not text.strip():
        raise InvalidInputError(
            "there is no text: give a text, a file, or - and lines of standard input", parameter="source"
        )
    return text


def _file_exists(source: str) -> bool:
    try:
        return Path(source).exists()
    except (OSError, ValueError):  # a text may be no path at all
        return False


def _looks_like_filename(source: str) -> bool:
    """Whether a mistyped name is likelier than a text: one word with a suffix, such as `letter.txt`."""
    return len(source.split()) == 1 and "\0" not in source and Path(source).suffix[1:].isalnum()
