"""`gramophone lists convert | show`: files of n-best lists, without a model."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from models.reranking.lists import CandidateList
from service.cli.list_options import ListSource, with_list_options
from service.cli.options import JsonOption, print_json
from service.local.standard_streams import binary_stream

lists_app = typer.Typer(
    help="Look at n-best lists, and convert them from one format to another.", no_args_is_help=True
)


@lists_app.command()
@with_list_options
def convert(
    source: ListSource,
    target: Annotated[
        str,
        typer.Argument(
            help="File to write (packed if it ends in .gz, .xz, .zst); a folder for SRILM's and Kaldi's; - prints."
        ),
    ],
    output_format: Annotated[str, typer.Option(help="Any of the formats of --format.")] = "jsonl",
) -> None:
    """Write lists in another format; what that has no place for is left out and told.

    Scores become natural logarithms, larger is better, whatever they were; am, old_lm and score are an acoustic
    model's, an old language model's and the first pass's own total.
    """
    from models.reranking.formats.table import format_by_name
    from models.reranking.formats.writing import write_lists

    form = format_by_name(output_format)
    lost: set[str] = set()

    def watched(lists: Iterable[CandidateList]) -> Iterator[CandidateList]:
        for one in lists:
            lost.update(form.dropped_fields(one, streamed=target == "-"))
            yield one

    to = binary_stream(sys.stdout, "output") if target == "-" else Path(target)
    write_lists(watched(source.lists()), to, output_format)
    if lost:
        typer.echo(f"note: format {output_format} has no place for {', '.join(sorted(lost))}", err=True)


@lists_app.command()
@with_list_options
def show(
    source: ListSource,
    as_json: JsonOption = False,
) -> None:
    """Count lists, candidates, copies and features; with references, word error rates of the first and the best."""
    from models.reranking.formats.summary import summarise_lists

    figures = summarise_lists(source.lists()).figures()
    if as_json:
        print_json(figures)
        return
    from service.console.evaluation import show_figures

    features = {f"candidates with {name}": count for name, count in figures.pop("features").items()}
    show_figures({**figures, **features})
